//! All operations of RC QPs between the guests, every byte checked, through attaching and detaching; and rping.

use super::super::peer::MANAGEMENT_ADDRESSES;
use super::super::perftest::Outcome;
use super::Measured;
use super::storage::TOS;
use crate::vm::prelude::*;

/// Both ends of a QP, by the Python bindings of verbs.
const PROGRAM: &str = include_str!("../pair.py");
const PATH: &str = "/tmp/pair.py";
const PORT: u16 = 18_600;
const SECONDS: u32 = 10;
/// With time to attach and detach.
const CHANGED_S: u32 = 24;
/// Python's start in an emulated guest, and the last operations.
const PATIENCE: Duration = Duration::from_secs(110);
const ATOMIC: [&str; 2] = ["fetch_add", "compare_swap"];
/// rping's server reads a message from the client and writes it back: 3.6 MB each way.
const RPING: &str = "rping -a 10.9.0.2 -S 60000 -C 60 -V";
const RPING_BITS: f64 = 60_000.0 * 60.0 * 8.0;

pub(super) fn run(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    hosts.both(&format!("{TOS}\ncat > {PATH} <<'END'\n{PROGRAM}\nEND"))?;
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
        let line = format!("python3 {PATH} rxe0 {gid} {ECT} {seconds} {PORT} {address}");
        ends.push(hosts.start(guest, &format!("timeout {} {line}", PATIENCE.as_secs()))?);
        if guest == RECEIVER {
            let script = format!("until ss -Hltn 'sport = :{PORT}' | grep -q .; do sleep 0.1; done");
            hosts.sh(guest, &script)?;
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
        let json = printed.lines().find(|line| line.starts_with('{')).unwrap_or_default();
        let result: Value = serde_json::from_str(json).with_context(|| printed.clone())?;
        let ok = ok && result["ended"] == true && result["failed"] == 0;
        let bits = 8.0 * result["bytes"].as_f64().context("bytes")?;
        outcomes.push(Outcome { goodput_bps: ok.then_some(bits / f64::from(seconds)), printed });
        results.push(result);
    }
    let measured = Measured::new(&outcomes, hosts.counts()?.since(before));
    let all = Checked::of(&results);
    measured.row(
        report,
        "verbs",
        &format!("{what}, {} operations, longest gap {} ms", all.operations, all.longest_ms),
    );
    let name = format!("verbs, {what}");
    report.equals(&format!("{name}: QPs that broke"), measured.broken, 0);
    report.at_least(&format!("{name}: operations of the rarest kind"), all.rarest as f64, 1.0);
    report.equals(&format!("{name}: wrong answers and messages"), all.wrong, 0);
    // After a loss, soft-RoCE executes some atomic operations again, without `dcqcn` too.
    if measured.counts.retries == 0 && measured.counts.out_of_sequence == 0 {
        report.equals(&format!("{name}: wrong atomic answers"), all.wrong_atomic, 0);
    } else {
        report.skip(&format!("{name}: atomic answers"), &format!("losses, {} wrong", all.wrong_atomic));
    }
    Ok(measured)
}

/// Sums of both ends.
#[derive(Debug, Default, PartialEq, Eq)]
struct Checked {
    operations: u64,
    rarest: u64,
    wrong: u64,
    wrong_atomic: u64,
    longest_ms: u64,
}

impl Checked {
    fn of(results: &[Value]) -> Self {
        let counts = |name: &str| -> Vec<(String, u64)> {
            let all = results.iter().filter_map(|result| result[name].as_object());
            all.flatten().map(|(kind, count)| (kind.clone(), count.as_u64().unwrap_or(u64::MAX))).collect()
        };
        let (operations, wrong) = (counts("operations"), counts("wrong"));
        let is_atomic = |kind: &str| ATOMIC.contains(&kind);
        let sum = |atomic: bool| -> u64 {
            wrong.iter().filter(|(kind, _)| is_atomic(kind) == atomic).map(|(_, count)| count).sum()
        };
        Self {
            operations: operations.iter().map(|(_, count)| count).sum(),
            rarest: operations.iter().map(|(_, count)| *count).min().unwrap_or_default(),
            wrong: sum(false),
            wrong_atomic: sum(true),
            longest_ms: results.iter().filter_map(|result| result["longest_ms"].as_u64()).max().unwrap_or(0),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_answers_of_both_ends_added() {
        let end =
            |wrong: Value| json!({"operations": {"read": 3, "send": 5}, "wrong": wrong, "longest_ms": 7});
        let checked = Checked::of(&[end(json!({"read": 1, "fetch_add": 2})), end(json!({"order": 1}))]);
        let expected = Checked { operations: 16, rarest: 3, wrong: 2, wrong_atomic: 2, longest_ms: 7 };
        assert_eq!(checked, expected);
    }
}
