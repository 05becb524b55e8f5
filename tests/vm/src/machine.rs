//! The virtual machine: QEMU with a kernel, the guest's tree and a directory shared with it.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};

use fs_err::File;

use super::kernel::Kernel;
use super::network::{Layout, MIDDLE, Port};
use crate::prelude::*;

/// Final line of the guest, not printed by anything else.
pub(super) const PASS: &str = "dcqcn-vm: PASS";
pub(super) const FAIL: &str = "dcqcn-vm: FAIL";
/// Line of the guest's first program, before any other one runs.
const BOOTED: &str = "dcqcn-vm: BOOTED";
/// Starts of a guest whose kernel crashes before [`BOOTED`], as emulated ones sometimes do.
const STARTS: u32 = 3;
/// First program after the root file system is mounted, in the shared directory.
pub(super) const START: &str = "start";
/// No address randomisation and no mitigations: both only cost time under emulation.
const KERNEL_ARGUMENTS: &str = "quiet nokaslr mitigations=off tsc=reliable random.trust_cpu=1 panic=-1 net.ifnames=0 \
     systemd.show_status=false dcqcn.guest=1";
const CPUS: u32 = 2;
/// CPUs of each of several concurrent guests that need no more.
const CPUS_OF_SEVERAL: u32 = 1;
const MEMORY_MB: u32 = 1_024;
const KVM_TIMEOUT: Duration = Duration::from_secs(15);

/// Execution of the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    Kvm,
    /// QEMU's software emulation.
    Tcg,
}

pub(super) struct Machine<'a> {
    pub(super) tree: &'a Tree,
    pub(super) kernel: &'a Kernel,
    pub(super) accelerator: Accelerator,
    /// Shared directory; `/share` in the guest.
    pub(super) share: &'a Path,
    /// Port, if it is one of several guests.
    pub(super) port: Option<&'a Port>,
}

impl Machine<'_> {
    /// Runs the guest, passes each of its lines to `line`, and stops it at the limit; returns its verdict.
    pub(super) fn run(&self, limit: Duration, mut line: impl FnMut(&str)) -> Result<Result<(), String>> {
        let (mut qemu, mut lines) = self.start()?;
        let mut starts = 1;
        let mut is_booted = false;
        let until = Instant::now() + limit;
        let failure = loop {
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(text) if text == PASS => return Ok(Ok(())),
                Ok(text) if text == FAIL => break "a check failed".to_owned(),
                Ok(text) if text == BOOTED => is_booted = true,
                Ok(text) => line(&text),
                Err(RecvTimeoutError::Timeout) => {
                    break format!("not completed within {} s; QEMU was stopped", limit.as_secs());
                }
                Err(RecvTimeoutError::Disconnected) if !is_booted && starts < STARTS => {
                    line("the kernel crashed while booting; starting the guest again");
                    drop(qemu);
                    (qemu, lines) = self.start()?;
                    starts += 1;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    break "the guest exited without a result: its kernel or its driver crashed".to_owned();
                }
            }
        };
        drop(qemu);
        Ok(Err(failure))
    }

    /// Starts the guest in the background; its lines are printed with its number.
    pub(super) fn start_printed(&self) -> Result<Qemu> {
        let (qemu, lines) = self.start()?;
        let number = self.port.map_or(1, |port| port.number);
        thread::spawn(move || lines.iter().for_each(|line| println!("   {number} | {line}")));
        Ok(qemu)
    }

    /// Starts the guest in the background; returns its lines too.
    fn start(&self) -> Result<(Qemu, Receiver<String>)> {
        Qemu::start(&mut self.command("stdio"))
    }

    pub(super) fn converse(&self) -> Result<()> {
        run::stream(&mut self.command("mon:stdio"))
    }

    fn command(&self, serial: &str) -> Command {
        let accelerator = match self.accelerator {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg,thread=multi",
        };
        let netns = self.port.map(|port| port.netns.as_str());
        let is_small = |port: &Port| port.layout == Layout::Single || port.number == MIDDLE;
        let cpus = if self.port.is_some_and(is_small) { CPUS_OF_SEVERAL } else { CPUS };
        let mut command = qemu(self.tree, self.kernel, accelerator, netns, cpus);
        let console = if self.tree.arch == Arch::Aarch64 { "ttyAMA0" } else { "ttyS0" };
        let mut arguments = format!("console={console} {KERNEL_ARGUMENTS}");
        if let Some(port) = self.port {
            command.args(port.arguments());
            arguments += &format!(" dcqcn.port={} dcqcn.nic={}", port.number, port.nic.driver());
            if port.layout == Layout::Matrix {
                arguments += " dcqcn.management=1";
            }
        }
        if self.accelerator == Accelerator::Tcg && self.tree.arch == Arch::X86_64 {
            arguments += &format!(" tsc_early_khz={}", tsc_khz());
        }
        command.args(["-serial", serial, "-append", &arguments]).arg("-initrd").arg(self.kernel.initramfs());
        for (tag, path, access) in [
            ("tree", self.tree.root(), ",readonly=on"),
            ("modules", &self.kernel.modules(), ",readonly=on"),
            ("share", self.share, ""),
        ] {
            let path = path.display();
            let share =
                format!("local,path={path},mount_tag={tag},security_model=none,multidevs=remap{access}");
            command.arg("-virtfs").arg(share);
        }
        command
    }
}

