//! Two CPUs in one flow of a flow table: no packet is lost from a flow's state.

use std::mem::offset_of;

use aya::maps::{Array, Map, MapData, MapInfo};
use aya::programs::TestRun as _;
use aya::{Ebpf, TestRunOptions};
use dcqcn_common::flow::{RpHot, RpSet};
use dcqcn_common::layout::{Mode, WAYS};
use dcqcn_common::params::Scalars;
use dcqcn_loader::dataplane::{self, Maps};
use dcqcn_tests::prelude::*;

/// Runs of one call, and calls of each thread.
const REPEAT: u32 = 20_000;
const CALLS: u32 = 20;

/// The egress program, and its maps with room for one set of each table.
fn load(link_rate_bps: u64, change: impl FnOnce(&mut Scalars)) -> Result<(Ebpf, Maps)> {
    let mut config = Config::DEFAULT;
    config.scalars.link_rate_bps = link_rate_bps;
    change(&mut config.scalars);
    let sizes = Sizes { rp_flows: 8, np_flows: 8 };
    let mut ebpf = dataplane::load(Programs::Plain, sizes, Mode::Host, None, &PROGRAMS[2..])?;
    let mut maps = Maps::take(&mut ebpf)?;
    maps.set_params(&Params::new(&config, Port::new(LO, sizes.rp_sets(), sizes.np_sets()))?)?;
    Ok((ebpf, maps))
}

fn egress(ebpf: &Ebpf) -> Result<&SchedClassifier> {
    Ok(ebpf.program(PROGRAMS[2]).context("no egress program")?.try_into()?)
}

/// Runs a packet through the program, several times.
fn send(egress: &SchedClassifier, packet: &[u8], repeat: u32) -> Result<()> {
    let options = TestRunOptions { data_in: Some(packet), repeat, ..TestRunOptions::new() };
    egress.test_run(options)?;
    Ok(())
}

/// Runs `send` on two CPUs, with these arguments, while this thread repeats `read`.
fn on_two_cpus(
    arguments: [u32; 2],
    send: impl Fn(u32) -> Result<()> + Sync,
    read: impl Fn() -> Result<()>,
) -> Result<()> {
    thread::scope(|scope| {
        let send = &send;
        let threads = arguments.map(|argument| scope.spawn(move || send(argument)));
        while !threads.iter().any(thread::ScopedJoinHandle::is_finished) {
            read()?;
        }
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread died"))?)
    })
}

/// Of one flow, and of as many as the set has ways: each has its own lock, and is inserted while others are used.
#[test]
fn two_cpus_count_every_packet() -> Result<()> {
    require!();
    for flows in [1, WAYS as u32] {
        let (ebpf, maps) = load(100_000_000_000, |_| {})?;
        let egress = egress(&ebpf)?;
        let packet = |flow: u32| Roce { dest_qpn: 0x11 + flow % flows, ..Roce::default() }.frame();
        let bytes = packet(0).len() as u64;
        let run =
            |first: u32| (first..first + CALLS).try_for_each(|flow| send(egress, &packet(flow), REPEAT));
        // A reader gets the state of a set between two packets.
        let verify = || -> Result<()> {
            for flow in maps.rp_flows() {
                let (_, _, flow) = flow?;
                ensure!(flow.hot.bytes == flow.hot.packets * bytes, "half a packet: {flow:?}");
            }
            Ok(())
        };
        // In sequence, so that both CPUs contend for each flow and its neighbours.
        on_two_cpus([0, 1], run, verify)?;

        let stat = maps.counters()?[Hook::Egress.slot()].stat;
        let sent = u64::from(2 * CALLS * REPEAT);
        ensure!(stat[Stat::RoceData as usize] == sent, "{sent} packets: {stat:?}");
        let (new, evicted) = (stat[Stat::RpFlowNew as usize], stat[Stat::RpFlowEvicted as usize]);
        ensure!((new, evicted) == (flows.into(), 0), "{stat:?}");
        let found: Vec<_> = maps.rp_flows().collect::<Result<_, _>>()?;
        let counted: u64 = found.iter().map(|(_, _, flow)| flow.hot.packets).sum();
        let skipped = stat[Stat::TableBusy as usize];
        ensure!(
            found.len() == flows as usize && counted + skipped == sent,
            "{counted} + {skipped} of {sent}"
        );
    }
    Ok(())
}

