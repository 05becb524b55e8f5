//! Commands of the documentation, typed exactly as in the pages' blocks.

use super::super::command::json;
use super::super::lab::listed_flows;
use super::typing::{self, PREAMBLE, blocks, typed};
use crate::vm::prelude::*;

const HOSTS: u8 = 3;
const FIVE_MINUTES: &str = include_str!("../../../../docs/first-steps/soft-roce.md");
const FIVE_MINUTES_SECTION: &str = "## Steps";
const COLLAPSE: &str = include_str!("../../../../docs/how-to/fix-incast.md");
/// Step 2 is a table. Parts of step 6 that install a package or start a service are skipped ([`is_package_step`]).
const COLLAPSE_SECTIONS: [&str; 5] = [
    "## 1. Is it congestion?",
    "## 3. Attach",
    "## 4. See it work",
    "## 5. Tune, if need be",
    "## 6. Keep it",
];
/// Step 6's unit, which creates the RDMA device and sets its connections' traffic class at every boot.
const SOFT_ROCE_UNIT: &str = include_str!("../../../../dist/systemd/dcqcn-soft-roce@.service");
/// Four attachments take a minute, emulated on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(150);
/// Does not wait for remaining perftest processes: an end whose peer has failed waits forever.
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
            // The first QP has ended, and the others have settled.
            script += "sleep 12\ncommand dcqcn --json flows h1 > /tmp/among-others\n";
        }
        block.iter().for_each(|line| script += &typed(line));
    }
    // The last QP is alone.
    script +=
        "for second in $(seq 30); do [ $(pgrep -c ib_write_bw) -gt 2 ] || break; sleep 1; done\nsleep 5\n";
    script += "command dcqcn --json flows h1 > /tmp/alone\n";
    script += END_TRAFFIC;
    let transcript = typing::run(report, &script, TIMEOUT)?;

    for (what, has) in [("RATE in `dcqcn top`", "RATE"), ("np_cnp_sent in `dcqcn counters`", "np_cnp_sent")] {
        let seen = transcript.lines().any(|line| !line.starts_with("$ ") && line.contains(has));
        report.check(what, if seen { "seen" } else { "not seen" }, "seen", seen);
    }
    let sent = count(&json("dcqcn --json counters h3")?, "np_cnp_sent")?;
    report.at_least("CNPs the receiver sent", sent as f64, 1.0);
    let (among, alone) = (fastest_bps("/tmp/among-others")?, fastest_bps("/tmp/alone")?);
    report.at_most("rate of the fastest QP of h1 with competing QPs, Mbit/s", among / 1e6, 20.0);
    report.at_least("its rate alone, relative to that", alone / among, 1.5);
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
    // Provided by the package.
    script += "mkdir -p /etc/dcqcn\n";
    for line in blocks.iter().filter(|block| !is_package_step(block)).flatten() {
        if line.starts_with("dcqcn doctor") {
            // The symptom starts once all interfaces are attached, which takes long under emulation.
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
    // The unit's command, on a host whose device no longer conflicts.
    script += &format!("rdma link del {}\n", rxe(2));
    unit_commands(SOFT_ROCE_UNIT, &lab.iface(2)).iter().for_each(|line| script += &typed(line));
    let entry = format!("/sys/kernel/config/rdma_cm/rxe_{}/ports/1/default_roce_tos", lab.iface(2));
    script += &typed(&format!("grep -qx 106 {entry}"));
    let transcript = typing::run(report, &script, TIMEOUT)?;
    let handled = count(&lab.on_host(1, "counters {}")?, "rp_cnp_handled")?;
    report.at_least("CNPs the sender handled", handled as f64, 1.0);
    if !report.passed() {
        println!("{transcript}");
    }
    Ok(())
}

/// A line of the guide with our interface names and a rate. The bridge is in a separate namespace.
fn localised(line: &str) -> String {
    let line = line.replace("rxe0", "rxe1");
    if let Some(iface) = line.strip_prefix("dcqcn top eth1") {
        // Run by `ip`, which cannot call shell functions.
        return format!("in_terminal 'ip netns exec switch dcqcn top p3{iface}'");
    }
    if line.contains("eth1") {
        return format!("ip netns exec switch {}", line.replace("eth1", "p3"));
    }
    let line = line.replace("eth0", "h1");
    if line.contains("attach") { format!("{line} --set link_rate=40mbit") } else { line }
}

/// Whether a block installs a package or starts a service: there is neither package nor systemd here.
fn is_package_step(block: &[String]) -> bool {
    block.iter().any(|line| line.starts_with("systemctl") || line.starts_with("cargo"))
}

/// Command of a unit for `instance`, with its environment.
fn unit_commands(unit: &str, instance: &str) -> Vec<String> {
    let unit = unit.replace("%I", instance);
    let of = |key: &str| unit.lines().filter_map(|line| line.strip_prefix(key)).collect::<Vec<_>>();
    let set: Vec<&str> = of("Environment=");
    of("ExecStart=").into_iter().map(|line| format!("{} {line}", set.join(" "))).collect()
}

/// The highest rate of a flow in the output of `dcqcn flows` in a file.
fn fastest_bps(path: &str) -> Result<f64> {
    let flows = serde_json::from_str(&fs::read_to_string(path).with_context(|| path.to_owned())?)?;
    let rates = listed_flows(&flows)?.into_iter().map(|flow| flow.rate_bps);
    Ok(rates.max().context("no flow")? as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_contain_typed_commands() {
        let five = blocks(FIVE_MINUTES, &[FIVE_MINUTES_SECTION]);
        assert_eq!(five.len(), 4, "{five:?}");
        assert!(five.iter().flatten().any(|line| line.starts_with("dcqcn top h1")));
        let collapse = blocks(COLLAPSE, &COLLAPSE_SECTIONS);
        let typed: Vec<_> = collapse.iter().filter(|block| !is_package_step(block)).collect();
        // Step 3 has two.
        assert_eq!((typed.len(), collapse.len()), (COLLAPSE_SECTIONS.len() + 1, COLLAPSE_SECTIONS.len() + 3));
        assert!(typed.iter().copied().flatten().any(|line| line.contains("config check")), "{typed:?}");
        let unit = unit_commands(SOFT_ROCE_UNIT, "h2");
        // `%i` is escaped.
        assert!(unit.iter().all(|line| !line.contains('%')), "{unit:?}");
        assert!(unit.iter().any(|line| line.starts_with("TOS=106 /bin/sh -c 'echo ${TOS} >")), "{unit:?}");
    }

    #[test]
    fn names_are_localised() {
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
