//! How fast the fabric runs: `cargo run --release -p dcqcn-fabric --example speed -- LEAVES SPINES HOSTS LOAD% MS [THREADS]`.

use std::ops::ControlFlow;
use std::time::Instant;

use dcqcn_common::params::Config;
use dcqcn_fabric::workload::Workload;
use dcqcn_fabric::{Cables, Random, Scenario, Topology, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [leaves, spines, per_leaf, load, ms, ref threads @ ..] = numbers[..] else {
        return Err("give LEAVES SPINES HOSTS LOAD% MS [THREADS]".into());
    };
    let cables = Cables { host_rate_bps: 100_000_000_000, switch_rate_bps: 100_000_000_000, delay_ns: 1_000 };
    let topology = Topology::leaf_spine(leaves as u32, spines as u32, per_leaf as u32, cables)?;
    let hosts = u64::from(topology.hosts);
    let mut random = Random::new(1);
    let mut workload = Workload::new();
    // Sizes of three decades, alike often: 1.1 MB on average.
    let mean_bytes = (30_000 + 300_000 + 3_000_000) / 3;
    let gap_ns = mean_bytes * 8 * 100 / (100 * load);
    for src in 0..hosts {
        let mut at_ns = random.exponential(gap_ns);
        while at_ns < ms * 1_000_000 {
            let dst = (src + 1 + random.up_to(hosts - 2)) % hosts;
            let bytes = [30_000, 300_000, 3_000_000][random.up_to(2) as usize];
            workload.flow(src as u32, dst as u32, 3, bytes, at_ns);
            at_ns += random.exponential(gap_ns);
        }
    }
    let mut config = Config::DEFAULT;
    for wred in &mut config.wred {
        (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (400_000, 1_600_000, 200_000);
    }
    let scenario = Scenario::new(topology, workload, config);
    let started = Instant::now();
    let outcome =
        run(&scenario, threads.first().copied().unwrap_or(1) as usize, &mut |_| ControlFlow::Continue(()))?;
    let seconds = started.elapsed().as_secs_f64();
    println!("{} flows, {} of simulated ns, {seconds:.2} s", outcome.flows.len(), outcome.duration_ns);
    println!(
        "{:.2} M hops, {:.2} M hops/s",
        outcome.work.hops as f64 / 1e6,
        outcome.work.hops as f64 / 1e6 / seconds
    );
    println!("{:#?}\n{:#?}\n{:#?}", outcome.transport, outcome.fct_by_size, outcome.classes);
    Ok(())
}
