//! Requests of the first guest to this machine: pause a guest, take the carrier of its NIC, connect NICs, boot a third
//! guest, stop marking, trim, drop or capture packets.
//!
//! The guest writes a file into the shared directory and waits for the result (`tests/src/vm/peer.rs`).

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use super::bottleneck::Bottleneck;
use super::machine::{Machine, Qemu};
use super::network::Links;
use crate::prelude::*;

const POLL: Duration = Duration::from_millis(50);
/// RoCE packets of all ports, up to their AETH (`tests/src/vm/capture.rs`).
const TCPDUMP: [&str; 11] = ["-Z", "root", "-i", "any", "-y", "LINUX_SLL2", "-s", "80", "-U", "-w", "-"];
const ROCE: [&str; 3] = ["udp", "port", "4791"];
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct Requests<'a> {
    pub(super) network: &'a Network,
    pub(super) bottleneck: &'a Bottleneck,
    pub(super) tree: &'a Tree,
    pub(super) dir: PathBuf,
    pub(super) second: u32,
    /// The third guest, started by the first request for it.
    pub(super) middle: Option<Machine<'a>>,
}

/// Processes started by requests.
#[derive(Default)]
struct Started {
    /// Until its end is requested.
    capture: Option<Child>,
    /// Until the first guest ends.
    middle: Option<Qemu>,
}

impl Requests<'_> {
    /// Executes requests until `stop`.
    pub(super) fn serve(&self, stop: &AtomicBool) {
        let (request, result) = (self.dir.join("host.command"), self.dir.join("host.result"));
        let mut started = Started::default();
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(POLL);
            if let Ok(line) = fs::read_to_string(&request) {
                let outcome = self.execute(&line, &mut started);
                let outcome = outcome.map_or_else(|error| format!("{error:#}"), |()| "ok".into());
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

    fn execute(&self, line: &str, started: &mut Started) -> Result<()> {
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
                signal("STOP", self.second)?;
                thread::sleep(duration(seconds)?);
                signal("CONT", self.second)
            }
            ["carrier", guest, seconds] => {
                let link = |up: bool| {
                    format!("{{\"execute\":\"set_link\",\"arguments\":{{\"name\":\"n0\",\"up\":{up}}}}}")
                };
                self.monitor(guest, &[&link(false)])?;
                thread::sleep(duration(seconds)?);
                self.monitor(guest, &[&link(true)])
            }
            ["links", "shared"] => self.network.connect(Links::Shared),
            ["links", "paired"] => self.network.connect(Links::Paired),
            ["links", "middle"] => {
                let middle = self.middle.as_ref();
                let middle = middle.context("no third guest; `cargo xtask vm matrix --middle` boots one")?;
                if started.middle.is_none() {
                    started.middle = Some(middle.start_printed()?);
                }
                self.network.connect(Links::Middle)
            }
            ["marking", "on"] => self.bottleneck.mark(true),
            ["marking", "off"] => self.bottleneck.mark(false),
            ["trimming", "on"] => self.bottleneck.trim(true),
            ["trimming", "off"] => self.bottleneck.trim(false),
            ["loss", one_of] => self.lose(one_of),
            ["capture", "on"] => {
                started.capture = Some(self.capture()?);
                Ok(())
            }
            ["capture", "off"] => {
                let mut tcpdump = started.capture.take().context("no capture is running")?;
                signal("TERM", tcpdump.id())?;
                tcpdump.wait().context("tcpdump").map(drop)
            }
            _ => bail!("unknown request `{line}`"),
        }
    }

    /// Drops one of so many packets at the ports of both guests, at random; 0 = none.
    fn lose(&self, one_of: &str) -> Result<()> {
        let mut rules = "add table bridge loss; delete table bridge loss".to_owned();
        if one_of != "0" {
            rules += &format!(
                "; add table bridge loss; add chain bridge loss forward {{ type filter hook forward priority 0; }}; \
                 add rule bridge loss forward iifname {{ tap1, tap1b, tap2, tap2b }} numgen random mod {one_of} 0 drop"
            );
        }
        let mut nft = self.tree.command_in(Some(&self.network.netns), "usr/sbin/nft", "nft");
        run::capture(nft.arg(rules)).map(drop)
    }

    fn capture(&self) -> Result<Child> {
        let path = self.dir.join("capture.pcap");
        let file = fs::File::create(&path)?.into_parts().0;
        let mut tcpdump = self.tree.command_in(Some(&self.network.netns), "usr/bin/tcpdump", "tcpdump");
        let child = tcpdump.args(TCPDUMP).args(ROCE).stdout(file).stderr(Stdio::null()).spawn();
        let child = child.with_context(|| run::not_started(&tcpdump))?;
        let until = Instant::now() + CAPTURE_TIMEOUT;
        while fs::metadata(&path)?.len() == 0 {
            ensure!(Instant::now() < until, "tcpdump does not start");
            thread::sleep(POLL);
        }
        Ok(child)
    }

    fn monitor(&self, guest: &str, commands: &[&str]) -> Result<()> {
        let port = self.network.ports.iter().find(|port| port.number.to_string() == guest);
        let path = port.with_context(|| format!("no guest {guest}"))?.monitor();
        converse(&path, commands).with_context(|| format!("QEMU's monitor {}", path.display()))
    }
}

fn signal(signal: &str, process: u32) -> Result<()> {
    run::capture(Command::new("kill").args(["-s", signal, &process.to_string()])).map(drop)
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
