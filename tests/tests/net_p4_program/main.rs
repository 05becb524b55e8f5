//! The P4 program in `simple_switch`, in real time: queues that fill, packets that wait, CNPs that are recirculated.

mod untrusted;

use std::process;

use dcqcn_common::wire::icrc;
use dcqcn_common::wire::ipv4::{Ipv4, Ipv4Repr};
use dcqcn_netlink::netns::Temporary;
use dcqcn_p4::entry::{Command, Entry};
use dcqcn_p4::push::push;
use dcqcn_p4::read::Reader;
use dcqcn_p4::{self as p4, Control as _, Plan, Process, Program, Session};
use dcqcn_replay::frames::RawSocket;
use dcqcn_replay::wire;
use dcqcn_tests::prelude::*;
use dcqcn_tests::skip;

/// Time limit for an expected packet on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);
const PACKET_BYTES: u64 = 1_000;
/// No pacing and no CNPs, on both ports.
const SWITCH: &str = "\
[parameters]
link_rate = '100mbit'
np_enable = false
rp_enable = false
[bmv2]
packet = '1000B'
[[bmv2.port]]
number = 1
host = true
[[bmv2.port]]
number = 2
host = true
[[bmv2.mac]]
address = '02:00:00:00:00:01'
port = 1
[[bmv2.mac]]
address = '02:00:00:00:00:02'
port = 2
";

/// A switch with a host on port 1 and a host on port 2.
struct Bench {
    program: Program,
    config: Config,
    session: Session,
    hosts: [RawSocket; 2],
    _process: Process,
    _namespace: Temporary,
}

