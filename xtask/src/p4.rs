//! Compilation of the P4 program.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use fs_err as fs;
use serde_json::Value;

use crate::docs;
use crate::run::{capture, find_program, header, stream};
use crate::workspace::Workspace;

const JSON: &str = "dcqcn.json";
const P4INFO: &str = "dcqcn.p4info.txtpb";
/// Hashes of the sources and of the compiled files, in the format of `sha256sum`.
const SUMS: &str = "build/SHA256SUMS";
const COMPILER: &str = "p4c-bm2-ss";
/// The packages that hold the compiler, from the p4lang repository for Debian and Ubuntu.
const COMPILER_PACKAGE: &str = "p4lang-p4c";

/// Options of `cargo xtask p4`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if `p4/constants.p4`, or the compiled program, differs from the committed one.
    #[arg(long)]
    check: bool,
}

/// Writes the constants and compiles the program, or checks both.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let program = workspace.root().join("p4");
    if args.check {
        check(workspace)?;
    }
    docs::golden(workspace, "dcqcn-p4", "p4_constants", !args.check)?;
    let Some(compiler) = find_program(COMPILER) else {
        header(format_args!(
            "not compiled: {COMPILER} is not on PATH; install the p4lang package {COMPILER_PACKAGE}"
        ));
        return Ok(());
    };
    if args.check {
        return check_compiled(workspace, &compiler);
    }
    compile(&compiler, &program, &program.join("build"))?;
    Ok(fs::write(program.join(SUMS), sums(&program)?)?)
}

/// Compares the committed program with the compiler's output.
fn check_compiled(workspace: &Workspace, compiler: &Path) -> Result<()> {
    let (program, fresh) = (workspace.root().join("p4"), workspace.host_target().join("p4"));
    compile(compiler, &program, &fresh)?;
    let exercises = exercises(&program)?;
    for name in exercises.iter().map(|exercise| compiled(exercise)).chain([JSON, P4INFO].map(str::to_owned)) {
        if fs::read(program.join("build").join(&name))? != fs::read(fresh.join(&name))? {
            bail!(
                "p4/build/{name} differs from the output of {COMPILER}; run `cargo xtask p4` with the same compiler version"
            );
        }
    }
    header("p4/build matches the compiler's output");
    Ok(())
}

/// Compiles in the program's own directory, so that the result has no absolute path.
fn compile(compiler: &Path, program: &Path, build: &Path) -> Result<()> {
    fs::create_dir_all(build)?;
    let main = ("dcqcn.p4".to_owned(), JSON.to_owned());
    let exercises = exercises(program)?.into_iter().map(|source| (source.clone(), compiled(&source)));
    for (source, name) in std::iter::once(main).chain(exercises) {
        let path = build.join(&name);
        let mut command = Command::new(compiler);
        command.current_dir(program).args(["--std", "p4-16", "--Wdisable=unused", "-o"]).arg(&path);
        if name == JSON {
            command.arg("--p4runtime-files").arg(build.join(P4INFO));
        }
        stream(command.arg(source))?;
        let mut json = serde_json::from_str(&fs::read_to_string(&path)?).context(name)?;
        forget_lines(&mut json);
        fs::write(path, format!("{json}\n"))?;
    }
    Ok(())
}

fn forget_lines(json: &mut Value) {
    match json {
        Value::Object(fields) => {
            fields.remove("source_info");
            fields.values_mut().for_each(forget_lines);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_lines),
        _ => {}
    }
}

/// Checks that the committed program was compiled from the committed sources: this needs no compiler.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    header("P4: compiled program and sources");
    check_sums(&workspace.root().join("p4"))
}

fn check_sums(program: &Path) -> Result<()> {
    let (committed, actual) = (fs::read_to_string(program.join(SUMS))?, sums(program)?);
    let is_in = |text: &str, line: &str| text.lines().any(|other| other == line);
    let differs = actual.lines().find(|line| !is_in(&committed, line));
    if let Some(line) = differs.or_else(|| committed.lines().find(|line| !is_in(&actual, line))) {
        let file = line.split_whitespace().last().unwrap_or(line);
        bail!(
            "p4/{file} differs from its hash in p4/{SUMS}: the compiled program does not match the sources; run \
             `cargo xtask p4` with {COMPILER} on PATH (package {COMPILER_PACKAGE})"
        );
    }
    Ok(())
}

/// Starting points and solutions of the exercises.
fn exercises(program: &Path) -> Result<Vec<String>> {
    Ok([sources(program, "exercises/solutions")?, sources(program, "exercises/start")?].concat())
}

fn compiled(exercise: &str) -> String {
    exercise.trim_start_matches("exercises/").replace('/', "-").replace(".p4", ".json")
}

/// The P4 files of a folder, sorted, relative to `program`.
fn sources(program: &Path, folder: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(program.join(folder))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "p4") {
            files.push(path.strip_prefix(program)?.display().to_string());
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Hashes of every source, the JSON and the description for P4Runtime, a line each.
fn sums(program: &Path) -> Result<String> {
    let mut files = sources(program, "")?;
    files.extend([JSON, P4INFO].map(|name| format!("build/{name}")));
    files.extend(sources(program, "exercises")?);
    for exercise in exercises(program)? {
        files.extend([format!("build/{}", compiled(&exercise)), exercise]);
    }
    capture(Command::new("sha256sum").current_dir(program).args(files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_p4_source_is_named() {
        let directory = std::env::temp_dir().join(format!("dcqcn-xtask-p4-{}", std::process::id()));
        for folder in ["build", "exercises/start", "exercises/solutions"] {
            fs::create_dir_all(directory.join(folder)).unwrap();
        }
        let exercise = ["exercises/roce.p4", "exercises/start/e.p4", "build/start-e.json"];
        let program = ["a.p4", "b.p4", "build/dcqcn.json", "build/dcqcn.p4info.txtpb"];
        for name in program.into_iter().chain(exercise) {
            fs::write(directory.join(name), name).unwrap();
        }
        fs::write(directory.join(SUMS), sums(&directory).unwrap()).unwrap();
        check_sums(&directory).unwrap();
        for name in ["b.p4", "c.p4", "build/dcqcn.json", "build/start-e.json"] {
            let path = directory.join(name);
            let before = fs::read(&path).ok();
            fs::write(&path, "changed").unwrap();
            let error = check_sums(&directory).unwrap_err().to_string();
            assert!(error.contains(&format!("p4/{name} differs from its hash")), "{error}");
            match before {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn p4_program_compiles() {
        let Some(compiler) = find_program(COMPILER) else {
            eprintln!("SKIPPED p4_program_compiles: no {COMPILER} on PATH");
            return;
        };
        check_compiled(&Workspace::locate().unwrap(), &compiler).unwrap();
    }
}
