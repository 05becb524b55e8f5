//! A switch: an output queue per port and class, a shared buffer, marking, PFC, ECMP.

use std::collections::VecDeque;
use std::sync::Arc;

use dcqcn_common::layout::CLASSES;
use dcqcn_common::pfc::watchdog::{Guard, Observation, StormAction, Transition};
use dcqcn_common::wred::Wred;

use crate::network::agenda::{Agenda, Event};
use crate::network::buffer::Buffer;
use crate::network::meter::ClassMeter;
use crate::network::outcome::{ClassOutcome, SwitchSamples};
use crate::network::packet::{Kind, Packet};
use crate::network::random::Random;
use crate::network::scenario::{Balance, Change, ChangeKind, Marking, QueuePfc, Switching};
use crate::network::scheduler::Scheduler;
use crate::network::topology::{NO_PORT, PortSpec, Routes};
use crate::network::wire::{Inbound, Outbox, Wire};

/// Payload bytes left of a trimmed packet.
const TRIMMED_BYTES: u16 = 64;

#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<Packet>,
    bytes: u32,
    max_bytes: u32,
}

/// A port. Small, because thousands of ports are each accessed briefly.
#[derive(Debug)]
struct Port {
    wire: Wire,
    scheduler: Scheduler,
    /// Index of its rate in [`SwitchRules::wred`].
    speed: u16,
    /// Bit per queue with a packet.
    waiting: u8,
    queues: [Queue; CLASSES],
    /// Bytes in all queues, their peak, and their peak since the last sample.
    bytes: u32,
    max_bytes: u32,
    recent_max_bytes: u32,
    /// If the watchdog is on.
    guard: Option<Box<Guard>>,
}

impl Port {
    /// Classes that send in spite of a pause.
    fn forwards(&self) -> u8 {
        self.guard.as_ref().map_or(0, |guard| guard.storms().forwards)
    }
}

#[derive(Debug)]
pub(crate) struct SwitchRules {
    pub(crate) switching: Switching,
    /// By rate of ports ([`Port::speed`]).
    pub(crate) wred: Vec<(u64, [Wred; CLASSES])>,
    /// Bit per class with PFC.
    pub(crate) lossless: u8,
    /// The initial routes, and those after each change.
    pub(crate) routes: Vec<Arc<Routes>>,
    pub(crate) changes: Arc<[Change]>,
    pub(crate) sample_ns: Option<u64>,
    pub(crate) overhead_bytes: u64,
    pub(crate) frame_bytes: u32,
    /// Single bottleneck: PFC by the depth of a class's queue.
    pub(crate) queue_pfc: Option<[Option<QueuePfc>; CLASSES]>,
}

#[derive(Debug)]
pub(crate) struct Switch {
    number: u32,
    ports: Vec<Port>,
    /// By port. Separate, as most arrivals need nothing else of their port.
    inbound: Vec<Inbound>,
    down: Vec<bool>,
    pub(crate) buffer: Buffer,
    rules: Arc<SwitchRules>,
    routes: Arc<Routes>,
    random: Random,
    seed: u32,
    pub(crate) agenda: Agenda,
    /// Packets and pauses only.
    pub(crate) counters: [ClassOutcome; CLASSES],
    pub(crate) storms: u64,
    pub(crate) hops: u64,
    pub(crate) samples: SwitchSamples,
    /// Pause time of its ports up to the last sample.
    sampled_ns: u64,
    /// Of its last port, if that is the bottleneck.
    pub(crate) meters: Option<Box<Meters>>,
}

/// The bottleneck: its classes, and packets dropped by QP.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) classes: [ClassMeter; CLASSES],
    pub(crate) dropped: Vec<u64>,
    paused: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortCounters {
    pub(crate) tx_bytes: u64,
    pub(crate) max_bytes: u64,
    pub(crate) max_class_bytes: [u64; CLASSES],
    pub(crate) paused_ns: [u64; CLASSES],
}

