//! Congestion of the receiving host by its own load: the NP answers data that no queue has marked.

use dcqcn_tests::prelude::*;
use dcqcn_tests::vm::command::script_in;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Filters that every received packet passes: about 80 us of work, much more than sending it.
const FILTERS: u32 = 8_000;
/// The kernel's default of `net.core.netdev_max_backlog`, at half of which the host counts as congested.
const MAX_BACKLOG: &str = "1000";
/// Their send buffers bound the backlog to 800 to 1,200 packets, of 700 to 1,000 bytes with the kernel's
/// overhead, which varies: more than half of the maximum. Drops beyond the maximum count as congestion too.
const SENDERS: usize = 4;
const SEND_BUFFER_BYTES: usize = 100_000;

#[test]
fn overloaded_receiver_answers_unmarked_data() -> Result<()> {
    let pair = new_pair!();
    let max_backlog = fs::read_to_string("/proc/sys/net/core/netdev_max_backlog")?;
    require_that!(max_backlog.trim() == MAX_BACKLOG, "net.core.netdev_max_backlog is not the default");
    require_that!(Path::new("/sys/class/net/lo/queues/rx-0/rps_cpus").exists(), "the kernel has no RPS");
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let cpus: Vec<usize> =
        (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).take(2).collect();
    require_that!(cpus.len() == 2, "needs a CPU that sends and one that receives");
    let (sending, receiving) = (cpus[0], cpus[1]);
    // Words of 32 CPUs, the last ones first.
    let (word, rest) = (1_u32 << (receiving % 32), ",00000000".repeat(receiving / 32));
    let rps = format!("echo {word:x}{rest} > /sys/class/net/a0/queues/rx-0/rps_cpus");
    script_in(&pair.a.netns, &rps)?;
    pair.a.command("tc qdisc add dev a0 clsact")?;
    let dir = tempfile::tempdir()?;
    let batch = dir.path().join("filters");
    let filter = |number: u32| {
        let priority = 1 + number % 8;
        format!(
            "filter add dev a0 ingress protocol ip prio {priority} u32 match ip dst 1.2.3.4 classid 1:1\n"
        )
    };
    fs::write(&batch, (0..FILTERS).map(filter).collect::<String>())?;
    pair.a.command(&format!("tc -batch {}", batch.display()))?;

    // CNPs pass the same backlog.
    let file = format!("{HOST}np_host_congestion = true\nmin_time_between_cnps = '10ms'\n");
    let mut daemon = Daemon::serving(&pair.a, &file, "a0")?;
    daemon.wait_for_log(&["task started", "\"task\":\"host_congestion\""])?;
    let _endpoint = pair.a.roce_socket("a0", 1)?;
    let frame = Roce { src: 2, dst: 1, ecn: Ecn::ECT0, payload: 16, ..Roce::default() }.frame();
    let peer = pair.b.socket("b0")?;
    peer.send(&frame)?;
    assert_eq!(peer.receive(SILENCE)?, None, "not congested");
    let senders = (0..SENDERS).map(|_| pair.b.socket("b0")).collect::<Result<Vec<_>>>()?;
    senders.iter().try_for_each(|sender| sender.limit_send_buffer(SEND_BUFFER_BYTES))?;
    let mut cpu = CpuSet::new();
    cpu.set(sending)?;
    let send = || -> Result<()> {
        // Of this thread.
        sched_setaffinity(Pid::from_raw(0), &cpu)?;
        Ok(senders.iter().try_for_each(|sender| sender.send(&frame))?)
    };
    let answers = || pair.a.count("a0", Hook::Egress, Stat::NpCnpSent);
    while_repeating([send], || {
        daemon.wait_for_log(&["host congested", "\"iface\":\"a0\""])?;
        wait_value(answers, |answers| *answers > 0).map(drop)
    })?;
    daemon.wait_for_log(&["host no longer congested"])?;
    daemon.end()
}
