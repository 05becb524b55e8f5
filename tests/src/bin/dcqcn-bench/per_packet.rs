//! Cost of one packet in each program, compared with programs that do nothing, only parse, or only pace.

use aya::Ebpf;
use aya::programs::TcAttachType;
use dcqcn_common::layout::{DEFAULT_FLOWS, Pair};
use dcqcn_params::Profile;
use dcqcn_tests::bpf::peer;
use dcqcn_tests::host;
use dcqcn_tests::prelude::*;
use nix::time::{ClockId, clock_gettime};

use crate::Bench;
use crate::report::{Metric, Section};
use crate::runner::{
    Baselines, Input, Instance, ORDER_LEN, Target, host as host_config, ns_per_run, program, program_of, run,
    runs, switch,
};

/// Link of unlimited flows: a packet of 1 KB takes 11 ns.
pub(crate) const FAST_BPS: u64 = 800_000_000_000;
/// Link of the hosts with rate-limited flows.
const LINK_BPS: u64 = 100_000_000_000;
/// Link of the late flow: a packet of 1 KB takes 9 us.
const SLOW_BPS: u64 = 1_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Runs in one measurement.
const REPEAT: u32 = 50_000;
/// Flows that catch up on an idle second.
const IDLE_FLOWS: u32 = 1_024;

/// Names of the reference metrics.
const EMPTY_XDP: &str = "empty XDP program";
const EMPTY_TC: &str = "empty TC program";
pub(crate) const MINIMAL_PACER: &str = "minimal pacer, same table";
pub(crate) const COUNTED_TCP: &str = "TCP distinguished and counted, nothing else, TC";
const MINIMAL_MARKER: &str = "minimal marker";
const C_PACER: &str = "pacer in C: 5-tuple, hash map, no lock";
pub(crate) const CLONE: &str = "clone and send, nothing else";

/// Names of the metrics with targets.
pub(crate) const TCP: [&str; 2] = ["TCP, ingress", "TCP, egress"];
pub(crate) const MARKS: &str = "CP marks";
const INLINE: &str = "inline: CP and redirect";
/// Baseline of [`INLINE`].
const REDIRECT: &str = "redirect and nothing else, XDP";
pub(crate) const UNMARKED: [&str; 2] = ["RoCE unmarked, ingress", "RoCE unmarked, egress"];
/// As the last of [`UNMARKED`] where `link_rate` is the speed of the hardware.
pub(crate) const AT_WIRE_RATE: &str = "RoCE unmarked, egress, link at its own rate";
pub(crate) const WITHIN: &str = "NP within the CNP interval";
/// As [`WITHIN`], on a router, which looks the destination up in its routing table.
pub(crate) const ROUTED: &str = "NP within the CNP interval, on a router";
pub(crate) const CNP_AT_RP: [&str; 2] = ["CNP at RP, paper", "CNP at RP, firmware"];
pub(crate) const PACED: &str = "RP paces a flow in recovery";
pub(crate) const CNP_MADE: &str = "NP makes a CNP: ingress, clone, egress";

/// Hooks of a host; XDP is inline's only.
const HOOKS: [Hook; 2] = [Hook::Ingress, Hook::Egress];

const fn empty_of(hook: Hook) -> &'static str {
    match hook {
        Hook::Xdp => EMPTY_XDP,
        Hook::Ingress | Hook::Egress => EMPTY_TC,
    }
}

/// Runs a program a number of times: ns per run.
type Measure = Box<dyn FnMut(&mut Baselines, u32) -> Result<f64>>;

/// One row: how a packet is run, and its baseline.
struct Case {
    name: String,
    against: Option<&'static str>,
    /// Runs in one measurement.
    repeat: u32,
    measure: Measure,
    rounds: Vec<f64>,
}

impl Case {
    fn new(
        name: impl Into<String>,
        against: Option<&'static str>,
        repeat: u32,
        measure: impl FnMut(&mut Baselines, u32) -> Result<f64> + 'static,
    ) -> Self {
        Self { name: name.into(), against, repeat, measure: Box::new(measure), rounds: Vec::new() }
    }

