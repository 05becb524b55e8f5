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

/// Ends a test that needs root and these qdiscs if it cannot run: `require!("htb")`, or `require!(name, "htb")`.
#[macro_export]
macro_rules! require {
    ($test:ident $(, $qdisc:literal)*) => {
        if !$crate::skip::runnable($test, &[$($qdisc),*])? {
            return Ok(());
        }
    };
    ($($qdisc:literal),*) => {
        let test = $crate::test_name!();
        $crate::require!(test $(, $qdisc)*);
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

/// Ends a test of programs that are not installed: `require_installed!(Etcd)`, or `require_installed!(name; Etcd)`.
#[macro_export]
macro_rules! require_installed {
    ($test:ident; $($program:ty),+) => {
        if $(!<$program>::available($test))||+ {
            return Ok(());
        }
    };
    ($($program:ty),+) => {
        let test = $crate::test_name!();
        $crate::require_installed!(test; $($program),+);
    };
}

/// As `require!`, if BMv2 is not installed either.
#[macro_export]
macro_rules! require_bmv2 {
    ($test:ident $(, $qdisc:literal)*) => {
        $crate::require!($test $(, $qdisc)*);
        if !$crate::skip::has_bmv2($test) {
            return Ok(());
        }
    };
    ($($qdisc:literal),*) => {
        let test = $crate::test_name!();
        $crate::require_bmv2!(test $(, $qdisc)*);
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
