//! The sending half of a link, and what is under way to a node.

use dcqcn_common::layout::CLASSES;

use crate::network::agenda::{Agenda, Event};
use crate::network::packet::{Kind, Packet};
use crate::network::pool::{List, Pool};
use crate::network::topology::PortSpec;
use crate::network::transmitter::Transmitter;

/// A PFC frame: the shortest of Ethernet.
const PFC_BYTES: u16 = 64;

/// A packet on its way to another node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) at_ns: u64,
    pub(crate) node: u32,
    pub(crate) what: Delivery,
}

/// What arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Delivery {
    /// A packet, at this port.
    Packet(u16, Packet),
    /// Word that one of the flows that this flow of the host waits for is over.
    Notice(u32),
}

/// What nodes send each other within a window of time.
pub(crate) type Outbox = Vec<Message>;

/// What is under way to one port: of one link, so in order.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    under_way: List,
}

impl Inbound {
    /// A packet will arrive at `port`.
    #[inline]
    pub(crate) fn enter(
        &mut self,
        pool: &mut Pool,
        agenda: &mut Agenda,
        port: u16,
        at_ns: u64,
        packet: Packet,
    ) {
        if self.under_way.is_empty() {
            agenda.at(at_ns, Event::Arrival, port.into());
        }
        let place = pool.take(at_ns, packet);
        self.under_way.push(pool, place);
    }

    /// When the packet after the first arrives.
    #[inline]
    pub(crate) fn second_ns(&self, pool: &Pool) -> Option<u64> {
        self.under_way.second_ns(pool)
    }

    /// The place of the packet that arrives.
    #[inline]
    pub(crate) fn take(&mut self, pool: &Pool) -> Option<u32> {
        self.under_way.pop(pool)
    }
}

/// When each class was paused.
#[derive(Debug, Default)]
struct Pauses {
    since_ns: [u64; CLASSES],
    /// Up to the end of the last pause.
    total_ns: [u64; CLASSES],
}

/// The sending half of a link.
#[derive(Debug)]
pub(crate) struct Wire {
    peer: u32,
    peer_port: u16,
    /// Number of the link.
    pub(crate) link: u32,
    delay_ns: u64,
    overhead_bytes: u64,
    pub(crate) transmitter: Transmitter,
    /// It works.
    pub(crate) up: bool,
    /// Bit per class that the peer has paused.
    pub(crate) paused: u8,
    pauses: Box<Pauses>,
    /// An event will tell when the transmitter is free.
    wakes: bool,
    /// Classes that the peer is to pause, and to let go on.
    pfc: [u8; 2],
    /// Bytes sent.
    pub(crate) tx_bytes: u64,
}

impl Wire {
    pub(crate) fn new(spec: &PortSpec, overhead_bytes: u64) -> Self {
        Self {
            peer: spec.peer,
            peer_port: spec.peer_port,
            link: spec.link,
            delay_ns: spec.delay_ns,
            overhead_bytes,
            transmitter: Transmitter::new(spec.rate_bps),
            up: true,
            paused: 0,
            pauses: Box::default(),
            wakes: false,
            pfc: [0; 2],
            tx_bytes: 0,
        }
    }

    /// Whether a frame may begin now.
    #[inline]
    pub(crate) const fn is_free(&self, now_ns: u64) -> bool {
        self.transmitter.free_ns() <= now_ns
    }

    /// Has an event tell when the transmitter is free.
    #[inline]
    pub(crate) fn wake(&mut self, agenda: &mut Agenda, port: u16) {
        if !self.wakes {
            self.wakes = true;
            agenda.at(self.transmitter.free_ns(), Event::Done, port.into());
        }
    }

    /// That event.
    #[inline]
    pub(crate) fn woken(&mut self) {
        self.wakes = false;
    }

    /// Sends a packet, which is lost if the link is down.
    #[inline]
    pub(crate) fn send(&mut self, now_ns: u64, packet: Packet, out: &mut Outbox) {
        let wire_bytes = u64::from(packet.frame_bytes) + self.overhead_bytes;
        let end_ns = self.transmitter.send(now_ns, wire_bytes);
        self.tx_bytes += u64::from(packet.frame_bytes);
        if self.up {
            let what = Delivery::Packet(self.peer_port, packet);
            out.push(Message { at_ns: end_ns + self.delay_ns, node: self.peer, what });
        }
    }

    /// The peer is to pause the classes in `bits`, or to let them go on.
    pub(crate) const fn ask(&mut self, bits: u8, pause: bool) {
        let [off, on] = self.pfc;
        self.pfc = if pause { [off | bits, on & !bits] } else { [off & !bits, on | bits] };
    }

    /// Whether the peer is still to be told.
    #[inline]
    pub(crate) const fn has_pfc(&self) -> bool {
        self.pfc[0] | self.pfc[1] != 0
    }

    /// Tells it, before everything else.
    pub(crate) fn send_pfc(&mut self, now_ns: u64, out: &mut Outbox) {
        let [off, on] = std::mem::take(&mut self.pfc);
        for (bits, pause) in [(off, 1), (on, 0)] {
            if bits != 0 {
                let packet = Packet {
                    dst: 0,
                    qp: 0,
                    psn: pause,
                    extra: bits.into(),
                    entropy: 0,
                    frame_bytes: PFC_BYTES,
                    ingress: 0,
                    class: 0,
                    kind: Kind::Pfc,
                    flags: 0,
                };
                // The second of two frames begins when the first ends.
                let begin_ns = now_ns.max(self.transmitter.free_ns());
                self.send(begin_ns, packet, out);
            }
        }
    }

    /// The peer pauses classes, or lets them go on.
    pub(crate) fn on_pfc(&mut self, now_ns: u64, packet: Packet) {
        let bits = packet.extra as u8;
        for class in 0..CLASSES {
            let bit = 1 << class;
            if bits & bit == 0 {
                continue;
            }
            let was_paused = self.paused & bit != 0;
            if packet.psn == 1 && !was_paused {
                self.paused |= bit;
                self.pauses.since_ns[class] = now_ns;
            } else if packet.psn == 0 && was_paused {
                self.paused &= !bit;
                self.pauses.total_ns[class] += now_ns - self.pauses.since_ns[class];
            }
        }
    }

    /// How long a class was paused until now.
    pub(crate) fn paused_ns(&self, class: usize, now_ns: u64) -> u64 {
        let lasting = if self.paused >> class & 1 == 1 { now_ns - self.pauses.since_ns[class] } else { 0 };
        self.pauses.total_ns[class] + lasting
    }

    /// The link breaks, or works again: either way nobody holds anybody up.
    pub(crate) fn set_up(&mut self, now_ns: u64, up: bool) {
        for class in 0..CLASSES {
            self.pauses.total_ns[class] = self.paused_ns(class, now_ns);
        }
        self.paused = 0;
        self.pfc = [0; 2];
        self.up = up;
    }
}
