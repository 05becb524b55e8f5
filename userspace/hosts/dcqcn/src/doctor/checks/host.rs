//! The kernel and the machine.

use std::collections::BTreeSet;

use dcqcn_telemetry::Softnet;

use super::{Finding, Severity, Snapshot};
use crate::doctor::snapshot::{Link, Receiving, Unread};

pub(super) fn kernel(snapshot: &Snapshot) -> Option<Finding> {
    let release = &snapshot.host.kernel;
    let version = version(release)?;
    let evidence = format!("kernel {release}");
    if version < (6, 1) {
        let what = "dcqcn was tested on Linux 6.1 and later only";
        let fix = "boot Linux 6.1 or later if the programs do not attach";
        Some(Finding::warning("kernel-old", what, evidence).fix(fix))
    } else if snapshot.attachments.iter().any(|attached| attached.tc_mode == "clsact") {
        let what = "no TCX: the programs are clsact filters, and a filter of priority 1 may run before them";
        Some(Finding::info("no-tcx", what, evidence).fix("optional: boot Linux 6.6 or later"))
    } else if snapshot.host.realtime && version >= (6, 18) {
        let what =
            "programs preempt each other on this PREEMPT_RT kernel: rates, CNPs and counters may be wrong";
        let fix = "boot a kernel without PREEMPT_RT, or an older one";
        Some(Finding::error("kernel-realtime", what, evidence).fix(fix))
    } else {
        None
    }
}

/// The first two numbers of a release, as in `6.12.48-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// `softnet-drops`, `softnet-saturated`, `softnet-squeezed`: congestion of the receiving host, which no mark
/// reports to a sender.
pub(super) fn softnet(snapshot: &Snapshot) -> Option<Finding> {
    /// Events per second above which a CPU does not keep up.
    const MANY_PER_S: u64 = 100;
    let [before, after] = snapshot.host.softnet?;
    let grown = |of: fn(&Softnet) -> u64| of(&after).saturating_sub(of(&before));
    let [processed, dropped, squeezed] =
        [grown(|of| of.processed), grown(|of| of.dropped), grown(|of| of.squeezed)];
    let evidence = format!(
        "dropped +{dropped}, time_squeeze +{squeezed}, backlog {} packets, of {processed} processed in {} (/proc/net/softnet_stat)",
        after.backlog,
        snapshot.window()
    );
    let per_s = |grown: u64| grown.saturating_mul(1_000_000_000) / snapshot.observed_ns.max(1);
    let spread =
        "spread receive processing over more CPUs (RSS, or `/sys/class/net/IFACE/queues/rx-*/rps_cpus`)";
    if dropped != 0 {
        let what = "this host drops received packets: its CPUs are the bottleneck, which ECN does not show";
        let fix = format!("{spread}; `sysctl -w net.core.netdev_max_backlog=10000` for bursts");
        Some(Finding::warning("softnet-drops", what, evidence).fix(fix))
    } else if let Some(why) = snapshot.host.receiving.and_then(|of| saturated(of, per_s(processed))) {
        let what = "received packets saturate a CPU of this host: they wait, and drops follow, without marks";
        Some(Finding::warning("softnet-saturated", what, format!("{why}; {evidence}")).fix(spread))
    } else if per_s(squeezed) > MANY_PER_S {
        let what = "this host's CPUs do not keep up with received packets, which adds latency without marks";
        let fix = format!("{spread}; `sysctl -w net.core.netdev_budget=600`");
        Some(Finding::info("softnet-squeezed", what, evidence).fix(fix))
    } else {
        None
    }
}

/// Why a CPU has no reserve for received packets; `np_host_congestion` uses the same part of the backlog.
fn saturated(receiving: Receiving, processed_per_s: u64) -> Option<String> {
    const SATURATED_PERCENT: u64 = 90;
    /// With fewer packets, other softirqs take the time: timers, RCU, block devices.
    const MIN_PROCESSED_PER_S: u64 = 1_000;
    let Receiving { backlog, max_backlog, busiest_cpu, softirq_percent } = receiving;
    if backlog > max_backlog / 2 {
        Some(format!("in one sample, {backlog} packets wait for a CPU, of at most {max_backlog}"))
    } else if softirq_percent >= SATURATED_PERCENT && processed_per_s > MIN_PROCESSED_PER_S {
        Some(format!("CPU {busiest_cpu} spent {softirq_percent} % of its time in softirqs"))
    } else {
        None
    }
}

