//! A neighbour that pauses continuously: the watchdog detects it, ignores the pauses, and honours later ones again.
//!
//! The device under test sends single packets, each on its own QP, and its neighbour pauses them. A late packet was
//! paused, so the times are visible from outside.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dcqcn_common::layout::CLASSES;
use dcqcn_common::wire::eth::EtherType;
use dcqcn_common::wire::pfc::{FRAME_LEN, PfcRepr, QUANTUM_BITS};
use dcqcn_netlink::tc::kernel_has_qdisc;
use dcqcn_params::{PacerChoice, Settings};
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::render;

use super::report::Checks;
use super::wire::Wire;
use super::{Bench, DeviceUnderTest, on_path};
use crate::DataPlane;
use crate::error::{Error, Result, failed};
use crate::host::{Host, ROCE_TC};
use crate::rc::Psn;
use crate::socket::{HostSocket, Receive};

const PERIOD: Duration = Duration::from_millis(10);
/// Duration of each pause, if the link is slow enough for it.
const PAUSE: Duration = Duration::from_millis(300);
/// Delay above which a packet counts as paused.
const MIN_DELAY: Duration = Duration::from_millis(60);
/// Extra time for a daemon whose watchdog was just enabled.
const STARTUP_ALLOWANCE: Duration = Duration::from_millis(1_500);
/// Requirements for a watchdog with default times.
const DETECTION: Duration = Duration::from_millis(200);
/// Link rate in the lab, bit/s: on faster links a pause is too short to be visible.
const LINK_BPS: u64 = 100_000_000;
/// First QPN; each packet uses the next.
const QPN: u32 = 0x4000;

pub(super) fn run(bench: &Bench<'_>, checks: &mut Checks) -> Result<()> {
    let in_lab = bench.config.against == DeviceUnderTest::Linux;
    if in_lab && !kernel_has_qdisc("fq")? {
        checks.skip_all("this kernel has no fq, which delays paused packets");
        return Ok(());
    }
    let daemon = daemon();
    if in_lab && daemon.is_none() {
        checks.skip_all("no `dcqcn` next to dcqcn-lab or on PATH; `dcqcn run` is the watchdog");
        return Ok(());
    }
    bench.progress.set_message("a pause storm");
    let times = bench.presumed.watchdog().map(|set| (set.detection_ns, set.restoration_ns));
    let times = times.map(|(found, over)| (Duration::from_nanos(found), Duration::from_nanos(over)));
    let (detection, restoration) = times.unwrap_or((DETECTION, 2 * DETECTION));
    let network = bench.pair(LINK_BPS, bench.config.incast.buffer_bytes)?;
    let [sender, ..] = network.senders.as_slice() else { return Err(Error::NoSender) };
    let mut attached = None;
    let mut running = None;
    if let (true, Some(daemon)) = (in_lab, daemon) {
        let settings = Settings { pacer: Some(PacerChoice::Fq), ..Settings::default() };
        let data_plane = DataPlane { link_bps: LINK_BPS, ..bench.data_plane() };
        attached = Some(data_plane.attach_host(sender, settings)?);
        running = Some(Running::start(sender, daemon)?);
    }
    // Neighbour of the paused port, which is the host's in the lab, else the switch's port to the receiver.
    let of_switch = network.switch.as_ref().map(|switch| sender.neighbour(&switch.netns)).transpose()?;
    let neighbour = of_switch.as_ref().unwrap_or(&network.receiver);
    let wire = Wire::open(sender, &network.receiver)?;
    let link_bps = if in_lab { LINK_BPS } else { bench.config.incast.link_bps };
    let mut storm = Storm::open(neighbour, link_bps)?;
    let seen = Probe { wire, next: QPN }.run(&mut storm, detection, restoration);
    drop(running);
    if let Some(mut attached) = attached {
        attached.detach()?;
    }
    seen?.check(checks, detection, restoration);
    Ok(())
}

fn daemon() -> Option<PathBuf> {
    let sibling = std::env::current_exe().ok().and_then(|lab| Some(lab.parent()?.join("dcqcn")));
    sibling.filter(|program| program.is_file()).or_else(|| on_path("dcqcn"))
}

/// `dcqcn run` on a host; killed on drop.
struct Running(Child);

