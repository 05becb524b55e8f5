//! Cost of a packet by number of QPs, and with two CPUs on one queue.

use std::sync::atomic::AtomicUsize;

use aya::programs::Program;
use dcqcn_common::layout::MAX_FLOWS;
use dcqcn_common::layout::{DEFAULT_FLOWS, WAYS};
use dcqcn_params::Profile;
use dcqcn_tests::bpf::baselines_with;
use dcqcn_tests::prelude::*;
use nix::time::{ClockId, clock_gettime};

use crate::Bench;
use crate::per_packet::{FAST_BPS, fed};
use crate::report::{Metric, Section};
use crate::runner::{Input, Instance, ORDER_LEN, Target, host, pin, program, program_of, run, runs, switch};

/// Slots in a table of `qps` QPs: twice as many, to avoid overflowing sets, up to the maximum.
fn table_slots(qps: u32) -> u32 {
    (2 * qps).clamp(DEFAULT_FLOWS, MAX_FLOWS)
}

const FIRST_QPN: u32 = 0x100;
pub(crate) const QPS: [u32; 6] = [1, 64, 4_096, 65_536, 262_144, 1_000_000];
/// Of them, those with a variant in which all were cut: their increase timers run.
const CUT: [u32; 4] = [1, 64, 4_096, 65_536];
/// Label of one QP in tables.
pub(crate) const ALONE: &str = "uniform, 1 QP";
/// Row of the bursts in which soft-RoCE sends: up to 64 packets of a QP in a row.
pub(crate) const BURSTS: &str = "bursts of 16 packets, 65536 QPs";
const BURSTS_QPS: u32 = 65_536;
const BURST_PACKETS: u32 = 16;
/// Exponent of the Zipf distribution, as traffic has it.
const ZIPF: f64 = 1.0;
const SEED: u64 = 0x0dc9_c0de;

pub(crate) fn name(distribution: &str, qps: u32) -> String {
    format!("{distribution}, {qps} QP{}", if qps == 1 { "" } else { "s" })
}

pub(crate) fn measure(bench: &mut Bench) -> Result<()> {
    let qps = if bench.quick { QPS.get(..2).unwrap_or(&QPS) } else { &QPS };
    for &qps in qps {
        let mut instance = Instance::load(&host(FAST_BPS), table_slots(qps), |port| port)?;
        let mut random = fastrand::Rng::with_seed(SEED);
        bench.progress(&format!("growth, {qps} queue pairs, uniform"));
        uniform(bench, &mut random, qps)?;
        table(bench, &instance, name("uniform", qps))?;
        least(bench, qps)?;
        if qps == 1 {
            each_cut(bench, &mut instance, &mut random, qps)?;
            continue;
        }
        bench.progress(&format!("growth, {qps} queue pairs, Zipf"));
        let shares: Vec<f64> = (1..=qps)
            .scan(0.0, |sum, rank| {
                *sum += f64::from(rank).powf(-ZIPF);
                Some(*sum)
            })
            .collect();
        let total = shares.last().copied().context("no queue pairs")?;
        bench.baselines.order(|_| {
            let drawn = random.f64() * total;
            FIRST_QPN + shares.partition_point(|&share| share <= drawn) as u32
        })?;
        table(bench, &instance, name("Zipf", qps))?;
        if qps == BURSTS_QPS {
            bench.progress(&format!("growth, {qps} queue pairs, bursts"));
            let mut qpn = FIRST_QPN;
            bench.baselines.order(|packet| {
                if packet % BURST_PACKETS == 0 {
                    qpn = FIRST_QPN + (random.f64() * f64::from(qps)) as u32;
                }
                qpn
            })?;
            table(bench, &instance, BURSTS.into())?;
        }
        if CUT.contains(&qps) {
            each_cut(bench, &mut instance, &mut random, qps)?;
        }
    }
    misses(bench)
}

fn uniform(bench: &mut Bench, random: &mut fastrand::Rng, qps: u32) -> Result<()> {
    bench.baselines.order(|_| FIRST_QPN + (random.f64() * f64::from(qps)) as u32)
}

/// Packets of equally likely QPs after a CNP for each, so that the increase timers keep running.
fn each_cut(bench: &mut Bench, instance: &mut Instance, random: &mut fastrand::Rng, qps: u32) -> Result<()> {
    bench.progress(&format!("growth, {qps} queue pairs, each cut once"));
    uniform(bench, random, qps)?;
    let sets = instance.maps.rp_sets().collect::<Result<Vec<_>, _>>()?;
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    instance.cut(&sets, now.as_nanos() as u64, None)?;
    table(bench, instance, format!("{}, each cut once", name("uniform", qps)))
}