impl Switch {
    /// Switch `number`; `Err`: the headroom of its ports, which uses all of its buffer.
    pub(crate) fn new(
        number: u32,
        specs: &[PortSpec],
        rules: &Arc<SwitchRules>,
        seed: u64,
    ) -> Result<Self, u64> {
        let switching = &rules.switching;
        let schedules = switching.classes.map(|class| class.schedule);
        let scheduler = Scheduler::new(schedules, rules.frame_bytes);
        let port = |spec: &PortSpec| Port {
            wire: Wire::new(spec, rules.overhead_bytes),
            speed: rules.wred.iter().position(|(rate_bps, _)| *rate_bps == spec.rate_bps).unwrap_or(0) as u16,
            scheduler: scheduler.clone(),
            waiting: 0,
            bytes: 0,
            max_bytes: 0,
            recent_max_bytes: 0,
            queues: Default::default(),
            guard: switching.watchdog.map(|_| Box::default()),
        };
        let mut random = Random::new(seed);
        Ok(Self {
            number,
            ports: specs.iter().map(port).collect(),
            inbound: specs.iter().map(|_| Inbound::default()).collect(),
            down: vec![false; specs.len()],
            buffer: Buffer::new(switching.buffer_bytes, &switching.classes, specs.len())?,
            seed: random.draw(),
            random,
            rules: Arc::clone(rules),
            routes: Arc::clone(&rules.routes[0]),
            agenda: Agenda::default(),
            counters: [ClassOutcome::default(); CLASSES],
            storms: 0,
            hops: 0,
            samples: SwitchSamples::default(),
            sampled_ns: 0,
            meters: rules.queue_pfc.map(|_| Box::default()),
        })
    }

    /// Schedules an arrival.
    #[inline]
    pub(crate) fn enter(&mut self, port: u16, at_ns: u64, packet: Packet) {
        self.inbound[usize::from(port)].enter(&mut self.agenda, port, at_ns, packet);
    }

    pub(crate) fn run(&mut self, end_ns: u64, out: &mut Outbox) {
        while let Some((now_ns, event, index)) = self.agenda.take(end_ns) {
            let port = index as u16;
            match event {
                Event::Arrival => {
                    if let Some(packet) = self.inbound[usize::from(port)].take(&mut self.agenda, port) {
                        self.on_arrival(now_ns, port, packet, out);
                    }
                }
                Event::Done => {
                    self.ports[usize::from(port)].wire.woken();
                    self.begin(now_ns, port, out);
                }
                Event::Watchdog => self.on_watchdog(now_ns, out),
                Event::Sample => self.on_sample(now_ns),
                Event::Fault => self.on_change(now_ns, index as usize, out),
                Event::Notice
                | Event::Post
                | Event::Start
                | Event::Due
                | Event::Timer
                | Event::Window
                | Event::Message
                | Event::Stop => {}
            }
        }
    }

    #[inline]
    fn on_arrival(&mut self, now_ns: u64, ingress: u16, mut packet: Packet, out: &mut Outbox) {
        packet.ingress = ingress;
        if self.down[usize::from(ingress)] {
            self.counters[usize::from(packet.class)].lost_packets += 1;
            return;
        }
        if packet.kind == Kind::Pfc {
            self.ports[usize::from(ingress)].wire.on_pfc(now_ns, packet);
            self.begin(now_ns, ingress, out);
            return;
        }
        self.hops += 1;
        match self.egress(&packet) {
            Some(egress) => self.enqueue(now_ns, egress, packet, out),
            None => self.counters[usize::from(packet.class)].lost_packets += 1,
        }
    }

    #[inline]
    fn egress(&mut self, packet: &Packet) -> Option<u16> {
        let candidates = self.routes.ports(self.number, packet.dst);
        let chosen = match candidates {
            [] => return None,
            [only] => *only,
            several => {
                let hash = if self.rules.switching.balance == Balance::Spray && packet.kind == Kind::Data {
                    self.random.draw()
                } else {
                    mix(packet.entropy ^ self.seed)
                };
                several[((u64::from(hash) * several.len() as u64) >> 32) as usize]
            }
        };
        (chosen != NO_PORT && !self.down[usize::from(chosen)]).then_some(chosen)
    }

