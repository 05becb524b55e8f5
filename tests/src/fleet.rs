//! A fleet on one machine: real members of etcd, real agents and coordinators as processes, and mock daemons
//! without a data plane.

mod daemon;
mod etcd;

use std::env;

use tempfile::NamedTempFile;

use crate::command::fleet_binary;
use crate::prelude::*;
pub use daemon::{Behaviour, MockDaemon};
pub use etcd::Etcd;

const TIMEOUT: Duration = Duration::from_secs(60);
/// `[rollout]` that watches no host.
pub const QUICK: &str = "canary = 1\nwave = 3\nmax_unavailable = 3\nsoak = '0s'\npatience = '8s'";
/// Options of `apply` that wait for the end of the rollout.
pub const WAIT: [&str; 3] = ["--wait", "--tick", "100ms"];

/// A fleet; dropping it kills all its processes.
pub struct FleetFixture {
    dir: TempDir,
    pub etcd: Etcd,
    pub daemons: BTreeMap<String, MockDaemon>,
    agents: BTreeMap<String, Running>,
}

impl FleetFixture {
    /// Starts an etcd cluster and hosts named h000, h001 and so on, with running agents.
    pub fn new(members: usize, hosts: usize) -> Result<Self> {
        Self::with(Etcd::start(members, &[])?, hosts)
    }

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

    pub fn add(&mut self, host: &str) -> Result<()> {
        let daemon = MockDaemon::listen(self.dir.path().join(format!("{host}.control")))?;
        self.daemons.insert(host.to_owned(), daemon);
        self.begin_agent(host)
    }

    pub fn begin_agent(&mut self, host: &str) -> Result<()> {
        self.begin_agent_under(&[], host)
    }

    /// Starts the agent of a host with a command prefix, for example `faketime -f +7m`.
    pub fn begin_agent_under(&mut self, program: &[&str], host: &str) -> Result<()> {
        let control = self.dir.path().join(format!("{host}.control"));
        let words = ["agent", "--look", "250ms", "--every", "1s", "--ttl", "3s", "--name", host];
        let mut command = self.command_under(program, &words)?;
        command.arg("--control").arg(control).args(["--label", &format!("rack={}", &host[..2])]);
        self.agents.insert(host.to_owned(), Running(command.spawn()?));
        Ok(())
    }

    pub fn kill_agent(&mut self, host: &str) -> Result<()> {
        self.agents.remove(host).with_context(|| format!("no agent on {host}"))?.kill()
    }

    pub fn signal_agent(&self, host: &str, what: Signal) -> Result<()> {
        self.agents.get(host).with_context(|| format!("no agent on {host}"))?.signal(what)
    }

    /// `dcqcn-fleet` with these arguments, logging to a file.
    pub fn command(&self, words: &[&str]) -> Result<Command> {
        self.command_under(&[], words)
    }

