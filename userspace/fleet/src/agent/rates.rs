//! What the interfaces of a host counted over the last minute, or since its configuration changed.

use std::collections::VecDeque;

use dcqcn_control_api::{Counts, Health, LOOKS, QUEUE_PERCENT};

use crate::record::Rates;

/// How far back it goes.
const WINDOW_NS: u64 = 60_000_000_000;

/// Looks at the counters, oldest first.
#[derive(Debug, Default)]
pub(super) struct Window(VecDeque<Health>);

impl Window {
    /// Begins anew.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a look.
    pub(super) fn add(&mut self, health: Health) {
        // Another boot, or the same answer again.
        if self.0.back().is_some_and(|last| last.at_ns >= health.at_ns) {
            if self.0.back().is_some_and(|last| last.at_ns == health.at_ns) {
                return;
            }
            self.0.clear();
        }
        let from_ns = health.at_ns.saturating_sub(WINDOW_NS);
        self.0.push_back(health);
        while self.0.front().is_some_and(|first| first.at_ns < from_ns) {
            self.0.pop_front();
        }
    }

    /// What was counted.
    pub(super) fn rates(&self) -> Rates {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else {
            return Rates::default();
        };
        let (mut sum, mut looks) = (Counts::default(), [0; LOOKS]);
        for (name, now) in &last.interfaces {
            // One that came meanwhile, or counts anew, has no past.
            let same = |before: &&Counts| before.attached_at_ns == now.attached_at_ns;
            let Some(before) = first.interfaces.get(name).filter(same) else { continue };
            sum.data_packets += now.data_packets.saturating_sub(before.data_packets);
            sum.marked_packets += now.marked_packets.saturating_sub(before.marked_packets);
            sum.cnps_sent += now.cnps_sent.saturating_sub(before.cnps_sent);
            sum.cnps_handled += now.cnps_handled.saturating_sub(before.cnps_handled);
            sum.drops += now.drops.saturating_sub(before.drops);
            sum.rdma_errors += now.rdma_errors.saturating_sub(before.rdma_errors);
            sum.pauses_received += now.pauses_received.saturating_sub(before.pauses_received);
            sum.pauses_sent += now.pauses_sent.saturating_sub(before.pauses_sent);
            for (place, now) in now.queue_looks.iter().enumerate().take(LOOKS) {
                let before = before.queue_looks.get(place).copied().unwrap_or(0);
                // Looking began anew: an interface that was attached again, or a controller.
                looks[place] += now.checked_sub(before).unwrap_or(*now);
            }
        }
        let packets = sum.data_packets;
        let of_a_million = |count: u64| {
            let ppm = u128::from(count) * 1_000_000 / u128::from(packets.max(1));
            u64::try_from(ppm).unwrap_or(u64::MAX)
        };
        Rates {
            window_ms: last.at_ns.saturating_sub(first.at_ns) / 1_000_000,
            data_packets: packets,
            marks: of_a_million(sum.marked_packets),
            cnps: of_a_million(sum.cnps_sent + sum.cnps_handled),
            drops: of_a_million(sum.drops),
            rdma_errors: of_a_million(sum.rdma_errors),
            pauses: of_a_million(sum.pauses_received + sum.pauses_sent),
            queue: self.queue(),
            queue_p99: percentile(&looks),
            floor: self.floor(),
        }
    }

    /// Flows at the lowest rate, of a hundred that send, on average of the looks at which some did.
    fn floor(&self) -> u64 {
        let percent = |health: &Health| {
            let sum = |of: fn(&Counts) -> u64| health.interfaces.values().map(of).sum::<u64>();
            (sum(|counts| counts.flows_at_floor) * 100).checked_div(sum(|counts| counts.active_flows))
        };
        let known: Vec<u64> = self.0.iter().filter_map(percent).collect();
        known.iter().sum::<u64>().checked_div(known.len() as u64).unwrap_or(0)
    }

