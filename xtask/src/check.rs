//! Formatting, prose, lints and documentation.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{
    build, cycles, p4, prose, public,
    run::{capture, header, stream},
    toolchain, web,
    workspace::Workspace,
};

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

    prose::check(workspace)?;
    cycles::check(workspace)?;
    public::check(workspace)?;
    p4::check(workspace)?;

    let without: &[&str] = match web::left_out(workspace) {
        Some(_) => &["--exclude", build::FLEET.1],
        None => &[],
    };
    // clippy needs the object, which the library embeds.
    build::object(workspace, &toolchain, std::env::consts::ARCH)?;

    header("clippy, host");
    let mut clippy = workspace.cargo("clippy");
    stream(clippy.args(["--workspace", "--all-targets"]).args(without).args(["--", "-D", "warnings"]))?;
    header("clippy, BPF target");
    stream(toolchain.clippy(workspace)?.args(["--", "-D", "warnings"]))?;

    header("rustdoc");
    stream(
        workspace
            .cargo("doc")
            .args(["--no-deps", "--workspace", "--document-private-items"])
            .args(without)
            .env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    header(if without.is_empty() {
        "every check passed"
    } else {
        "every check passed; dcqcn-fleet was skipped"
    });
    Ok(())
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
