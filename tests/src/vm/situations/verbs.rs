//! All operations of RC QPs between the guests, every byte checked, through attaching and detaching; and rping.

use super::super::operations::{self, PAIR, Results};
use super::super::peer::MANAGEMENT_ADDRESSES;
use super::super::perftest::Outcome;
use super::Measured;
use super::storage::TOS;
use crate::vm::prelude::*;

const PORT: u16 = 18_600;
const SECONDS: u32 = 10;
/// With time to attach and detach.
const CHANGED_S: u32 = 24;
/// Python's start in an emulated guest, and the last operations.
const PATIENCE: Duration = Duration::from_secs(110);
/// rping's server reads a message from the client and writes it back: 3.6 MB each way.
const RPING: &str = "rping -a 10.9.0.2 -S 60000 -C 60 -V";
const RPING_BITS: f64 = 60_000.0 * 60.0 * 8.0;

pub(super) fn run(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    operations::install()?;
    hosts.both(TOS)?;
    pair(hosts, report, ("off", SECONDS), |_| Ok(()))?;
    let pinged = rping(hosts)?;
    pinged.row(report, "verbs", "rping, off");
    report.equals("verbs, rping, off: failed", pinged.broken, 0);

    hosts.attach_both()?;
    let on = pair(hosts, report, ("dcqcn", SECONDS), |_| Ok(()))?;
    on.check_answers(report, "verbs, dcqcn");
    let pinged = rping(hosts)?;
    pinged.row(report, "verbs", "rping, dcqcn");
    pinged.check_answers(report, "verbs, rping, dcqcn");
    hosts.detach_both()?;

    pair(hosts, report, ("attached and detached", CHANGED_S), |hosts| {
        hosts.attach_both()?;
        thread::sleep(Duration::from_secs(3));
        hosts.detach_both()
    })
    .map(drop)
}

/// All operations in both directions, and an action once they have started.
fn pair(
    hosts: &mut Hosts,
    report: &mut Report,
    (what, seconds): (&str, u32),
    action: impl FnOnce(&mut Hosts) -> Result<()>,
) -> Result<Measured> {
    let before = hosts.counts()?;
    let mut ends = Vec::new();
    for guest in [RECEIVER, SENDER] {
        let (gid, server) = (hosts.gid_index(guest)?, MANAGEMENT_ADDRESSES[usize::from(RECEIVER - 1)]);
        let address = if guest == SENDER { server } else { "" };
        let line = format!("python3 {PAIR} rxe0 {gid} {ECT} {seconds} {PORT} {address}");
        ends.push(hosts.start(guest, &format!("timeout {} {line}", PATIENCE.as_secs()))?);
        if guest == RECEIVER {
            hosts.listening(guest, PORT)?;
        }
    }
    wait_for(PATIENCE, || {
        let printed = hosts.printed(&ends[1])?;
        let is_ended = printed.contains("exit ");
        ensure!(!is_ended, "the program failed: {}", printed.trim());
        Ok(if printed.contains("started") { Ok(()) } else { Err(printed) })
    })?;
    action(hosts)?;
    let (mut outcomes, mut results) = (Vec::new(), Vec::new());
    for end in &ends {
        let (ok, printed) = hosts.finish(end, PATIENCE)?;
        let result = Results::parse(&printed)?;
        let ok = ok && result.ended && result.failed == 0;
        let bits = 8.0 * result.bytes as f64;
        outcomes.push(Outcome { goodput_bps: ok.then_some(bits / f64::from(seconds)), printed });
        results.push(result);
    }
    let measured = Measured::new(&outcomes, hosts.counts()?.since(before));
    let all = |number: fn(&Results) -> u64| results.iter().map(number).sum::<u64>();
    let (completed, wrong_atomic) = (all(Results::completed), all(Results::wrong_atomic));
    let longest_ms = results.iter().map(|result| result.longest_ms).max().unwrap_or_default();
    let counts = results.iter().flat_map(|result| result.operations.values().copied());
    let rarest = counts.min().unwrap_or_default() as f64;
    let text = format!("{what}, {completed} operations, longest gap {longest_ms} ms");
    measured.row(report, "verbs", &text);
    let name = format!("verbs, {what}");
    report.equals(&format!("{name}: QPs that broke"), measured.broken, 0);
    report.at_least(&format!("{name}: operations of the rarest kind"), rarest, 1.0);
    report.equals(&format!("{name}: wrong answers and messages"), all(Results::wrong_other), 0);
    // See `Results::wrong_atomic`.
    if measured.counts.retries == 0 && measured.counts.out_of_sequence == 0 {
        report.equals(&format!("{name}: wrong atomic answers"), wrong_atomic, 0);
    } else {
        report.skip(&format!("{name}: atomic answers"), &format!("losses, {wrong_atomic} wrong"));
    }
    Ok(measured)
}

/// rping, which validates what it receives.
fn rping(hosts: &mut Hosts) -> Result<Measured> {
    let before = hosts.counts()?;
    hosts.start(RECEIVER, &format!("timeout 60 {RPING} -s"))?;
    // It prints nothing when it listens.
    thread::sleep(Duration::from_secs(2));
    let started = Instant::now();
    let client = hosts.start(SENDER, &format!("timeout 60 {RPING} -c"))?;
    let (ok, printed) = hosts.finish(&client, PATIENCE)?;
    let goodput_bps = ok.then(|| RPING_BITS / started.elapsed().as_secs_f64());
    hosts.sh(RECEIVER, "pkill -9 -x rping || true")?;
    let outcome = Outcome { goodput_bps, printed };
    Ok(Measured::new(&[outcome], hosts.counts()?.since(before)))
}