    /// Starts a port's next frame, if possible.
    #[inline]
    fn begin(&mut self, now_ns: u64, number: u16, out: &mut Outbox) {
        let port = &mut self.ports[usize::from(number)];
        if !port.wire.is_free(now_ns) {
            port.wire.wake(&mut self.agenda, number);
            return;
        }
        if port.wire.has_pfc() {
            port.wire.send_pfc(now_ns, out);
        } else {
            let ready = port.waiting & (!port.wire.paused | port.forwards());
            let queues = &port.queues;
            let head = |class: usize| {
                queues[class].packets.front().map_or(0, |packet| u32::from(packet.frame_bytes))
            };
            let Some(class) = port.scheduler.next(ready, head) else { return };
            let Some(mut packet) = self.dequeue(number, class) else { return };
            if self.meters.is_some() {
                self.measure(now_ns, number, class, Some(&packet), out);
            }
            if self.rules.switching.marking == Marking::Dequeue {
                self.mark(number, class, &mut packet);
            }
            let port = &mut self.ports[usize::from(number)];
            if let Some(guard) = &mut port.guard {
                guard.sent(class);
            }
            port.wire.send(now_ns, packet, out);
            self.release(now_ns, packet, out);
        }
        let port = &mut self.ports[usize::from(number)];
        if port.waiting != 0 || port.wire.has_pfc() {
            port.wire.wake(&mut self.agenda, number);
        }
    }

    #[inline]
    fn dequeue(&mut self, number: u16, class: usize) -> Option<Packet> {
        let port = &mut self.ports[usize::from(number)];
        let queue = &mut port.queues[class];
        let packet = queue.packets.pop_front()?;
        let bytes = u32::from(packet.frame_bytes);
        queue.bytes -= bytes;
        port.bytes -= bytes;
        let empty = queue.packets.is_empty();
        if empty {
            port.waiting &= !(1 << class);
        }
        port.scheduler.charge(class, bytes, empty);
        Some(packet)
    }

    /// A packet leaves the buffer; its ingress port may resume.
    #[inline]
    fn release(&mut self, now_ns: u64, packet: Packet, out: &mut Outbox) {
        if self.buffer.release(packet.ingress, packet.class, packet.frame_bytes.into()) {
            let ingress = packet.ingress;
            self.ports[usize::from(ingress)].wire.request_pause(1 << packet.class, false);
            // The port that sends now is busy and does this next.
            if self.ports[usize::from(ingress)].wire.is_free(now_ns) {
                self.begin(now_ns, ingress, out);
            } else {
                self.ports[usize::from(ingress)].wire.wake(&mut self.agenda, ingress);
            }
        }
    }

    fn on_sample(&mut self, now_ns: u64) {
        let mut max_queue_bytes = 0;
        let mut until_ns = 0;
        for port in &mut self.ports {
            max_queue_bytes = port.recent_max_bytes.max(max_queue_bytes);
            port.recent_max_bytes = port.bytes;
            until_ns += (0..CLASSES).map(|class| port.wire.paused_ns(class, now_ns)).sum::<u64>();
        }
        let paused_ns = until_ns - std::mem::replace(&mut self.sampled_ns, until_ns);
        self.samples.max_queue_bytes.push(max_queue_bytes);
        self.samples.paused_ns.push(paused_ns);
        if let Some(sample_ns) = self.rules.sample_ns {
            self.agenda.at(now_ns + sample_ns, Event::Sample, 0);
        }
    }

    pub(crate) fn port_counters(&self, now_ns: u64) -> Vec<PortCounters> {
        let port_counters = |port: &Port| PortCounters {
            tx_bytes: port.wire.tx_bytes,
            max_bytes: port.max_bytes.into(),
            max_class_bytes: std::array::from_fn(|class| port.queues[class].max_bytes.into()),
            paused_ns: std::array::from_fn(|class| port.wire.paused_ns(class, now_ns)),
        };
        self.ports.iter().map(port_counters).collect()
    }

    pub(crate) fn packets(&self) -> u64 {
        self.ports.iter().flat_map(|port| &port.queues).map(|queue| queue.packets.len() as u64).sum()
    }
}

