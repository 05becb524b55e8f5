//! What the documentation tells people to type, typed: the very blocks of the pages.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::super::command::{Running, json, sh};
use super::super::fio;
use super::super::lab::{Lab, Options, count, rxe};
use super::super::nvme::{self, Transport};
use super::super::report::Report;

const HOSTS: u8 = 3;
const FIVE_MINUTES: &str = include_str!("../../../../docs/first-steps/soft-roce.md");
const FIVE_MINUTES_SECTION: &str = "## Steps";
const COLLAPSE: &str = include_str!("../../../../docs/how-to/fix-incast.md");
/// Step 2 is a table. Of step 6 what installs a package and starts a service is left out ([`is_for_the_package`]).
const COLLAPSE_SECTIONS: [&str; 5] = [
    "## 1. Is it congestion?",
    "## 3. Attach",
    "## 4. See it work",
    "## 5. Tune, if need be",
    "## 6. Keep it",
];
const STORAGE: &str = include_str!("../../../../docs/how-to/fix-storage.md");
/// Step 6 is a file for the package.
const STORAGE_SECTIONS: [&str; 5] = [
    "## 1. Is it the port?",
    "## 2. The port: classes, queues, marks",
    "## 3. The hosts: marks asked for, and heeded",
    "## 4. See it work",
    "## 5. Other shares",
];
/// In the page; what it is called here comes from [`nvme`].
const STORAGE_DISK: &str = "nqn.2014-08.org.example:disk1";
/// What step 6 has make the RDMA device and the mark of its connections at every boot.
const SOFT_ROCE_UNIT: &str = include_str!("../../../../dist/systemd/dcqcn-soft-roce@.service");
/// `dcqcn doctor` found warnings.
const WARNINGS: i32 = 4;
/// Four attachments take a minute, emulated on a busy machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// What a reader has at hand: a terminal, the key that leaves `top`, and Ctrl-C. `typed` says what it runs and how that ended.
const PREAMBLE: &str = r#"
typed() {
    printf '$ %s\n' "$1"
    eval "$1"
    printf '\n> %s\n' "$?"
}
in_terminal() { (sleep 5; printf q) | script -qec "stty rows 40 cols 160; $*" /dev/null; }
dcqcn() {
    case "$1" in
        top) in_terminal "dcqcn $*" ;;
        events) timeout -s INT 3 dcqcn "$@"; [ $? = 124 ] ;;
        *) command dcqcn "$@" ;;
    esac
}
"#;

/// What is left of perftest is not waited for: an end whose other end has failed waits for ever.
const END_TRAFFIC: &str = "pids=$(pgrep -x ib_write_bw) && kill $pids\nwait 2>/dev/null\n";

/// "DCQCN for soft-RoCE in five minutes", from `rdma link add` to `dcqcn top`.
pub(super) fn five_minutes(report: &mut Report) -> Result<()> {
    let _lab = Lab::new(HOSTS, &Options::default())?;
    for host in 1..=HOSTS {
        sh(&format!("rdma link del {}", rxe(host)))?;
    }
    let blocks = blocks(FIVE_MINUTES, &[FIVE_MINUTES_SECTION]);
    let watching = blocks.len().checked_sub(1).context("no blocks")?;
    let mut script = PREAMBLE.to_owned();
    for (number, block) in blocks.iter().enumerate() {
        if number == watching {
            // The first of the QPs has ended, the others have settled.
            script += "sleep 12\ncommand dcqcn --json flows h1 > /tmp/among-others\n";
        }
        block.iter().for_each(|line| script += &typed(line));
    }
    // The last QP is alone.
    script +=
        "for second in $(seq 30); do [ $(pgrep -c ib_write_bw) -gt 2 ] || break; sleep 1; done\nsleep 5\n";
    script += "command dcqcn --json flows h1 > /tmp/alone\n";
    script += END_TRAFFIC;
    let transcript = run(report, &script)?;

    for (what, has) in [("RATE in `dcqcn top`", "RATE"), ("np_cnp_sent in `dcqcn counters`", "np_cnp_sent")] {
        let seen = transcript.lines().any(|line| !line.starts_with("$ ") && line.contains(has));
        report.check(what, if seen { "seen" } else { "not seen" }, "seen", seen);
    }
    let sent = count(&json("dcqcn --json counters h3")?, "np_cnp_sent")?;
    report.at_least("CNPs the receiver sent", sent as f64, 1.0);
    let (among, alone) = (fastest_bps("/tmp/among-others")?, fastest_bps("/tmp/alone")?);
    report.at_most("rate of the fastest QP of h1 among others, Mbit/s", among / 1e6, 20.0);
    report.at_least("its rate when it is alone, of that before", alone / among, 1.5);
    if !report.passed() {
        println!("{transcript}");
    }
    Ok(())
}

