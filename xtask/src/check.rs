//! Formatting, prose, lints and documentation.

use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::run::{capture, header, rustup, stream};
use crate::toolchain::{self, Toolchain};
use crate::workspace::Workspace;
use crate::{build, p4, prose, public, web};

/// Runs all checks up to the first failure.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    ensure_components(workspace)?;
    let toolchain = toolchain::setup(workspace)?;

    header("formatting");
    stream(workspace.cargo("fmt").args(["--all", "--check"]))
        .context("formatting differs; run `cargo fmt --all`")?;
    let ebpf_manifest = workspace.ebpf_crate().join("Cargo.toml");
    stream(workspace.cargo("fmt").args(["--check", "--manifest-path"]).arg(&ebpf_manifest))
        .context("formatting differs; run `cargo fmt` in ebpf/")?;

    // In parallel: its linters may have to be downloaded first.
    thread::scope(|scope| {
        let prose = scope.spawn(|| prose::check(workspace));
        code(workspace, &toolchain)?;
        prose.join().unwrap_or_else(|_| bail!("the check of prose panicked"))
    })?;
    header("every check passed");
    Ok(())
}

fn code(workspace: &Workspace, toolchain: &Toolchain) -> Result<()> {
    public::check(workspace)?;
    p4::check(workspace)?;

    let without: &[&str] = match web::left_out(workspace) {
        Some(_) => &["--exclude", build::FLEET.1],
        None => &[],
    };
    // clippy needs the object, which the library embeds.
    build::object(workspace, toolchain, std::env::consts::ARCH)?;

    header("clippy, host");
    let mut clippy = workspace.cargo("clippy");
    stream(clippy.args(["--workspace", "--all-targets"]).args(without).args(["--", "-D", "warnings"]))?;
    header("clippy, BPF target");
    stream(toolchain.clippy(workspace)?.args(["--", "-D", "warnings"]))?;

    arm64(workspace)?;

    header("rustdoc");
    let mut doc = workspace.cargo("doc");
    doc.args(["--no-deps", "--workspace", "--document-private-items"]).args(without);
    stream(doc.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Types of the operator's command for arm64, whose C types differ; `cargo xtask dist` links it.
fn arm64(workspace: &Workspace) -> Result<()> {
    const TARGET: &str = "aarch64-unknown-linux-musl";
    header(format_args!("cargo check, {TARGET}"));
    if rustup(["target", "add", TARGET])?.is_none() {
        println!("   skipped: without rustup there is no standard library for this target");
        return Ok(());
    }
    stream(workspace.cargo("check").args(["--package", build::COMMAND.1, "--target", TARGET]))
}

/// A rustup toolchain of the minimal profile lacks clippy and rustfmt.
fn ensure_components(workspace: &Workspace) -> Result<()> {
    let missing: Vec<_> = [("clippy", "clippy"), ("fmt", "rustfmt")]
        .into_iter()
        .filter(|(verb, _)| capture(workspace.cargo(verb).arg("--version")).is_err())
        .map(|(_, component)| component)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    header(format_args!("rustup component add {}", missing.join(" ")));
    stream(Command::new("rustup").args(["component", "add"]).args(missing))
        .context("cargo lacks clippy or rustfmt; install them")
}
