//! Real packets through an XDP program, inline from one interface to another; and single packets.

use std::hint::black_box;

use aya::programs::{Program, Xdp, XdpMode};
use dcqcn_tests::prelude::*;

use crate::Bench;
use crate::links::received_packets;
use crate::per_packet::{FAST_BPS, in_line};
use crate::report::{Metric, Section};
use crate::runner::{Baselines, Input, Instance, alone_ns, host, program, program_of, send_live};

const REDIRECT: &str = "redirect and nothing else, packets of 1 KB";
/// Packets really sent inline, against [`REDIRECT`].
pub(crate) const OURS: &str = "inline: CP and redirect, packets of 1 KB";

/// More than the second-level cache of a core.
const CACHE_BYTES: usize = 4 << 20;
const CACHE_LINE_BYTES: usize = 64;

const PERCENTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

pub(crate) fn measure(bench: &mut Bench) -> Result<()> {
    in_line_rate(bench)?;
    alone(bench)
}

/// Packets that one CPU sends inline, to a veth whose other end drops them in XDP.
fn in_line_rate(bench: &mut Bench) -> Result<()> {
    let pair = Pair::new("bench-live")?;
    let _inside = pair.a.netns.enter()?;
    let out = pair.a.index("a0")?;
    let mut redirecting = Baselines::load(out)?;
    let sink: &mut Xdp =
        redirecting.ebpf.program_mut("drop_xdp").context("no program drop_xdp")?.try_into()?;
    pair.b.run(|| sink.attach("b0", XdpMode::Driver))??;
    let ours = in_line([out, out])?;
    let input = Input { packet: Roce::default().frame(), ..Input::default() };
    let (rounds, packets) = if bench.quick { (3, 2_000) } else { (21, 200_000) };
    let (mut bare, mut inline) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        bench.progress(&format!("live, round {} of {rounds}", round + 1));
        for (rates, program) in [
            (&mut bare, program(&redirecting.ebpf, "redirect_xdp")?),
            (&mut inline, program(&ours.ebpf, program_of(Hook::Xdp))?),
        ] {
            let before = received_packets(&pair.b, "b0")?;
            let forwarded = ours.count(Hook::Xdp, Stat::InlineForwarded)?;
            let busy = send_live(program, &input, packets)?;
            let arrived = received_packets(&pair.b, "b0")? - before;
            let forwarded = ours.count(Hook::Xdp, Stat::InlineForwarded)? - forwarded;
            ensure!(arrived * 100 >= u64::from(packets) * 99, "{arrived} of {packets} packets arrived");
            ensure!(forwarded == 0 || forwarded == u64::from(packets), "{forwarded} of {packets} were ours");
            rates.push(f64::from(packets) / busy.as_secs_f64() / 1e6);
        }
    }
    bench.add(Metric::new(Section::Live, REDIRECT, "Mpps", bare).more_is_better());
    bench.add(Metric::new(Section::Live, OURS, "Mpps", inline).more_is_better().against(REDIRECT));
    Ok(())
}

struct SinglePacketRun<'a> {
    name: &'static str,
    against: Option<&'static str>,
    program: &'a Program,
    /// Whether other memory has taken its place in the first- and second-level caches.
    is_cold: bool,
    /// Nanoseconds per packet, one value per round.
    percentiles: [Vec<f64>; PERCENTILES.len()],
}

/// Time per packet, for packets that arrive one by one.
fn alone(bench: &mut Bench) -> Result<()> {
    let input = Input { packet: Roce::default().frame(), ..Input::default() };
    let inline = in_line([LO, LO + 1])?;
    let ours = Instance::of(&host(FAST_BPS))?;
    let (rounds, warm_packets, cold_packets) = if bench.quick { (3, 200, 50) } else { (11, 20_000, 1_000) };
    let (empty_xdp, empty_tc) = ("empty XDP program", "empty TC program");
    let empty_cold = "empty TC program, cold caches";
    let [ingress, egress] = [Hook::Ingress, Hook::Egress].map(|hook| program(&ours.ebpf, program_of(hook)));
    let (ingress, egress) = (ingress?, egress?);
    let tc = bench.baselines.empty(Hook::Egress)?;
    let mut cases = [
        (empty_xdp, None, bench.baselines.empty(Hook::Xdp)?, false),
        (empty_tc, None, tc, false),
        ("inline: CP and redirect", Some(empty_xdp), program(&inline.ebpf, program_of(Hook::Xdp))?, false),
        ("host, ingress", Some(empty_tc), ingress, false),
        ("host, egress", Some(empty_tc), egress, false),
        (empty_cold, None, tc, true),
        ("host, ingress, cold caches", Some(empty_cold), ingress, true),
        ("host, egress, cold caches", Some(empty_cold), egress, true),
    ]
    .map(|(name, against, program, is_cold)| {
        let percentiles = PERCENTILES.map(|_| Vec::new());
        SinglePacketRun { name, against, program, is_cold, percentiles }
    });
    let mut other_memory = vec![0_u8; CACHE_BYTES];
    for round in 0..rounds {
        bench.progress(&format!("live, single packets, round {} of {rounds}", round + 1));
        for case in &mut cases {
            let packets = if case.is_cold { cold_packets } else { warm_packets };
            let mut ns = Vec::new();
            for _ in 0..packets {
                if case.is_cold {
                    other_memory.iter_mut().step_by(CACHE_LINE_BYTES).for_each(|byte| *byte ^= 1);
                    black_box(&mut other_memory);
                }
                ns.push(alone_ns(case.program, &input)?);
            }
            ns.sort_by(f64::total_cmp);
            for ((_, share), rounds) in PERCENTILES.iter().zip(&mut case.percentiles) {
                let at = (ns.len() as f64 * share) as usize;
                rounds.push(*ns.get(at).context("no packets")?);
            }
        }
    }
    let mut metrics = Vec::new();
    for case in cases {
        for ((percentile, _), rounds) in PERCENTILES.iter().zip(case.percentiles) {
            let row_name = |name: &str| format!("one packet by itself, {name}: {percentile}");
            let metric = Metric::new(Section::Live, row_name(case.name), "ns", rounds);
            metrics.push(Metric { against: case.against.map(row_name), ..metric });
        }
    }
    metrics.into_iter().for_each(|metric| bench.add(metric));
    Ok(())
}
