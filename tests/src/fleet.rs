//! A fleet on one machine: real members of etcd, real agents and coordinators as processes, and mock daemons
//! without a data plane.

mod clock;
mod daemon;
mod etcd;
mod tls;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

pub use clock::Clock;
pub use daemon::{Behaviour, MockDaemon};
pub use etcd::Etcd;
pub use tls::Authority;

/// Time limit for a fleet to reach a state.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Path of the `dcqcn-fleet` binary.
fn binary() -> Result<PathBuf> {
    Ok(env::var_os("DCQCN_FLEET_BIN").context("DCQCN_FLEET_BIN is not set: run `cargo xtask test`")?.into())
}

/// Sends a signal to a process.
pub fn signal(child: &Child, signal: Signal) -> Result<()> {
    Ok(kill(Pid::from_raw(child.id().try_into()?), signal)?)
}

/// A fleet; dropping it kills all its processes.
pub struct FleetFixture {
    dir: TempDir,
    /// The etcd cluster.
    pub etcd: Etcd,
    /// Daemons by host.
    pub daemons: BTreeMap<String, MockDaemon>,
    /// Agents by host.
    agents: BTreeMap<String, Child>,
}

impl FleetFixture {
    /// Starts an etcd cluster and hosts named h000, h001 and so on, with running agents.
    pub fn new(members: usize, hosts: usize) -> Result<Self> {
        Self::with(Etcd::start(members, &[])?, hosts)
    }

    /// Starts hosts that use an existing etcd cluster.
    pub fn with(etcd: Etcd, hosts: usize) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (daemons, agents) = (BTreeMap::new(), BTreeMap::new());
        let mut fixture = Self { dir, etcd, daemons, agents };
        for host in 0..hosts {
            fixture.add(&format!("h{host:03}"))?;
        }
        fixture.wait("every host reports", |status| Ok(reporting_hosts(status) == hosts))?;
        Ok(fixture)
    }

    /// Adds a host with daemon and agent.
    pub fn add(&mut self, host: &str) -> Result<()> {
        let daemon = MockDaemon::listen(self.dir.path().join(format!("{host}.control")))?;
        self.daemons.insert(host.to_owned(), daemon);
        self.begin_agent(host)
    }

    /// Starts the agent of a host.
    pub fn begin_agent(&mut self, host: &str) -> Result<()> {
        self.begin_agent_under(&[], host)
    }

    /// Starts the agent of a host with a command prefix, for example `faketime -f +7m`.
    pub fn begin_agent_under(&mut self, program: &[&str], host: &str) -> Result<()> {
        let control = self.dir.path().join(format!("{host}.control"));
        let child = self
            .command_under(
                program,
                &["agent", "--look", "250ms", "--every", "250ms", "--ttl", "3", "--name", host],
            )?
            .arg("--control")
            .arg(control)
            .args(["--label", &format!("rack={}", &host[..2])])
            .spawn()?;
        self.agents.insert(host.to_owned(), child);
        Ok(())
    }

    /// Kills the agent of a host.
    pub fn kill_agent(&mut self, host: &str) -> Result<()> {
        let mut agent = self.agents.remove(host).with_context(|| format!("no agent on {host}"))?;
        agent.kill()?;
        agent.wait()?;
        Ok(())
    }

    /// Sends a signal to the agent of a host.
    pub fn signal_agent(&self, host: &str, what: Signal) -> Result<()> {
        signal(self.agents.get(host).with_context(|| format!("no agent on {host}"))?, what)
    }

    /// `dcqcn-fleet` with these arguments, logging to a file.
    pub fn command(&self, words: &[&str]) -> Result<Command> {
        self.command_under(&[], words)
    }

    /// As [`Self::command`], with a command prefix.
    pub fn command_under(&self, program: &[&str], words: &[&str]) -> Result<Command> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = match program.split_first() {
            Some((program, options)) => {
                let mut command = Command::new(program);
                command.args(options).arg(binary()?);
                command
            }
            None => Command::new(binary()?),
        };
        command.args(words).arg("--etcd").arg(self.etcd.endpoints()).env("DCQCN_LOG", "info");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(command)
    }

    /// Directory of the processes' logs.
    pub fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Runs `dcqcn-fleet` with these arguments to completion. A rollout that does not end, such as one that is paused, is
    /// interrupted after three minutes and reports its state.
    pub fn run(&self, words: &[&str]) -> Result<Output> {
        let mut command = self.command_under(&["timeout", "180"], words)?;
        Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?)
    }

    /// Runs `dcqcn-fleet` with these arguments, which must succeed, and returns its output.
    pub fn text(&self, words: &[&str]) -> Result<String> {
        let output = self.run(words)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{words:?}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Writes a file for `apply` that sets `parameters` on every host.
    pub fn file(&self, rollout: &str, parameters: &str) -> Result<String> {
        let path = self.dir.path().join("fleet.toml");
        let group =
            "[[group]]\nname = 'all'\n[[group.interface]]\nname = 'eth*'\n[group.interface.parameters]\n";
        fs::write(&path, format!("[rollout]\n{rollout}\n{group}{parameters}\n"))?;
        Ok(path.to_str().context("path is not UTF-8")?.to_owned())
    }

    /// Output of `status --json`.
    pub fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.text(&["status", "--json"])?)?)
    }

    /// Waits until the status satisfies `is`, and returns the elapsed time.
    pub fn wait(&self, what: &str, is: impl Fn(&Value) -> Result<bool>) -> Result<Duration> {
        let began = Instant::now();
        let mut last = Value::Null;
        while began.elapsed() < TIMEOUT {
            if let Ok(status) = self.status() {
                if is(&status)? {
                    return Ok(began.elapsed());
                }
                last = status;
            }
            thread::sleep(Duration::from_millis(100));
        }
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(20).collect();
        anyhow::bail!("time-out waiting until {what}: {last}\n{}", tail.join("\n"))
    }

    /// Waits until every daemon satisfies `of`, and returns the elapsed time.
    pub fn wait_for_daemons(&self, what: &str, of: impl Fn(&str, &MockDaemon) -> bool) -> Result<Duration> {
        let began = Instant::now();
        while began.elapsed() < TIMEOUT {
            if self.daemons.iter().all(|(host, daemon)| of(host, daemon)) {
                return Ok(began.elapsed());
            }
            thread::sleep(Duration::from_millis(50));
        }
        let names: BTreeMap<&String, Option<String>> =
            self.daemons.iter().map(|(host, daemon)| (host, daemon.name())).collect();
        anyhow::bail!("time-out waiting until {what}: {names:?}")
    }
}

impl Drop for FleetFixture {
    fn drop(&mut self) {
        for agent in self.agents.values_mut() {
            // Fails if it has exited.
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// Number of reporting hosts in a status.
pub fn reporting_hosts(status: &Value) -> usize {
    let hosts = status["hosts"].as_array().map(Vec::as_slice).unwrap_or_default();
    hosts.iter().filter(|host| host["is_there"] == true).count()
}