/// Admission to a queue, trimming and marking.
impl Switch {
    #[inline]
    fn enqueue(&mut self, now_ns: u64, egress: u16, mut packet: Packet, out: &mut Outbox) {
        let mut class = usize::from(packet.class);
        let port = &self.ports[usize::from(egress)];
        if port.guard.as_ref().is_some_and(|guard| guard.drops(class)) {
            self.counters[class].storm_dropped_packets += 1;
            return;
        }
        let depth = port.queues[class].bytes;
        let ingress = packet.ingress;
        let verdict = self.buffer.admit(ingress, packet.class, packet.frame_bytes.into(), depth.into());
        if verdict.pauses {
            self.counters[class].pauses += 1;
            self.ports[usize::from(ingress)].wire.request_pause(1 << class, true);
            self.begin(now_ns, ingress, out);
        }
        if !verdict.admitted {
            if !self.trim(egress, &mut packet) {
                self.counters[class].dropped_packets += 1;
                if let Some(meters) = &mut self.meters {
                    let index = packet.qp as usize;
                    meters.dropped.resize(meters.dropped.len().max(index + 1), 0);
                    meters.dropped[index] += 1;
                }
                return;
            }
            class = usize::from(packet.class);
        }
        if self.rules.switching.marking == Marking::Enqueue {
            self.mark(egress, class, &mut packet);
        }
        let port = &mut self.ports[usize::from(egress)];
        let bytes = u32::from(packet.frame_bytes);
        let queue = &mut port.queues[class];
        queue.bytes += bytes;
        queue.max_bytes = queue.max_bytes.max(queue.bytes);
        queue.packets.push_back(packet);
        port.bytes += bytes;
        port.max_bytes = port.max_bytes.max(port.bytes);
        port.recent_max_bytes = port.recent_max_bytes.max(port.bytes);
        port.waiting |= 1 << class;
        if self.meters.is_some() {
            self.measure(now_ns, egress, class, None, out);
        }
        let port = &mut self.ports[usize::from(egress)];
        if port.wire.is_free(now_ns) {
            self.begin(now_ns, egress, out);
        } else {
            port.wire.wake(&mut self.agenda, egress);
        }
    }

    /// Trims a packet that does not fit; returns whether the rest of it fits.
    fn trim(&mut self, egress: u16, packet: &mut Packet) -> bool {
        let Some(trim_to) = self.rules.switching.trim_to else { return false };
        if packet.kind != Kind::Data || packet.is(Packet::TRIMMED) {
            return false;
        }
        let from = usize::from(packet.class);
        packet.flags |= Packet::TRIMMED;
        packet.frame_bytes = packet.frame_bytes.min(TRIMMED_BYTES);
        packet.class = trim_to;
        let depth = self.ports[usize::from(egress)].queues[usize::from(trim_to)].bytes;
        let verdict = self.buffer.admit(packet.ingress, trim_to, packet.frame_bytes.into(), depth.into());
        self.counters[from].trimmed_packets += u64::from(verdict.admitted);
        verdict.admitted
    }

    #[inline]
    fn mark(&mut self, egress: u16, class: usize, packet: &mut Packet) {
        if !packet.is(Packet::ECT) {
            return;
        }
        let port = &self.ports[usize::from(egress)];
        let wred = &self.rules.wred[usize::from(port.speed)].1[class];
        let depth = port.queues[class].bytes.into();
        if is_marked(wred, depth, &mut self.random) {
            packet.flags |= Packet::CE;
            self.counters[class].marked_packets += 1;
        }
    }
}

