//! Several guests: the first runs a scenario, the others run the commands that the first writes into the
//! shared directory. The machine executes some requests too (`tests/vm/src/requests.rs`).

use crate::retry;
use crate::vm::prelude::*;

const DIR: &str = "/share/peer";
const POLL: Duration = Duration::from_millis(50);
/// Longest another guest may take to boot after the first, or after its request.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
pub const IFACE: &str = "eth0";
pub const ADDRESSES: [&str; 3] = ["10.9.0.1", "10.9.0.2", "10.9.0.3"];
/// Interface and addresses for handshakes, which no situation touches.
const MANAGEMENT: &str = "eth2";
/// Addresses of the guests there.
pub const MANAGEMENT_ADDRESSES: [&str; 3] = ["10.8.0.1", "10.8.0.2", "10.8.0.3"];
const HOST_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct CommandResult {
    ok: bool,
    output: String,
}

/// A parameter `dcqcn.NAME=VALUE` of the kernel's command line.
pub fn parameter<'a>(command_line: &'a str, name: &str) -> Option<&'a str> {
    command_line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("dcqcn.")?.strip_prefix(name)?.strip_prefix('='))
}

/// Another guest.
pub struct Peer {
    dir: PathBuf,
    next: u32,
}

impl Peer {
    /// Sets this guest's NIC up and waits for the second guest to do the same.
    pub fn connect() -> Result<Self> {
        set_up(1)?;
        Self::of(2)
    }

    /// Waits until a guest runs commands.
    pub fn of(guest: u8) -> Result<Self> {
        let dir = directory(guest);
        wait_for(&dir.join("ready"), BOOT_TIMEOUT)?;
        Ok(Self { dir, next: 0 })
    }

    /// Runs a shell script in that guest and returns its output.
    pub fn sh(&mut self, script: &str, patience: Duration) -> Result<String> {
        let number = self.begin(script)?;
        self.end(number, script, patience)
    }

    /// Starts a shell script in that guest; returns its number for [`Self::end`].
    pub fn begin(&mut self, script: &str) -> Result<u32> {
        let number = self.next;
        self.next += 1;
        put(&command(&self.dir, number), script.as_bytes())?;
        Ok(number)
    }

    /// Waits for the end of a script; returns its output.
    pub fn end(&self, number: u32, script: &str, patience: Duration) -> Result<String> {
        let result = result(&self.dir, number);
        wait_for(&result, patience).with_context(|| format!("peer: `{script}`"))?;
        let CommandResult { ok, output } = serde_json::from_slice(&fs::read(result)?)?;
        ensure!(ok, "peer: `{script}`: {}", output.trim());
        Ok(output)
    }

    pub fn host(&mut self, request: &str) -> Result<()> {
        let path = Path::new(DIR).join("host.result");
        put(&Path::new(DIR).join("host.command"), request.as_bytes())?;
        wait_for(&path, HOST_TIMEOUT).with_context(|| format!("host: `{request}`"))?;
        let answer = fs::read_to_string(&path)?;
        fs::remove_file(&path)?;
        ensure!(answer == "ok", "host: `{request}`: {answer}");
        Ok(())
    }
}

/// Runs commands as this guest.
pub fn serve(guest: u8) -> Result<()> {
    set_up(guest)?;
    let dir = directory(guest);
    put(&dir.join("ready"), b"")?;
    for number in 0.. {
        let path = command(&dir, number);
        while !path.exists() {
            thread::sleep(POLL);
        }
        let script = fs::read_to_string(&path)?;
        let output = Command::new("sh").args(["-ec", &script]).output().context("sh")?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            text += &String::from_utf8_lossy(&output.stderr);
        }
        let outcome = CommandResult { ok: output.status.success(), output: text };
        put(&result(&dir, number), &serde_json::to_vec(&outcome)?)?;
    }
    Ok(())
}

fn set_up(guest: u8) -> Result<()> {
    let index = usize::from(guest - 1);
    let command_line = sysfs::read("/proc/cmdline")?;
    let driver = parameter(&command_line, "nic").context("no dcqcn.nic= on the kernel's command line")?;
    sh(&format!("modprobe {driver}"))?;
    wait_for(&Path::new("/sys/class/net").join(IFACE), BOOT_TIMEOUT)?;
    sh(&format!("ip address add {}/24 dev {IFACE}", ADDRESSES[index]))?;
    sh(&format!("ip link set {IFACE} up"))?;
    if parameter(&command_line, "management").is_some() {
        sh("modprobe virtio_net")?;
        wait_for(&Path::new("/sys/class/net").join(MANAGEMENT), BOOT_TIMEOUT)?;
        sh(&format!("ip address add {}/24 dev {MANAGEMENT}", MANAGEMENT_ADDRESSES[index]))?;
        sh(&format!("ip link set {MANAGEMENT} up"))?;
    }
    Ok(())
}

fn directory(guest: u8) -> PathBuf {
    Path::new(DIR).join(guest.to_string())
}

fn command(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number}.command"))
}

fn result(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number}.result"))
}

/// Writes a file atomically.
fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    let (dir, partial) = (path.parent().context("no directory")?, path.with_extension("partial"));
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    fs::write(&partial, bytes).with_context(|| partial.display().to_string())?;
    fs::rename(&partial, path).with_context(|| path.display().to_string())
}

fn wait_for(path: &Path, patience: Duration) -> Result<()> {
    retry::wait_for(patience, || {
        let exists = path.exists();
        thread::sleep(if exists { Duration::ZERO } else { POLL });
        Ok(exists.then_some(()).ok_or_else(|| format!("{} does not exist", path.display())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_parameter_found() {
        let line = "console=ttyS0 dcqcn.guest=1 dcqcn.port=2 dcqcn.nic=e1000e";
        assert_eq!(parameter(line, "port"), Some("2"));
        assert_eq!(parameter(line, "nic"), Some("e1000e"));
        assert_eq!(parameter(line, "por"), None);
    }
}