pub(super) fn programs(snapshot: &Snapshot) -> Vec<Finding> {
    let xdp = ("no-xdp", "XDP", "`attach --inline` fails", "CONFIG_BPF_SYSCALL", snapshot.host.xdp);
    let options = "CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_ACT";
    let tc = ("no-tc", "TC", "only `attach --inline` works", options, snapshot.host.tc);
    let missing = [xdp, tc].into_iter().filter(|(.., supported)| *supported == Some(false));
    missing
        .map(|(id, kind, effect, options, _)| {
            let what = format!("this kernel runs no {kind} programs: {effect}");
            Finding::error(id, what, format!("kernel {} rejects one", snapshot.host.kernel))
                .fix(format!("use a kernel with {options}"))
        })
        .collect()
}

pub(super) fn pacers(snapshot: &Snapshot) -> Option<Finding> {
    let with_fq = "use a kernel with CONFIG_NET_SCH_FQ (`modprobe sch_fq`)";
    if snapshot.host.fq != Some(false) {
        None
    } else if snapshot.host.htb == Some(false) {
        let what = "this kernel has no pacing qdisc: rates are computed, not enforced";
        let evidence = format!("kernel {}: neither fq nor htb", snapshot.host.kernel);
        Some(Finding::warning("no-pacer", what, evidence).fix(with_fq))
    } else {
        let what = "this kernel has no fq: pacing requires HTB, whose classes `dcqcn run` maintains";
        let evidence = format!("kernel {}: no fq", snapshot.host.kernel);
        Some(Finding::info("no-fq", what, evidence).fix(format!("{with_fq}, or run `dcqcn run`")))
    }
}

pub(super) fn jit(snapshot: &Snapshot) -> Option<Finding> {
    let what = "the kernel interprets BPF programs instead of compiling them";
    (snapshot.host.bpf_jit == Some(0)).then(|| {
        Finding::warning("jit-off", what, "net.core.bpf_jit_enable = 0")
            .fix("`sysctl net.core.bpf_jit_enable=1`")
    })
}

/// `idle-states`: a CPU in a deep idle state answers a mark late.
pub(super) fn idle_states(snapshot: &Snapshot) -> Option<Finding> {
    /// The paper's time between two CNPs, us.
    const SLOW_US: u64 = 50;
    let deep = snapshot.host.idle_states.iter().filter(|state| !state.disabled && state.latency_us > SLOW_US);
    let evidence: Vec<String> =
        deep.map(|state| format!("{} wakes up in {} us", state.name, state.latency_us)).collect();
    let what = "idle CPUs sleep so deeply that CNPs and paced packets are late";
    let fix = format!("`cpupower idle-set --disable-by-latency {SLOW_US}`");
    (!evidence.is_empty()).then(|| Finding::info("idle-states", what, evidence.join(", ")).fix(fix))
}

fn served(link: &Link) -> BTreeSet<u32> {
    link.irqs.values().flatten().copied().collect()
}

pub(super) fn remote_interrupts(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let nodes = &snapshot.host.numa_nodes;
    snapshot.attached(&link.name)?;
    let node = link.numa_node.filter(|_| nodes.len() > 1)?;
    let cpus = nodes.get(&node)?;
    let far = served(link).into_iter().find(|cpu| !cpus.contains(cpu))?;
    let irq = link.irqs.iter().find(|(_, cpus)| cpus.contains(&far)).map_or(0, |(irq, _)| *irq);
    let what = "interrupts are served on a remote NUMA node: each packet crosses between nodes";
    let evidence = format!("the device is at node {node}, interrupt {irq} at CPU {far}");
    let cpus = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let fix = format!(
        "`echo {cpus} > /proc/irq/{irq}/smp_affinity_list`, likewise for its other interrupts; stop irqbalance first"
    );
    Some(Finding::warning("irq-numa", what, evidence).fix(fix))
}

pub(super) fn one_cpu(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let (served, cpus) = (served(link), snapshot.host.numa_nodes.values().map(Vec::len).sum::<usize>());
    if snapshot.attached(&link.name).is_none() || link.irqs.len() <= 2 || served.len() != 1 || cpus <= 1 {
        return None;
    }
    let what = "one CPU serves all interrupts of the device";
    let evidence = format!("{} interrupts, all at CPU {}", link.irqs.len(), served.first()?);
    let fix = "start irqbalance, or spread them by /proc/irq/N/smp_affinity_list";
    Some(Finding::info("irq-one-cpu", what, evidence).fix(fix))
}

pub(super) fn unread(snapshot: &Snapshot) -> Vec<Finding> {
    let finding = |unread: &Unread| {
        let what = format!("could not read: {}", unread.what);
        let severity = if unread.essential { Severity::Warning } else { Severity::Info };
        Finding::new("unread", severity, what, unread.why.clone()).fix(unread.next.clone())
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
