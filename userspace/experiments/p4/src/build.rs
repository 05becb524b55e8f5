//! Invocation of the P4 compiler.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{Error, Result};
use super::program::Program;

const TOOL: &str = "p4c-bm2-ss";
const MAIN: &str = "dcqcn.p4";

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Built {
    pub json: PathBuf,
    pub p4info: PathBuf,
    pub compiler: String,
    /// Whether the program has the tables, registers and counters of this dcqcn.
    pub fits: bool,
}

/// Compiles the program in `source` (the directory `p4/`) to `out`.
pub fn build(source: &Path, out: &Path) -> Result<Built> {
    let main = source.join(MAIN);
    if !main.is_file() {
        let path = std::path::absolute(&main).map_err(|source| Error::File { path: main, source })?;
        return Err(Error::NoSource { path });
    }
    std::fs::create_dir_all(out).map_err(|source| Error::File { path: out.to_owned(), source })?;
    let out = out.canonicalize().map_err(|source| Error::File { path: out.to_owned(), source })?;
    let (json, p4info) = (out.join("dcqcn.json"), out.join("dcqcn.p4info.txtpb"));
    let run = |command: &mut Command| {
        command.output().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::Missing { tool: TOOL },
            _ => Error::Run { tool: TOOL, source },
        })
    };
    let version = run(Command::new(TOOL).arg("--version"))?;
    // Run in the program's directory, so that the JSON contains no absolute paths.
    let compiled = run(Command::new(TOOL)
        .args(["--std", "p4-16", "--Wdisable=unused", "--p4runtime-files"])
        .arg(&p4info)
        .arg("-o")
        .arg(&json)
        .arg(MAIN)
        .current_dir(source))?;
    if !compiled.status.success() {
        let text = String::from_utf8_lossy(&compiled.stderr).into_owned();
        return Err(Error::Compile { path: main, text });
    }
    let text = std::fs::read_to_string(&json).map_err(|source| Error::File { path: json.clone(), source })?;
    let built = Program::parse(&json.display().to_string(), &text)?;
    let version = String::from_utf8_lossy(&version.stdout);
    let compiler = version.lines().find_map(|line| line.trim().strip_prefix("Version "));
    let compiler = compiler.unwrap_or("unknown").to_owned();
    Ok(Built { json, p4info, compiler, fits: Program::embedded()?.difference(&built).is_none() })
}