    /// The deepest queue of each look, in percent of its Kmax, on average: looks are too few for more.
    fn queue(&self) -> u64 {
        let percent =
            |counts: &Counts| (counts.queue_bytes * 100).checked_div(counts.kmax_bytes).unwrap_or(0);
        let deepest = |health: &Health| health.interfaces.values().map(percent).max().unwrap_or(0);
        let sum: u64 = self.0.iter().map(deepest).sum();
        sum.checked_div(self.0.len() as u64).unwrap_or(0)
    }
}

/// Below which percent of Kmax 99 of 100 looks were; the last place has no bound, and counts as twice the one before.
fn percentile(looks: &[u64; LOOKS]) -> u64 {
    let total: u64 = looks.iter().sum();
    let mut seen = 0;
    for (count, bound) in looks.iter().zip(QUEUE_PERCENT) {
        seen += count;
        if seen * 100 >= total * 99 {
            return if total == 0 { 0 } else { bound };
        }
    }
    QUEUE_PERCENT.last().map_or(0, |last| 2 * last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(
        at_s: u64,
        attached_at_ns: u64,
        data_packets: u64,
        marked_packets: u64,
        queue_bytes: u64,
    ) -> Health {
        let counts = Counts {
            attached_at_ns,
            data_packets,
            marked_packets,
            queue_bytes,
            kmax_bytes: 1_000,
            ..Counts::default()
        };
        Health {
            at_ns: at_s * 1_000_000_000,
            interfaces: [("eth0".into(), counts)].into(),
            failing: Vec::new(),
        }
    }

    #[test]
    fn the_last_minute_counts_and_nothing_before_a_change() {
        let mut window = Window::default();
        assert_eq!(window.rates(), Rates::default());
        for second in 0..=100 {
            window.add(health(
                second,
                7,
                second * 1_000,
                second * 10,
                if second % 2 == 0 { 500 } else { 900 },
            ));
        }
        let rates = window.rates();
        assert_eq!(
            (rates.window_ms, rates.data_packets, rates.marks, rates.queue),
            (60_000, 60_000, 10_000, 69)
        );
        window.clear();
        window.add(health(101, 7, 101_000, 1_010, 0));
        assert_eq!(window.rates().data_packets, 0);
        window.add(health(102, 7, 102_000, 1_030, 0));
        assert_eq!((window.rates().data_packets, window.rates().marks), (1_000, 20_000));
    }

    #[test]
    fn what_counts_anew_has_no_past_and_another_boot_begins_anew() {
        let mut window = Window::default();
        window.add(health(10, 7, 5_000, 5_000, 0));
        window.add(health(11, 8, 10, 1, 0));
        assert_eq!((window.rates().data_packets, window.rates().marks), (0, 0));
        window.add(health(1, 8, 20, 1, 0));
        assert_eq!(window.rates().window_ms, 0);
    }

    #[test]
    fn the_queue_s_percentile_pauses_and_flows_at_the_floor_are_of_the_window() {
        assert_eq!(percentile(&[0; LOOKS]), 0);
        let mut looks = [0; LOOKS];
        (looks[0], looks[9]) = (990, 10);
        assert_eq!(percentile(&looks), 10);
        looks[9] = 11;
        assert_eq!(percentile(&looks), 100);
        looks[LOOKS - 1] = 1_000;
        assert_eq!(percentile(&looks), 600);

        let look = |at_s: u64, looks: [u64; 2], pauses: u64, [active, at_floor]: [u64; 2]| {
            let mut health = health(at_s, 7, at_s * 1_000_000, 0, 0);
            let counts = health.interfaces.get_mut("eth0").unwrap();
            counts.queue_looks = vec![looks[0], 0, 0, 0, 0, 0, 0, 0, 0, 0, looks[1]];
            (counts.pauses_received, counts.active_flows, counts.flows_at_floor) = (pauses, active, at_floor);
            health
        };
        let mut window = Window::default();
        window.add(look(1, [5_000, 0], 100, [0, 0]));
        window.add(look(2, [5_050, 0], 100, [10, 0]));
        assert_eq!((window.rates().queue_p99, window.rates().pauses, window.rates().floor), (10, 0, 0));
        window.add(look(3, [5_080, 20], 140, [10, 5]));
        assert_eq!((window.rates().queue_p99, window.rates().pauses, window.rates().floor), (120, 20, 25));
    }
}
