//! Marks compared with theory: each round fills the empty queue in a burst of known depths.
//!
//! WRED marks nothing up to Kmin, a share that rises linearly to Pmax at Kmax, and everything above. As in SONiC's test
//! of marking accuracy, rounds are repeated until the shares are significant.

use std::time::Duration;

use dcqcn_common::params::{Config, WredConfig};
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::interrupt::Interrupt;
use dcqcn_support::render;

use super::incast::UNCONGESTED;
use super::report::Checks;
use super::wire::{FRAME_BYTES, Wire};
use crate::error::{Error, Result};
use crate::host::ROCE_TC;
use crate::rc::Psn;

const BINS: usize = 8;
/// Maximum packets of a round, all of which are kept in memory.
const MAX_PACKETS: u64 = 20_000;
/// Number of packets beyond Kmax, where everything is marked.
const PACKETS_ABOVE_KMAX: u64 = 12;
/// Allowed deviation of a share: standard deviations of the draws, and the effect of this many frames of depth on the
/// probability, because the depth is not known more precisely.
const SIGMAS: f64 = 4.0;
const DEPTH_ERROR_FRAMES: u64 = 2;
/// Reason for not evaluating a share.
const TOO_FEW_PACKETS: &str = "too few packets to distinguish this share from zero; increase --rounds";
const QPN: u32 = 0x0300;
/// Maximum wait for a round beyond its transmission time.
const TIMEOUT_NS: u64 = 3_000_000_000;

/// Statistics of packets that met about the same depth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bin {
    packets: u64,
    marked: u64,
    /// Sum of the probabilities.
    expected: f64,
    variance: f64,
}

impl Bin {
    fn add(&mut self, probability: f64, marked: bool) {
        self.packets += 1;
        self.marked += u64::from(marked);
        self.expected += probability;
        self.variance += probability * (1.0 - probability);
    }

    /// The expected share, its tolerance (with a systematic part `slack`), and the measured share.
    fn shares(&self, slack: f64) -> (f64, f64, f64) {
        let packets = self.packets.max(1) as f64;
        let within = SIGMAS * self.variance.sqrt() / packets + slack;
        (self.expected / packets, within, self.marked as f64 / packets)
    }

    fn join(&mut self, other: &Self) {
        self.packets += other.packets;
        self.marked += other.marked;
        self.expected += other.expected;
        self.variance += other.variance;
    }
}

/// Error of the probability caused by that of the depth.
fn slack(wred: &WredConfig) -> f64 {
    let range_bytes = wred.kmax_bytes.saturating_sub(wred.kmin_bytes).max(1);
    wred.pmax_ppm as f64 / 1e6 * (DEPTH_ERROR_FRAMES * FRAME_BYTES) as f64 / range_bytes as f64
}

/// Marking probability at a depth, as in the paper's figure.
fn probability(wred: &WredConfig, depth_bytes: f64) -> f64 {
    let (kmin, kmax) = (wred.kmin_bytes as f64, wred.kmax_bytes as f64);
    if depth_bytes <= kmin {
        0.0
    } else if depth_bytes > kmax {
        1.0
    } else {
        wred.pmax_ppm as f64 / 1e6 * (depth_bytes - kmin) / (kmax - kmin)
    }
}

/// Model of the queue while a round's packets arrive and the port sends.
struct Depth {
    drain_bps: u64,
    /// Bytes so far.
    bytes: f64,
    before_ns: Option<u64>,
}

impl Depth {
    const fn new(drain_bps: u64) -> Self {
        Self { drain_bps, bytes: 0.0, before_ns: None }
    }

    fn queue_bytes_met(&mut self, now_ns: u64) -> f64 {
        let passed_ns = now_ns.saturating_sub(self.before_ns.replace(now_ns).unwrap_or(now_ns));
        let met_bytes = (self.bytes - passed_ns as f64 * self.drain_bps as f64 / 8e9).max(0.0);
        self.bytes = met_bytes + FRAME_BYTES as f64;
        met_bytes
    }
}

/// Packets of a round by the depth they met.
#[derive(Clone, Debug, Default, PartialEq)]
struct Tally {
    below: Bin,
    between: [Bin; BINS],
    above: Bin,
    sent: u64,
    lost: u64,
}

impl Tally {
    /// Adds a round: when each packet was sent, and whether it arrived and was marked. The queue was empty before.
    fn round(&mut self, wred: &WredConfig, drain_bps: u64, packets: &[(u64, Option<bool>)]) {
        let mut depth = Depth::new(drain_bps);
        for (sent_at_ns, arrived) in packets {
            let met_bytes = depth.queue_bytes_met(*sent_at_ns);
            self.sent += 1;
            match arrived {
                Some(marked) => {
                    if let Some(bin) = self.bin(wred, met_bytes) {
                        bin.add(probability(wred, met_bytes), *marked);
                    }
                }
                None => self.lost += 1,
            }
        }
    }

