//! Packets per second through real interfaces: a sender at one end of a veth pair, a receiving host at the other.

use aya::programs::TcAttachType;
use dcqcn_netlink::tc::HtbClass;
use dcqcn_tests::prelude::*;

use crate::Bench;
use crate::report::{Metric, Section};
use crate::runner::Baselines;

const RATE_BPS: u64 = 100_000_000_000;
const RATE: &str = "link_rate=100gbit";
const BURST_BYTES: u32 = 1 << 20;
/// Minor number of the only class of an HTB alone.
const CLASS: u16 = 0x10;

/// Names of the metrics with targets.
const NOTHING: &str = "nothing attached";
const EMPTY: &str = "empty programs: TC at both ends";
pub(crate) const EVERYTHING: &str = "everything: host at both ends";
/// Baseline of the P4 program.
pub(crate) const CP: &str = "switch port at the sender (CP)";

/// Baseline with frames of 4 KB.
const NOTHING_4K: &str = "nothing attached, frames of 4 KB";
const EMPTY_4K: &str = "empty programs, frames of 4 KB";
pub(crate) const EVERYTHING_4K: &str = "everything, frames of 4 KB";
const LARGE: [&str; 3] = [NOTHING_4K, EMPTY_4K, EVERYTHING_4K];
const LARGE_PAYLOAD: usize = 4_096;

/// The two ends of a wire; `a` sends.
type Setup = fn(&mut Baselines, &Pair, &str, &str) -> Result<()>;

/// A wire: its name, baseline, required qdisc, and set-up.
const WIRES: &[(&str, Option<&str>, Option<&str>, Setup)] = &[
    (NOTHING, None, None, |_, _, _, _| Ok(())),
    (EMPTY, Some(NOTHING), None, empty),
    ("host at the sender (RP)", Some(NOTHING), None, |_, pair, a, _| attach(&pair.a, a, Role::Host, None)),
    ("host at the receiver (NP)", Some(NOTHING), None, |_, pair, _, b| attach(&pair.b, b, Role::Host, None)),
    (CP, Some(NOTHING), None, |_, pair, a, _| attach(&pair.a, a, Role::Switch, None)),
    (EVERYTHING, Some(NOTHING), None, everything),
    (NOTHING_4K, None, None, |_, _, _, _| Ok(())),
    (EMPTY_4K, Some(NOTHING_4K), None, empty),
    (EVERYTHING_4K, Some(EMPTY_4K), None, everything),
    (TBF, None, Some("tbf"), |_, pair, a, _| {
        let spec = QdiscSpec::Tbf { rate_bps: RATE_BPS, burst_bytes: BURST_BYTES, limit_bytes: BURST_BYTES };
        Ok(pair.a.netlink()?.replace_root(pair.a.index(a)?, Handle::new(1, 0), &spec)?)
    }),
    (HTB, None, Some("htb"), htb),
    ("host at the sender, HTB pacer", Some(HTB), Some("htb"), |_, pair, a, _| {
        attach(&pair.a, a, Role::Host, Some(PacerChoice::Htb))
    }),
    (FQ, None, Some("fq"), |_, pair, a, _| {
        pair.a.command(&format!("tc qdisc replace dev {a} root fq")).map(drop)
    }),
    ("host at the sender, fq pacer", Some(FQ), Some("fq"), |_, pair, a, _| {
        attach(&pair.a, a, Role::Host, Some(PacerChoice::Fq))
    }),
    (RED, None, Some("red"), |_, pair, a, _| {
        let line = format!(
            "tc qdisc replace dev {a} root red limit 2000000 min 100000 max 1000000 avpkt 1100 burst 500 probability 0.1 bandwidth \
             100gbit ecn"
        );
        pair.a.command(&line).map(drop)
    }),
    (POLICE, None, Some("clsact"), |_, pair, a, _| {
        pair.a.command(&format!("tc qdisc replace dev {a} clsact"))?;
        let line = format!(
            "tc filter add dev {a} egress protocol all u32 match u32 0 0 action police rate 100gbit burst 100m conform-exceed pass"
        );
        pair.a.command(&line).map(drop)
    }),
];
const TBF: &str = "kernel's tbf alone";
const HTB: &str = "kernel's htb alone, one class";
const FQ: &str = "kernel's fq alone";
const RED: &str = "kernel's red alone";
const POLICE: &str = "kernel's police alone";

fn everything(_: &mut Baselines, pair: &Pair, a: &str, b: &str) -> Result<()> {
    attach(&pair.a, a, Role::Host, None)?;
    attach(&pair.b, b, Role::Host, None)
}

/// Attaches with `role` at a link rate above any here.
pub(crate) fn attach(host: &Host, iface: &str, role: Role, pacer: Option<PacerChoice>) -> Result<()> {
    let mut request = request(iface, role, &[RATE])?;
    request.settings.pacer = pacer.or(Some(PacerChoice::None));
    request.settings.flows = None;
    host.attach_as(&request).map(drop)
}

