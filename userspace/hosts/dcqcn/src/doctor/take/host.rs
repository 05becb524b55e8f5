//! Kernel, CPUs, and whether the daemon is running.

use std::collections::BTreeMap;
use std::path::Path;

use aya::programs::ProgramType;
use aya::sys::is_program_supported;
use dcqcn_netlink::tc::kernel_has_qdisc;

use dcqcn_telemetry::Softnet;

use super::super::snapshot::{Host, IdleState, Receiving};
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
        cpu_ids: value::<String>("/sys/devices/system/cpu/possible")
            .and_then(|list| Some(cpus(&list).last()? + 1)),
        softnet: Softnet::read().ok().map(|cpus| [Softnet::sum(&cpus); 2]),
        receiving: None,
        nvme_registers: value::<char>("/sys/module/nvme_rdma/parameters/register_always")
            .map(|value| value == 'Y'),
        nvme_unsplit: nvme_unsplit(Path::new("/sys"), page_kb()),
    }
}

/// Changes at the second reading; `first` are the CPU times at the first one.
pub(super) fn second(host: &mut Host, first: &CpuTimes) {
    /// `net.core.netdev_max_backlog` by default; older kernels show it in the initial network namespace only.
    const MAX_BACKLOG: u64 = 1_000;
    let (Some([_, second]), Ok(cpus)) = (&mut host.softnet, Softnet::read()) else { return };
    *second = Softnet::sum(&cpus);
    let (busiest_cpu, softirq_percent) = busiest(first, &cpu_times()).unwrap_or_default();
    host.receiving = Some(Receiving {
        backlog: cpus.iter().map(|cpu| cpu.backlog).max().unwrap_or(0),
        max_backlog: value("/proc/sys/net/core/netdev_max_backlog").unwrap_or(MAX_BACKLOG),
        busiest_cpu,
        softirq_percent,
    });
}

/// Ticks in softirqs and in total, by CPU.
pub(super) type CpuTimes = BTreeMap<u32, [u64; 2]>;

