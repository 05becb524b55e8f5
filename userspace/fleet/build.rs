//! Copies uPlot, which draws the page's charts, to `OUT_DIR`, from where the binary embeds it. uPlot is not part of the
//! repository: `cargo xtask setup` downloads it by version and hash.

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Err(message) = copy() {
        println!("cargo::error={message}");
    }
}

fn copy() -> Result<(), String> {
    let directory =
        |name: &str| env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("{name} is not set"));
    let (from, to) = (directory("CARGO_MANIFEST_DIR")?.join("../../target/web"), directory("OUT_DIR")?);
    for name in ["uplot.js", "uplot.css", "uplot.license"] {
        let file = from.join(name);
        println!("cargo::rerun-if-changed={}", file.display());
        fs::copy(&file, to.join(name)).map_err(|error| {
            format!("cannot read {}: {error}; run `cargo xtask setup` to download it", file.display())
        })?;
    }
    Ok(())
}
