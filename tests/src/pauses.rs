//! A neighbour that sends PFC, and what a paced host does then.

use std::time::{Duration, Instant};

use anyhow::Result;
use dcqcn_common::layout::CLASSES;
use dcqcn_common::pfc::Pause;
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::pfc::PfcRepr;
use dcqcn_engine::Hook;
use dcqcn_params::{PacerChoice, Role};

use crate::host::{Pair, request};
use crate::packets::Roce;

/// 512 us a quantum, so that the longest pause is 33 s.
const CHANGES: [&str; 4] = ["link_rate=1mbit", "rpg_min_rate=100kbit", "pacing_horizon=9s", "pfc.3.rx=on"];
const QUANTA: u16 = 2_000;
/// How long a pause of that lasts.
pub const PAUSE: Duration = Duration::from_millis(1_024);

/// What was seen.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// From the pause on until the packet that it holds arrived.
    pub held: Duration,
    /// The same, of one in another queue.
    pub other: Duration,
    /// From the packet on until it arrived, after XON.
    pub after_xon: Duration,
    /// Packets that were counted as held.
    pub counted: u64,
    /// PFC frames that were counted, and those that seemed to be none.
    pub frames: [u64; 2],
    /// How long the priority was paused, as it was counted.
    pub paused: Duration,
}

/// Pauses host 1, which is to have the kernel's fq.
///
/// # Errors
/// Something that is sent does not arrive, or the kernel refuses something.
pub fn run(test: &str) -> Result<Held> {
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
    anyhow::ensure!(b.expect()? == other, "the packet of the other queue does not come first");
    let other = begun.elapsed();
    anyhow::ensure!(b.expect()? == three, "the held packet does not come next");
    let held = begun.elapsed();
    b.send(&pause(QUANTA))?;
    b.send(&pause(0))?;
    a.expect()?;
    a.expect()?;
    let begun = Instant::now();
    a.send(&fresh)?;
    anyhow::ensure!(b.expect()? == fresh, "the packet after XON does not come");
    let after_xon = begun.elapsed();
    let counters = pair.a.counters("a0", Hook::Xdp)?;
    let [_, _, _, of_three, ..] = Pause::all(&pair.a.attachment("a0")?.maps.times()?);
    Ok(Held {
        held,
        other,
        after_xon,
        counted: pair.a.count("a0", Hook::Egress, Stat::RpPfcHeld)?,
        frames: [counters.pause[3], counters.stat[Stat::PfcMalformed as usize]],
        paused: Duration::from_nanos(of_three.total_ns),
    })
}

impl Held {
    /// What is wrong with it, in words; empty where nothing is.
    #[must_use]
    pub fn wrong(&self) -> Vec<&'static str> {
        let is_right = [
            (self.held >= PAUSE, "what is paused does not wait for the end of the pause"),
            (self.other < PAUSE, "another queue waits"),
            (self.after_xon < PAUSE, "XON does not end the pause"),
            (self.counted == 1, "one packet is held"),
            (self.frames == [3, 0], "three PFC frames came"),
            (self.paused >= PAUSE, "the time paused is too short"),
        ];
        is_right.into_iter().filter(|(is_right, _)| !is_right).map(|(_, what)| what).collect()
    }
}
