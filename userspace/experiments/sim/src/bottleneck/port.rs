//! The switch's port: queues, buffer, scheduling, marking and PFC.

use std::collections::VecDeque;

use dcqcn_common::layout::CLASSES;
use dcqcn_common::wred::Wred;

use super::meters::DepthMeter;
use crate::network::{Packet, Random, Scheduler, Transmitter, is_marked};
use crate::{Class, Marking, Pfc, Scenario};

/// One class's queue.
#[derive(Debug)]
pub(super) struct Queue {
    packets: VecDeque<Packet>,
    bytes: u64,
    limit_bytes: u64,
    wred: Wred,
    pfc: Option<Pfc>,
    paused_since_ns: Option<u64>,
    /// Depth over time.
    pub(super) depth: DepthMeter,
    /// Counters.
    pub(super) counters: QueueCounters,
}

/// Counters of a queue since statistics started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueCounters {
    /// Packets marked.
    pub(super) marked: u64,
    /// Packets dropped.
    pub(super) dropped: u64,
    /// Packets sent.
    pub(super) tx_packets: u64,
    /// Bytes sent.
    pub(super) tx_bytes: u64,
    /// Pauses.
    pub(super) pauses: u64,
    /// Time paused, without the current pause.
    pub(super) paused_ns: u64,
}

/// PFC request after a change of a queue.
pub(super) type PauseChange = Option<bool>;

/// The port.
#[derive(Debug)]
pub(super) struct Port {
    transmitter: Transmitter,
    overhead_bytes: u64,
    buffer_bytes: u64,
    used_bytes: u64,
    marking: Marking,
    queues: [Queue; CLASSES],
    /// Bit per queue with a packet.
    waiting: u8,
    scheduler: Scheduler,
    sending: Option<Packet>,
    /// When the current packet ends; `u64::MAX` if idle.
    pub(super) done_ns: u64,
    /// Time spent sending since statistics started.
    pub(super) busy_ns: u64,
}

impl Port {
    /// An idle port.
    pub(super) fn new(scenario: &Scenario, wred: &[Wred; CLASSES], overhead_bytes: u64) -> Self {
        let roce = scenario.roce.iter().map(|group| group.payload_bytes + group.header_bytes);
        let tcp = scenario.tcp.iter().map(|group| group.payload_bytes + group.header_bytes);
        let largest_frame = roce.chain(tcp).max().unwrap_or(1);
        let queue = |tc: usize| {
            let Class { limit_bytes, pfc, .. } = scenario.classes[tc];
            Queue {
                packets: VecDeque::new(),
                bytes: 0,
                limit_bytes: limit_bytes.unwrap_or(u64::MAX),
                wred: wred[tc],
                pfc,
                paused_since_ns: None,
                depth: DepthMeter::default(),
                counters: QueueCounters::default(),
            }
        };
        Self {
            transmitter: Transmitter::new(scenario.port_rate_bps),
            overhead_bytes,
            buffer_bytes: scenario.buffer_bytes,
            used_bytes: 0,
            marking: scenario.marking,
            queues: std::array::from_fn(queue),
            waiting: 0,
            scheduler: Scheduler::new(scenario.classes.map(|class| class.schedule), largest_frame),
            sending: None,
            done_ns: u64::MAX,
            busy_ns: 0,
        }
    }

    /// A packet arrives; `Err` if it is dropped. Returns whether to pause its class.
    #[inline]
    pub(super) fn arrive(
        &mut self,
        now_ns: u64,
        mut packet: Packet,
        random: &mut Random,
    ) -> Result<PauseChange, Dropped> {
        let bytes = u64::from(packet.frame_bytes);
        let queue = &mut self.queues[usize::from(packet.class)];
        if self.used_bytes + bytes > self.buffer_bytes || queue.bytes + bytes > queue.limit_bytes {
            queue.counters.dropped += 1;
            return Err(Dropped);
        }
        if self.marking == Marking::Enqueue {
            queue.mark(&mut packet, random);
        }
        queue.depth.change(now_ns, queue.bytes + bytes);
        queue.bytes += bytes;
        queue.packets.push_back(packet);
        self.used_bytes += bytes;
        self.waiting |= 1 << packet.class;
        match queue.pfc {
            Some(pfc) if queue.paused_since_ns.is_none() && queue.bytes > pfc.xoff_bytes => {
                queue.paused_since_ns = Some(now_ns);
                queue.counters.pauses += 1;
                Ok(Some(true))
            }
            _ => Ok(None),
        }
    }

