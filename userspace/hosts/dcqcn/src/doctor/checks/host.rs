//! The kernel and the machine.

use std::collections::BTreeSet;

use dcqcn_telemetry::Softnet;

use super::{Finding, Snapshot};

/// `kernel-old`, `no-tcx`, `kernel-realtime`.
pub(super) fn kernel(snapshot: &Snapshot) -> Vec<Finding> {
    let release = &snapshot.host.kernel;
    let Some(version) = version(release) else {
        return Vec::new();
    };
    let evidence = format!("kernel {release}");
    if version < (6, 1) {
        let what = "dcqcn was tested on Linux 6.1 and later only";
        let fix = "boot Linux 6.1 or later if the programs do not attach";
        return vec![Finding::warning("kernel-old", what, evidence).fix(fix)];
    }
    if snapshot.attachments.iter().any(|attached| attached.tc_mode == "clsact") {
        let what = "no TCX: programs use clsact, cannot be replaced in place, and doctor cannot list them";
        return vec![Finding::info("no-tcx", what, evidence).fix("optional: boot Linux 6.6 or later")];
    }
    if snapshot.host.realtime && version >= (6, 18) {
        let what =
            "programs preempt each other on this PREEMPT_RT kernel: rates, CNPs and counters may be wrong";
        return vec![
            Finding::error("kernel-realtime", what, evidence)
                .fix("boot a kernel without PREEMPT_RT, or an older one"),
        ];
    }
    Vec::new()
}

/// The first two numbers of a release, as in `6.12.48-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// `softnet-drops`, `softnet-squeezed`: congestion of the receiving host, which no mark reports to a sender.
pub(super) fn softnet(snapshot: &Snapshot) -> Vec<Finding> {
    /// Events per second above which a CPU does not keep up.
    const MANY_PER_S: u64 = 100;
    let Some([before, after]) = snapshot.host.softnet else {
        return Vec::new();
    };
    let grown = |of: fn(&Softnet) -> u64| of(&after).saturating_sub(of(&before));
    let (dropped, squeezed) = (grown(|of| of.dropped), grown(|of| of.squeezed));
    let evidence = format!(
        "dropped +{dropped}, time_squeeze +{squeezed}, backlog {} packets, of {} processed in {} (/proc/net/softnet_stat)",
        after.backlog,
        grown(|of| of.processed),
        snapshot.window()
    );
    let per_s = squeezed.saturating_mul(1_000_000_000) / snapshot.observed_ns.max(1);
    let spread =
        "spread receive processing over more CPUs (RSS, or `/sys/class/net/IFACE/queues/rx-*/rps_cpus`)";
    if dropped != 0 {
        let what = "this host drops received packets: its CPUs are the bottleneck, which ECN does not show";
        vec![
            Finding::warning("softnet-drops", what, evidence)
                .fix(format!("{spread}; `sysctl -w net.core.netdev_max_backlog=10000` for bursts")),
        ]
    } else if per_s > MANY_PER_S {
        let what = "this host's CPUs do not keep up with received packets, which adds latency without marks";
        vec![
            Finding::info("softnet-squeezed", what, evidence)
                .fix(format!("{spread}; `sysctl -w net.core.netdev_budget=600`")),
        ]
    } else {
        Vec::new()
    }
}

/// `no-xdp`, `no-tc`.
pub(super) fn programs(snapshot: &Snapshot) -> Vec<Finding> {
    let kinds = [("no-xdp", "XDP", snapshot.host.xdp), ("no-tc", "TC", snapshot.host.tc)];
    let missing = kinds.into_iter().filter(|(_, _, supported)| *supported == Some(false));
    missing
        .map(|(id, kind, _)| {
            let what = format!("this kernel runs no {kind} programs: nothing can be attached");
            Finding::error(id, what, format!("kernel {} rejects one", snapshot.host.kernel))
                .fix("use a kernel with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_ACT and CONFIG_XDP_SOCKETS")
        })
        .collect()
}

