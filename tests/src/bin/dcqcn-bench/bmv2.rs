//! The P4 program in BMv2's `simple_switch`, as a port between two hosts.

use std::process;

use dcqcn_netlink::netns::Temporary;
use dcqcn_p4::push::push;
use dcqcn_p4::{self as p4, Plan, Process, Program};
use dcqcn_replay::frames::TIMEOUT;
use dcqcn_replay::wire;
use dcqcn_tests::prelude::*;
use nix::time::{clock_getcpuclockid, clock_gettime};

use crate::Bench;
use crate::links::CP;
use crate::report::{Metric, Section};
use crate::runner::cpu_time;

/// Name of its metric.
const SIMPLE_SWITCH: &str = "simple_switch runs the P4 program (CP)";
/// Packets in flight: fewer than any of the switch's buffers can store.
const WINDOW: usize = 16;
const SWITCH: &str = "\
[parameters]
link_rate = '100gbit'
cp_enable = true
np_enable = false
rp_enable = false
[[bmv2.port]]
number = 1
[[bmv2.port]]
number = 2
[[bmv2.mac]]
address = '02:00:00:00:00:02'
port = 2
";

/// Measures BMv2, if installed: packets per second of CPU time of all threads of the switch, and of the sender.
pub(crate) fn measure(bench: &mut Bench) -> Result<()> {
    bench.progress("links: simple_switch");
    let namespace = Temporary::create(&format!("dcqcn-bench-p4-{}", process::id()))?;
    let netns = &*namespace;
    let (near, far) = (wire::connect(netns, 1)?, wire::connect(netns, 2)?);
    let (process, mut session) = match Process::start(netns, &[1, 2].map(|port| (port, wire::inner(port)))) {
        Ok(started) => started,
        Err(error @ p4::Error::Missing { .. }) => {
            bench.skip(SIMPLE_SWITCH, &error.to_string());
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let (settings, switch) = p4::switch::parse(SIMPLE_SWITCH, SWITCH)?;
    push(&mut session, &Plan::new(&Program::embedded()?, &settings.config(None)?, &switch)?)?;

    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(process.id())?))?;
    let busy = || -> Result<Duration> { Ok(Duration::from(clock_gettime(clock)?) + cpu_time()?) };
    let frame = Roce::default().frame();
    let (rounds, windows) = if bench.quick { (2, 10) } else { (21, 100) };
    let mut rates = Vec::new();
    for _ in 0..rounds {
        let before = busy()?;
        for _ in 0..windows {
            for _ in 0..WINDOW {
                near.send(&frame)?;
            }
            for _ in 0..WINDOW {
                far.receive(TIMEOUT)?.context("simple_switch does not forward a packet")?;
            }
        }
        let packets = (WINDOW * windows) as f64;
        rates.push(packets / (busy()? - before).as_secs_f64() / 1e3);
    }
    bench.add(Metric::new(Section::Links, SIMPLE_SWITCH, "kpps", rates).more_is_better().against(CP));
    Ok(())
}
