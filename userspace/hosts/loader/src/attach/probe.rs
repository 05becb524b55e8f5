//! Whether this process and this kernel can attach at all.

use std::fs;

use aya::util::KernelVersion;

use super::Error;

/// Capabilities attaching needs, by bit (include/uapi/linux/capability.h).
const NEEDED: [(u32, &str); 3] = [(CAP_NET_ADMIN, "CAP_NET_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];
const CAP_NET_ADMIN: u32 = 12;
/// Stands for the other two.
const CAP_SYS_ADMIN: u32 = 21;

/// The oldest kernel every program was verified on.
const OLDEST: (KernelVersion, &str) = (KernelVersion::new(6, 1, 0), "6.1");

/// Checks capabilities and kernel.
///
/// # Errors
/// What is missing.
pub(super) fn check() -> Result<(), Error> {
    let missing = missing_capabilities(effective_capabilities());
    if !missing.is_empty() {
        return Err(Error::Capability { missing: missing.join(", ") });
    }
    match KernelVersion::current() {
        Ok(version) if version < OLDEST.0 => Err(Error::Kernel {
            found: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            feature: "what the programs are verified with (bpf_skb_set_tstamp, XDP fragments, atomics with a result)",
            since: OLDEST.1,
        }),
        _ => Ok(()),
    }
}

/// The effective set, all ones where it cannot be read: then the kernel decides.
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
    use super::missing_capabilities;

    #[test]
    fn sys_admin_stands_for_bpf_and_perfmon_but_not_for_net_admin() {
        assert_eq!(missing_capabilities(0), ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF"]);
        assert_eq!(missing_capabilities(1 << 21), ["CAP_NET_ADMIN"]);
        assert_eq!(missing_capabilities(1 << 21 | 1 << 12), [] as [&str; 0]);
    }
}
