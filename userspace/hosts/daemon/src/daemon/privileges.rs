//! Reduction of the daemon's privileges.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use caps::{CapSet, Capability, CapsHashSet};
use dcqcn_loader::attach;
use nix::sys::prctl;

/// For programs and maps; for links and qdiscs; for programs with packet pointers.
const CAPABILITIES: [Capability; 3] =
    [Capability::CAP_BPF, Capability::CAP_NET_ADMIN, Capability::CAP_PERFMON];

/// Permanently drops all privileges that attaching does not need. Called before any thread starts, because capabilities
/// are per thread.
///
/// # Errors
/// A capability is missing, or attachments would become invisible.
pub(super) fn drop_privileges() -> Result<()> {
    // Mounting the BPF file system needs privileges that are dropped below.
    let before = attach::file_system()?;
    let kept: CapsHashSet = CAPABILITIES.into_iter().collect();
    prctl::set_no_new_privs().context("cannot set no_new_privs")?;
    caps::clear(None, CapSet::Ambient).context("cannot clear the ambient capabilities")?;
    caps::clear(None, CapSet::Inheritable).context("cannot clear the inheritable capabilities")?;
    // Without CAP_SETPCAP the bounding set is unchanged; no_new_privs makes it harmless.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for capability in caps::runtime::thread_all_supported().difference(&kept) {
            caps::drop(None, CapSet::Bounding, *capability)
                .with_context(|| format!("cannot drop {capability} from the bounding set"))?;
        }
    }
    let left: CapsHashSet = caps::read(None, CapSet::Permitted)?.intersection(&kept).copied().collect();
    ensure!(
        left.len() == CAPABILITIES.len(),
        "missing CAP_BPF, CAP_NET_ADMIN or CAP_PERFMON; run the daemon as root, or grant them (systemd CapabilityBoundingSet=)"
    );
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &left).context("cannot drop capabilities")?;
    }
    let seen =
        attach::file_system().context("cannot open the BPF file system after dropping capabilities")?;
    ensure!(
        seen == before,
        "/run/dcqcn/bpf of this process differs from init's after dropping capabilities; start it in init's mount \
         namespace (`nsenter --net=FILE` instead of `ip netns exec`)"
    );
    tracing::debug!(status = %status().unwrap_or_default(), "capabilities dropped");
    Ok(())
}

/// The line of `/proc/self/status` with the effective capabilities.
fn status() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find(|line| line.starts_with("CapEff:")).map(str::to_owned)
}