/// "My soft-RoCE incast collapses", with our names for its interfaces.
pub(super) fn collapse(report: &mut Report) -> Result<()> {
    let lab = Lab::new(HOSTS, &Options::default())?;
    lab.shape(HOSTS, "20mbit")?;
    let mut script = PREAMBLE.to_owned();
    let blocks = blocks(COLLAPSE, &COLLAPSE_SECTIONS);
    // The package has it.
    script += "mkdir -p /etc/dcqcn\n";
    for line in blocks.iter().filter(|block| !is_for_the_package(block)).flatten() {
        if line.starts_with("dcqcn doctor") {
            // The complaint: it begins when all is attached, which takes long under emulation.
            script += "FLAGS='-u 18 -s 8192 -t 8 -D 40 --tclass=106 -F'\n\
                       for n in 1 2; do ib_write_bw -d rxe3 -x 1 -p 1850$n $FLAGS >/dev/null & done\nsleep 3\n\
                       for n in 1 2; do ib_write_bw -d rxe1 -x 1 -p 1850$n $FLAGS 127.0.0.1 >/dev/null & done\nsleep 5\n";
        }
        script += &typed(&localised(line));
        if line.contains("attach eth0") {
            script += "command dcqcn attach h3 --profile lab --set link_rate=40mbit\n";
        }
    }
    script += END_TRAFFIC;
    // What systemd would run, on a host whose device is in its way no more.
    script += &format!("rdma link del {}\n", rxe(2));
    unit_commands(SOFT_ROCE_UNIT, &lab.iface(2)).iter().for_each(|line| script += &typed(line));
    let entry = format!("/sys/kernel/config/rdma_cm/rxe_{}/ports/1/default_roce_tos", lab.iface(2));
    script += &typed(&format!("grep -qx 106 {entry}"));
    let transcript = run(report, &script)?;
    let handled = count(&lab.on_host(1, "counters {}")?, "rp_cnp_handled")?;
    report.at_least("CNPs the sender handled", handled as f64, 1.0);
    if !report.passed() {
        println!("{transcript}");
    }
    Ok(())
}

/// "NVMe over soft-RoCE stalls beside my backups", with our names: hosts 1 and 2 are targets, 3 reads, 4 sends a backup.
pub(super) fn storage(report: &mut Report) -> Result<()> {
    let lab = Lab::new(4, &Options::default())?;
    sh("modprobe sch_ets")?;
    lab.shape(HOSTS, "20mbit")?;
    // Nobody has asked for marks yet.
    nvme::prepare(&lab, &[1, 2], HOSTS, 0)?;
    let disk = nvme::connect(&lab, HOSTS, 1, Transport::Rdma)?;
    nvme::connect(&lab, HOSTS, 2, Transport::Rdma)?.disconnect()?;
    let path = disk.path.display();
    let backup = format!(
        "iperf3 -s -B {to} --one-off >/dev/null & sleep 1; iperf3 -c {to} -B {} -t 100 >/dev/null &\n",
        lab.address(4),
        to = lab.address(HOSTS)
    );
    let reads = |name: &str| {
        format!(
            "fio --name=reads --filename={path} --rw=randread --bs=16k --iodepth=8 --ioengine=libaio --direct=1 \
             --size=8m --time_based --ramp_time=8 --runtime=10 --output-format=json > /tmp/{name}.json &\nreads=$!\n"
        )
    };
    let end_of = "wait $reads\n";
    let mut script = format!("{PREAMBLE}{backup}{}sleep 5\n", reads("before"));
    for block in blocks(STORAGE, &STORAGE_SECTIONS) {
        for line in block {
            if line.starts_with("nvme disconnect") {
                script += end_of;
            } else if line.starts_with("dcqcn queues") {
                script += &format!("{}sleep 12\n", reads("after"));
            }
            script += &typed(&of_storage(&line, &lab));
            if line.contains("attach eth0") {
                for host in [1, 2] {
                    script += &format!("command dcqcn attach h{host} --profile lab --set link_rate=40mbit\n");
                }
            } else if line.contains("dcqcn run") {
                script += "sleep 5\n";
            }
        }
    }
    script += "ip netns exec switch dcqcn --json queues p3 > /tmp/queues.json\n";
    script += "kill $(pgrep -x iperf3) $(pgrep -x fio) $(pgrep -x dcqcn) 2>/dev/null\nwait 2>/dev/null\n";
    let transcript = run(report, &script)?;
    let before = fs::read_to_string("/tmp/before.json").context("fio, before")?;
    let after = fs::read_to_string("/tmp/after.json").context("fio, afterwards")?;
    let (before, after) = (fio::done(&before)?, fio::done(&after)?);
    // How much soft-RoCE reads while it stalls is luck: a tenth of the port on Linux 6.1, half of it on 6.12. What stalls is gone.
    report.at_least("read afterwards, of that before", after.read_bps / before.read_bps.max(1.0), 0.9);
    report.at_most("p99 of reads afterwards, of that before", after.p99_ms / before.p99_ms, 0.7);
    let queues: Value = serde_json::from_str(&fs::read_to_string("/tmp/queues.json")?)?;
    let rows = queues.get("queues").and_then(Value::as_array).context("`dcqcn queues` lists queues")?;
    let weights: Vec<_> = rows.iter().filter_map(|row| row.get("weight")?.as_u64()).collect();
    report.check("weights, at the end", format!("{weights:?}"), "50 twice", {
        weights.iter().filter(|weight| **weight == 50).count() == 2
    });
    if !report.passed() {
        println!("{transcript}");
    }
    Ok(())
}