    /// A program of the baselines on `input`.
    fn baseline(
        name: &'static str,
        program_name: &'static str,
        against: Option<&'static str>,
        input: Input,
    ) -> Self {
        Self::new(name, against, REPEAT, move |baselines, repeat| {
            ns_per_run(program(&baselines.ebpf, program_name)?, &input, repeat)
        })
    }

    /// `hook` of `config` on a packet that it leaves unchanged, counted as `stat`.
    fn steady(
        name: impl Into<String>,
        config: &Config,
        hook: Hook,
        stat: Stat,
        packet: Vec<u8>,
    ) -> Result<Self> {
        let instance = Instance::of(config)?;
        Ok(Self::on(instance, name, hook, stat, packet))
    }

    fn on(instance: Instance, name: impl Into<String>, hook: Hook, stat: Stat, packet: Vec<u8>) -> Self {
        let input = Input { packet, ..Input::default() };
        Self::new(name, Some(empty_of(hook)), REPEAT, move |_, repeat| {
            instance.check_counted(hook, stat, runs(repeat), || {
                ns_per_run(program(&instance.ebpf, program_of(hook))?, &input, repeat)
            })
        })
    }
}

fn tcp() -> Vec<u8> {
    let mut frame = Roce::default().frame();
    if let Some(protocol) = frame.get_mut(23) {
        *protocol = 6;
    }
    frame
}

pub(crate) fn measure(bench: &mut Bench) -> Result<()> {
    let data = Roce::default();
    let v6 = Roce { v6: true, ..Roce::default() };
    let vlan = Roce { tags: vec![(EtherType::VLAN, 0x6064)], ..Roce::default() };
    let ack = Roce { opcode: Opcode::RC_ACKNOWLEDGE, payload: 0, ..Roce::default() };
    let ce = Roce { ecn: Ecn::CE, ..Roce::default() };
    let plain = || Input { packet: Roce::default().frame(), ..Input::default() };
    let other = Input { packet: tcp(), ..Input::default() };
    let unpaced = host_config(FAST_BPS);

    let mut cases = vec![
        Case::baseline(EMPTY_XDP, "empty_xdp", None, plain()),
        Case::baseline(EMPTY_TC, "empty_tc", None, plain()),
        Case::baseline(REDIRECT, "redirect_xdp", Some(EMPTY_XDP), plain()),
        Case::baseline("classifier alone, XDP", "parse_xdp", Some(EMPTY_XDP), plain()),
        Case::baseline("classifier alone, TC", "parse_tc", Some(EMPTY_TC), plain()),
        Case::baseline(COUNTED_TCP, "count_tcp", Some(EMPTY_TC), other),
        Case::baseline(MINIMAL_PACER, "edt_tc", Some(EMPTY_TC), plain()),
    ];
    match peer()? {
        Some(ebpf) => cases.push(in_c(ebpf, plain())?),
        None => bench.skip(C_PACER, "clang is not installed; install it and run `cargo xtask bench`"),
    }
    for (name, hook) in TCP.into_iter().zip(HOOKS) {
        cases.push(Case::steady(name, &unpaced, hook, Stat::NotRoce, tcp())?);
    }
    for (name, hook) in UNMARKED.into_iter().zip(HOOKS) {
        cases.push(Case::steady(name, &unpaced, hook, Stat::RoceData, data.frame())?);
    }
    let at_wire_rate = Instance::load(&unpaced, DEFAULT_FLOWS, |port| Port { wire_bps: FAST_BPS, ..port })?;
    cases.push(Case::on(at_wire_rate, AT_WIRE_RATE, Hook::Egress, Stat::RoceData, data.frame()));
    for (kind, packet) in [("RoCE over IPv6", &v6), ("RoCE with a VLAN tag", &vlan)] {
        for (hook, word) in HOOKS.into_iter().zip(["ingress", "egress"]) {
            let name = format!("{kind}, {word}");
            cases.push(Case::steady(name, &unpaced, hook, Stat::RoceData, packet.frame())?);
        }
    }
    cases.push(Case::steady("ACK, egress", &unpaced, Hook::Egress, Stat::RoceControl, ack.frame())?);
    let port = switch(FAST_BPS);
    cases.push(minimal_marker(&data));
    cases.push(Case::steady("CP, not marked", &port, Hook::Egress, Stat::RoceData, data.frame())?);
    cases.push(marked(&data)?);
    // Everything runs in a separate host, so emitted packets go nowhere else.
    let lab = host::Pair::new("bench-packets")?;
    let _inside = lab.a.netns.enter()?;
    // A CNP that cannot be sent starts no interval.
    lab.a.set_up("lo", true)?;
    cases.push(suppressed(&lab, WITHIN, &unpaced, 0x9000_0000, ce.frame())?);
    cases.push(on_router(&lab, &ce)?);
    cases.extend(cnp(&lab, &ce)?);
    for (name, profile) in CNP_AT_RP.into_iter().zip([Profile::Paper, Profile::Nvidia]) {
        cases.push(cut(name, profile, &data)?);
    }
    cases.push(in_recovery(&data)?);
    cases.push(idle(&data)?);
    cases.push(inline(&data)?);

    bench.baselines.order(|packet| data.dest_qpn + packet % IDLE_FLOWS)?;
    let rounds = if bench.quick { 3 } else { 41 };
    for round in 0..rounds {
        bench.progress(&format!("packets, round {} of {rounds}", round + 1));
        for case in &mut cases {
            let ns = patiently(|| (case.measure)(&mut bench.baselines, case.repeat))
                .with_context(|| case.name.clone())?;
            case.rounds.push(ns);
        }
    }
    for case in cases {
        let metric = Metric::new(Section::Packets, case.name, "ns", case.rounds);
        bench.add(Metric { against: case.against.map(str::to_owned), ..metric });
    }
    Ok(())
}

