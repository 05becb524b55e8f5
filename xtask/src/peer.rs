//! The pacer in C for comparison in the bench, built by a standard clang.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::apt::Apt;
use crate::run::{self, find_program, header};
use crate::workspace::Workspace;

const SOURCE: &str = "tests/peer/edt.bpf.c";
const PLAIN: &str = "clang";
/// Debian's compilers have their major in their names; prefer that of the LLVM installed by setup.
const NUMBERED: std::ops::RangeInclusive<u32> = 14..=23;

/// Builds it, next to the other objects of the bench. If that fails, the bench runs without it and reports so.
pub(crate) fn ensure(workspace: &Workspace) {
    if let Err(error) = build(workspace) {
        eprintln!("   the bench skips its peer in C: {error:#}");
    }
}

/// Builds it; installs clang if there is none.
fn build(workspace: &Workspace) -> Result<()> {
    let clang = match find() {
        Some(clang) => clang,
        None => {
            install()?;
            find().context("clang was installed, but is not on PATH")?
        }
    };
    let object = workspace.ebpf_target().join("dcqcn-peer");
    // Multiarch systems have the kernel's architecture headers in a separate directory, not searched for other targets.
    let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new(clang);
    command
        .args([
            "-O2",
            "-g",
            "-target",
            "bpf",
            "-mcpu=v3",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-idirafter",
            &headers,
        ])
        .arg("-c")
        .arg(workspace.root().join(SOURCE))
        .arg("-o")
        .arg(&object);
    run::capture(&mut command).map(drop)
}

fn find() -> Option<PathBuf> {
    let numbered = NUMBERED.rev().map(|major| format!("{PLAIN}-{major}"));
    numbered.chain([PLAIN.to_owned()]).find_map(|name| find_program(&name))
}

fn install() -> Result<()> {
    header("clang, for the bench's peer in C");
    let mut apt = Apt::detect().context("clang is missing, and this is not Debian or Ubuntu: install it")?;
    if !apt.has_lists() {
        apt.refresh();
    }
    let beside_llvm = NUMBERED
        .rev()
        .filter(|major| PathBuf::from(format!("/usr/lib/llvm-{major}/bin/llvm-config")).exists())
        .map(|major| format!("{PLAIN}-{major}"))
        .find(|package| apt.unavailable(std::slice::from_ref(package)).is_ok_and(|none| none.is_empty()));
    apt.install(&[beside_llvm.unwrap_or_else(|| PLAIN.to_owned())])
}
