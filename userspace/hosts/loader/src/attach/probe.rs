//! Checks that this process and this kernel can attach at all, and do not kill soft-RoCE QPs, which fail when
//! a qdisc drops one of their packets (Linux 6.12+).

use std::{fs, io};

use aya::maps::MapType;
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported, is_map_supported};
use aya::util::KernelVersion;
use dcqcn_netlink::{Link, Netlink, Stack};
use nix::unistd::geteuid;

use super::Error;
use super::hooks::BPF_TCX_INGRESS;
use crate::pacer::FqLimits;
use crate::soft_roce::SoftRoce;
use crate::{failpoint, syscall};

/// Capabilities required for attaching, by bit (include/uapi/linux/capability.h).
const NEEDED: [(u32, &str); 3] = [(CAP_NET_ADMIN, "CAP_NET_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];
/// Required for access to the files of another user.
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_NET_ADMIN: u32 = 12;
/// Implies CAP_PERFMON and CAP_BPF.
const CAP_SYS_ADMIN: u32 = 21;

/// A feature without which no program loads.
struct Feature {
    name: &'static str,
    purpose: &'static str,
    since: &'static str,
    is_present: fn() -> bool,
}

/// Probed, not derived from the version: distributions backport features. The verifier checks the rest.
const FEATURES: [Feature; 4] = [
    Feature {
        name: "BPF ring buffers",
        purpose: "the HTB pacer",
        since: "5.8",
        is_present: || is_map_supported(MapType::RingBuf).unwrap_or(true),
    },
    Feature {
        name: "bpf_ktime_get_coarse_ns",
        purpose: "unpaced flows",
        since: "5.11",
        is_present: || has_helper(BpfHelper::BPF_FUNC_ktime_get_coarse_ns),
    },
    Feature {
        name: "bpf_loop",
        purpose: "the tail-loss probe",
        since: "5.17",
        is_present: || has_helper(BpfHelper::BPF_FUNC_loop),
    },
    Feature {
        name: "bpf_skb_set_tstamp",
        purpose: "pacing",
        since: "5.18",
        is_present: || has_helper(BpfHelper::BPF_FUNC_skb_set_tstamp),
    },
];

/// First version in which programs on PREEMPT_RT may preempt another program of their hook on the same CPU.
///
/// Such a kernel without `CONFIG_PREEMPT_RT_NEEDS_BH_LOCK` only disables migration where others disable
/// bottom halves. Per-CPU state and spinlocks rely on programs not being preempted by each other.
const PREEMPTIBLE: KernelVersion = KernelVersion::new(6, 18, 0);
/// Only PREEMPT_RT kernels have it.
const REALTIME: &str = "/sys/kernel/realtime";

/// Checks capabilities and kernel; `realtime` permits a kernel on which programs preempt each other.
pub(super) fn check(realtime: bool) -> Result<(), Error> {
    check_capabilities()?;
    if let Some(Feature { name, purpose, since, .. }) = missing_feature(&FEATURES) {
        let found = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        return Err(Error::Kernel { found, feature: name, purpose, since });
    }
    match KernelVersion::current() {
        Ok(version) if !realtime && is_preemptible(version, fs::read_to_string(REALTIME).ok().as_deref()) => {
            Err(Error::Preemptible)
        }
        _ => Ok(()),
    }
}

/// Checks capabilities alone, as for detaching: without them, only some steps could be undone.
pub(super) fn check_capabilities() -> Result<(), Error> {
    let missing = missing_capabilities(effective_capabilities());
    if missing.is_empty() { Ok(()) } else { Err(Error::Capability { missing: missing.join(", ") }) }
}

/// Capabilities that this process lacks for access to attachments, whose files belong to root.
pub(crate) fn missing_for_access() -> Vec<&'static str> {
    missing_of_user(effective_capabilities(), geteuid().is_root())
}

fn missing_of_user(effective: u64, is_root: bool) -> Vec<&'static str> {
    let owns_files = is_root || effective >> CAP_DAC_OVERRIDE & 1 == 1;
    let override_missing = (!owns_files).then_some("CAP_DAC_OVERRIDE");
    override_missing.into_iter().chain(missing_capabilities(effective)).collect()
}

fn missing_feature(features: &[Feature]) -> Option<&Feature> {
    features.iter().find(|feature| !(feature.is_present)())
}

/// Whether TC programs may call `helper`; `true` if that cannot be found out.
fn has_helper(helper: BpfHelper) -> bool {
    is_helper_supported(ProgramType::SchedClassifier, helper).unwrap_or(true)
}