    /// `None` for packets within a frame of Kmax, where the probability jumps: the depth is not exact to the byte.
    fn bin(&mut self, wred: &WredConfig, depth_bytes: f64) -> Option<&mut Bin> {
        let (kmin, kmax) = (wred.kmin_bytes as f64, wred.kmax_bytes as f64);
        let frame = FRAME_BYTES as f64;
        if depth_bytes + frame <= kmin {
            Some(&mut self.below)
        } else if depth_bytes > kmax + frame {
            Some(&mut self.above)
        } else if depth_bytes > kmax - frame {
            None
        } else {
            let bin = (depth_bytes - kmin) / (kmax - kmin) * BINS as f64;
            self.between.get_mut(bin.max(0.0) as usize)
        }
    }

    fn marked(&self) -> u64 {
        self.between.iter().chain([&self.below, &self.above]).map(|bin| bin.marked).sum()
    }

    fn check(&self, checks: &mut Checks, wred: &WredConfig, rounds: u32) {
        let bytes = |bytes: f64| render::bytes(bytes as u64);
        let (kmin, kmax) = (wred.kmin_bytes as f64, wred.kmax_bytes as f64);
        checks.none(&format!("packets lost of {} in {rounds} rounds", self.sent), self.lost);
        let mut row = |what: String, bin: &Bin, slack: f64| {
            if bin.packets == 0 {
                return checks.skip(&what, "no packet met that depth");
            }
            let (expected, within, found) = bin.shares(slack);
            // Otherwise a switch that does not mark would pass.
            if expected > 0.0 && within >= expected {
                return checks.skip(&what, TOO_FEW_PACKETS);
            }
            let is_near = (found - expected).abs() <= within;
            let percent = |share: f64| format!("{:.1} %", share * 100.0);
            let expected = format!("{} ± {:.1}", percent(expected), within * 100.0);
            let found = format!("{} of {}", percent(found), bin.packets);
            checks.of(&what, expected, found, is_near);
        };
        row(format!("marked up to {}", bytes(kmin)), &self.below, 0.0);
        for (number, bin) in (0_u8..).zip(&self.between) {
            let at = |number: u8| bytes(kmin + (kmax - kmin) * f64::from(number) / BINS as f64);
            row(format!("marked at {} to {}", at(number), at(number + 1)), bin, slack(wred));
        }
        let mut all = Bin::default();
        self.between.iter().for_each(|bin| all.join(bin));
        row(format!("marked at {} to {}", bytes(kmin), bytes(kmax)), &all, slack(wred));
        row(format!("marked above {}", bytes(kmax)), &self.above, 0.0);
    }
}