    /// Starts the next packet if there is one and the port is idle; returns whether to resume its class.
    #[inline]
    pub(super) fn begin(&mut self, now_ns: u64, random: &mut Random) -> Option<(u8, PauseChange)> {
        if self.sending.is_some() { None } else { self.begin_next(now_ns, random) }
    }

    fn begin_next(&mut self, now_ns: u64, random: &mut Random) -> Option<(u8, PauseChange)> {
        let queues = &self.queues;
        let head_bytes =
            |class: usize| queues[class].packets.front().map_or(0, |head| head.frame_bytes.into());
        let class = self.scheduler.next(self.waiting, head_bytes)?;
        let queue = &mut self.queues[class];
        let mut packet = queue.packets.pop_front()?;
        let bytes = u64::from(packet.frame_bytes);
        queue.depth.change(now_ns, queue.bytes - bytes);
        queue.bytes -= bytes;
        self.scheduler.charge(class, bytes as u32, queue.bytes == 0);
        self.used_bytes -= bytes;
        if queue.bytes == 0 {
            self.waiting &= !(1 << class);
        }
        if self.marking == Marking::Dequeue {
            queue.mark(&mut packet, random);
        }
        queue.counters.tx_packets += 1;
        queue.counters.tx_bytes += bytes;
        let change = match (queue.pfc, queue.paused_since_ns) {
            (Some(pfc), Some(since_ns)) if queue.bytes <= pfc.xon_bytes => {
                queue.paused_since_ns = None;
                queue.counters.paused_ns += now_ns - since_ns;
                Some(false)
            }
            _ => None,
        };
        self.done_ns = self.transmitter.send(now_ns, bytes + self.overhead_bytes);
        self.busy_ns += self.done_ns - now_ns;
        self.sending = Some(packet);
        Some((packet.class, change))
    }

    /// The packet that has just been sent.
    #[inline]
    pub(super) fn finish(&mut self) -> Option<Packet> {
        self.done_ns = u64::MAX;
        self.sending.take()
    }

    /// Starts the statistics.
    pub(super) fn reset(&mut self, now_ns: u64) {
        // Of the packet being sent, the remaining time counts.
        self.busy_ns = if self.sending.is_some() { self.done_ns - now_ns } else { 0 };
        for queue in &mut self.queues {
            queue.depth.reset(now_ns);
            queue.counters = QueueCounters::default();
            queue.paused_since_ns = queue.paused_since_ns.map(|_| now_ns);
        }
    }

    /// Ends the statistics.
    pub(super) fn end(&mut self, now_ns: u64) {
        if self.sending.is_some() {
            self.busy_ns = self.busy_ns.saturating_sub(self.done_ns.saturating_sub(now_ns));
        }
        for queue in &mut self.queues {
            queue.depth.change(now_ns, queue.bytes);
            if let Some(since_ns) = queue.paused_since_ns {
                queue.counters.paused_ns += now_ns - since_ns;
            }
        }
    }

    /// The queue of a class, below 8.
    pub(super) fn queue(&mut self, class: u8) -> &mut Queue {
        &mut self.queues[usize::from(class)]
    }

    /// Packets queued or being sent.
    pub(super) fn packets(&self) -> usize {
        self.queues.iter().map(|queue| queue.packets.len()).sum::<usize>()
            + usize::from(self.sending.is_some())
    }
}

/// The buffer was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dropped;

