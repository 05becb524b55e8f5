//! Running other programs: progress headers, and errors that include the command.

use std::{
    env,
    ffi::OsStr,
    io::{BufRead as _, BufReader, ErrorKind},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};

/// Prints a header for the next step, with the time since the first one.
pub fn header(what: impl std::fmt::Display) {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    match BEGAN.elapsed().as_secs() {
        0..60 => eprintln!("== {what}"),
        seconds => eprintln!("== {what}  (after {} min {} s)", seconds / 60, seconds % 60),
    }
}

/// The processes that descend from the process `pid`, without it.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // proc_pid_stat(5): PID (NAME) STATE PARENT; the name may contain anything.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// Runs `command` with its output on the terminal.
pub fn stream(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| not_started(command))?;
    if !status.success() {
        bail!("`{}` failed ({status}); its messages are above", line(command));
    }
    Ok(())
}

/// Runs `command` with its output on the terminal, and returns its standard output.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| not_started(command))?;
    let mut text = String::new();
    for printed in BufReader::new(child.stdout.take().context("no pipe")?).lines() {
        let printed = printed?;
        println!("{printed}");
        text += &printed;
        text.push('\n');
    }
    let status = child.wait()?;
    ensure!(status.success(), "`{}` failed ({status}); its messages are above", line(command));
    Ok(text)
}

/// Runs `command` and returns what it wrote to its standard output.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| not_started(command))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", line(command), output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Like [`capture`], `None` when the program is not installed.
pub(crate) fn capture_if_installed(command: &mut Command) -> Result<Option<String>> {
    match capture(command) {
        Ok(text) => Ok(Some(text)),
        Err(error)
            if error.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == ErrorKind::NotFound) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The context of an error from starting `command`.
pub fn not_started(command: &Command) -> String {
    format!("cannot start `{}`", line(command))
}

/// `command` as typed, without its environment.
pub(crate) fn line(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| {
            let word = word.to_string_lossy();
            if word.is_empty() || word.contains(char::is_whitespace) {
                format!("'{word}'")
            } else {
                word.into_owned()
            }
        })
        .collect();
    words.join(" ")
}

/// The program `name`, in `PATH` or the system administrator's directories, which an ordinary user's `PATH` lacks.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

/// `PATH` with `first` in front.
pub(crate) fn path_with(first: &Path) -> Result<std::ffi::OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::join_paths(std::iter::once(first.to_path_buf()).chain(env::split_paths(&path)))
        .with_context(|| format!("cannot add {} to PATH", first.display()))
}

/// Whether this process is root: the owner of its own `/proc` directory is its effective user.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// Fails unless this process is root.
pub(crate) fn require_root(verb: &str) -> Result<()> {
    ensure!(
        is_root(),
        "creating network namespaces and loading eBPF programs needs root; run `cargo xtask {verb}` as root"
    );
    Ok(())
}

/// Makes a program receive this signal from the kernel when this process exits for any reason.
pub fn with_parent_death_signal(signal: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal]).arg(program);
    command
}

/// Runs `rustup` with `args`; `None` when there is no rustup.
pub(crate) fn rustup<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Result<Option<String>> {
    // A missing toolchain must be reported, not downloaded.
    capture_if_installed(Command::new("rustup").args(args).env("RUSTUP_AUTO_INSTALL", "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_shown_as_typed() {
        let mut command = Command::new("cargo");
        command.args(["test", "--", "a b"]).env("HIDDEN", "1");
        assert_eq!(line(&command), "cargo test -- 'a b'");
    }

    #[test]
    fn missing_program_distinguished_from_failing() {
        assert!(capture_if_installed(&mut Command::new("no-such-program-here")).unwrap().is_none());
        assert!(capture_if_installed(&mut Command::new("false")).is_err());
        assert_eq!(capture_if_installed(Command::new("echo").arg("hi")).unwrap().as_deref(), Some("hi\n"));
    }

    /// The relevant parent is the thread that started it.
    #[test]
    fn bound_process_ends_with_parent() {
        use std::os::unix::process::ExitStatusExt as _;
        if find_program("setpriv").is_none() {
            eprintln!("SKIPPED bound_process_ends_with_parent: setpriv is not installed");
            return;
        }
        let (sender, may_end) = std::sync::mpsc::channel::<()>();
        let starter = std::thread::spawn(move || {
            let child = with_parent_death_signal("KILL", "sleep").arg("1000").spawn().unwrap();
            may_end.recv().unwrap();
            child
        });
        // Not before the signal is requested, which is before it is `sleep`.
        std::thread::sleep(std::time::Duration::from_millis(300));
        sender.send(()).unwrap();
        let status = starter.join().unwrap().wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{status}");
    }
}
