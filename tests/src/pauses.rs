//! A neighbour that sends PFC, and the reaction of a paced host.

use dcqcn_common::layout::{CLASSES, Time};
use dcqcn_common::pfc::Pause;
use dcqcn_common::wire::pfc::PfcRepr;

use crate::prelude::*;

/// 512 us a quantum, so that the longest pause is 33 s.
const CHANGES: [&str; 4] = ["link_rate=1mbit", "rpg_min_rate=100kbit", "pacing_horizon=9s", "pfc.3.rx=on"];
const QUANTA: u16 = 2_000;
/// Duration of that pause.
pub const PAUSE: Duration = Duration::from_millis(1_024);

#[derive(Clone, Copy, Debug)]
pub struct PauseObservations {
    /// Time from the pause until the paused packet arrived.
    pub waited: Duration,
    /// Time until a packet of another queue arrived.
    pub other: Duration,
    /// Time from sending to arrival of a packet, after XON.
    pub after_xon: Duration,
    /// Packets counted as paused.
    pub counted: u64,
    /// PFC frames counted, and malformed ones.
    pub frames: [u64; 2],
    /// Counted pause time of the priority.
    pub paused: Duration,
}

/// Pauses host 1, which must have the kernel's fq.
pub fn run(test: &str) -> Result<PauseObservations> {
    let pair = Pair::new(test)?;
    let mut sender = request("a0", Role::Host, &CHANGES)?;
    sender.settings.pacer = Some(PacerChoice::Fq);
    pair.a.attach_as(&sender)?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let pause = |quanta: u16| {
        let mut all = [0; CLASSES];
        all[3] = quanta;
        PfcRepr { priorities: 1 << 3, quanta: all }.frame([2, 0, 0, 0, 0, 2])
    };
    let frame = |dscp, dest_qpn| Roce { dscp, dest_qpn, ..Roce::default() }.frame();
    let (three, other, fresh) = (frame(26, 0x20), frame(0, 0x21), frame(26, 0x22));
    let begun = Instant::now();
    b.send(&pause(QUANTA))?;
    a.expect()?;
    a.send(&three)?;
    a.send(&other)?;
    ensure!(b.expect()? == other, "the packet of the other queue does not arrive first");
    let other = begun.elapsed();
    ensure!(b.expect()? == three, "the paused packet does not arrive next");
    let waited = begun.elapsed();
    b.send(&pause(QUANTA))?;
    b.send(&pause(0))?;
    a.expect()?;
    a.expect()?;
    let begun = Instant::now();
    a.send(&fresh)?;
    ensure!(b.expect()? == fresh, "the packet after XON does not arrive");
    let after_xon = begun.elapsed();
    let counters = pair.a.counters("a0", Hook::Ingress)?;
    let [_, _, _, of_three, ..] = Pause::all(&pair.a.attachment("a0")?.maps.times()?);
    Ok(PauseObservations {
        waited,
        other,
        after_xon,
        counted: pair.a.count("a0", Hook::Egress, Stat::RpPfcHeld)?,
        frames: [counters.pause.frames[3], counters.stat[Stat::PfcMalformed as usize]],
        paused: Duration::from_nanos(of_three.total_ns),
    })
}

impl PauseObservations {
    /// Violations, as text; empty if none.
    pub fn wrong(&self) -> Vec<&'static str> {
        let is_right = [
            (self.waited >= PAUSE, "a paused packet does not wait for the end of the pause"),
            (self.other < PAUSE, "another queue is paused"),
            (self.after_xon < PAUSE, "XON does not end the pause"),
            (self.counted == 1, "not exactly one packet is counted as paused"),
            (self.frames == [3, 0], "not exactly three PFC frames are counted"),
            (self.paused >= PAUSE, "the time paused is too short"),
        ];
        is_right.into_iter().filter(|(is_right, _)| !is_right).map(|(_, what)| what).collect()
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Watched {
    /// Time from the start of the storm to its detection.
    pub detection: Duration,
    /// Packets delayed during the storm, after that.
    pub held_in_storm: u64,
    /// Time from the last pause to the end of the storm.
    pub restoration: Duration,
    /// Packets delayed by a later pause.
    pub held_afterwards: u64,
}

/// Times of the watchdog.
pub const DETECTION: Duration = Duration::from_millis(200);
pub const RESTORATION: Duration = Duration::from_millis(400);
/// Interval of the storm's pauses, and duration of each.
const STORM_PERIOD: Duration = Duration::from_millis(20);
const STORM_QUANTA: u16 = 200;

/// A pause storm detected by host 1's watchdog, and its end. `control` starts the watchdog.
pub fn storm<C>(test: &str, control: impl FnOnce(&Host) -> Result<C>) -> Result<Watched> {
    let pair = Pair::new(test)?;
    let times = ["pfc_wd_detection_time=200ms", "pfc_wd_restoration_time=400ms"];
    let mut sender = request("a0", Role::Host, &[&CHANGES[..], &times].concat())?;
    sender.settings.pacer = Some(PacerChoice::Fq);
    pair.a.attach_as(&sender)?;
    let _control = control(&pair.a)?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let maps = pair.a.attachment("a0")?.maps;
    let in_storm = || Ok::<_, anyhow::Error>(maps.times()?[Time::STORMS.index()] != 0);
    let counted = || pair.a.count("a0", Hook::Egress, Stat::RpPfcHeld);
    let mut qpn = 0x100;
    let mut send = || {
        qpn += 1;
        a.send(&Roce { dest_qpn: qpn, ..Roce::default() }.frame())
    };
    let mut quanta = [0; CLASSES];
    quanta[3] = STORM_QUANTA;
    let pause = PfcRepr { priorities: 1 << 3, quanta }.frame([2, 0, 0, 0, 0, 2]);
    let begun = Instant::now();
    let pauses = || -> Result<()> {
        b.send(&pause)?;
        thread::sleep(STORM_PERIOD);
        Ok(())
    };
    let (detection, held_in_storm) = while_repeating([pauses], || {
        while !in_storm()? {
            ensure!(begun.elapsed() < TIMEOUT, "the storm is not detected");
            send()?;
            thread::sleep(STORM_PERIOD);
        }
        let detection = begun.elapsed();
        let before = counted()?;
        for _ in 0..5 {
            send()?;
            thread::sleep(STORM_PERIOD);
        }
        Ok((detection, counted()? - before))
    })?;
    let ended = Instant::now();
    while in_storm()? {
        ensure!(ended.elapsed() < TIMEOUT, "the storm does not end");
        thread::sleep(STORM_PERIOD);
    }
    let restoration = ended.elapsed();
    let before = counted()?;
    b.send(&pause)?;
    // XDP has processed the frame when the host's own socket receives it.
    thread::sleep(STORM_PERIOD);
    send()?;
    Ok(Watched { detection, held_in_storm, restoration, held_afterwards: counted()? - before })
}

impl Watched {
    /// Violations, as text; empty if none. A daemon may sample a second late, once.
    pub fn wrong(&self) -> Vec<&'static str> {
        const MAX_DELAY: Duration = Duration::from_millis(2_000);
        let is_timely = |time: Duration, due: Duration| time >= due && time < due + MAX_DELAY;
        let is_right = [
            (is_timely(self.detection, DETECTION), "the time of detection"),
            (self.held_in_storm == 0, "a packet is delayed in a storm"),
            (is_timely(self.restoration, RESTORATION), "the time of restoration"),
            (self.held_afterwards == 1, "a pause after the storm delays no packet"),
        ];
        is_right.into_iter().filter(|(is_right, _)| !is_right).map(|(_, what)| what).collect()
    }
}
