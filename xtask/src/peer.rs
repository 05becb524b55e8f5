//! The pacer in C for comparison in the bench, built by a standard clang.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::apt::Apt;
use crate::run::{self, find_program};
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
    // Multiarch systems have the kernel's architecture headers in a separate directory, not searched for other targets.
    let headers = format!("-idirafter/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new(clang);
    command.args("-O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror -c -o".split(' '));
    command.arg(workspace.ebpf_target().join("dcqcn-peer")).arg(headers).arg(workspace.root().join(SOURCE));
    run::capture(&mut command).map(drop)
}

fn find() -> Option<PathBuf> {
    let numbered = NUMBERED.rev().map(|major| format!("{PLAIN}-{major}"));
    numbered.chain([PLAIN.to_owned()]).find_map(|name| find_program(&name))
}

fn install() -> Result<()> {
    let mut apt = Apt::detect().context("clang is missing, and this is not Debian or Ubuntu: install it")?;
    let mut majors = NUMBERED.rev();
    let major = majors.find(|major| Path::new(&format!("/usr/lib/llvm-{major}/bin/llvm-config")).exists());
    apt.install(&[major.map_or(PLAIN.to_owned(), |major| format!("{PLAIN}-{major}"))])
}
