//! The watchdog against PFC storms: a neighbour that pauses this host continuously.

use std::sync::Arc;
use std::time::Duration;

use dcqcn_common::events::EventKind;
use dcqcn_common::flow::QpId;
use dcqcn_common::layout::{CLASSES, PauseCounters};
use dcqcn_common::pfc::watchdog::{Guard, Observation, StormAction, Transition, Watchdog};
use dcqcn_common::pfc::{Pause, Storms};
use dcqcn_netlink::Netlink;
use dcqcn_support::clock::monotonic_ns;

use super::work::{Begun, IDLE_PERIOD, Port, Start, Work};
use crate::error::Result;

const MIN_PERIOD: Duration = Duration::from_millis(1);

/// State of an interface between samples of its pauses.
#[derive(Default)]
struct StormDetector {
    guard: Guard,
    /// Time of the last sample, and packets delayed per priority up to then.
    sampled: Option<(u64, [u64; CLASSES])>,
}

impl StormDetector {
    /// Samples the priorities in `honoured` (as bits), and returns changes by priority.
    fn observe(
        &mut self,
        watchdog: &Watchdog,
        honoured: u8,
        now_ns: u64,
        pauses: &[Pause; CLASSES],
        held: &[u64; CLASSES],
    ) -> Vec<(usize, Transition)> {
        let Some((before_ns, held_before)) = self.sampled.replace((now_ns, *held)) else {
            return Vec::new();
        };
        let since_ns = now_ns.saturating_sub(before_ns);
        let priorities = pauses.iter().zip(held.iter().zip(held_before)).enumerate();
        let snapshots = priorities.filter(|(priority, _)| honoured >> priority & 1 == 1);
        let found = snapshots.map(|(priority, (pause, (held, held_before)))| {
            // Delayed packets arrived. Without any, it was not paused for over 99 % of the time.
            let sample =
                Observation { backlog: *held != held_before, paused_ns: pause.paused_ns(now_ns), since_ns };
            (priority, self.guard.observe(watchdog, priority, sample))
        });
        found.filter(|(_, found)| *found != Transition::Same).collect()
    }
}

struct WatchdogTask {
    port: Arc<Port>,
    detector: StormDetector,
    /// Settings, and the priorities whose pauses apply.
    set_to: Option<(Watchdog, u8)>,
}

pub(super) fn begin(Start { port, .. }: Start<'_>) -> Begun {
    Ok(Some(Box::new(WatchdogTask { port, detector: StormDetector::default(), set_to: None })))
}

impl Work for WatchdogTask {
    fn run(&mut self, _: &Netlink) -> Result<Duration> {
        let params = self.port.maps().params()?;
        let honoured = params.pauses.of_class.iter().fold(0, |all, of_class| all | of_class);
        let wanted = params.config.watchdog().filter(|_| honoured != 0).map(|watchdog| (watchdog, honoured));
        if wanted != self.set_to {
            self.detector = StormDetector::default();
            self.set_to = wanted;
            self.port.maps_mut().set_storms(Storms::default(), monotonic_ns())?;
        }
        let Some((watchdog, honoured)) = wanted else {
            return Ok(IDLE_PERIOD);
        };
        let (pauses, [_, _, egress], now_ns) = {
            let maps = self.port.maps();
            (Pause::all(&maps.times()?), maps.counters()?, monotonic_ns())
        };
        let PauseCounters { held, .. } = egress.pause;
        let found = self.detector.observe(&watchdog, honoured, now_ns, &pauses, &held);
        // Reported at each sample, because reports expire.
        self.port.maps_mut().set_storms(self.detector.guard.storms(), now_ns)?;
        for (priority, found) in found {
            let iface = &self.port.info.iface;
            let (kind, drops) = if found == Transition::Storm {
                tracing::warn!(iface, priority, action = ?watchdog.action, "PFC pause storm detected");
                (EventKind::PfcStorm, u64::from(watchdog.action == StormAction::Drop))
            } else {
                tracing::info!(iface, priority, "PFC pause storm ended");
                (EventKind::PfcRestored, 0)
            };
            self.port.maps().record(kind, QpId::NONE, now_ns, [priority as u64, drops])?;
        }
        Ok(Duration::from_nanos(watchdog.poll_ns()).max(MIN_PERIOD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A neighbour that pauses priorities 3 and 4; only the first has traffic, and pauses of a third are not honoured.
    #[test]
    fn storm_needs_held_packets() {
        let watchdog =
            Watchdog { detection_ns: 400 * MS, restoration_ns: 200 * MS, action: StormAction::Forward };
        let mut detector = StormDetector::default();
        let (mut pauses, mut held) = ([Pause::default(); CLASSES], [0; CLASSES]);
        let mut found = Vec::new();
        for step in 0..20_u64 {
            let now_ns = step * 100 * MS;
            if step < 10 {
                for priority in [3, 4, 5] {
                    pauses[priority] = pauses[priority].updated(now_ns, 150 * MS);
                }
                (held[3], held[5]) = (held[3] + 1, held[5] + 1);
            }
            let news = detector.observe(&watchdog, 0b1_1000, now_ns, &pauses, &held);
            found.extend(news.into_iter().map(|(priority, found)| (step, priority, found)));
        }
        // Four samples with delayed packets, paused all the time; the last pause ends between samples 10 and 11.
        assert_eq!(found, [(4, 3, Transition::Storm), (13, 3, Transition::Calm)]);
    }
}