fn table(bench: &mut Bench, instance: &Instance, name: String) -> Result<()> {
    let input = Input { packet: Roce::default().frame(), ..Input::default() };
    let egress = Target::new(program(&instance.ebpf, program_of(Hook::Egress))?)?;
    // Insert all flows.
    fed(&mut bench.baselines, &egress, Hook::Egress, &input, ORDER_LEN)?;
    let (rounds, repeat) = extent(bench);
    let evicted = instance.count(Hook::Egress, Stat::RpFlowEvicted)?;
    let ns = (0..rounds)
        .map(|_| fed(&mut bench.baselines, &egress, Hook::Egress, &input, repeat))
        .collect::<Result<Vec<_>>>()?;
    let evicted = instance.count(Hook::Egress, Stat::RpFlowEvicted)? - evicted;
    let share = evicted as f64 / f64::from(rounds * repeat);
    let percent = Metric::new(Section::Growth, format!("{name}: evictions"), "%", vec![share * 100.0]);
    bench.add(Metric::new(Section::Growth, name, "ns", ns).against(ALONE));
    if evicted != 0 {
        bench.add(percent);
    }
    Ok(())
}

const fn extent(bench: &Bench) -> (u32, u32) {
    if bench.quick { (3, 10_000) } else { (15, 100_000) }
}

/// Minimal pacer by QP, in a table with as many slots, on the packets of the last [`table`]: the cost of the look-up
/// alone.
fn least(bench: &mut Bench, qps: u32) -> Result<()> {
    const PACER: &str = "edt_tc";
    let mut peer = baselines_with(LO, table_slots(qps))?;
    let tc: &mut SchedClassifier = peer.program_mut(PACER).context("no minimal pacer")?.try_into()?;
    tc.load()?;
    let pacer = Target::new(program(&peer, PACER)?)?;
    let input = Input { packet: Roce::default().frame(), ..Input::default() };
    fed(&mut bench.baselines, &pacer, Hook::Egress, &input, ORDER_LEN)?;
    let (rounds, repeat) = extent(bench);
    let ns = (0..rounds)
        .map(|_| fed(&mut bench.baselines, &pacer, Hook::Egress, &input, repeat))
        .collect::<Result<Vec<_>>>()?;
    let row_name = |qps| format!("minimal pacer, {}", name("uniform", qps));
    bench.add(Metric::new(Section::Growth, row_name(qps), "ns", ns).against(row_name(1)));
    Ok(())
}

/// Every packet belongs to a flow missing in the table, and evicts another.
fn misses(bench: &mut Bench) -> Result<()> {
    bench.progress("growth, misses");
    let instance = Instance::load(&host(FAST_BPS), WAYS as u32, |port| port)?;
    let input = Input { packet: Roce::default().frame(), ..Input::default() };
    let egress = Target::new(program(&instance.ebpf, program_of(Hook::Egress))?)?;
    bench.baselines.order(|packet| FIRST_QPN + packet % 1_000)?;
    fed(&mut bench.baselines, &egress, Hook::Egress, &input, 1_000)?;
    let (rounds, repeat) = if bench.quick { (3, 1_000) } else { (21, 10_000) };
    let ns = (0..rounds)
        .map(|_| {
            instance.check_counted(Hook::Egress, Stat::RpFlowEvicted, runs(repeat), || {
                fed(&mut bench.baselines, &egress, Hook::Egress, &input, repeat)
            })
        })
        .collect::<Result<Vec<_>>>()?;
    bench.add(Metric::new(Section::Growth, "every lookup a miss", "ns", ns).against(ALONE));
    Ok(())
}

/// Names of the metrics of one and two CPUs: in batches (see `dcqcn_common::vqueue::Share`), and with thresholds so low
/// that each packet is published.
pub(crate) const CPUS: [&str; 2] = ["1 CPU on one virtual queue", "2 CPUs on one virtual queue"];
pub(crate) const CPUS_LOW: [&str; 2] = ["1 CPU, Kmin 5 KB", "2 CPUs, Kmin 5 KB"];
/// Name of the metric of two CPUs without shared state: the maximum here.
const CPUS_APART: &str = "2 CPUs, a queue each";
/// Names of the metrics of two CPUs that pace a flow each: in separate sets, and in one set.
pub(crate) const FLOWS: [&str; 2] = ["2 CPUs, a flow each, in two sets", "2 CPUs, a flow each, in one set"];
/// Link for the thresholds: with FAST_BPS no queue builds up.
const LINK_BPS: u64 = 100_000_000_000;

/// Packets of one burst: some 400 us, so that two bursts that start together overlap.
const BURST: u32 = 10_000;
/// Minimum fraction of two bursts in which both ran.
const MIN_OVERLAP: f64 = 0.9;

/// Measures two CPUs on one virtual queue, by the thresholds of `hpcc` and by those of `paper`.
pub(crate) fn cpus(bench: &mut Bench) -> Result<()> {
    let available = thread::available_parallelism()?.get();
    if available < CPUS.len() {
        bench.skip(CPUS[1], "this machine has one CPU");
        return Ok(());
    }
    let high = Config { wred: Profile::Hpcc.config(Some(LINK_BPS))?.wred, ..switch(FAST_BPS) };
    compare(bench, &high, CPUS)?;
    apart(bench, &high)?;
    compare(bench, &switch(FAST_BPS), CPUS_LOW)?;
    flows(bench)
}