impl Running {
    fn start(host: &Host, program: PathBuf) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["run", &host.ifname]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(host.netns.run(move || command.spawn())?.map_err(failed("start `dcqcn run`"))?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if the process has exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pauses of RoCE's priority.
struct Storm {
    socket: HostSocket,
    pause: [u8; FRAME_LEN],
    resume: [u8; FRAME_LEN],
    lasts: Duration,
}

impl Storm {
    fn open(host: &Host, link_bps: u64) -> Result<Self> {
        let receive = Receive::Type { ethertype: EtherType::MAC_CONTROL.0, buffer_bytes: FRAME_LEN };
        let socket = host.netns.run(|| HostSocket::open(host, receive, 1 << 16, FRAME_LEN))??;
        let quantum_ns = (QUANTUM_BITS * 1_000_000_000 / link_bps.max(1)).max(1);
        let quanta = u16::try_from(PAUSE.as_nanos() / u128::from(quantum_ns)).unwrap_or(u16::MAX);
        let frame = |quanta: u16| {
            let mut all = [0; CLASSES];
            all[ROCE_TC] = quanta;
            PfcRepr { priorities: 1 << ROCE_TC, quanta: all }.frame(host.mac)
        };
        let lasts = Duration::from_nanos(quantum_ns * u64::from(quanta));
        Ok(Self { socket, pause: frame(quanta), resume: frame(0), lasts })
    }

    /// Pauses continuously while `work` runs, then resumes.
    fn during<T: Send>(&mut self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.socket.send(&self.pause).map_err(failed("send PFC"))?;
        let stop = AtomicBool::new(false);
        let result = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let result = work();
                stop.store(true, Ordering::Relaxed);
                result
            });
            while !stop.load(Ordering::Relaxed) && !worker.is_finished() {
                thread::sleep(self.lasts / 4);
                self.socket.send(&self.pause).map_err(failed("send PFC"))?;
            }
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        self.socket.send(&self.resume).map_err(failed("send PFC"))?;
        result
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Observation {
    /// Whether a packet before the storm arrived immediately.
    free: bool,
    /// Whether a single pause delayed one.
    delays: bool,
    /// Time from the first pause of the storm to the first packet that arrived immediately.
    detected: Option<Duration>,
    /// Whether a pause had no effect after half the restoration time.
    still_ignored: bool,
    /// Whether a pause had an effect after the restoration time.
    restored: bool,
}

struct Probe {
    wire: Wire,
    next: u32,
}

impl Probe {
    fn send(&mut self) -> Result<u32> {
        self.next += 1;
        self.wire.send(self.next, Psn::new(1))?;
        Ok(self.next)
    }

    fn is_delayed(&mut self) -> Result<bool> {
        let (qpn, begun) = (self.send()?, Instant::now());
        while begun.elapsed() < MIN_DELAY {
            if self.wire.arrived()?.iter().any(|arrival| arrival.qpn == qpn) {
                return Ok(false);
            }
            thread::sleep(PERIOD / 10);
        }
        Ok(true)
    }

    /// Sends a packet each [`PERIOD`] until one arrives immediately, and returns when that was sent.
    fn detected(&mut self, within: Duration) -> Result<Option<Duration>> {
        let (begun_ns, before) = (monotonic_ns(), self.next);
        let begun = Instant::now();
        while begun.elapsed() < within {
            self.send()?;
            thread::sleep(PERIOD);
            let arrived = self.wire.arrived()?;
            let at_once = arrived.iter().find(|arrival| {
                arrival.qpn > before
                    && Duration::from_nanos(arrival.arrived_at_ns.saturating_sub(arrival.sent_at_ns))
                        < MIN_DELAY
            });
            if let Some(arrival) = at_once {
                return Ok(Some(Duration::from_nanos(arrival.sent_at_ns.saturating_sub(begun_ns))));
            }
        }
        Ok(None)
    }

    fn run(mut self, storm: &mut Storm, detection: Duration, restoration: Duration) -> Result<Observation> {
        let free = !self.is_delayed()?;
        let delays = storm.during(|| self.is_delayed())?;
        // Delayed packets have left, and the watchdog has sampled.
        thread::sleep(PAUSE + STARTUP_ALLOWANCE);
        let detected = storm.during(|| self.detected(detection + 2 * STARTUP_ALLOWANCE))?;
        thread::sleep(restoration / 2);
        let still_ignored = !storm.during(|| self.is_delayed())?;
        thread::sleep(restoration + detection);
        let restored = storm.during(|| self.is_delayed())?;
        Ok(Observation { free, delays, detected, still_ignored, restored })
    }
}

impl Observation {
    fn check(&self, checks: &mut Checks, detection: Duration, restoration: Duration) {
        let ms = |time: Duration| render::ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let found = self.detected.map_or_else(|| "never".to_owned(), ms);
        // A packet sent shortly before the end of the pause also arrives immediately.
        let (least, most) = (detection.saturating_sub(MIN_DELAY + PERIOD), detection + STARTUP_ALLOWANCE);
        let in_time = self.detected.is_some_and(|found| found >= least && found <= most);
        let is = |checks: &mut Checks, what: &str, found| checks.of(what, "yes".into(), yes(found), found);
        is(checks, "a packet before the storm leaves immediately", self.free);
        is(checks, "a pause delays a packet", self.delays);
        checks.of("a storm is detected after", format!("{} to {}", ms(least), ms(most)), found, in_time);
        let ignored = format!("pauses have no effect {} after detection", ms(restoration / 2));
        is(checks, &ignored, self.still_ignored);
        let restored = format!("pauses take effect again {} after the storm", ms(restoration + detection));
        is(checks, &restored, self.restored);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qualify::{Case, Outcome};

    #[test]
    fn late_or_missing_watchdog_detected() {
        let ms = Duration::from_millis;
        let detected = Some(ms(220));
        let right = Observation { free: true, delays: true, detected, still_ignored: true, restored: true };
        let failed = |seen: Observation| {
            let mut checks = Checks::new(Case::Watchdog);
            seen.check(&mut checks, ms(200), ms(400));
            let failed = checks.list.into_iter().filter(|check| check.outcome == Outcome::Failed);
            failed.map(|check| check.what).collect()
        };
        let none: Vec<String> = failed(right);
        assert!(none.is_empty(), "{none:?}");
        for detected in [None, Some(ms(20)), Some(ms(2_000))] {
            let failed: Vec<_> = failed(Observation { detected, ..right });
            assert_eq!(failed, ["a storm is detected after"], "{detected:?}");
        }
        assert_eq!(failed(Observation { still_ignored: false, ..right }).len(), 1);
    }
}