/// Frequency of this machine's time-stamp counter, which emulated guests read. On a busy machine their
/// kernels measure it wrong by a multiple, as all their clocks then are.
#[cfg(target_arch = "x86_64")]
fn tsc_khz() -> u128 {
    // Without a pause of this process between clock and counter.
    let sample = || loop {
        let at = Instant::now();
        // SAFETY: every x86-64 CPU has this instruction.
        let ticks = unsafe { core::arch::x86_64::_rdtsc() };
        if at.elapsed() < Duration::from_micros(20) {
            return (at, ticks);
        }
    };
    let (start, from) = sample();
    thread::sleep(Duration::from_millis(200));
    let (end, to) = sample();
    u128::from(to - from) * 1_000_000 / (end - start).as_nanos().max(1)
}

/// Guests run on x86-64 only.
#[cfg(not(target_arch = "x86_64"))]
fn tsc_khz() -> u128 {
    0
}

/// KVM if it runs this very kernel, otherwise the reason why not. Opening `/dev/kvm` proves little: inside a virtual
/// machine it may be unable to start a guest.
pub(super) fn accelerator(tree: &Tree, kernel: &Kernel) -> Result<(Accelerator, String)> {
    if tree.arch != Arch::X86_64 {
        return Ok((Accelerator::Tcg, "another architecture".into()));
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/kvm") {
        return Ok((Accelerator::Tcg, format!("/dev/kvm: {error}")));
    }
    let mut command = qemu(tree, kernel, "kvm", None, CPUS);
    command.args(["-serial", "stdio", "-append", "console=ttyS0 panic=-1"]);
    let (_qemu, lines) = Qemu::start(command.stderr(Stdio::null()))?;
    Ok(match lines.recv_timeout(KVM_TIMEOUT) {
        Ok(_) => (Accelerator::Kvm, "/dev/kvm starts guests".into()),
        Err(_) => (Accelerator::Tcg, "/dev/kvm exists but cannot start a guest".into()),
    })
}

fn qemu(tree: &Tree, kernel: &Kernel, accelerator: &str, netns: Option<&str>, cpus: u32) -> Command {
    let name = format!("qemu-system-{}", tree.arch.name());
    let mut command = tree.command_in(netns, &format!("usr/bin/{name}"), &name);
    command.args(["-accel", accelerator, "-nodefaults", "-no-reboot", "-display", "none"]);
    command.args(match tree.arch {
        Arch::X86_64 => &["-cpu", "max"][..],
        // A server's, with atomic instructions; emulating the pointer authentication of `max` is slow.
        Arch::Aarch64 => &["-machine", "virt", "-cpu", "neoverse-n1"],
    });
    command.args(["-smp", &cpus.to_string(), "-m", &MEMORY_MB.to_string()]);
    for firmware in ["usr/share/qemu", "usr/share/seabios"] {
        command.arg("-L").arg(tree.join(firmware));
    }
    command.arg("-kernel").arg(kernel.image());
    command
}

/// A running QEMU, stopped on drop.
pub(super) struct Qemu(Child);

impl Qemu {
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    fn start(command: &mut Command) -> Result<(Self, Receiver<String>)> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut qemu = Self(command.spawn().with_context(|| run::not_started(command))?);
        let output = qemu.0.stdout.take().context("no pipe from QEMU")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || read_lines(output, |line| sender.send(line).is_ok()));
        Ok((qemu, lines))
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // An error means that it has exited already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Passes each line on, without terminal sequences, until `keep` returns false.
fn read_lines(from: impl Read, mut keep: impl FnMut(String) -> bool) {
    let mut reader = BufReader::new(from);
    let mut bytes = Vec::new();
    // A failed pipe means that its writer has exited.
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
        let text = strip_escapes(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
        if !text.is_empty() && !keep(text) {
            return;
        }
    }
}

/// `text` without the escape sequences (ESC, then up to a letter) a firmware writes.
fn strip_escapes(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        out.push_str(part.get(end..).unwrap_or_default());
    }
    out
}

/// Writes the guest's start-up files to its shared directory.
pub(super) fn write_start(share: &Path, script: &str) -> Result<()> {
    let path = share.join(START);
    fs::write(&path, script).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_codes_stripped() {
        let mut lines = Vec::new();
        read_lines(&b"\x1bc\x1b[?7l\x1b[2J\r\n\x1b[0mstarted\r\n\r\nlast"[..], |line| {
            lines.push(line);
            true
        });
        assert_eq!(lines, ["started", "last"]);
    }
}