/// More flows than the set has slots, so that slots are constantly evicted by two CPUs. Packets of each flow have a
/// distinct length, and no flow is charged for another's packets.
#[test]
fn two_cpus_never_charge_wrong_flow() -> Result<()> {
    require!();
    const FLOWS: u32 = WAYS as u32 + 4;
    const SHORT_CALLS: u32 = 40_000;
    let (ebpf, maps) = load(100_000_000_000, |_| {})?;
    let egress = egress(&ebpf)?;
    let packet = |flow: u32| {
        let payload = 64 * (1 + flow % FLOWS) as usize;
        Roce { dest_qpn: 0x20 + flow % FLOWS, payload, ..Roce::default() }.frame()
    };
    let run = |step: u32| (0..SHORT_CALLS).try_for_each(|call| send(egress, &packet(call * step), 8));
    let verify = || -> Result<()> {
        for flow in maps.rp_flows() {
            let (_, _, flow) = flow?;
            let bytes = packet(flow.id.receiver.qpn - 0x20).len() as u64;
            ensure!(flow.hot.bytes == flow.hot.packets * bytes, "{bytes} bytes a packet: {flow:?}");
        }
        Ok(())
    };
    // Steps coprime to the number of flows, so that both CPUs visit all flows.
    on_two_cpus([5, 7], run, verify)?;
    verify()?;
    let stat = maps.counters()?[Hook::Egress.slot()].stat;
    ensure!(stat[Stat::RpFlowEvicted as usize] > u64::from(SHORT_CALLS) / 10, "{stat:?}");
    Ok(())
}

/// A flow whose lock is held by a descheduled CPU. Sent immediately, a packet would overtake those of its
/// flow in fq. On virtual CPUs each such case cost soft-RoCE two NAKs and a retransmitted window.
#[test]
fn contended_packet_leaves_after_queued() -> Result<()> {
    require!();
    let (ebpf, maps) = load(1_000_000, |scalars| {
        scalars.rpg_min_rate_bps = 1_000_000;
        (scalars.pacer, scalars.pacing_credit_ns) = (PACER_FQ, 0);
    })?;
    let egress = egress(&ebpf)?;
    let mut sets = rp_sets(egress)?;

    // A packet takes milliseconds, so all of these contend with the first.
    let frame = Roce::default().frame();
    let gap_ns = frame.len() as u64 * 8_000;
    let first = departure_ns(egress, &frame)?;
    let second = departure_ns(egress, &frame)?;
    ensure!(first == 0 && second != 0, "{first}, {second}");
    set_lock(&mut sets, 1)?;
    let busy = departure_ns(egress, &frame)?;
    set_lock(&mut sets, 0)?;
    let fourth = departure_ns(egress, &frame)?;
    ensure!((busy, fourth) == (second + gap_ns, second + gap_ns), "{second}, {busy}, {fourth}");

    let stat = maps.counters()?[Hook::Egress.slot()].stat;
    ensure!(stat[Stat::TableBusy as usize] == 1 && stat[Stat::RpPaced as usize] == 3, "{stat:?}");
    Ok(())
}

type RpSets = Array<MapData, [u8; size_of::<RpSet>()]>;

/// The RP table of a program, which holds one set.
fn rp_sets(program: &SchedClassifier) -> Result<RpSets> {
    for id in program.info()?.map_ids()?.context("no maps")? {
        let map = MapInfo::from_id(id)?;
        if map.name_as_str() == Some("RP") {
            return Ok(Array::try_from(Map::Array(MapData::from_id(id)?))?);
        }
    }
    Err(anyhow!("no RP table"))
}

/// Writes the locks of the set's flows: 1 = held.
fn set_lock(sets: &mut RpSets, lock: u32) -> Result<()> {
    let mut set = sets.get(&0, 0)?;
    for way in 0..WAYS {
        let at = offset_of!(RpSet, hot) + way * size_of::<RpHot>() + offset_of!(RpHot, lock);
        set[at..at + 4].copy_from_slice(&lock.to_ne_bytes());
    }
    Ok(sets.set(0, set, 0)?)
}

/// The departure time that the program assigns to a packet: `tstamp` of `struct __sk_buff` (include/uapi/linux/bpf.h).
fn departure_ns(program: &SchedClassifier, frame: &[u8]) -> Result<u64> {
    const TSTAMP: std::ops::Range<usize> = 152..160;
    let mut context = [0; 192];
    let options = TestRunOptions {
        data_in: Some(frame),
        ctx_in: Some(&[0; 192]),
        ctx_out: Some(&mut context),
        ..TestRunOptions::new()
    };
    program.test_run(options)?;
    Ok(u64::from_ne_bytes(context[TSTAMP].try_into()?))
}
