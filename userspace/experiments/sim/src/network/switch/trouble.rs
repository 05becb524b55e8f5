//! What happens to a switch: links that fail, storms of pauses.

use std::sync::Arc;

use dcqcn_common::layout::CLASSES;
use dcqcn_common::pfc::watchdog::{Found, Look, StormAction};

use super::Switch;
use crate::network::agenda::Event;
use crate::network::change::What;
use crate::network::wire::Outbox;

impl Switch {
    pub(super) fn flush(&mut self, now_ns: u64, number: u16, class: usize, out: &mut Outbox) -> u64 {
        let mut flushed = 0;
        while let Some(packet) = self.dequeue(number, class) {
            flushed += 1;
            self.leave(now_ns, packet, out);
        }
        flushed
    }

    pub(super) fn on_change(&mut self, now_ns: u64, index: usize, out: &mut Outbox) {
        match self.rules.changes.get(index).map(|change| change.what) {
            Some(What::Link { link, up }) => self.set_link(now_ns, link, up, out),
            Some(What::Routes { epoch }) => {
                if let Some(routes) = self.rules.routes.get(epoch) {
                    self.routes = Arc::clone(routes);
                }
            }
            Some(What::Storm { .. }) | None => {}
        }
    }

    /// A link of this switch breaks or works again.
    pub(super) fn set_link(&mut self, now_ns: u64, link: u32, up: bool, out: &mut Outbox) {
        let Some(number) = self.ports.iter().position(|port| port.wire.link == link) else { return };
        self.ports[number].wire.set_up(now_ns, up);
        self.buffer.forget_pauses(number as u16);
        for class in 0..CLASSES {
            self.counters[class].lost += self.flush(now_ns, number as u16, class, out);
        }
    }

    pub(super) fn on_watchdog(&mut self, now_ns: u64, out: &mut Outbox) {
        let Some(watchdog) = self.rules.switching.watchdog else { return };
        let poll_ns = watchdog.poll_ns();
        for number in 0..self.ports.len() {
            for class in 0..CLASSES {
                let port = &mut self.ports[number];
                let look = Look {
                    backlog: port.waiting >> class & 1 == 1,
                    paused_ns: port.wire.paused_ns(class, now_ns),
                    since_ns: poll_ns,
                };
                let Some(guard) = &mut port.guard else { return };
                if self.rules.lossless >> class & 1 == 1 && guard.look(&watchdog, class, look) == Found::Storm
                {
                    self.storms += 1;
                    match watchdog.action {
                        StormAction::Drop => {
                            let dropped = self.flush(now_ns, number as u16, class, out);
                            self.counters[class].storm_dropped += dropped;
                        }
                        StormAction::Forward => self.begin(now_ns, number as u16, out),
                    }
                }
            }
        }
        self.agenda.at(now_ns + poll_ns, Event::Watchdog, 0);
    }
}