impl Bench {
    /// `None`, with a message, if it cannot run.
    fn new(test: &str, file: &str, set: impl FnOnce(&mut Config)) -> Result<Option<Self>> {
        if !skip::runnable(test, &[])? {
            return Ok(None);
        }
        let namespace = Temporary::create(&format!("dcqcn-p4-{}-{test}", process::id()))?;
        let netns = &*namespace;
        netns.run(|| fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"))??;
        let hosts = [wire::connect(netns, 1)?, wire::connect(netns, 2)?];
        let ports = [1, 2].map(|port| (port, wire::inner(port)));
        let (process, mut session) = match Process::start(netns, &ports) {
            Ok(started) => started,
            Err(error @ p4::Error::Missing { .. }) => {
                eprintln!("SKIPPED {test}: {error}");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let (settings, switch) = p4::switch::parse("test", file)?;
        let mut config = settings.config(None)?;
        set(&mut config);
        let program = Program::embedded()?;
        push(&mut session, &Plan::new(&program, &config, &switch)?)?;
        Ok(Some(Self { program, config, session, hosts, _process: process, _namespace: namespace }))
    }

    fn stat(&mut self, stat: Stat) -> Result<u64> {
        Ok(Reader::new(&mut self.session, &self.program).stat(stat)?)
    }

    /// Host 1 sends a packet, and host 2 gets these before it.
    fn overtake(&self, frame: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.hosts[0].send(frame)?;
        let mut before = Vec::new();
        loop {
            let next = self.hosts[1].receive(TIMEOUT)?.context("the packet does not arrive")?;
            if next == frame {
                return Ok(before);
            }
            before.push(next);
        }
    }

    /// A packet that host 1 sends, as host 2 gets it.
    fn across(&self, frame: &[u8]) -> Result<Vec<u8>> {
        self.hosts[0].send(frame)?;
        self.hosts[1].receive(TIMEOUT)?.context("the packet does not arrive")
    }
}

fn psn(frame: &[u8]) -> u32 {
    let at = Roce::default().bth() + 9;
    u32::from_be_bytes([0, frame[at], frame[at + 1], frame[at + 2]])
}

fn is_marked(frame: &[u8]) -> bool {
    Ecn::from_tos(frame[Ethernet::LEN + 1]).is_ce()
}

/// `set_queue_rate` changes the queue of a packet's priority; before BMv2 1.15.5 it changed the inverse one.
#[test]
fn queue_rate_applies_to_its_priority() {
    let Some(mut bench) = Bench::new("queue_rate_applies_to_its_priority", SWITCH, |_| {}).unwrap() else {
        return;
    };
    let rate = Command::QueueRate { port: 2, queue: Some(3), packets_per_s: 1 };
    bench.session.run(&rate).unwrap();
    for psn in 0..3 {
        bench.hosts[0].send(&Roce { psn, payload: 16, ..Roce::default() }.frame()).unwrap();
    }
    // Of priority 0.
    let other = Roce { dscp: 0, payload: 16, ..Roce::default() }.frame();
    let left = bench.overtake(&other).unwrap();
    assert!(left.len() < 3, "priority 3 does not wait in queue 3: `simple_switch` is older than 1.15.5");
}

/// SONiC's marking test: fill a blocked queue, release it, and compare the marks with Kmin, Kmax and Pmax. Of 2 Kmax
/// packets the first is marked and the last is not; over 200 runs of Kmax + 10 packets the marks match the ramp.
#[test]
fn mark_share_matches_wred() {
    const KMIN: usize = 10;
    const KMAX: usize = 40;
    const PMAX: f64 = 0.5;
    let set = |config: &mut Config| {
        config.scalars.cp_enable = 1;
        let wred = &mut config.wred[3];
        (wred.kmin_bytes, wred.kmax_bytes) = (KMIN as u64 * PACKET_BYTES, KMAX as u64 * PACKET_BYTES);
        wred.pmax_ppm = (PMAX * 1e6) as u64;
    };
    let Some(mut bench) = Bench::new("mark_share_matches_wred", SWITCH, set).unwrap() else { return };
    let queue_depth = Command::QueueDepth { port: 2, queue: Some(3), packets: 200 };
    bench.session.run(&queue_depth).unwrap();
    let probability = |depth: usize| match depth {
        0..=KMIN => 0.0,
        _ if depth > KMAX => 1.0,
        _ => (depth - KMIN) as f64 / (KMAX - KMIN) as f64 * PMAX,
    };
    // The rate at a packet's arrival determines when it leaves: one that arrives at a low rate blocks the queue.
    let (mut holds_per_s, mut too_slow) = (7, 0);
    let rate = |packets_per_s: u64| Command::QueueRate { port: 2, queue: Some(3), packets_per_s };
    bench.session.run(&rate(4_000)).unwrap();
    let frame = |psn: usize| Roce { psn: psn as u32, payload: 16, ..Roce::default() }.frame();
    // A packet of another class, which arrives once all previous ones are queued.
    let overtaking = Roce { dscp: 0, payload: 16, ..Roce::default() }.frame();
    // Marks of the blocking packet and of `count` more, in order of departure. `None` if the queue was not blocked
    // until all had arrived.
    let mut fill = |count: usize, holds_per_s: u32| {
        let start = Instant::now();
        bench.across(&frame(count + 1)).unwrap();
        bench.session.run(&rate(holds_per_s.into())).unwrap();
        bench.hosts[0].send(&frame(count)).unwrap();
        let mut left = bench.overtake(&overtaking).unwrap();
        bench.session.run(&rate(4_000)).unwrap();
        for n in 0..count {
            bench.hosts[0].send(&frame(n)).unwrap();
        }
        left.extend(bench.overtake(&overtaking).unwrap());
        // The first packet left after `start`, and the blocking one leaves this much later.
        let is_held = left.is_empty() && start.elapsed() < Duration::from_secs(1) / holds_per_s;
        while left.len() < count + 1 {
            left.push(bench.hosts[1].receive(TIMEOUT).unwrap().expect("the packet arrives"));
        }
        let expected = [count].into_iter().chain(0..count);
        assert!(left.iter().map(|frame| psn(frame) as usize).eq(expected), "in order");
        is_held.then(|| left.iter().map(|frame| is_marked(frame)).collect::<Vec<_>>())
    };
    // A busy machine needs longer to fill it.
    let mut run = |count| loop {
        if let Some(marks) = fill(count, holds_per_s) {
            break marks;
        }
        holds_per_s = u32::max(holds_per_s - 1, 2);
        too_slow += 1;
        assert!(too_slow < 1_000, "the machine is too slow to fill a queue within half a second");
    };
    let marks = run(2 * KMAX);
    // The blocking packet left the queue with all the others behind it.
    assert!(marks[0] && marks[1..=KMAX - 1].iter().all(|marked| *marked), "{marks:?}");
    assert!(!marks[2 * KMAX - KMIN..].contains(&true), "{marks:?}");

    let count = KMAX + 10;
    let runs = 200;
    let (mut expected, mut variance, mut marked) = (0.0, 0.0, 0);
    for _ in 0..runs {
        for (index, is_marked) in run(count).into_iter().enumerate() {
            let depth = count - index;
            let p = probability(depth);
            assert!(!is_marked || p > 0.0, "marked at {depth}");
            assert!(is_marked || p < 1.0, "not marked at {depth}");
            expected += p;
            variance += p * (1.0 - p);
            marked += u32::from(is_marked);
        }
    }
    let deviations = (f64::from(marked) - expected) / f64::sqrt(variance);
    println!("{runs} runs of {count}: {marked} marked, {expected:.1} expected, {deviations:+.2} deviations");
    assert!(deviations.abs() < 5.0, "{marked} marked, {expected} expected");
}

/// A host's packets leave no sooner than its rate allows, in order; beyond the horizon they leave at the
/// horizon, or are dropped where that is requested, and are counted.
#[test]
fn packets_wait_for_their_departure() {
    for horizon_drop in [false, true] {
        let paced_host = format!(
            "rp_enable = true\nrpg_max_rate = '2mbit'\nwire_overhead = '0B'\npacing_horizon = '100ms'\n\
             pacing_horizon_drop = {horizon_drop}\npacing_credit = '0us'\nrpg_min_rate = '1mbit'"
        );
        let file = SWITCH.replace("rp_enable = false", &paced_host);
        let set = |config: &mut Config| config.scalars.pacer = PACER_FQ;
        let Some(mut bench) = Bench::new("packets_wait_for_their_departure", &file, set).unwrap() else {
            return;
        };
        // The queue is empty at the end of an attempt: the next one starts again.
        while_busy(10, || check_pacing(&mut bench, horizon_drop)).unwrap();
    }
}

/// Two flows send 80 packets each as fast as they can, of which one is due every 4 ms: more than the horizon's 100 ms.
fn check_pacing(bench: &mut Bench, horizon_drop: bool) -> Result<()> {
    const INTERVAL: Duration = Duration::from_millis(4);
    const HORIZON_PACKETS: u32 = 25;
    let frame =
        |n: u32| Roce { psn: n / 2, dest_qpn: 0x11 + n % 2, payload: 1_000 - 58, ..Roce::default() }.frame();
    assert_eq!(frame(0).len(), 1_000);
    let waited_before = bench.stat(Stat::RpPaced)?;
    let (dropped_before, at_horizon_before) =
        (bench.stat(Stat::RpHorizonDrop)?, bench.stat(Stat::RpHorizonPass)?);
    let start = Instant::now();
    for n in 0..2 * 80 {
        bench.hosts[0].send(&frame(n))?;
    }
    let took = start.elapsed();
    let (mut arrived, mut dropped) = ([0; 2], 0);
    let until = Instant::now() + TIMEOUT;
    while u64::from(arrived[0] + arrived[1]) + dropped < 2 * 80 {
        let Some(frame) = bench.hosts[1].receive(Duration::from_millis(500))? else {
            dropped = bench.stat(Stat::RpHorizonDrop)? - dropped_before;
            assert!(Instant::now() < until, "{arrived:?} arrive, {dropped} are counted");
            continue;
        };
        let flow = usize::from(frame[Roce::default().bth() + 7] - 0x11);
        assert!(arrived[flow] == 0 || psn(&frame) >= arrived[flow], "in order");
        // The first leaves immediately, the others at intervals of one gap, up to the horizon: never earlier.
        let due = INTERVAL * arrived[flow].min(HORIZON_PACKETS);
        assert!(start.elapsed() >= due, "packet {} too soon", arrived[flow]);
        arrived[flow] += 1;
    }
    let waited = bench.stat(Stat::RpPaced)? - waited_before;
    let at_horizon = bench.stat(Stat::RpHorizonPass)? - at_horizon_before;
    let seen = format!(
        "80 packets of each of two flows in {took:?}: {arrived:?} arrived, {waited} waited, {at_horizon} left at the \
         horizon, {dropped} dropped"
    );
    println!("{seen}");
    assert_eq!(u64::from(arrived[0] + arrived[1]) + dropped, 2 * 80);
    let (beyond, never) = if horizon_drop { (dropped, at_horizon) } else { (at_horizon, dropped) };
    assert_eq!(never, 0, "{seen}");
    // A sender that is slower than the rate has more sent, and none beyond the horizon.
    ensure!(waited > 0 && beyond > 0 && arrived[0] >= HORIZON_PACKETS, "{seen}");
    Ok(())
}

/// A queue marks, the receiver's port answers, the CNP returns to the sender's port, and the sender's flow is cut.
#[test]
fn local_cnp_cuts_local_flow() {
    let test = test_name!();
    let file = SWITCH.replace(
        "np_enable = false\nrp_enable = false",
        "cp_enable = true\nrp_enable = true\nmin_time_between_cnps = '1s'\nrpg_time_reset = '10s'",
    );
    let Some(mut bench) = Bench::new(test, &file, |_| {}).unwrap() else { return };
    let (table, action) = bench.program.names("queue_depth", "fixed_depth").unwrap();
    let full = Entry::default_action(table, action, vec![1_000_u16.into()]);
    bench.session.run(&Command::Write(full)).unwrap();
    for (flow, v6) in [(0x11, false), (0x12, true)] {
        let data = Roce { v6, dest_qpn: flow, ..Roce::default() };
        let sent = bench.across(&data.frame()).unwrap();
        assert_eq!(sent, Roce { ecn: Ecn::CE, ..data.clone() }.frame());
        let cnp = bench.hosts[0].receive(TIMEOUT).unwrap().expect("the CNP arrives");
        assert_eq!(cnp, data.cnp(None, 48 << 2));
        assert!(icrc::verify(&cnp[Ethernet::LEN..]));
        // No second CNP within the interval.
        bench.across(&data.frame()).unwrap();
    }
    let counted =
        [Stat::CpEcnMarked, Stat::NpEcnMarked, Stat::NpCnpSent, Stat::NpCnpSuppressed, Stat::RpCnpHandled]
            .map(|stat| bench.stat(stat).unwrap());
    assert_eq!(counted, [4, 4, 2, 2, 2]);
    let flows = Reader::new(&mut bench.session, &bench.program).rp_flows().unwrap();
    assert_eq!(flows.len(), 2);
    for flow in flows {
        let machine = flow.hot.machine;
        // Alpha is initially 1, and no timer has expired since.
        assert_eq!((machine.active, machine.target_bps, machine.rate_bps), (1, 100_000_000, 50_000_000));
        assert_eq!((flow.cnps.handled, flow.hot.packets), (1, 2));
    }
}

/// Longest prefix first; addresses rewritten, TTL and hop limit less one, checksum and ICRC right.
#[test]
fn packets_are_routed() {
    let routes = "\
[[bmv2.route]]
to = '10.0.0.0/8'
port = 1
src_mac = '02:00:00:00:01:01'
dst_mac = '02:00:00:00:01:02'
[[bmv2.route]]
to = '10.0.0.0/24'
port = 2
src_mac = '02:00:00:00:02:01'
dst_mac = '02:00:00:00:02:02'
[[bmv2.route]]
to = 'fd00::/64'
port = 2
src_mac = '02:00:00:00:02:01'
dst_mac = '02:00:00:00:02:02'
";
    let mac_part = SWITCH.find("[[bmv2.mac]]").unwrap();
    let file = format!("{}{routes}", &SWITCH[..mac_part]);
    let Some(mut bench) = Bench::new("packets_are_routed", &file, |_| {}).unwrap() else { return };
    for is_v6 in [false, true] {
        let data = Roce { v6: is_v6, ..Roce::default() };
        let frame = data.frame();
        let routed = bench.across(&frame).unwrap();
        assert_eq!(routed[..6], [2, 0, 0, 0, 2, 2]);
        assert_eq!(routed[6..12], [2, 0, 0, 0, 2, 1]);
        let ttl_at = Ethernet::LEN + if is_v6 { 7 } else { 8 };
        assert_eq!((frame[ttl_at], routed[ttl_at]), (64, 63));
        assert!(icrc::verify(&routed[Ethernet::LEN..]));
        if !is_v6 {
            assert!(Ipv4::new(routed[Ethernet::LEN..].first_chunk().unwrap()).checksum_ok());
        }
        // TTL exceeded: dropped, and counted.
        let mut last = frame.clone();
        last[ttl_at] = 1;
        bench.hosts[0].send(&last).unwrap();
        assert_eq!(bench.hosts[1].receive(Duration::from_millis(100)).unwrap(), None);
    }
    // The shorter prefix, and no route.
    let mut away = Roce::default().frame();
    let mut rewrite = |dst: [u8; 4]| {
        let header = away[Ethernet::LEN..].first_chunk_mut::<{ Ipv4::LEN }>().unwrap();
        let ip = Ipv4Repr::parse(Ipv4::new(header)).unwrap();
        Ipv4Repr { dst, ..ip }.emit(header);
        away.clone()
    };
    let elsewhere = rewrite([10, 9, 9, 9]);
    bench.hosts[0].send(&elsewhere).unwrap();
    let routed = bench.hosts[0].receive(TIMEOUT).unwrap().expect("the packet arrives");
    assert_eq!(routed[..6], [2, 0, 0, 0, 1, 2]);
    let nowhere = rewrite([192, 0, 2, 1]);
    bench.hosts[0].send(&nowhere).unwrap();
    assert_eq!(bench.hosts[0].receive(Duration::from_millis(100)).unwrap(), None);
    let not_forwarded = bench.program.counter("not_forwarded").unwrap();
    let mut counted = || [0, 1].map(|index| bench.session.counter(not_forwarded, index).unwrap().0);
    wait_until("no destination, no hops", || Ok(counted() == [1, 2])).unwrap();
}