/// A measurement that a busy machine may spoil, such as one of a flow that must always be late.
fn patiently(mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    const ATTEMPTS: u32 = 10;
    for _ in 1..ATTEMPTS {
        if let Ok(ns) = measure() {
            return Ok(ns);
        }
    }
    measure()
}

/// A naive program without knowledge of RoCE.
fn in_c(mut ebpf: Ebpf, input: Input) -> Result<Case> {
    const NAME: &str = "pace_tuple";
    let tc: &mut SchedClassifier = ebpf.program_mut(NAME).context("no program pace_tuple")?.try_into()?;
    tc.load()?;
    Ok(Case::new(C_PACER, Some(EMPTY_TC), REPEAT, move |_, repeat| {
        ns_per_run(program(&ebpf, NAME)?, &input, repeat)
    }))
}

/// Minimal marker, on packets whose marks the feeding program removes.
fn minimal_marker(data: &Roce) -> Case {
    let input = Input { packet: data.frame(), ..Input::default() };
    Case::new(MINIMAL_MARKER, Some(EMPTY_TC), REPEAT, move |baselines, repeat| {
        let marker = Target::new(program(&baselines.ebpf, "mark_tc")?)?;
        fed(baselines, &marker, Hook::Egress, &input, repeat)
    })
}

/// Everything is marked: the feeding program removes each mark.
fn marked(data: &Roce) -> Result<Case> {
    let mut config = switch(LINK_BPS);
    let wred = &mut config.wred[3];
    (wred.kmin_bytes, wred.kmax_bytes, wred.drain_rate_bps) = (0, 0, 100_000);
    let instance = Instance::of(&config)?;
    let input = Input { packet: data.frame(), ..Input::default() };
    Ok(Case::new(MARKS, Some(EMPTY_TC), REPEAT, move |baselines, repeat| {
        instance.check_counted(Hook::Egress, Stat::CpEcnMarked, runs(repeat), || {
            let egress = program(&instance.ebpf, program_of(Hook::Egress))?;
            fed(baselines, &Target::new(egress)?, Hook::Egress, &input, repeat)
        })
    }))
}

