//! Checks that this process and this kernel can attach at all.

use std::fs;

use aya::util::KernelVersion;

use super::Error;
use crate::unsupported::Unsupported;

/// Capabilities required for attaching, by bit (include/uapi/linux/capability.h).
const NEEDED: [(u32, &str); 3] = [(CAP_NET_ADMIN, "CAP_NET_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];
const CAP_NET_ADMIN: u32 = 12;
/// Implies CAP_PERFMON and CAP_BPF.
const CAP_SYS_ADMIN: u32 = 21;

/// Oldest kernel on which every program passes the verifier.
const OLDEST: (KernelVersion, &str) = (KernelVersion::new(6, 1, 0), "6.1");

/// First version in which programs on PREEMPT_RT may preempt another program of their hook on the same CPU.
///
/// Such a kernel without `CONFIG_PREEMPT_RT_NEEDS_BH_LOCK` only disables migration where others disable
/// bottom halves. Per-CPU state and spinlocks rely on programs not being preempted by each other.
const PREEMPTIBLE: KernelVersion = KernelVersion::new(6, 18, 0);

/// Checks capabilities and kernel; `realtime` permits a kernel on which programs preempt each other.
///
/// # Errors
/// A capability is missing, or the kernel is not supported.
pub(super) fn check(realtime: bool) -> Result<(), Error> {
    let missing = missing_capabilities(effective_capabilities());
    if !missing.is_empty() {
        return Err(Error::Capability { missing: missing.join(", ") });
    }
    match KernelVersion::current() {
        Ok(version) if version < OLDEST.0 => Err(Error::Kernel {
            found: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            feature: "the data plane (bpf_skb_set_tstamp, XDP fragments, atomics with a result)",
            since: OLDEST.1,
        }),
        Ok(version) if !realtime && is_preemptible(version, read_realtime().as_deref()) => {
            Err(Unsupported::Preemptible.into())
        }
        _ => Ok(()),
    }
}

/// `/sys/kernel/realtime`, which only PREEMPT_RT kernels have.
fn read_realtime() -> Option<String> {
    fs::read_to_string("/sys/kernel/realtime").ok()
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
    fn sys_admin_implies_bpf_not_net_admin() {
        assert_eq!(missing_capabilities(0), ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF"]);
        assert_eq!(missing_capabilities(1 << 21), ["CAP_NET_ADMIN"]);
        assert_eq!(missing_capabilities(1 << 21 | 1 << 12), [] as [&str; 0]);
    }
}
