//! The commands of docs/how-to/fix-storage.md, typed while an initiator reads two disks next to a backup: read times
//! before, and after each step.

use super::typing::{self, PREAMBLE, blocks, typed};
use crate::vm::prelude::*;

/// Hosts with disks, by disk number.
const TARGETS: [u8; 2] = [1, 2];
/// The host at the bottleneck port.
const INITIATOR: u8 = 3;
/// Sends the backup.
const BACKUP: u8 = 4;
const PAGE: &str = include_str!("../../../../docs/how-to/fix-storage.md");
/// Step 6 is a file for the package.
const SECTIONS: [&str; 5] = [
    "## 1. Is it the port?",
    "## 2. The port: classes, queues, marks",
    "## 3. The hosts: ECN and CNPs",
    "## 4. See it work",
    "## 5. More for storage, or less",
];
/// The label in the page, with the number of the target; the name here is from [`nvme`].
const DISK: &str = "nqn.2014-08.org.example:disk";
const READS: Job = Job { pattern: "randread", block_bytes: 16_384, depth: 8, settling_s: 8, length_s: 20 };
/// The page's definition of a stall, s: all data in flight from both targets takes the port 0.1 s.
const STALL_S: f64 = 1.0;
/// Storage's weight, of 1, and the tolerance of its share with step 5, in which the page predicts it.
const WEIGHT: f64 = 0.7;
const NEAR: f64 = 0.1;
const PORT_BPS: f64 = 20e6;
/// Ratio of a packet on the wire to its payload: Ethernet, IPv4, UDP, BTH and ICRC around 1,024 bytes.
const WIRE: f64 = (1_024 + 14 + 20 + 8 + 12 + 4) as f64 / 1_024.0;
/// Three times reads of half a minute, and three attachments, emulated on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(340);

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(BACKUP, &Options::default())?;
    sh("modprobe sch_ets")?;
    lab.shape(INITIATOR, "20mbit")?;
    // Marking is not requested yet.
    let ends = TARGETS.map(|target| NvmeDisk { initiator: INITIATOR, target });
    nvme::prepare(&lab, &ends, 0)?;
    fio::fill(&nvme::MEMORY, READS.block_bytes)?;
    let disks = nvme::connect(&lab, &ends, Transport::Rdma)?;
    let paths: Vec<_> = disks.iter().map(|disk| disk.path.display()).collect();
    let reads = READS.command(&paths);
    let transcript = typing::run(report, &script(&lab, &reads), TIMEOUT)?;

    let [before, after, more] = ["before", "after", "more"].map(Phase::read);
    let (before, after, more) = (before?, after?, more?);
    before.row(report, "before");
    after.row(report, "step 4");
    more.row(report, "step 5");
    let failed = [&before, &after, &more].into_iter().filter(|phase| phase.done.failed).count();
    report.equals("runs with a wrong block or a failed read", failed, 0);
    // Without a stall there is nothing to fix. The amount read varies: a fifth of the port on Linux 6.1, half
    // on later kernels.
    report.at_least("before: longest read, s", before.done.max_ms / 1e3, STALL_S);
    for (name, phase) in [("step 4", &after), ("step 5", &more)] {
        report.at_most(&format!("{name}: longest read, s"), phase.done.max_ms / 1e3, STALL_S);
        let drops = phase.queue_drops.context("the port has no queues")?;
        report.equals(&format!("{name}: drops of the storage queue, settled"), drops, 0);
    }
    report.at_least("step 5: storage's share of the port", more.share(), WEIGHT - NEAR);
    report.at_most("step 5: storage's share of the port", more.share(), WEIGHT + NEAR);
    report.at_least("step 5: storage, of that at step 4", more.share() / after.share(), 1.0);
    let weights: Vec<_> =
        queues("end")?.iter().filter_map(|row| row.get("weight")?.as_u64()).filter(|at| *at == 50).collect();
    report.equals("queues with a weight of 50, at the end", weights.len(), 2);
    if !report.passed() {
        println!("{transcript}");
    }
    Ok(())
}

/// All commands, and concurrent reads: before any change, with all changes, and with step 5's Kmin.
fn script(lab: &Lab, reads: &str) -> String {
    let (from, to) = (lab.address(BACKUP), lab.address(INITIATOR));
    let mut script = format!(
        "{PREAMBLE}iperf3 -s -B {to} --one-off >/dev/null & sleep 1; iperf3 -c {to} -B {from} -t 1000 >/dev/null &\n"
    );
    script += &start("before", reads);
    for line in blocks(PAGE, &SECTIONS).iter().flatten() {
        let is_more = line.starts_with("dcqcn set") && line.contains("kmin");
        if line.starts_with("dcqcn attach eth1") {
            script += &end("before");
        } else if line.starts_with("dcqcn queues") {
            script += &start("after", reads);
        } else if is_more {
            script += &end("after");
        } else if line.starts_with("dcqcn set") {
            script += &end("more");
        }
        script += &typed(&ours(line, lab));
        if line.contains("attach eth0") {
            for host in TARGETS {
                script += &format!("command dcqcn attach h{host} --profile lab --set link_rate=40mbit\n");
            }
        } else if line.starts_with("dcqcn run") {
            script += "sleep 5\n";
        } else if is_more {
            script += &start("more", reads);
        }
    }
    script += &record("end");
    script + "kill $(pgrep -x iperf3) $(pgrep -x dcqcn) 2>/dev/null\nwait 2>/dev/null\n"
}