/// Cost of the feeding program followed by the empty one, minus that of the empty one.
pub(crate) fn feeding(baselines: &mut Baselines, hook: Hook, input: &Input, repeat: u32) -> Result<f64> {
    let empty = Target::new(baselines.empty(hook)?)?;
    baselines.feed(&input.packet, &empty)?;
    let both = ns_per_run(baselines.feeder(hook)?, input, repeat)?;
    Ok(both - ns_per_run(baselines.empty(hook)?, input, repeat)?)
}

pub(crate) fn fed(
    baselines: &mut Baselines,
    next: &Target,
    hook: Hook,
    input: &Input,
    repeat: u32,
) -> Result<f64> {
    let feeding = feeding(baselines, hook, input, repeat)?;
    baselines.feed(&input.packet, next)?;
    Ok(ns_per_run(baselines.feeder(hook)?, input, repeat)? - feeding)
}

/// Marked packets for an address of the loopback interface of a host that forwards.
fn on_router(lab: &host::Pair, ce: &Roce) -> Result<Case> {
    let mut config = host_config(FAST_BPS);
    config.scalars.np_other_host = 0;
    lab.a.add_v4("lo", ce.dst, 32)?;
    lab.a.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
    let mut packet = ce.frame();
    // The loopback's MAC address, without which the kernel takes the packet for another host's.
    packet.iter_mut().take(2 * size_of::<[u8; 6]>()).for_each(|byte| *byte = 0);
    suppressed(lab, ROUTED, &config, 0xa000_0000, packet)
}

/// Marked packets within the interval of their flow's first CNP, which the egress program makes on the
/// loopback interface.
///
/// `cnp_mark` distinguishes the clones of the instances there.
fn suppressed(lab: &host::Pair, name: &str, config: &Config, cnp_mark: u32, packet: Vec<u8>) -> Result<Case> {
    let mut config = *config;
    config.scalars.min_time_between_cnps_ns = SECOND_NS;
    let mut instance = Instance::load(&config, DEFAULT_FLOWS, |port| Port { cnp_mark, ..port })?;
    attach_egress(lab, &mut instance, "lo")?;
    Ok(Case::on(instance, name, Hook::Ingress, Stat::NpCnpSuppressed, packet))
}

fn attach_egress(lab: &host::Pair, instance: &mut Instance, iface: &str) -> Result<()> {
    let egress: &mut SchedClassifier =
        instance.ebpf.program_mut(program_of(Hook::Egress)).context("no egress program")?.try_into()?;
    lab.a.run(|| egress.attach(iface, TcAttachType::Egress))??;
    Ok(())
}

/// Every CE mark is answered: the clone passes the egress program to a veth whose other end is down, so that work
/// behind the hook does not count.
fn cnp(lab: &host::Pair, ce: &Roce) -> Result<[Case; 2]> {
    join((&lab.a, "a1", 1), (&lab.b, "b1", 2), 4_200)?;
    for iface in ["b0", "b1"] {
        lab.b.set_up(iface, false)?;
    }
    let mut config = host_config(LINK_BPS);
    config.scalars.min_time_between_cnps_ns = 0;
    let mut instance = Instance::of(&config)?;
    attach_egress(lab, &mut instance, "a0")?;
    let at = |iface: &str| -> Result<Input> {
        Ok(Input { packet: ce.frame(), ifindex: lab.a.index(iface)?, ..Input::default() })
    };
    let (input, other) = (at("a0")?, at("a1")?);
    let clone = Case::new(CLONE, Some(EMPTY_TC), 2_000, move |baselines, repeat| {
        ns_per_run(program(&baselines.ebpf, "clone_tc")?, &other, repeat)
    });
    let made = Case::new(CNP_MADE, Some(CLONE), 2_000, move |_, repeat| {
        instance.check_counted(Hook::Egress, Stat::NpCnpSent, runs(repeat), || {
            ns_per_run(program(&instance.ebpf, program_of(Hook::Ingress))?, &input, repeat)
        })
    });
    Ok([clone, made])
}