fn htb(_: &mut Baselines, pair: &Pair, a: &str, _: &str) -> Result<()> {
    let (netlink, index) = (pair.a.netlink()?, pair.a.index(a)?);
    let spec = QdiscSpec::Htb { default_minor: CLASS, direct_qlen: 1_000 };
    netlink.replace_root(index, Handle::new(1, 0), &spec)?;
    Ok(netlink.replace_htb_class(
        index,
        &HtbClass {
            parent: Handle::new(1, 0),
            handle: Handle::new(1, CLASS),
            rate_bps: RATE_BPS,
            ceil_bps: RATE_BPS,
            burst_bytes: BURST_BYTES,
            cburst_bytes: BURST_BYTES,
            quantum_bytes: 10_000,
            priority: 0,
            overhead_bytes: 0,
        },
    )?)
}

fn empty(baselines: &mut Baselines, pair: &Pair, a: &str, b: &str) -> Result<()> {
    let tc: &mut SchedClassifier =
        baselines.ebpf.program_mut("empty_tc").context("no program empty_tc")?.try_into()?;
    for (host, iface) in [(&pair.a, a), (&pair.b, b)] {
        for hook in [TcAttachType::Ingress, TcAttachType::Egress] {
            host.run(|| tc.attach(iface, hook))??;
        }
    }
    Ok(())
}

pub(crate) fn measure(bench: &mut Bench) -> Result<()> {
    let pair = Pair::new("bench-links")?;
    let mut wires = Vec::new();
    for (number, (name, against, qdisc, set_up)) in WIRES.iter().enumerate() {
        bench.progress(&format!("links: {name}"));
        if let Some(qdisc) = qdisc
            && !kernel_has_qdisc(qdisc)?
        {
            bench.skip(name, &format!("the kernel has no {qdisc}"));
            continue;
        }
        let (a, b) = (format!("wa{number}"), format!("wb{number}"));
        join((&pair.a, &a, 1), (&pair.b, &b, 2), 4_200)?;
        match set_up(&mut bench.baselines, &pair, &a, &b).with_context(|| (*name).to_owned()) {
            // Support for an action is unknown before it is used.
            Err(error) if *name == POLICE => {
                bench.skip(name, &format!("the kernel refuses it: {error:#}"));
                continue;
            }
            result => result?,
        }
        let payload = if LARGE.contains(name) { LARGE_PAYLOAD } else { Roce::default().payload };
        let frame = Roce { payload, ..Roce::default() }.frame();
        wires.push((*name, *against, pair.a.socket(&a)?, b, frame, Vec::new()));
    }
    let (rounds, long) = if bench.quick { (5, 20) } else { (21, 150) };
    for round in 0..rounds {
        bench.progress(&format!("links, round {} of {rounds}", round + 1));
        for (name, _, socket, b, frame, rates) in &mut wires {
            let rate = rate(&pair.b, socket, b, frame, Duration::from_millis(long));
            rates.push(rate.with_context(|| (*name).to_owned())?);
        }
    }
    for (name, against, _, _, _, rates) in wires {
        let metric = Metric::new(Section::Links, name, "kpps", rates).more_is_better();
        bench.add(Metric { against: against.map(str::to_owned), ..metric });
    }
    Ok(())
}

/// Thousand packets that arrive per second of CPU time: sender and receiver share a CPU, as a veth pair does.
fn rate(receiver: &Host, socket: &RawSocket, b: &str, frame: &[u8], long: Duration) -> Result<f64> {
    let before = received_packets(receiver, b)?;
    let (sent, busy) = thread::scope(|scope| {
        let sending = scope.spawn(|| -> Result<(u64, Duration)> {
            let (start, cpu) = (Instant::now(), crate::runner::cpu_time()?);
            let mut sent = 0;
            while start.elapsed() < long {
                for _ in 0..64 {
                    socket.send(frame)?;
                }
                sent += 64;
            }
            Ok((sent, crate::runner::cpu_time()?.saturating_sub(cpu)))
        });
        sending.join().map_err(|_| anyhow!("the sender died"))?
    })?;
    // Some packets may still be queued in a shaper.
    let patience = Instant::now() + Duration::from_secs(2);
    let mut arrived = received_packets(receiver, b)? - before;
    while arrived < sent && Instant::now() < patience {
        thread::sleep(Duration::from_millis(1));
        arrived = received_packets(receiver, b)? - before;
    }
    ensure!(arrived * 100 >= sent * 99, "{arrived} of {sent} packets arrived");
    Ok(sent as f64 / busy.as_secs_f64() / 1e3)
}

pub(crate) fn received_packets(host: &Host, iface: &str) -> Result<u64> {
    let text = host.command(&format!("ip -s -j link show dev {iface}"))?;
    let links: Value = serde_json::from_str(&text)?;
    links.pointer("/0/stats64/rx/packets").and_then(Value::as_u64).context("`ip -s -j` names no packets")
}
