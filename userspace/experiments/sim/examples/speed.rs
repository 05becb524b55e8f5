//! How fast a fabric is simulated, without anything around it:
//! `cargo run --release -p dcqcn-sim --example speed -- LEAVES SPINES HOSTS LOAD% MS THREADS [SIZES]`, where SIZES is a
//! distribution in the format of HPCC's traffic generator; without it flows have 1 MB.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use dcqcn_common::params::Config;
use dcqcn_sim::network::workload::{Poisson, Sizes, Workload, text};
use dcqcn_sim::network::{Cables, Scenario, Topology, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u32> = words.iter().take(6).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [leaves, spines, per_leaf, load, ms, threads] = numbers[..] else {
        return Err("give LEAVES SPINES HOSTS LOAD% MS THREADS [SIZES]".into());
    };
    let rate_bps = 100_000_000_000;
    let cables = Cables { host_rate_bps: rate_bps, switch_rate_bps: rate_bps, delay_ns: 1_000 };
    let topology = Topology::leaf_spine(leaves, spines, per_leaf, cables)?;
    let sizes = match words.get(6) {
        Some(name) => Sizes::parse(name, &text(Path::new(name))?)?,
        None => Sizes::constant(1_000_000),
    };
    let spec = Poisson {
        hosts: topology.hosts,
        rate_bps,
        load: f64::from(load) / 100.0,
        until_ns: u64::from(ms) * 1_000_000,
        class: 3,
        seed: 1,
    };
    let workload = Workload::poisson(&sizes, &spec);
    let mut config = Config::DEFAULT;
    config.scalars.rate_reduce_monitor_period_ns = 0;
    for wred in &mut config.wred {
        (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (400_000, 1_600_000, 200_000);
    }
    let mut scenario = Scenario::new(topology, workload, config);
    scenario.duration_ns = spec.until_ns;
    let started = Instant::now();
    let outcome = run(&scenario, threads as usize, &mut |_| ControlFlow::Continue(()))?;
    let seconds = started.elapsed().as_secs_f64();
    let complete = outcome.flows.iter().filter(|flow| flow.fct_ns.is_some()).count();
    println!("{complete} of {} flows in {} ns", outcome.flows.len(), outcome.duration_ns);
    let hops = outcome.work.hops as f64 / 1e6;
    println!("{hops:.1} M hops in {seconds:.2} s, {:.2} M hops/s", hops / seconds);
    println!("{:?}", outcome.transport);
    for class in &outcome.classes {
        println!("{class:?}");
    }
    for band in &outcome.fct_by_size {
        println!("{band:?}");
    }
    Ok(())
}
