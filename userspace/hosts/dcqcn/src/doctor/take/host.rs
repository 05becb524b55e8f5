//! Kernel, CPUs, and whether the daemon is running.

use std::collections::BTreeMap;
use std::path::Path;

use aya::programs::ProgramType;
use aya::sys::is_program_supported;
use dcqcn_netlink::tc::kernel_has_qdisc;

use dcqcn_telemetry::Softnet;

use super::super::snapshot::{Host, IdleState};
use super::{AS_ROOT, Notes, cpus, names, value};

pub(super) fn take(notes: &mut Notes) -> Host {
    let mut program = |kind, name: &str| {
        let what = format!("the kernel's support for {name} programs");
        notes.minor(&what, is_program_supported(kind), AS_ROOT)
    };
    let (xdp, tc) = (program(ProgramType::Xdp, "XDP"), program(ProgramType::SchedClassifier, "TC"));
    let mut qdisc = |kind: &str| {
        let what = format!("the kernel's support for the {kind} qdisc");
        notes.minor(&what, kernel_has_qdisc(kind), AS_ROOT)
    };
    let (fq, htb) = (qdisc("fq"), qdisc("htb"));
    Host {
        kernel: value("/proc/sys/kernel/osrelease").unwrap_or_default(),
        realtime: value::<u8>("/sys/kernel/realtime") == Some(1),
        xdp,
        tc,
        fq,
        htb,
        bpf_jit: value("/proc/sys/net/core/bpf_jit_enable"),
        controller: Some(daemon_runs()),
        idle_states: idle_states(Path::new("/sys/devices/system/cpu/cpu0/cpuidle")),
        numa_nodes: numa_nodes(Path::new("/sys/devices/system/node")),
        softnet: softnet().map(|first| [first, first]),
    }
}

/// Changes at the second reading.
pub(super) fn second(host: &mut Host) {
    if let (Some([_, second]), Some(now)) = (&mut host.softnet, softnet()) {
        *second = now;
    }
}

fn softnet() -> Option<Softnet> {
    Softnet::read().ok().map(|cpus| Softnet::sum(&cpus))
}

/// Whether a process in this network namespace is the daemon; command lines are world-readable.
fn daemon_runs() -> bool {
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/net")).ok();
    let own = namespace(Path::new("/proc/thread-self"));
    names("/proc").iter().filter(|name| name.starts_with(|c: char| c.is_ascii_digit())).any(|pid| {
        let process = Path::new("/proc").join(pid);
        // Not readable without privileges: then the daemon may be in another namespace.
        std::fs::read(process.join("cmdline")).is_ok_and(|line| is_daemon(&line))
            && namespace(&process).is_none_or(|other| Some(other) == own)
    })
}

/// Whether a command line from `/proc` is that of `dcqcn run`, which manages interfaces.
fn is_daemon(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == 0);
    let name = words.next().and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    let command = loop {
        match words.next() {
            Some(b"-n" | b"--netns") => drop(words.next()),
            Some(option) if option.starts_with(b"-") => {}
            command => break command,
        }
    };
    name == Some(b"dcqcn") && command == Some(b"run") && !words.any(|word| word == b"--metrics-only")
}

fn idle_states(dir: &Path) -> Vec<IdleState> {
    let state = |name: String| {
        let dir = dir.join(name);
        let (name, latency_us) = (value(dir.join("name"))?, value(dir.join("latency"))?);
        Some(IdleState { name, latency_us, disabled: value::<u8>(dir.join("disable"))? != 0 })
    };
    names(dir).into_iter().filter_map(state).collect()
}

fn numa_nodes(dir: &Path) -> BTreeMap<u32, Vec<u32>> {
    let node = |name: String| {
        let number = name.strip_prefix("node")?.parse().ok()?;
        Some((number, cpus(&value::<String>(dir.join(name).join("cpulist"))?)))
    };
    names(dir).into_iter().filter_map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_found_by_command_line() {
        for (line, is) in [
            (&b"/usr/bin/dcqcn\0run\0"[..], true),
            (b"dcqcn\0--json\0run\0--config\0x\0", true),
            (b"dcqcn\0-n\0run\0run\0eth0\0", true),
            (b"dcqcn\0run\0--metrics-only\0", false),
            (b"dcqcn\0attach\0run\0", false),
            (b"dcqcn\0doctor\0", false),
            (b"vi\0dcqcn\0run\0", false),
            (b"", false),
        ] {
            assert_eq!(is_daemon(line), is, "{}", String::from_utf8_lossy(line));
        }
    }
}