/// A sender whose QP is paired with the receiver's, with a flow that has sent.
fn sender(config: &Config, data: &Roce) -> Result<Instance> {
    let mut instance = Instance::of(config)?;
    let id = QpId { addr: mapped(v4(data.src)), qpn: data.source_qpn, vlan: 0 };
    instance.maps.set_pair(&id, &Pair::new(data.dest_qpn, PairSource::Rdma))?;
    let input = Input { packet: data.frame(), ..Input::default() };
    run(program(&instance.ebpf, program_of(Hook::Egress))?, &input, 1)?;
    Ok(instance)
}

/// Every CNP cuts.
fn cut(name: &str, profile: Profile, data: &Roce) -> Result<Case> {
    let mut config = profile.config(Some(LINK_BPS))?;
    config.scalars.link_rate_bps = LINK_BPS;
    if profile == Profile::Paper {
        config.scalars.rate_reduce_monitor_period_ns = 0;
    }
    let cnp = data.cnp(Some(data.source_qpn), CNP_TOS);
    Ok(Case::on(sender(&config, data)?, name, Hook::Ingress, Stat::RpCnpHandled, cnp))
}

fn in_recovery(data: &Roce) -> Result<Case> {
    /// Packets that use up the credit.
    const HEAD_START: u32 = 2_000;
    // A slow link: its packets are so late that no pause of this thread lets the flow catch up.
    let mut config = host_config(SLOW_BPS);
    config.scalars.rpg_min_rate_bps = SLOW_BPS / 4 * 3;
    let instance = sender(&config, data)?;
    let input = Input { packet: data.frame(), ..Input::default() };
    let cnp = Input { packet: data.cnp(Some(data.source_qpn), CNP_TOS), ..Input::default() };
    Ok(Case::new(PACED, Some(MINIMAL_PACER), 10_000, move |_, repeat| {
        let egress = program(&instance.ebpf, program_of(Hook::Egress))?;
        run(egress, &input, HEAD_START)?;
        run(program(&instance.ebpf, program_of(Hook::Ingress))?, &cnp, 1)?;
        instance
            .check_counted(Hook::Egress, Stat::RpPaced, runs(repeat), || ns_per_run(egress, &input, repeat))
    }))
}

/// Flows that were cut a second ago and have sent nothing since: each packet catches up on it.
fn idle(data: &Roce) -> Result<Case> {
    let mut instance = Instance::of(&host_config(LINK_BPS))?;
    let input = Input { packet: data.frame(), ..Input::default() };
    let mut sets = Vec::new();
    Ok(Case::new(
        "RP, each packet after an idle second",
        Some(EMPTY_TC),
        IDLE_FLOWS,
        move |baselines, repeat| {
            let feeding = feeding(baselines, Hook::Egress, &input, repeat)?;
            let egress = program(&instance.ebpf, program_of(Hook::Egress))?;
            baselines.feed(&input.packet, &Target::new(egress)?)?;
            if sets.is_empty() {
                // Flows in the state after their first packet.
                run(baselines.feeder(Hook::Egress)?, &input, ORDER_LEN)?;
                sets = instance.maps.rp_sets().collect::<Result<Vec<_>, _>>()?;
            }
            let now_ns = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos() as u64;
            let cut_ns = now_ns.saturating_sub(SECOND_NS);
            instance.cut(&sets, cut_ns, Some(cut_ns))?;
            Ok(ns_per_run(baselines.feeder(Hook::Egress)?, &input, repeat)? - feeding)
        },
    ))
}

pub(crate) fn in_line(ifindex: [u32; 2]) -> Result<Instance> {
    Instance::load(&switch(FAST_BPS), DEFAULT_FLOWS, |port| Port { ifindex, ..port })
}

fn inline(data: &Roce) -> Result<Case> {
    let instance = in_line([LO, LO + 1])?;
    Ok(Case::on(instance, INLINE, Hook::Xdp, Stat::InlineForwarded, data.frame()))
}