/// Starts to read, and records the counters once rates have settled.
fn start(phase: &str, reads: &str) -> String {
    let settled = record(&format!("{phase}-from"));
    format!("{reads} >/tmp/{phase}.json &\nreads=$!\nsleep {}\n{settled}", READS.settling_s + 1)
}

fn end(phase: &str) -> String {
    format!("wait $reads\n{}", record(&format!("{phase}-to")))
}

/// Records the port's counters; nothing for queues that do not exist.
fn record(name: &str) -> String {
    format!(
        "ip netns exec switch tc -s -j qdisc show dev p3 >/tmp/{name}-port.json\n\
         ip netns exec switch dcqcn --json queues p3 >/tmp/{name}-queues.json 2>/dev/null\n"
    )
}

fn ours(line: &str, lab: &Lab) -> String {
    let mut line = line.replace("rxe0", &rxe(INITIATOR));
    for target in TARGETS {
        line = line.replace(&format!("{DISK}{target}"), &nvme::name(target));
    }
    if line.starts_with("nvme connect") {
        return format!("{line} --host-traddr={} --nr-io-queues=1", lab.address(INITIATOR));
    }
    let switch = |line: &str| format!("ip netns exec switch {}", line.replace("eth1", "p3"));
    match line.strip_prefix("dcqcn top eth1") {
        Some(rest) => format!("in_terminal 'ip netns exec switch dcqcn top p3{rest}'"),
        None if line.contains("eth1") => switch(&line),
        None if line.contains("attach") => line.replace("eth0", "h3") + " --set link_rate=40mbit",
        None => line.replace("eth0", "h3"),
    }
}

struct Phase {
    done: CompletedIo,
    drops: u64,
    /// Drops of the storage queue; none while the port has no queues.
    queue_drops: Option<u64>,
}

impl Phase {
    fn read(name: &str) -> Result<Self> {
        let json = fs::read_to_string(format!("/tmp/{name}.json")).with_context(|| format!("fio, {name}"))?;
        let [from, to] = ["from", "to"].map(|when| format!("{name}-{when}"));
        let queue_drops = match queues(&from) {
            Ok(from) => Some(storage_drops(&queues(&to)?)? - storage_drops(&from)?),
            Err(_) => None,
        };
        Ok(Self { done: fio::done(&json)?, drops: port_drops(&to)? - port_drops(&from)?, queue_drops })
    }

    /// Storage's share of the port, headers included.
    fn share(&self) -> f64 {
        self.done.read_bps * WIRE / PORT_BPS
    }

    fn row(&self, report: &mut Report, name: &str) {
        let CompletedIo { read_bps, p50_ms, p99_ms, max_ms, .. } = self.done;
        let queue_drops = self.queue_drops.map_or_else(|| "-".to_owned(), |drops| drops.to_string());
        report.record([
            ("", name.to_owned()),
            ("storage, Mbit/s", format!("{:.2}", read_bps / 1e6)),
            ("of the port", format!("{:.0} %", 100.0 * self.share())),
            ("p50, ms", format!("{p50_ms:.0}")),
            ("p99, ms", format!("{p99_ms:.0}")),
            ("longest, s", format!("{:.1}", max_ms / 1e3)),
            ("drops of the port, settled", self.drops.to_string()),
            ("of the storage queue, settled", queue_drops),
        ]);
    }
}

fn storage_drops(queues: &[Value]) -> Result<u64> {
    let row = queues.iter().find(|row| row.get("queue").and_then(Value::as_u64) == Some(3));
    row.and_then(|row| row.get("drops")?.as_u64()).context("no drops of queue 3")
}

fn queues(name: &str) -> Result<Vec<Value>> {
    let json: Value = serde_json::from_str(&fs::read_to_string(format!("/tmp/{name}-queues.json"))?)?;
    let rows = json.get("queues").and_then(Value::as_array);
    rows.cloned().context("`dcqcn queues` lists queues")
}

fn port_drops(name: &str) -> Result<u64> {
    let json: Value = serde_json::from_str(&fs::read_to_string(format!("/tmp/{name}-port.json"))?)?;
    let mut qdiscs = json.as_array().into_iter().flatten();
    let root = qdiscs.find(|qdisc| qdisc.get("root").is_some());
    root.and_then(|root| root.get("drops")?.as_u64()).context("`tc` names a root")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_contains_typed_commands() {
        let typed = blocks(PAGE, &SECTIONS);
        let lines: Vec<_> = typed.iter().flatten().collect();
        assert_eq!((typed.len(), lines.len()), (SECTIONS.len() + 1, 18), "{lines:#?}");
        for target in TARGETS {
            let disk = format!("{DISK}{target}");
            assert!(lines.iter().any(|line| line.starts_with("nvme connect") && line.contains(&disk)));
        }
        assert!(lines.iter().any(|line| line.as_str() == "dcqcn run eth1 &"), "{lines:#?}");
        // Reads start and end here.
        for (word, times) in [("attach eth1", 1), ("dcqcn queues", 1), ("kmin", 1), ("weight=50", 1)] {
            assert_eq!(lines.iter().filter(|line| line.contains(word)).count(), times, "{word}: {lines:#?}");
        }
    }
}