    pub fn command_under(&self, program: &[&str], words: &[&str]) -> Result<Command> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = match program.split_first() {
            Some((program, options)) => {
                let mut command = Command::new(program);
                command.args(options).arg(fleet_binary()?);
                command
            }
            None => Command::new(fleet_binary()?),
        };
        command.args(words).arg("--etcd").arg(self.etcd.endpoints()).env("DCQCN_LOG", "info");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(command)
    }

    pub fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Runs `dcqcn-fleet` with these arguments to completion. A rollout that does not end, such as one that
    /// is paused, is interrupted after three minutes and reports its state.
    pub fn run(&self, words: &[&str]) -> Result<Output> {
        Ok(self.to_end(words)?.output()?)
    }

    fn to_end(&self, words: &[&str]) -> Result<Command> {
        let mut command = self.command_under(&["timeout", "180"], words)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// Runs `dcqcn-fleet` with these arguments, which must succeed, and returns its output.
    pub fn text(&self, words: &[&str]) -> Result<String> {
        output_of(&mut self.to_end(words)?)
    }

    /// Runs `dcqcn-fleet` with these arguments, which must fail with `code`, and returns its error output.
    pub fn expect_error(&self, code: i32, words: &[&str]) -> Result<String> {
        error_of(&mut self.to_end(words)?, code)
    }

    /// Applies [`Self::file`] and waits for the end of the rollout, which must succeed.
    pub fn apply(&self, rollout: &str, parameters: &str) -> Result<String> {
        self.text(&[&["apply", &self.file(rollout, parameters)?], &WAIT[..]].concat())
    }

    /// As [`Self::apply`], which must fail; returns its error output.
    pub fn apply_error(&self, rollout: &str, parameters: &str) -> Result<String> {
        self.expect_error(1, &[&["apply", &self.file(rollout, parameters)?], &WAIT[..]].concat())
    }

    pub fn coordinate(&self) -> Result<Running> {
        Ok(Running(self.command(&["coordinate", "--tick", "100ms"])?.spawn()?))
    }

    pub fn wait_for_end(&self) -> Result<Duration> {
        self.wait("the rollout is over", |status| Ok(status["rollout"]["is_over"] == true))
    }

    /// Waits until every daemon has this version of the fleet.
    pub fn wait_for_version(&self, number: u64) -> Result<Duration> {
        let name = format!("fleet {number}");
        let what = format!("every host has version {number}");
        self.wait_for_daemons(&what, |_, daemon| daemon.name().as_ref() == Some(&name))
    }

    pub fn wait_for_version_on(&self, host: &str, number: u64) -> Result<Duration> {
        let name = format!("fleet {number}");
        self.wait_for_daemons(&format!("{host} has version {number}"), |other, daemon| {
            other != host || daemon.name().as_ref() == Some(&name)
        })
    }

    pub fn file(&self, rollout: &str, parameters: &str) -> Result<String> {
        let path = self.dir.path().join("fleet.toml");
        fs::write(&path, file(rollout, parameters))?;
        Ok(path.to_str().context("path is not UTF-8")?.to_owned())
    }

    pub fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.text(&["status", "--json"])?)?)
    }

    /// Waits until the status satisfies `is`, and returns the elapsed time.
    pub fn wait(&self, what: &str, is: impl Fn(&Value) -> Result<bool>) -> Result<Duration> {
        let began = Instant::now();
        let mut last = Value::Null;
        wait_for(TIMEOUT, || {
            if let Ok(status) = self.status() {
                if is(&status)? {
                    return Ok(Ok(began.elapsed()));
                }
                last = status;
            }
            Ok(Err(format!("waiting until {what}: {last}")))
        })
        .with_context(|| {
            let log = fs::read_to_string(self.log()).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            tail.join("\n")
        })
    }

    /// Waits until every daemon satisfies `of`, and returns the elapsed time.
    pub fn wait_for_daemons(&self, what: &str, of: impl Fn(&str, &MockDaemon) -> bool) -> Result<Duration> {
        let began = Instant::now();
        wait_for(TIMEOUT, || {
            if self.daemons.iter().all(|(host, daemon)| of(host, daemon)) {
                return Ok(Ok(began.elapsed()));
            }
            let names: BTreeMap<&String, Option<String>> =
                self.daemons.iter().map(|(host, daemon)| (host, daemon.name())).collect();
            Ok(Err(format!("waiting until {what}: {names:?}")))
        })
    }
}

/// A file for `apply` that sets `parameters` on every host.
pub fn file(rollout: &str, parameters: &str) -> String {
    let group = "[[group]]\nname = 'all'\n[[group.interface]]\nname = 'eth*'\n[group.interface.parameters]\n";
    format!("[rollout]\n{rollout}\n{group}{parameters}\n")
}

/// A file for `apply` that sets thresholds of the hosts with a label. Without traffic there is nothing to evaluate.
pub fn unjudged_file(label: &str, iface: &str) -> String {
    format!(
        "[rollout]\ncanary = 1\nsoak = '3s'\n[gate]\nmin_judged = 0\n\
         [[group]]\nname = 'all'\nlabels = {{ {label} }}\n\
         [[group.interface]]\nname = '{iface}'\n[group.interface.wred.3]\nkmin = '70KB'\nkmax = '300KB'\n"
    )
}