/// Whether the kernel has TCX (Linux 6.6). Older kernels attach programs to the clsact qdisc.
pub(super) fn has_tcx(ifindex: u32) -> bool {
    let lacks_tcx = |error: io::Error| error.raw_os_error() == Some(libc::EINVAL);
    !syscall::tcx_programs(ifindex, BPF_TCX_INGRESS).is_err_and(lacks_tcx) && !failpoint::is_without_tcx()
}

fn is_preemptible(version: KernelVersion, realtime: Option<&str>) -> bool {
    version >= PREEMPTIBLE && realtime.is_some_and(|value| value.trim() == "1")
}

/// Effective capabilities; all ones if they cannot be read, so that the kernel decides.
fn effective_capabilities() -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
            u64::from_str_radix(hex.trim(), 16).ok()
        })
        .unwrap_or(u64::MAX)
}

fn missing_capabilities(effective: u64) -> Vec<&'static str> {
    let has = |bit: u32| effective >> bit & 1 == 1;
    let met = |bit: u32| has(bit) || (bit != CAP_NET_ADMIN && has(CAP_SYS_ADMIN));
    NEEDED.iter().filter(|(bit, _)| !met(*bit)).map(|(_, name)| *name).collect()
}

/// Rejects replacing a qdisc that active QPs send through; `what` is the operation for the error.
///
/// `flows` is set if a suitable fq, installed beforehand, would be kept; it sizes the suggested command.
pub(super) fn check_interrupt(
    netlink: &Netlink,
    link: &Link,
    what: &'static str,
    flows: Option<u32>,
) -> Result<(), Error> {
    if !SoftRoce::current().ends_at_local_drops() {
        return Ok(());
    }
    let devices = netlink.rdma_devices()?;
    if devices.is_empty() {
        return Ok(());
    }
    // VLANs, bridges and bonds above the interface send through its qdisc too.
    let ifaces = Stack::of(&netlink.links()?).with_upper(link.index);
    for device in devices {
        if !device.ports.iter().any(|port| ifaces.contains(&port.ifindex)) || is_hardware(&device.name) {
            continue;
        }
        let queue_pairs = netlink.rdma_connected_qps(device.index)?.len();
        if queue_pairs != 0 {
            let fix = |flows| {
                let limits = FqLimits::of(flows);
                format!(
                    ", or install an fq while there is none (`tc qdisc replace dev {} root fq {limits}`)",
                    link.name
                )
            };
            let next = flows.map(fix).unwrap_or_default().into();
            return Err(Error::Interrupts {
                iface: link.name.clone(),
                what,
                queue_pairs,
                device: device.name.into(),
                next,
            });
        }
    }
    Ok(())
}

/// Whether the device is hardware, whose packets bypass qdiscs.
fn is_hardware(device: &str) -> bool {
    let path = fs::canonicalize(format!("/sys/class/infiniband/{device}"));
    path.is_ok_and(|path| !path.components().any(|part| part.as_os_str() == "virtual"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn realtime_kernels_preempt_from_6_18_on() {
        let version = |minor| KernelVersion::new(6, minor, 0);
        assert!(
            is_preemptible(version(18), Some("1\n"))
                && is_preemptible(KernelVersion::new(7, 3, 0), Some("1"))
        );
        assert!(!is_preemptible(version(17), Some("1\n")), "the lock is kept");
        assert!(!is_preemptible(version(18), None) && !is_preemptible(version(18), Some("0\n")));
    }

    #[test]
    fn missing_feature_is_the_oldest() {
        let feature = |name, is_present| Feature { name, purpose: "", since: "", is_present };
        let features = [feature("a", || true), feature("b", || false), feature("c", || false)];
        assert_eq!(missing_feature(&features).unwrap().name, "b");
        assert!(missing_feature(&features[..1]).is_none());
    }

    #[test]
    fn sys_admin_implies_bpf_not_net_admin() {
        assert_eq!(missing_capabilities(0), ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF"]);
        assert_eq!(missing_capabilities(1 << 21), ["CAP_NET_ADMIN"]);
        assert_eq!(missing_capabilities(1 << 21 | 1 << 12), [] as [&str; 0]);
    }

    #[test]
    fn files_of_root_need_override() {
        assert_eq!(missing_of_user(1 << 21 | 1 << 12, false), ["CAP_DAC_OVERRIDE"]);
        assert_eq!(missing_of_user(1 << 1, false), ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF"]);
        assert_eq!(missing_of_user(1 << 21 | 1 << 12, true), [] as [&str; 0]);
    }
}
