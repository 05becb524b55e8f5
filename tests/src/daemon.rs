//! `dcqcn run` with its own file, for tests.

use std::os::unix::net::UnixDatagram;

use dcqcn_control_api::{ControlClient, Status, Verb};

use crate::prelude::*;
use crate::socket::http;

/// All interfaces of one host, at a link rate at which cuts are visible.
pub const HOST: &str = "\
[[interface]]
name = 'a*'
role = 'host'
profile = 'paper'
pacer = 'none'
flows = 1024
[interface.parameters]
link_rate = '1gbit'
rpg_time_reset = '0ns'
rpg_byte_reset = '0B'
";

/// Part of a file: a socket for clients.
pub const CONTROL: &str = "[control]\nsocket = 'DIR/control'\n";

/// Part of a file: metrics, for [`scrape`].
pub const METRICS: &str = "[metrics]\nlisten = '127.0.0.1:9310'\n";

/// A daemon with its file and log; killed when its test ends. `DIR` in a file is its directory.
pub struct Daemon {
    pub process: Running,
    /// Directory of its file, log and audit log.
    pub dir: TempDir,
}

impl Daemon {
    /// Starts the daemon with a log of JSON lines.
    pub fn start(host: &Host, file: &str) -> Result<Self> {
        Self::start_with(host, file, &["--log-format", "json"], &[])
    }

    /// Starts the daemon with options and environment variables.
    pub fn start_with(
        host: &Host,
        file: &str,
        options: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("dcqcn.toml"), within(&dir, file))?;
        let process = spawn(host, dir.path(), options, environment)?;
        Ok(Self { process, dir })
    }

    /// Starts the daemon in a mount namespace without the BPF file system, as that of `ip netns exec` may be.
    pub fn start_without_mount(host: &Host, file: &str) -> Result<Self> {
        const UNMOUNT: &str =
            "while mountpoint -q /run/dcqcn/bpf; do umount /run/dcqcn/bpf; done; exec \"$@\"";
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("dcqcn.toml"), within(&dir, file))?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-euc", UNMOUNT, "sh"]).arg(binary()?).arg("run");
        let process = spawn_by(host, command, dir.path(), &["--log-format", "json"])?;
        Ok(Self { process, dir })
    }

    /// Starts the daemon with a log of JSON lines, and waits until it has attached to `iface`.
    pub fn serving(host: &Host, file: &str, iface: &str) -> Result<Self> {
        let mut daemon = Self::start(host, file)?;
        daemon.attaches(iface)?;
        Ok(daemon)
    }

    /// Waits until the daemon has attached to `iface`.
    pub fn attaches(&mut self, iface: &str) -> Result<()> {
        self.wait_for_log(&["\"attached\"", &format!("\"iface\":\"{iface}\"")])
    }

    /// Starts another daemon with the same file, after this one has exited.
    pub fn again(&mut self, host: &Host) -> Result<()> {
        fs::write(self.log(), "")?;
        self.process = spawn(host, self.dir.path(), &["--log-format", "json"], &[])?;
        Ok(())
    }

    pub fn file(&self) -> PathBuf {
        self.dir.path().join("dcqcn.toml")
    }

    pub fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Replaces the file as an editor does.
    pub fn write(&self, file: &str) -> Result<()> {
        let new = self.dir.path().join("new");
        fs::write(&new, within(&self.dir, file))?;
        Ok(fs::rename(new, self.file())?)
    }

    /// Path of the socket of [`CONTROL`].
    pub fn socket(&self) -> String {
        self.dir.path().join("control").display().to_string()
    }

    /// A client of that socket, once the daemon is ready.
    pub fn client(&self) -> Result<ControlClient> {
        let client = ControlClient::new(Path::new(&self.socket()), Duration::from_secs(20));
        let status = || Ok(client.request::<Status>(Verb::Status {}));
        wait_value(status, |status| status.as_ref().is_ok_and(|status| status.is_ready)).map(drop)?;
        Ok(client)
    }

    /// Waits until the log has a line with all of `words`.
    pub fn wait_for_log(&mut self, words: &[&str]) -> Result<()> {
        self.wait_for_log_within(TIMEOUT, words)
    }

    /// As [`Self::wait_for_log`], for at most `patience`.
    pub fn wait_for_log_within(&mut self, patience: Duration, words: &[&str]) -> Result<()> {
        wait_for(patience, || {
            let log = fs::read_to_string(self.log())?;
            if log.lines().any(|line| words.iter().all(|word| line.contains(word))) {
                return Ok(Ok(()));
            }
            if let Some(status) = self.process.0.try_wait()? {
                bail!("the daemon exited ({status}): {log}");
            }
            Ok(Err(format!("no {words:?} in the log: {log}")))
        })
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Stops the daemon with SIGTERM.
    pub fn end(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let status = self.process.0.wait()?;
        ensure!(status.success(), "{status}: {}", fs::read_to_string(self.log())?);
        Ok(())
    }

    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// A field of `/proc/PID/status`.
    pub fn status(&self, field: &str) -> Result<String> {
        status_field(self.pid(), field)
    }
}

fn within(dir: &TempDir, file: &str) -> String {
    file.replace("DIR", &dir.path().display().to_string())
}

fn spawn(host: &Host, dir: &Path, options: &[&str], environment: &[(&str, &str)]) -> Result<Running> {
    spawn_by(host, dcqcn_with("run", environment)?, dir, options)
}

fn spawn_by(host: &Host, mut command: Command, dir: &Path, options: &[&str]) -> Result<Running> {
    let log = File::options().create(true).append(true).open(dir.join("log"))?;
    command.args(options).arg("--config").arg(dir.join("dcqcn.toml"));
    command.env("DCQCN_AUDIT", dir).env_remove("DCQCN_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Running::spawn(host, command)
}

/// Response to a request, in the host's namespace.
pub fn get(host: &Host, address: &str, path: &str) -> Result<String> {
    host.run(|| http(address, &format!("GET {path} HTTP/1.1\r\nHost: dcqcn\r\nConnection: close\r\n\r\n")))?
}

/// Response of the host's daemon with [`METRICS`].
pub fn scrape(host: &Host, path: &str) -> Result<String> {
    get(host, "127.0.0.1:9310", path)
}

/// Mock of a service manager.
pub struct Manager {
    dir: TempDir,
    socket: UnixDatagram,
    /// Time of the last watchdog ping.
    last: Instant,
    /// The longest interval between two.
    pub longest: Duration,
}

impl Manager {
    /// Listens, from now on.
    pub fn listen() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let socket = UnixDatagram::bind(dir.path().join("notify"))?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(Self { dir, socket, last: Instant::now(), longest: Duration::ZERO })
    }

    /// Value of `NOTIFY_SOCKET` for a client.
    pub fn address(&self) -> Result<String> {
        let path = self.dir.path().join("notify");
        Ok(path.to_str().context("path is not UTF-8")?.to_owned())
    }

    /// Reads until a message has a line that starts with `word`, and returns that message.
    pub fn wait_for(&mut self, word: &str, patience: Duration) -> Result<String> {
        let end = Instant::now() + patience;
        while Instant::now() < end {
            let mut datagram = [0; 8_192];
            let Ok(len) = self.socket.recv(&mut datagram) else { continue };
            let text = String::from_utf8_lossy(&datagram[..len]).into_owned();
            if text.lines().any(|line| line == "WATCHDOG=1") {
                self.longest = self.longest.max(self.last.elapsed());
                self.last = Instant::now();
            }
            if text.lines().any(|line| line.starts_with(word)) {
                return Ok(text);
            }
        }
        bail!("no {word}")
    }
}