/// A line of the page about storage with our names.
fn of_storage(line: &str, lab: &Lab) -> String {
    let line = line.replace("rxe0", &rxe(HOSTS)).replace(STORAGE_DISK, &nvme::name(1));
    if line.starts_with("nvme connect") {
        return format!("{line} --host-traddr={} --nr-io-queues=1", lab.address(HOSTS));
    }
    let switch = |line: &str| format!("ip netns exec switch {}", line.replace("eth1", "p3"));
    match line.strip_prefix("dcqcn top eth1") {
        Some(rest) => format!("in_terminal 'ip netns exec switch dcqcn top p3{rest}'"),
        None if line.contains("eth1") => switch(&line),
        None if line.contains("attach") => line.replace("eth0", "h3") + " --set link_rate=40mbit",
        None => line.replace("eth0", "h3"),
    }
}

/// Runs a script, and checks how what was typed ended.
fn run(report: &mut Report, script: &str) -> Result<String> {
    let path = "/tmp/guide.sh";
    fs::write(path, script).context("the script")?;
    let mut bash = Running::start(&format!("bash {path}"))?;
    let (_, printed) = bash.finish(PATIENCE)?;
    let mut typed = "";
    let mut answer = Vec::new();
    for line in printed.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            typed = command;
            answer.clear();
        } else if let Some(code) = line.strip_prefix("> ").and_then(|code| code.trim().parse::<i32>().ok()) {
            let warned = code == WARNINGS && typed.contains("doctor");
            let ok = code == 0 || warned;
            if !ok {
                answer.iter().for_each(|line| println!("{line}"));
            }
            let wanted = if typed.contains("doctor") { "0, or 4 for warnings" } else { "0" };
            // No bar: it would end a cell of the table.
            report.check(
                &format!("`{}`", typed.replace('|', "\\|")),
                format!("exit code {code}"),
                wanted,
                ok,
            );
        } else {
            answer.push(line);
        }
    }
    ensure!(!typed.is_empty(), "nothing was typed: {printed}");
    Ok(printed)
}

fn typed(line: &str) -> String {
    format!("typed '{}'\n", line.replace('\'', r"'\''"))
}

/// A line of the guide with our names for its interfaces, and the rate that it leaves open. The bridge has a namespace of its own.
fn localised(line: &str) -> String {
    let line = line.replace("rxe0", "rxe1");
    if let Some(iface) = line.strip_prefix("dcqcn top eth1") {
        // Run by `ip`, to which a function of the shell is nothing.
        return format!("in_terminal 'ip netns exec switch dcqcn top p3{iface}'");
    }
    if line.contains("eth1") {
        return format!("ip netns exec switch {}", line.replace("eth1", "p3"));
    }
    let line = line.replace("eth0", "h1");
    if line.contains("attach") { format!("{line} --set link_rate=40mbit") } else { line }
}