/// The bottleneck.
impl Switch {
    /// A queue of port `number` has changed; `sent`: a packet leaves it.
    #[inline]
    fn measure(&mut self, now_ns: u64, number: u16, class: usize, sent: Option<&Packet>, out: &mut Outbox) {
        let Some(meters) = &mut self.meters else { return };
        let bytes = u64::from(self.ports[usize::from(number)].queues[class].bytes);
        let meter = &mut meters.classes[class];
        meter.depth.change(now_ns, bytes);
        if let Some(packet) = sent {
            meter.tx_packets += 1;
            meter.tx_bytes += u64::from(packet.frame_bytes);
        }
        let Some(pfc) = self.rules.queue_pfc.and_then(|classes| classes[class]) else { return };
        let is_paused = meters.paused >> class & 1 == 1;
        let pauses = if is_paused { bytes > pfc.xon_bytes } else { bytes > pfc.xoff_bytes };
        if pauses == is_paused {
            return;
        }
        meters.paused ^= 1 << class;
        meter.pause(now_ns, pauses);
        self.counters[class].pauses += u64::from(pauses);
        for ingress in (0..self.ports.len() as u16).filter(|ingress| *ingress != number) {
            self.ports[usize::from(ingress)].wire.request_pause(1 << class, pauses);
            self.begin(now_ns, ingress, out);
        }
    }

    /// When the last port has sent its current packet.
    pub(crate) fn last_free_ns(&self) -> u64 {
        self.ports.last().map_or(0, |port| port.wire.transmitter.free_ns())
    }

    /// Packets on its links towards it.
    pub(crate) fn arriving(&self) -> u64 {
        self.inbound.iter().map(Inbound::count).sum()
    }
}

/// Link failures and pause storms.
impl Switch {
    fn flush(&mut self, now_ns: u64, number: u16, class: usize, out: &mut Outbox) -> u64 {
        let mut flushed = 0;
        while let Some(packet) = self.dequeue(number, class) {
            flushed += 1;
            self.release(now_ns, packet, out);
        }
        flushed
    }

    fn on_change(&mut self, now_ns: u64, index: usize, out: &mut Outbox) {
        match self.rules.changes.get(index).map(|change| change.what) {
            Some(ChangeKind::Link { link, up }) => self.set_link(now_ns, link, up, out),
            Some(ChangeKind::Routes { epoch }) => {
                if let Some(routes) = self.rules.routes.get(epoch) {
                    self.routes = Arc::clone(routes);
                }
            }
            Some(ChangeKind::Storm { .. }) | None => {}
        }
    }

    fn set_link(&mut self, now_ns: u64, link: u32, up: bool, out: &mut Outbox) {
        let Some(number) = self.ports.iter().position(|port| port.wire.link == link) else { return };
        self.ports[number].wire.set_up(now_ns, up);
        self.down[number] = !up;
        self.buffer.forget_pauses(number as u16);
        for class in 0..CLASSES {
            self.counters[class].lost_packets += self.flush(now_ns, number as u16, class, out);
        }
    }

    fn on_watchdog(&mut self, now_ns: u64, out: &mut Outbox) {
        let Some(watchdog) = self.rules.switching.watchdog else { return };
        let poll_ns = watchdog.poll_ns();
        for number in 0..self.ports.len() {
            for class in 0..CLASSES {
                let port = &mut self.ports[number];
                let sample = Observation {
                    backlog: port.waiting >> class & 1 == 1,
                    paused_ns: port.wire.paused_ns(class, now_ns),
                    since_ns: poll_ns,
                };
                let Some(guard) = &mut port.guard else { return };
                if self.rules.lossless >> class & 1 == 1
                    && guard.observe(&watchdog, class, sample) == Transition::Storm
                {
                    self.storms += 1;
                    match watchdog.action {
                        StormAction::Drop => {
                            let dropped = self.flush(now_ns, number as u16, class, out);
                            self.counters[class].storm_dropped_packets += dropped;
                        }
                        StormAction::Forward => self.begin(now_ns, number as u16, out),
                    }
                }
            }
        }
        self.agenda.at(now_ns + poll_ns, Event::Watchdog, 0);
    }
}

/// WRED marks a packet behind `depth_bytes`. Draws a random number only between Kmin and Kmax.
#[inline]
fn is_marked(wred: &Wred, depth_bytes: u64, random: &mut Random) -> bool {
    wred.certain(depth_bytes).unwrap_or_else(|| wred.draw(depth_bytes, random.draw()))
}

/// A hash whose every bit depends on every bit of `value` (the finalizer of MurmurHash3).
#[inline]
const fn mix(value: u32) -> u32 {
    let mut h = value;
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}
