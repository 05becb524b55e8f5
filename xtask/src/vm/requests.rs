//! Requests of the first of two guests to this machine: pause a guest, take the carrier of its NIC, stop marking.
//!
//! The guest writes a file into the shared directory and waits for the result (`tests/src/vm/peer.rs`).

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use fs_err as fs;

use super::bottleneck::Bottleneck;
use super::network::Network;
use crate::run;

const POLL: Duration = Duration::from_millis(50);

/// Executor of the requests.
pub(super) struct Requests<'a> {
    pub(super) network: &'a Network,
    pub(super) bottleneck: &'a Bottleneck,
    /// Directory of the requests.
    pub(super) dir: PathBuf,
    /// Process of the second guest's QEMU.
    pub(super) second: u32,
}

impl Requests<'_> {
    /// Executes requests until `stop`.
    pub(super) fn serve(&self, stop: &AtomicBool) {
        let (request, result) = (self.dir.join("host.command"), self.dir.join("host.result"));
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(POLL);
            if let Ok(line) = fs::read_to_string(&request) {
                let outcome = self.execute(&line).map_or_else(|error| format!("{error:#}"), |()| "ok".into());
                let partial = self.dir.join("host.partial");
                let answer = fs::remove_file(&request)
                    .and_then(|()| fs::write(&partial, outcome))
                    .and_then(|()| fs::rename(&partial, &result));
                if let Err(error) = answer {
                    eprintln!("cannot answer the guest's request `{line}`: {error}");
                    return;
                }
            }
        }
    }

    fn execute(&self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            // The guest's clock stops with it.
            ["stop", guest, seconds] => {
                self.monitor(guest, &["{\"execute\":\"stop\"}"])?;
                thread::sleep(duration(seconds)?);
                self.monitor(guest, &["{\"execute\":\"cont\"}"])
            }
            // The guest's clock runs on: it jumps.
            ["freeze", "2", seconds] => {
                self.signal("STOP")?;
                thread::sleep(duration(seconds)?);
                self.signal("CONT")
            }
            ["carrier", guest, seconds] => {
                let link = |up: bool| {
                    format!("{{\"execute\":\"set_link\",\"arguments\":{{\"name\":\"n0\",\"up\":{up}}}}}")
                };
                self.monitor(guest, &[&link(false)])?;
                thread::sleep(duration(seconds)?);
                self.monitor(guest, &[&link(true)])
            }
            ["marking", "on"] => self.bottleneck.mark(true),
            ["marking", "off"] => self.bottleneck.mark(false),
            _ => bail!("unknown request `{line}`"),
        }
    }

    fn signal(&self, signal: &str) -> Result<()> {
        run::capture(Command::new("kill").args(["-s", signal, &self.second.to_string()])).map(drop)
    }

    /// Sends commands to the monitor of a guest's QEMU.
    fn monitor(&self, guest: &str, commands: &[&str]) -> Result<()> {
        let port = self.network.ports.iter().find(|port| port.number.to_string() == guest);
        let path = port.with_context(|| format!("no guest {guest}"))?.monitor();
        converse(&path, commands).with_context(|| format!("QEMU's monitor {}", path.display()))
    }
}

/// QMP: a greeting, then one line for each command; events may come in between.
fn converse(path: &Path, commands: &[&str]) -> Result<()> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    lines.next().context("no greeting")??;
    for command in [&["{\"execute\":\"qmp_capabilities\"}"], commands].concat() {
        writeln!(stream, "{command}")?;
        loop {
            let line = lines.next().context("the connection was closed")??;
            if line.contains("\"error\"") {
                bail!("{command}: {line}");
            }
            if line.contains("\"return\"") {
                break;
            }
        }
    }
    Ok(())
}

fn duration(seconds: &str) -> Result<Duration> {
    Ok(Duration::from_secs(seconds.parse().context("seconds")?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn monitor_events_skipped_and_errors_reported() {
        let path = std::env::temp_dir().join(format!("dcqcn-requests-{}.qmp", std::process::id()));
        drop(std::fs::remove_file(&path));
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            writeln!(stream, "{{\"QMP\":{{}}}}").unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.next().unwrap().unwrap();
            writeln!(stream, "{{\"return\":{{}}}}").unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), "a");
            writeln!(stream, "{{\"event\":\"STOP\"}}\n{{\"return\":{{}}}}").unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), "b");
            writeln!(stream, "{{\"error\":{{}}}}").unwrap();
        });
        let error = converse(&path, &["a", "b"]).unwrap_err().to_string();
        assert!(error.starts_with("b: "), "{error}");
        server.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