/// Whether a block installs a package or starts a service: there is neither package nor systemd here.
fn is_for_the_package(block: &[String]) -> bool {
    block.iter().any(|line| line.starts_with("systemctl") || line.starts_with("cargo"))
}

/// What a unit for `instance` starts, with its environment.
fn unit_commands(unit: &str, instance: &str) -> Vec<String> {
    let unit = unit.replace("%i", instance);
    let of = |key: &str| unit.lines().filter_map(|line| line.strip_prefix(key)).collect::<Vec<_>>();
    let set: Vec<&str> = of("Environment=");
    of("ExecStart=").into_iter().map(|line| format!("{} {line}", set.join(" "))).collect()
}

/// The lines of each block of commands in sections of a page, without comments. A block whose fence names a language other than
/// the shell's is no block of commands.
fn blocks(page: &str, sections: &[&str]) -> Vec<Vec<String>> {
    let mut blocks = Vec::new();
    let (mut wanted, mut commands, mut block) = (false, false, None::<Vec<String>>);
    for line in page.lines() {
        let text = line.trim();
        if let Some(language) = text.strip_prefix("```") {
            block = match block.take() {
                Some(lines) => {
                    blocks.extend((wanted && commands).then_some(lines));
                    None
                }
                None => {
                    commands = matches!(language, "" | "sh");
                    Some(Vec::new())
                }
            };
        } else if let Some(lines) = &mut block {
            let command = text.split(" #").next().unwrap_or_default().trim_end();
            if !command.is_empty() && !command.starts_with('#') {
                lines.push(command.to_owned());
            }
        } else if line.starts_with("## ") {
            wanted = sections.contains(&line);
        }
    }
    blocks
}

/// The highest rate of a flow in what `dcqcn flows` printed to a file.
fn fastest_bps(path: &str) -> Result<f64> {
    let qps: Value = serde_json::from_str(&fs::read_to_string(path).with_context(|| path.to_owned())?)?;
    let rows = qps.get("rp").and_then(Value::as_array).context("`dcqcn flows` lists flows")?;
    let rates = rows.iter().filter_map(|row| row.get("rate_bps")?.as_f64());
    rates.reduce(f64::max).context("no flow")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_what_is_typed() {
        let five = blocks(FIVE_MINUTES, &[FIVE_MINUTES_SECTION]);
        assert_eq!(five.len(), 4, "{five:?}");
        assert!(five.iter().flatten().any(|line| line.starts_with("dcqcn top h1")));
        let collapse = blocks(COLLAPSE, &COLLAPSE_SECTIONS);
        let typed: Vec<_> = collapse.iter().filter(|block| !is_for_the_package(block)).collect();
        // Step 3 has two.
        assert_eq!((typed.len(), collapse.len()), (COLLAPSE_SECTIONS.len() + 1, COLLAPSE_SECTIONS.len() + 3));
        assert!(
            typed.iter().any(|block| block.iter().any(|line| line.contains("config check"))),
            "{typed:?}"
        );
        let unit = unit_commands(SOFT_ROCE_UNIT, "h2");
        assert!(unit.iter().any(|line| line.starts_with("TOS=106 /bin/sh -c 'echo ${TOS} >")), "{unit:?}");
    }

    #[test]
    fn the_page_about_storage_has_what_is_typed() {
        let typed = blocks(STORAGE, &STORAGE_SECTIONS);
        let lines: Vec<_> = typed.iter().flatten().collect();
        assert_eq!((typed.len(), lines.len()), (STORAGE_SECTIONS.len() + 1, 15), "{lines:#?}");
        assert!(lines.iter().any(|line| line.starts_with("nvme connect") && line.contains(STORAGE_DISK)));
        assert!(lines.iter().any(|line| line.as_str() == "dcqcn run eth1 &"), "{lines:#?}");
    }

    #[test]
    fn names_become_ours() {
        for (theirs, ours) in [
            ("dcqcn counters eth0", "dcqcn counters h1"),
            ("dcqcn attach eth0 --profile lab", "dcqcn attach h1 --profile lab --set link_rate=40mbit"),
            ("tc -s qdisc show dev eth1", "ip netns exec switch tc -s qdisc show dev p3"),
            ("dcqcn top eth1", "in_terminal 'ip netns exec switch dcqcn top p3'"),
        ] {
            assert_eq!(localised(theirs), ours);
        }
        assert_eq!(typed("echo 'a'"), "typed 'echo '\\''a'\\'''\n");
    }
}