impl Queue {
    /// Current depth.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    fn mark(&mut self, packet: &mut Packet, random: &mut Random) {
        if packet.is(Packet::ECT) && is_marked(&self.wred, self.bytes, random) {
            packet.flags |= Packet::CE;
            self.counters.marked += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::{Config, WredConfig};

    use super::*;
    use crate::network::PacketKind;
    use crate::{RoceGroup, Schedule};

    /// A port with frames of 1000 bytes, which take 1 us each.
    fn port(change: impl FnOnce(&mut Scenario)) -> Port {
        let mut scenario = Scenario::new(8_000_000_000, Config::DEFAULT);
        let group = RoceGroup::bulk("", 1);
        scenario.roce.push(RoceGroup { payload_bytes: 1_000, header_bytes: 0, ..group });
        change(&mut scenario);
        let wred = WredConfig { kmin_bytes: 3_000, kmax_bytes: 3_000, ..WredConfig::DEFAULT };
        Port::new(&scenario, &[Wred::new(&wred); CLASSES], 0)
    }

    fn packet(sequence: u32, class: u8) -> Packet {
        Packet {
            dst: 0,
            qp: 0,
            psn: sequence,
            extra: 0,
            entropy: 0,
            frame_bytes: 1_000,
            ingress: 0,
            class,
            kind: PacketKind::Data,
            flags: Packet::ECT,
        }
    }

    /// All queued packets, in the order of departure.
    fn drain(port: &mut Port, random: &mut Random) -> Vec<Packet> {
        let mut now_ns = 0;
        let mut left = Vec::new();
        while port.begin(now_ns, random).is_some() {
            assert_eq!(port.done_ns, now_ns + 1_000);
            now_ns = port.done_ns;
            left.extend(port.finish());
        }
        left
    }

    #[test]
    fn strict_first_then_weights_fifo_per_class() {
        let mut port = port(|s| {
            s.classes[1].schedule = Schedule::Dwrr(3);
            s.classes[5].schedule = Schedule::Strict;
        });
        let mut random = Random::new(1);
        for i in 0..8 {
            for class in [1, 2, 5] {
                assert_eq!(port.arrive(0, packet(i, class), &mut random), Ok(None));
            }
        }
        let left = drain(&mut port, &mut random);
        let classes: Vec<u8> = left.iter().map(|packet| packet.class).collect();
        let expected = [5, 5, 5, 5, 5, 5, 5, 5, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 2, 2, 2, 2, 2, 2];
        assert_eq!(classes, expected);
        for class in [1, 2, 5] {
            assert!(left.iter().filter(|packet| packet.class == class).is_sorted_by_key(|packet| packet.psn));
        }
        assert_eq!((port.used_bytes, port.packets()), (0, 0));
    }

    #[test]
    fn marking_uses_ingress_or_egress_depth() {
        for (marking, marked) in [
            // Kmin = Kmax = 3000: marks need more than 3 packets queued, so the fifth is the first.
            (Marking::Enqueue, [false, false, false, false, true, true]),
            (Marking::Dequeue, [true, true, false, false, false, false]),
        ] {
            let mut port = port(|s| s.marking = marking);
            let mut random = Random::new(1);
            for i in 0..6 {
                assert_eq!(port.arrive(0, packet(i, 3), &mut random), Ok(None));
            }
            let left: Vec<bool> =
                drain(&mut port, &mut random).iter().map(|packet| packet.is(Packet::CE)).collect();
            assert_eq!(left, marked);
            assert_eq!(port.queue(3).counters.marked, 2);
        }
    }

    #[test]
    fn full_buffer_drops_and_xoff_pauses() {
        let mut port = port(|s| {
            s.buffer_bytes = 12_000;
            s.classes[3].limit_bytes = Some(10_000);
            s.classes[3].pfc = Some(Pfc { xoff_bytes: 2_500, xon_bytes: 1_000 });
        });
        let mut random = Random::new(1);
        let verdicts: Vec<_> = (0..12).map(|i| port.arrive(0, packet(i, 3), &mut random)).collect();
        let mut expected = vec![Ok(None); 10];
        expected[2] = Ok(Some(true));
        expected.extend([Err(Dropped); 2]);
        assert_eq!(verdicts, expected);
        let other: Vec<_> = (0..3).map(|i| port.arrive(0, packet(i, 0), &mut random)).collect();
        assert_eq!(other, [Ok(None), Ok(None), Err(Dropped)]);

        let mut resumed = Vec::new();
        while let Some((class, change)) = port.begin(1_000 * resumed.len() as u64, &mut random) {
            resumed.push((class, change));
            port.finish();
        }
        let at = resumed.iter().position(|&pause| pause == (3, Some(false)));
        assert_eq!((at, resumed.len()), (Some(10), 12), "{resumed:?}");
        assert_eq!(port.queue(3).counters.paused_ns, 10_000);
    }
}
