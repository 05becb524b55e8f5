//! Tests that cannot run, with a message.

use std::any::type_name;

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

/// Name of the function that contains it.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        $crate::skip::function_around(here)
    }};
}

/// Name of the function that contains `here`.
pub fn function_around<T>(_here: T) -> &'static str {
    let path = type_name::<T>().trim_end_matches("::here");
    path.rsplit("::").next().unwrap_or(path)
}

/// Ends a test that needs root and these qdiscs if it cannot run: `require!("htb")`.
#[macro_export]
macro_rules! require {
    ($($qdisc:literal),*) => {
        if !$crate::skip::runnable($crate::test_name!(), &[$($qdisc),*])? {
            return Ok(());
        }
    };
}

/// Ends a test unless a condition holds, with the reason as in `format!`.
#[macro_export]
macro_rules! require_that {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            eprintln!("SKIPPED {}: {}", $crate::test_name!(), format_args!($($reason)+));
            return Ok(());
        }
    };
}

/// Two hosts for a test that needs root and these qdiscs: `new_pair!("htb")`. Ends a test that cannot run.
#[macro_export]
macro_rules! new_pair {
    ($($qdisc:literal),*) => {{
        $crate::require!($($qdisc),*);
        $crate::host::Pair::new($crate::test_name!())?
    }};
}

/// As `new_pair!`, a host and the command.
#[macro_export]
macro_rules! new_lab {
    ($($qdisc:literal),*) => {{
        $crate::require!($($qdisc),*);
        $crate::lab::Lab::new($crate::test_name!())?
    }};
}

/// Ends a test of programs that are not installed: `require_installed!(Etcd)`.
#[macro_export]
macro_rules! require_installed {
    ($($program:ty),+) => {
        if $(!<$program>::available($crate::test_name!()))||+ {
            return Ok(());
        }
    };
}

/// As `require!`, if BMv2 is not installed either.
#[macro_export]
macro_rules! require_bmv2 {
    ($($qdisc:literal),*) => {
        $crate::require!($($qdisc),*);
        for tool in ["simple_switch", "simple_switch_CLI"] {
            let reason = "the p4lang package p4lang-bmv2 has it";
            $crate::require_that!($crate::command::find_program(tool).is_some(), "no {tool} on PATH ({reason})");
        }
    };
}