pub fn reporting_hosts(status: &Value) -> usize {
    let hosts = status["hosts"].as_array().map(Vec::as_slice).unwrap_or_default();
    hosts.iter().filter(|host| host["is_there"] == true).count()
}

const SECURE_PAGE: &str = include_str!("../../docs/how-to/secure-a-fleet.md");
/// The option that distinguishes the renewal of the authority.
const RENEW: &str = "-key ca.key";

/// A certificate authority with its files, created by the commands of docs/how-to/secure-a-fleet.md.
pub struct Authority {
    dir: PathBuf,
}

impl Authority {
    pub fn new(dir: &Path) -> Result<Self> {
        let authority = Self { dir: dir.to_owned() };
        authority.run(|line| ["h1", "etcd1", RENEW].iter().all(|other| !line.contains(other)), "", "")?;
        Ok(authority)
    }

    pub fn sign(&self, name: &str) -> Result<()> {
        self.run(|line| line.contains("h1"), "h1", name)
    }

    /// Creates a key and a certificate for the etcd member `etcd1` on loopback.
    pub fn sign_member(&self) -> Result<()> {
        self.run(|line| line.contains("etcd1"), "10.0.0.1", "127.0.0.1")
    }

    pub fn renew(&self) -> Result<()> {
        self.run(|line| line.contains(RENEW), "", "")
    }

    /// Runs commands of the page, with `to` instead of `from`.
    fn run(&self, is_selected: impl Fn(&str) -> bool, from: &str, to: &str) -> Result<()> {
        let (_, part) = SECURE_PAGE.split_once("## Certificates").context("no certificates in the page")?;
        let (part, _) = part.split_once("\n## ").context("no users in the page")?;
        let blocks = part.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
        let lines: Vec<&str> = blocks.flat_map(str::lines).filter(|line| is_selected(line)).collect();
        ensure!(!lines.is_empty(), "no such command in the page");
        for line in lines {
            let line = if from.is_empty() { line.to_owned() } else { line.replace(from, to) };
            output_of(Command::new("sh").args(["-c", &line]).current_dir(&self.dir))?;
        }
        Ok(())
    }

    pub fn file(&self, name: &str) -> Result<String> {
        Ok(self.dir.join(name).to_str().context("path is not UTF-8")?.to_owned())
    }
}

// A wall clock that can be set while programs run: `libfaketime`, with the offset in a file. It does not
// affect the monotonic clock.

/// Path of the library. The `faketime` command is not used, as killing it would leave its child running.
fn library() -> String {
    format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", env::consts::ARCH)
}

pub struct Clock {
    file: NamedTempFile,
    environment: [String; 4],
}

impl Clock {
    /// Returns whether the library is installed; prints that `test` is skipped if not.
    pub fn available(test: &str) -> bool {
        let available = fs::exists(library()).unwrap_or(false);
        if !available {
            eprintln!("SKIPPED {test}: no {} (Debian: faketime)", library());
        }
        available
    }

    pub fn new() -> Result<Self> {
        let file = NamedTempFile::new()?;
        let path = file.path().to_str().context("path is not UTF-8")?;
        let environment = [
            format!("LD_PRELOAD={}", library()),
            format!("FAKETIME_TIMESTAMP_FILE={path}"),
            "FAKETIME_NO_CACHE=1".into(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".into(),
        ];
        let clock = Self { file, environment };
        clock.set("+0")?;
        Ok(clock)
    }

    /// Sets the offset, for example `-3h`.
    pub fn set(&self, offset: &str) -> Result<()> {
        Ok(fs::write(self.file.path(), offset)?)
    }

    pub fn program(&self) -> Vec<&str> {
        ["env"].into_iter().chain(self.environment.iter().map(String::as_str)).collect()
    }
}