pub(super) fn cpu_times() -> CpuTimes {
    parse_cpu_times(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Lines `cpuN user nice system idle iowait irq softirq steal guest guest_nice`; `user` and `nice` include
/// the guests' time.
fn parse_cpu_times(text: &str) -> CpuTimes {
    const SOFTIRQ: usize = 6;
    const STEAL: usize = 7;
    let cpu = |line: &str| {
        let mut words = line.split_whitespace();
        let cpu = words.next()?.strip_prefix("cpu")?.parse::<u32>().ok()?;
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).take(STEAL + 1).collect();
        Some((cpu, [*ticks.get(SOFTIRQ)?, ticks.iter().sum::<u64>()]))
    };
    text.lines().filter_map(cpu).collect()
}

/// The CPU with the largest share of softirqs between two readings, and that share in percent.
fn busiest(first: &CpuTimes, second: &CpuTimes) -> Option<(u32, u64)> {
    /// Ticks below which a share is chance.
    const MIN_TICKS: u64 = 20;
    let share = |(cpu, now): (&u32, &[u64; 2])| {
        let before = first.get(cpu)?;
        let [softirq, total] = [0, 1].map(|which| now[which].saturating_sub(before[which]));
        (total >= MIN_TICKS).then(|| (*cpu, softirq.saturating_mul(100) / total))
    };
    second.iter().filter_map(share).max_by_key(|(_, percent)| *percent)
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

/// Disks over RDMA that accept blocks of more than a page. With multipath, `nvmeXnZ` passes blocks to its paths,
/// `nvmeXcYnZ`, which may merge them again.
fn nvme_unsplit(sys: &Path, page_kb: u64) -> Vec<String> {
    let read = |disk: &Path, name: &str| value::<u64>(disk.join("queue").join(name));
    let is_split = |disk: &Path| read(disk, "max_sectors_kb").is_some_and(|kb| kb <= page_kb);
    let controllers = sys.join("class/nvme");
    let mut unsplit = Vec::new();
    for controller in names(&controllers).into_iter().map(|name| controllers.join(name)) {
        let is_rdma = value::<String>(controller.join("transport")).is_some_and(|name| name == "rdma");
        for name in names(&controller).into_iter().filter(|_| is_rdma) {
            let disk = controller.join(&name);
            if read(&disk, "max_sectors_kb").is_none() || is_split(&disk) {
                continue;
            }
            let head = name.split_once('c').map(|(subsystem, path)| {
                format!("{subsystem}{}", path.trim_start_matches(|digit: char| digit.is_ascii_digit()))
            });
            let merges = read(&disk, "nomerges") != Some(2);
            if merges || !head.as_ref().is_some_and(|head| is_split(&sys.join("block").join(head))) {
                // Several paths have one head.
                unsplit.extend(head.filter(|head| !unsplit.contains(head)).into_iter().chain([name]));
            }
        }
    }
    unsplit
}

fn page_kb() -> u64 {
    let mappings = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let size =
        mappings.lines().find_map(|line| line.strip_prefix("KernelPageSize:")?.trim().strip_suffix(" kB"));
    size.and_then(|kb| kb.parse().ok()).filter(|kb| *kb != 0).unwrap_or(4)
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
    fn cpu_with_most_softirqs_found() {
        let first = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 0 0 90 0 0 5 0 10 0\ncpu1 0 0 0 0 0 0 0 0\nintr 7\n";
        let second = "cpu0 10 0 0 93 0 0 100 2 10 0\ncpu1 0 0 0 80 0 0 20 0 0 0\ncpu2 0 0 0 0 0 0 99 0\n";
        let [first, second] = [first, second].map(parse_cpu_times);
        assert_eq!(first, CpuTimes::from([(0, [5, 105]), (1, [0, 0])]));
        assert_eq!(busiest(&first, &second), Some((0, 95)), "the CPU that came online has no first reading");
        assert_eq!(busiest(&second, &second), None, "no time between the readings");
        assert!(parse_cpu_times("cpu0 1 2\ncpux 1 2 3 4 5 6 7 8\n").is_empty());
        assert!(!cpu_times().is_empty());
    }

    #[test]
    fn unsplit_nvme_disks_over_rdma_found() {
        let sys = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = sys.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let found = || nvme_unsplit(sys.path(), 4);
        file("class/nvme/nvme0/transport", "pcie\n");
        file("class/nvme/nvme0/nvme0n1/queue/max_sectors_kb", "2048\n");
        assert!(found().is_empty(), "not over RDMA");
        file("class/nvme/nvme1/transport", "rdma\n");
        file("class/nvme/nvme1/nvme1c1n1/queue/max_sectors_kb", "1024\n");
        file("class/nvme/nvme1/nvme1c1n1/queue/nomerges", "0\n");
        assert_eq!(found(), ["nvme1n1", "nvme1c1n1"]);
        file("block/nvme1n1/queue/max_sectors_kb", "4\n");
        assert_eq!(found(), ["nvme1n1", "nvme1c1n1"], "its path merges blocks");
        file("class/nvme/nvme1/nvme1c1n1/queue/nomerges", "2\n");
        assert!(found().is_empty());
        file("class/nvme/nvme1/nvme1c1n1/queue/nomerges", "0\n");
        file("class/nvme/nvme3/transport", "rdma\n");
        file("class/nvme/nvme3/nvme1c3n1/queue/max_sectors_kb", "1024\n");
        assert_eq!(found(), ["nvme1n1", "nvme1c1n1", "nvme1c3n1"], "two paths");
        std::fs::remove_dir_all(sys.path().join("class/nvme/nvme3")).unwrap();
        file("class/nvme/nvme1/nvme1c1n1/queue/nomerges", "2\n");
        file("class/nvme/nvme2/transport", "rdma\n");
        file("class/nvme/nvme2/nvme2n1/queue/max_sectors_kb", "6\n");
        assert_eq!(found(), ["nvme2n1"], "without multipath");
        file("class/nvme/nvme2/nvme2n1/queue/max_sectors_kb", "4\n");
        assert!(found().is_empty());
    }

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