/// Runs the rounds over `wire`, through a port with `config` that sends at `drain_bps`. If the sender cannot exceed
/// that (not `can_congest`), a lack of marks is inconclusive.
pub(super) fn run(
    checks: &mut Checks,
    wire: &mut Wire,
    config: &Config,
    drain_bps: u64,
    rounds: u32,
    can_congest: bool,
    interrupt: &Interrupt,
) -> Result<()> {
    let wred = &config.wred[ROCE_TC];
    let most = MAX_PACKETS * FRAME_BYTES;
    if wred.kmax_bytes > most / 2 {
        return Err(Error::Kmax { kmax_bytes: wred.kmax_bytes, most_bytes: most / 2 });
    }
    let enough_bytes = wred.kmax_bytes + PACKETS_ABOVE_KMAX * FRAME_BYTES;
    let mut tally = Tally::default();
    let mut psn = Psn::default();
    wire.arrived()?;
    for _ in 0..rounds {
        let begun_ns = monotonic_ns();
        let first = psn;
        let mut sent: Vec<(u64, Option<bool>)> = Vec::new();
        let mut depth = Depth::new(drain_bps);
        while depth.bytes < enough_bytes as f64 && (sent.len() as u64) < MAX_PACKETS {
            let sent_at_ns = wire.send(QPN, psn)?;
            depth.queue_bytes_met(sent_at_ns);
            sent.push((sent_at_ns, None));
            psn = psn.plus(1);
        }
        let empty_in_ns = sent.len() as u64 * FRAME_BYTES * 8_000_000_000 / drain_bps.max(1);
        let arrivals = wire.wait(sent.len(), begun_ns + empty_in_ns + TIMEOUT_NS)?;
        for arrival in arrivals.iter().filter(|arrival| arrival.qpn == QPN) {
            let index = usize::try_from(arrival.psn.distance_from(first)).ok();
            if let Some((_, marked)) = index.and_then(|index| sent.get_mut(index)) {
                *marked = Some(arrival.ce);
            }
        }
        tally.round(wred, drain_bps, &sent);
        // The queue is empty again, and so is the virtual one.
        let left_ns = (begun_ns + empty_in_ns * 11 / 10).saturating_sub(monotonic_ns());
        if interrupt.sleep(Duration::from_nanos(left_ns))? {
            return Err(Error::Interrupted);
        }
    }
    if !can_congest && tally.marked() == 0 && tally.lost == 0 {
        checks.skip_all(UNCONGESTED);
    } else {
        tally.check(checks, wred, rounds);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qualify::{Case, Check, Outcome};

    const WRED: WredConfig =
        WredConfig { kmin_bytes: 20_000, kmax_bytes: 100_000, pmax_ppm: 500_000, ..WredConfig::DEFAULT };

    /// Rounds of a switch that marks with the probability `at` of a depth.
    fn checks(at: impl Fn(f64) -> f64) -> Vec<Check> {
        checks_of(&WRED, at)
    }

    fn checks_of(wred: &WredConfig, at: impl Fn(f64) -> f64) -> Vec<Check> {
        let mut tally = Tally::default();
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..200_u64 {
            let mut depth_bytes = 0.0;
            let packets: Vec<_> = (0..102_u64)
                .map(|packet| {
                    let marked = random.f64() < at(depth_bytes);
                    depth_bytes += FRAME_BYTES as f64;
                    (round * 1_000_000_000 + packet, Some(marked))
                })
                .collect();
            tally.round(wred, 1_000, &packets);
        }
        let mut checks = Checks::new(Case::Marking);
        tally.check(&mut checks, wred, 200);
        checks.list
    }

    fn failed(checks: &[Check]) -> Vec<&str> {
        let failed = checks.iter().filter(|check| check.outcome == Outcome::Failed);
        failed.map(|check| check.what.as_str()).collect()
    }

    #[test]
    fn theoretical_marking_passes() {
        let checks = checks(|depth| probability(&WRED, depth));
        assert_eq!(failed(&checks), [""; 0], "{checks:#?}");
        assert_eq!(checks.len(), BINS + 4);
    }

    #[test]
    fn wrong_marking_detected() {
        // No marks: every share but the first is wrong, or reported as insignificant.
        let none = checks(|_| 0.0);
        let skipped = none.iter().filter(|check| check.outcome == Outcome::Skipped).count();
        assert_eq!(failed(&none).len() + skipped, BINS + 2, "{none:#?}");
        assert!(skipped <= 1, "{none:#?}");
        // Pmax of 40 % instead of 50 %.
        let flatter = WredConfig { pmax_ppm: 400_000, ..WRED };
        let top = format!("marked at {} to {}", render::bytes(90_000), render::bytes(100_000));
        assert!(failed(&checks(|depth| probability(&flatter, depth))).contains(&top.as_str()));
        // A Kmin of 0.
        let early = WredConfig { kmin_bytes: 0, ..WRED };
        let below = format!("marked up to {}", render::bytes(20_000));
        assert!(failed(&checks(|depth| probability(&early, depth))).contains(&below.as_str()));
    }

    #[test]
    fn small_pmax_not_taken_for_zero() {
        let wred = WredConfig { pmax_ppm: 10_000, ..WRED };
        let by_theory = checks_of(&wred, |depth| probability(&wred, depth));
        assert_eq!(failed(&by_theory), [""; 0], "{by_theory:#?}");
        let none = checks_of(&wred, |depth| if depth > 100_000.0 { 1.0 } else { 0.0 });
        let together = format!("marked at {} to {}", render::bytes(20_000), render::bytes(100_000));
        assert!(failed(&none).contains(&together.as_str()), "{none:#?}");
    }

    #[test]
    fn losses_reported_while_queue_drains() {
        let mut tally = Tally::default();
        // A frame every 10 ms at 1 Mbit/s: 1250 bytes drain in between, so the queue is always empty.
        let packets: Vec<_> = (0..10).map(|packet| (packet * 10_000_000, None)).collect();
        tally.round(&WRED, 1_000_000, &packets);
        assert_eq!((tally.sent, tally.lost, tally.below.packets), (10, 10, 0));
        let packets: Vec<_> = (0..10).map(|packet| (packet * 10_000_000, Some(false))).collect();
        tally.round(&WRED, 1_000_000, &packets);
        assert_eq!((tally.below.packets, tally.below.expected), (10, 0.0));
    }
}
