//! Tests that cannot run, with a message.

use nix::unistd::Uid;

use crate::prelude::*;

/// Whether a test that needs root and these qdiscs can run; prints the reason if not.
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

/// Ends a test that needs root and these qdiscs if it cannot run: `require!("name", "htb")`.
#[macro_export]
macro_rules! require {
    ($test:expr $(, $qdisc:literal)*) => {
        if !$crate::skip::runnable($test, &[$($qdisc),*])? {
            return Ok(());
        }
    };
}

/// Ends a test of a program that is not installed: `require_installed!("name", Etcd)`.
#[macro_export]
macro_rules! require_installed {
    ($test:expr $(, $program:ty)+) => {
        if $(!<$program>::available($test))||+ {
            return Ok(());
        }
    };
}

/// Ends a test that needs root, BMv2 and these qdiscs if it cannot run.
#[macro_export]
macro_rules! require_bmv2 {
    ($test:expr $(, $qdisc:literal)*) => {
        $crate::require!($test $(, $qdisc)*);
        if !$crate::skip::has_bmv2($test) {
            return Ok(());
        }
    };
}

/// Whether BMv2 is installed; prints a message if not.
pub fn has_bmv2(test: &str) -> bool {
    let tools = ["simple_switch", "simple_switch_CLI"];
    if let Some(tool) = tools.into_iter().find(|tool| find_program(tool).is_none()) {
        eprintln!("SKIPPED {test}: no {tool} on PATH (the p4lang package p4lang-bmv2 has it)");
        return false;
    }
    true
}