/// `no-pacer`, `no-fq`.
pub(super) fn pacers(snapshot: &Snapshot) -> Vec<Finding> {
    let evidence = |words: &str| format!("kernel {}: {words}", snapshot.host.kernel);
    match (snapshot.host.fq, snapshot.host.htb) {
        (Some(false), Some(false)) => {
            let what = "this kernel has no pacing qdisc: rates are computed, not enforced";
            vec![
                Finding::warning("no-pacer", what, evidence("neither fq nor htb"))
                    .fix("use a kernel with CONFIG_NET_SCH_FQ (`modprobe sch_fq`)"),
            ]
        }
        (Some(false), _) => {
            let what = "this kernel has no fq: pacing requires HTB, whose classes `dcqcn run` maintains";
            vec![
                Finding::info("no-fq", what, evidence("no fq"))
                    .fix("use a kernel with CONFIG_NET_SCH_FQ (`modprobe sch_fq`), or run `dcqcn run`"),
            ]
        }
        _ => Vec::new(),
    }
}

/// `jit-off`.
pub(super) fn jit(snapshot: &Snapshot) -> Vec<Finding> {
    let what = "the kernel interprets BPF programs instead of compiling them";
    let finding = || {
        Finding::warning("jit-off", what, "net.core.bpf_jit_enable = 0")
            .fix("`sysctl net.core.bpf_jit_enable=1`")
    };
    if snapshot.host.bpf_jit == Some(0) { vec![finding()] } else { Vec::new() }
}

/// `idle-states`: a CPU in a deep idle state answers a mark late.
pub(super) fn idle_states(snapshot: &Snapshot) -> Vec<Finding> {
    /// The paper's time between two CNPs, us.
    const SLOW_US: u64 = 50;
    let deep: Vec<_> = snapshot
        .host
        .idle_states
        .iter()
        .filter(|state| !state.disabled && state.latency_us > SLOW_US)
        .collect();
    if deep.is_empty() {
        return Vec::new();
    }
    let evidence: Vec<String> =
        deep.iter().map(|state| format!("{} wakes up in {} us", state.name, state.latency_us)).collect();
    let what = "idle CPUs sleep so deeply that CNPs and paced packets are late";
    vec![
        Finding::info("idle-states", what, evidence.join(", "))
            .fix(format!("`cpupower idle-set --disable-by-latency {SLOW_US}`")),
    ]
}

/// `irq-numa`, `irq-one-cpu`.
pub(super) fn interrupts(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for link in snapshot.links.iter().filter(|link| snapshot.attached(&link.name).is_some()) {
        let served: BTreeSet<u32> = link.irqs.values().flatten().copied().collect();
        let nodes = &snapshot.host.numa_nodes;
        let home =
            link.numa_node.filter(|_| nodes.len() > 1).and_then(|node| Some((node, nodes.get(&node)?)));
        if let Some((node, cpus)) = home
            && let Some(far) = served.iter().find(|cpu| !cpus.contains(cpu))
        {
            let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
            let irq = link.irqs.iter().find(|(_, cpus)| cpus.contains(far)).map_or(0, |(irq, _)| *irq);
            let what = "interrupts are served on a remote NUMA node: each packet crosses between nodes";
            let evidence = format!("the device is at node {node}, interrupt {irq} at CPU {far}");
            findings.push(Finding::warning("irq-numa", what, evidence).on(&link.name).fix(format!(
                "`echo {} > /proc/irq/{irq}/smp_affinity_list`, likewise for its other interrupts; stop irqbalance first",
                cpus.join(",")
            )));
        }
        let cpus: usize = nodes.values().map(Vec::len).sum();
        if link.irqs.len() > 2 && served.len() == 1 && cpus > 1 {
            let what = "one CPU serves all interrupts of the device";
            let evidence =
                format!("{} interrupts, all at CPU {}", link.irqs.len(), served.first().unwrap_or(&0));
            let fix = "start irqbalance, or spread them by /proc/irq/N/smp_affinity_list";
            findings.push(Finding::info("irq-one-cpu", what, evidence).on(&link.name).fix(fix));
        }
    }
    findings
}

/// `unread`.
pub(super) fn unread(snapshot: &Snapshot) -> Vec<Finding> {
    let finding = |unread: &super::super::snapshot::Unread| {
        let what = format!("could not read: {}", unread.what);
        let finding = if unread.essential { Finding::warning } else { Finding::info };
        finding("unread", what, unread.why.clone()).fix(unread.next.clone())
    };
    snapshot.unread.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn kernel_version_parsed_from_release() {
        assert_eq!(version("6.12.48+deb13-amd64"), Some((6, 12)));
        assert_eq!(version("6.1"), Some((6, 1)));
        assert_eq!(version("6"), None);
        assert_eq!(version(""), None);
    }
}
