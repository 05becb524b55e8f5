//! Tests that cannot run say so.

use anyhow::Result;
use dcqcn::net::tc::kernel_has_qdisc;
use nix::unistd::Uid;

/// Whether a test that needs root and these qdiscs can run; says why if not.
///
/// # Errors
/// The kernel does not answer.
pub fn runnable(test: &str, qdiscs: &[&str]) -> Result<bool> {
    if !Uid::effective().is_root() {
        eprintln!("SKIPPED {test}: needs root");
        return Ok(false);
    }
    for qdisc in qdiscs {
        if !kernel_has_qdisc(qdisc)? {
            eprintln!("SKIPPED {test}: the kernel has no {qdisc}");
            return Ok(false);
        }
    }
    Ok(true)
}
