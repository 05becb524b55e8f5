//! A private `simple_switch` in a network namespace, because its Thrift server listens on all addresses.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dcqcn_netlink::{Netlink, Netns};
use tempfile::NamedTempFile;

use super::error::{Error, Result};
use super::program::JSON;
use super::session::Session;

const TOOL: &str = "simple_switch";
/// Port of its Thrift server, the only one in the namespace.
const THRIFT_PORT: u16 = 9_090;
const QUEUES: &str = "8";
/// Maximum wait for its first answer.
const TIMEOUT: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(50);
/// The loopback interface of every namespace.
const LO: u32 = 1;

/// A running switch; killed on drop.
#[derive(Debug)]
pub struct Process {
    child: Child,
    output: File,
    /// Kept as long as the switch may read it.
    _program: NamedTempFile,
}

impl Process {
    /// Starts a switch in `netns` with the interfaces `ports`, and waits until it answers.
    pub fn start(netns: &Netns, ports: &[(u16, String)]) -> Result<(Self, Session)> {
        let failed = |reason: String| Error::Start { reason };
        let run = |source| Error::Run { tool: TOOL, source };
        let netlink = Netlink::connect_in(netns).map_err(|error| failed(error.to_string()))?;
        netlink.set_up(LO, true).map_err(|error| failed(error.to_string()))?;
        let mut program = NamedTempFile::with_suffix(".json").map_err(run)?;
        program.write_all(JSON.as_bytes()).map_err(run)?;
        let output = tempfile::tempfile().map_err(run)?;
        let mut command = Command::new(TOOL);
        for (number, iface) in ports {
            // With offloads, BMv2's libpcap has room for 32 packets of any length, and loses the rest of a burst.
            let index = netlink.link(iface).map_err(|error| failed(error.to_string()))?.index;
            netlink.turn_segmentation_off(index).map_err(|error| failed(error.to_string()))?;
            command.arg("-i").arg(format!("{number}@{iface}"));
        }
        command.arg("--thrift-port").arg(THRIFT_PORT.to_string()).arg(program.path());
        command.args(["--", "--priority-queues", QUEUES]);
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(run)?)
            .stderr(output.try_clone().map_err(run)?);
        let spawned = netns.run(|| command.spawn()).map_err(|error| failed(error.to_string()))?;
        let child = spawned.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::Missing { tool: TOOL },
            _ => run(source),
        })?;
        let mut process = Self { child, output, _program: program };
        let session = process.wait_for_session(netns)?;
        Ok((process, session))
    }

    fn wait_for_session(&mut self, netns: &Netns) -> Result<Session> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let session = netns.run(|| Session::open(THRIFT_PORT));
            match session.map_err(|error| Error::Start { reason: error.to_string() })? {
                // The Thrift server is reachable before the program is loaded.
                Err(Error::NoSwitch { .. } | Error::NotASwitch { .. }) if Instant::now() < deadline => {}
                answer => return answer,
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                let mut text = String::new();
                let read = self.output.rewind().and_then(|()| self.output.read_to_string(&mut text));
                let last_line =
                    read.ok().and_then(|_| text.lines().last().map(str::to_owned)).unwrap_or_default();
                return Err(Error::Start { reason: format!("{status}: {last_line}") });
            }
            thread::sleep(TICK);
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Port of its Thrift server, in its namespace.
    pub const fn thrift_port(&self) -> u16 {
        THRIFT_PORT
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Killed: its state is not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
