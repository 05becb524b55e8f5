//! Whether a packet is let into a queue, cut short, or marked.

use super::{Switch, TRIMMED_BYTES};
use crate::network::buffer::Admission;
use crate::network::packet::{Kind, Packet};
use crate::network::scenario::Marking;
use crate::network::wire::Outbox;

impl Switch {
    /// Puts the packet at `place` into its queue at `egress`; says whether it found room.
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        now_ns: u64,
        egress: u16,
        place: u32,
        mut packet: Packet,
        out: &mut Outbox,
    ) -> bool {
        let mut class = usize::from(packet.class);
        let port = &self.ports[usize::from(egress)];
        if port.guard.as_ref().is_some_and(|guard| guard.drops(class)) {
            self.counters[class].storm_dropped += 1;
            return false;
        }
        let depth = port.queues[class].bytes;
        match self.buffer.admit(packet.ingress, packet.class, packet.frame_bytes.into(), depth.into()) {
            Admission::Taken => {}
            Admission::Pause => {
                self.counters[class].pauses += 1;
                let ingress = packet.ingress;
                self.ports[usize::from(ingress)].wire.ask(1 << class, true);
                self.begin(now_ns, ingress, out);
            }
            Admission::Refused => {
                if !self.trim(egress, &mut packet) {
                    self.counters[class].dropped += 1;
                    return false;
                }
                class = usize::from(packet.class);
                *self.pool.packet(place) = packet;
            }
        }
        if self.rules.switching.marking == Marking::Enqueue && packet.is(Packet::ECT) {
            self.mark(egress, class, &mut packet);
            *self.pool.packet(place) = packet;
        }
        let port = &mut self.ports[usize::from(egress)];
        let bytes = u32::from(packet.frame_bytes);
        let queue = &mut port.queues[class];
        queue.bytes += bytes;
        queue.max_bytes = queue.max_bytes.max(queue.bytes);
        queue.packets.push(&mut self.pool, place);
        port.bytes += bytes;
        port.max_bytes = port.max_bytes.max(port.bytes);
        port.recent_max_bytes = port.recent_max_bytes.max(port.bytes);
        port.waiting |= 1 << class;
        if port.wire.is_free(now_ns) {
            self.begin(now_ns, egress, out);
        } else {
            port.wire.wake(&mut self.agenda, egress);
        }
        true
    }

    /// Cuts the payload off a packet that found no room; says whether what is left of it has.
    pub(super) fn trim(&mut self, egress: u16, packet: &mut Packet) -> bool {
        let Some(trim_to) = self.rules.switching.trim_to else { return false };
        if packet.kind != Kind::Data || packet.is(Packet::TRIMMED) {
            return false;
        }
        let from = usize::from(packet.class);
        packet.flags |= Packet::TRIMMED;
        packet.frame_bytes = packet.frame_bytes.min(TRIMMED_BYTES);
        packet.class = trim_to;
        let depth = self.ports[usize::from(egress)].queues[usize::from(trim_to)].bytes;
        let admission = self.buffer.admit(packet.ingress, trim_to, packet.frame_bytes.into(), depth.into());
        self.counters[from].trimmed += u64::from(admission != Admission::Refused);
        admission != Admission::Refused
    }

    /// Marks `packet` by the depth of the queue as it is now.
    #[inline]
    pub(super) fn mark(&mut self, egress: u16, class: usize, packet: &mut Packet) {
        if !packet.is(Packet::ECT) {
            return;
        }
        let port = &self.ports[usize::from(egress)];
        let wred = &self.rules.wred[usize::from(port.speed)].1[class];
        let depth = port.queues[class].bytes.into();
        let marked = match wred.certain(depth) {
            Some(certain) => certain,
            None => wred.draw(depth, self.random.draw()),
        };
        if marked {
            packet.flags |= Packet::CE;
            self.counters[class].marked += 1;
        }
    }
}