/// Measures two CPUs that pace a flow each, in two sets of the table and in one.
fn flows(bench: &mut Bench) -> Result<()> {
    let inputs = [FIRST_QPN, FIRST_QPN + 1]
        .map(|dest_qpn| Input { packet: Roce { dest_qpn, ..Roce::default() }.frame(), ..Input::default() });
    let mut rates = Vec::new();
    for (name, table_slots) in FLOWS.into_iter().zip([DEFAULT_FLOWS, WAYS as u32]) {
        let instance = Instance::load(&host(FAST_BPS), table_slots, |port| port)?;
        let egress = program(&instance.ebpf, program_of(Hook::Egress))?;
        rates.push(bursts(bench, &inputs.each_ref().map(|input| (egress, input)), name)?);
    }
    if rates.iter().all(|rates| !rates.is_empty()) {
        for (name, rates) in FLOWS.into_iter().zip(rates) {
            bench.add(Metric::new(Section::Cpus, name, "Mpps", rates).more_is_better().against(FLOWS[0]));
        }
    }
    Ok(())
}

fn compare(bench: &mut Bench, config: &Config, names: [&str; 2]) -> Result<()> {
    let instance = Instance::of(config)?;
    let input = Input { packet: Roce::default().frame(), ..Input::default() };
    let egress = program(&instance.ebpf, program_of(Hook::Egress))?;
    let one = bursts(bench, &[(egress, &input)], names[0])?;
    let two = bursts(bench, &[(egress, &input); 2], names[1])?;
    if !two.is_empty() {
        bench.add(Metric::new(Section::Cpus, names[0], "Mpps", one).more_is_better());
        bench.add(Metric::new(Section::Cpus, names[1], "Mpps", two).more_is_better().against(names[0]));
    }
    Ok(())
}

/// Measures two CPUs, each with a separate data plane.
fn apart(bench: &mut Bench, config: &Config) -> Result<()> {
    let instances = [Instance::of(config)?, Instance::of(config)?];
    let [first, second] = &instances;
    let egress = |instance| program(instance, program_of(Hook::Egress));
    let input = Input { packet: Roce::default().frame(), ..Input::default() };
    let both = [(egress(&first.ebpf)?, &input), (egress(&second.ebpf)?, &input)];
    let two = bursts(bench, &both, CPUS_APART)?;
    if !two.is_empty() {
        bench.add(Metric::new(Section::Cpus, CPUS_APART, "Mpps", two).more_is_better().against(CPUS[0]));
    }
    Ok(())
}

/// Concurrent bursts of programs, each with its packet on a separate CPU; empty, with a message, if the machine is too
/// busy.
fn bursts(bench: &mut Bench, programs: &[(&Program, &Input)], name: &str) -> Result<Vec<f64>> {
    let samples = if bench.quick { 3 } else { 41 };
    let mut rates = Vec::new();
    // On a busy machine most pairs of bursts do not overlap.
    let patience = Instant::now() + Duration::from_secs(if bench.quick { 2 } else { 20 });
    for attempt in 0.. {
        if rates.len() >= samples || Instant::now() > patience {
            break;
        }
        bench.progress(&format!("{name}, attempt {}", attempt + 1));
        rates.extend(together(programs)?);
    }
    if rates.is_empty() {
        bench.skip(name, "the machine is too busy: the bursts never overlapped");
    }
    Ok(rates)
}

/// A concurrent burst of each, on separate CPUs: total million packets per second, if they overlapped.
fn together(programs: &[(&Program, &Input)]) -> Result<Option<f64>> {
    let cpus = programs.len();
    let ready = &AtomicUsize::new(0);
    let bursts = thread::scope(|scope| {
        let burst = |(cpu, &(program, input))| {
            scope.spawn(move || -> Result<(Instant, Instant)> {
                pin(cpu)?;
                run(program, input, 1)?;
                ready.fetch_add(1, Ordering::AcqRel);
                // A thread that cannot run must not block the other forever.
                let patience = Instant::now() + Duration::from_millis(50);
                while ready.load(Ordering::Acquire) < cpus && Instant::now() < patience {
                    std::hint::spin_loop();
                }
                let start = Instant::now();
                run(program, input, BURST)?;
                Ok((start, Instant::now()))
            })
        };
        let threads: Vec<_> = programs.iter().enumerate().map(burst).collect();
        let bursts = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread died"))?);
        bursts.collect::<Result<Vec<_>>>()
    })?;
    let first = bursts.iter().map(|burst| burst.0).min().context("no burst")?;
    let last = bursts.iter().map(|burst| burst.1).max().context("no burst")?;
    let whole = last - first;
    let ran: Duration = bursts.iter().map(|(start, end)| *end - *start).sum();
    let overlap = ran.as_secs_f64() / (whole.as_secs_f64() * cpus as f64);
    let packets = f64::from(BURST) * cpus as f64;
    Ok((overlap >= MIN_OVERLAP).then(|| packets / whole.as_secs_f64() / 1e6))
}
