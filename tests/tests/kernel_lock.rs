//! Two CPUs in one set of a flow table: no packet is lost from a flow's state.

use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use aya::TestRunOptions;
use aya::programs::{SchedClassifier, TestRun as _};
use dcqcn::dataplane::{self, Maps, PROGRAMS, Sizes};
use dcqcn::engine::Hook;
use dcqcn_common::layout::Mode;
use dcqcn_common::params::{Config, Params, Port};
use dcqcn_common::stats::Stat;
use dcqcn_tests::both::LO;
use dcqcn_tests::packets::Roce;
use dcqcn_tests::skip::runnable;

/// Runs of one call, and calls of each thread.
const REPEAT: u32 = 20_000;
const CALLS: u32 = 20;

#[test]
fn two_cpus_count_every_packet_of_one_flow() -> Result<()> {
    if !runnable("two_cpus_count_every_packet_of_one_flow", &[])? {
        return Ok(());
    }
    let sizes = Sizes { rp_flows: 8, np_flows: 8 };
    let mut ebpf = dataplane::load(sizes, Mode::Host, None, &PROGRAMS[2..])?;
    let mut maps = Maps::take(&mut ebpf)?;
    let mut config = Config::DEFAULT;
    config.scalars.link_rate_bps = 100_000_000_000;
    maps.set_params(&Params::new(&config, Port::new(LO, sizes.rp_sets(), sizes.np_sets()))?)?;
    let egress: &SchedClassifier = ebpf.program(PROGRAMS[2]).context("no egress program")?.try_into()?;

    let packet = Roce::default().frame();
    let run = || -> Result<()> {
        for _ in 0..CALLS {
            let options = TestRunOptions { data_in: Some(&packet), repeat: REPEAT, ..TestRunOptions::new() };
            egress.test_run(options)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads = [scope.spawn(run), scope.spawn(run)];
        // What a reader is given is a set between two packets.
        for _ in 0..1_000 {
            for flow in maps.rp_flows() {
                let (_, _, flow) = flow?;
                ensure!(flow.bytes == flow.packets * packet.len() as u64, "half a packet: {flow:?}");
            }
        }
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread died"))?)
    })?;

    let counters = maps.counters()?[Hook::Egress.slot()];
    let sent = u64::from(2 * CALLS * REPEAT);
    ensure!(counters.stat[Stat::RoceData as usize] == sent, "{sent} packets: {counters:?}");
    let flows: Vec<_> = maps.rp_flows().collect::<Result<_, _>>()?;
    let [(_, _, flow)] = flows.as_slice() else { return Err(anyhow!("one flow: {flows:?}")) };
    let passed_by = counters.stat[Stat::TableBusy as usize];
    ensure!(flow.packets + passed_by == sent, "{} counted, {passed_by} passed by, {sent} sent", flow.packets);
    Ok(())
}
