//! The flows of a host: when they start, and what is done when one is complete.

use std::sync::Arc;

use super::flight::Flight;
use super::rules::Record;
use super::send::{Address, SendQp};
use super::{Host, NO_SLOT, flow_id, place};
use crate::network::agenda::Event;
use crate::network::wire::{Delivery, Message, Outbox};
use crate::network::workload::{Pair, Wait};

impl Host {
    /// The flows of the list that start now, and the event of the next.
    pub(super) fn on_start(&mut self, now_ns: u64, out: &mut Outbox) {
        while let Some(&index) = self.starts.get(self.started) {
            let flow = &self.rules.workload.flows()[self.own[index as usize].flow as usize];
            let start_ns = flow.start_ns.saturating_add(flow.delay_ns);
            if start_ns > now_ns {
                self.agenda.at(start_ns, Event::Start, 0);
                return;
            }
            self.started += 1;
            self.post(now_ns, index, out);
        }
    }

    /// One of the flows that an own flow waits for is over.
    pub(super) fn on_notice(&mut self, now_ns: u64, index: u32) {
        let own = &mut self.own[index as usize];
        own.waiting = own.waiting.saturating_sub(1);
        if own.waiting == 0 {
            let flow = &self.rules.workload.flows()[own.flow as usize];
            self.agenda.at(now_ns.max(flow.start_ns).saturating_add(flow.delay_ns), Event::Post, index);
        }
    }

    /// An own flow starts.
    pub(super) fn post(&mut self, now_ns: u64, index: u32, out: &mut Outbox) {
        let number = self.own[index as usize].flow;
        let rules = Arc::clone(&self.rules);
        let flow = &rules.workload.flows()[number as usize];
        let pair = rules.workload.pairs()[flow.qp as usize];
        if pair.src == pair.dst {
            // A computation, which has had its time.
            self.complete(now_ns, number, Wait::Delivered, out);
            self.complete(now_ns, number, Wait::Acknowledged, out);
            self.records.push(Record { flow: number, posted_ns: now_ns, done_ns: now_ns });
            return;
        }
        let slot = self.sender(flow.qp, pair);
        self.senders[slot as usize].post(now_ns, number, flow, &rules.transport);
        if rules.transport.admission.is_some() {
            self.ask(now_ns, slot);
            self.pump(now_ns, out);
        }
        self.wake(now_ns, slot, out);
    }

    /// The place of the sending end of a pair.
    pub(super) fn sender(&mut self, number: u32, pair: Pair) -> u32 {
        let (local, at_dst) = self.rules.locals[number as usize];
        let slot = self.sends[local as usize].slot;
        if slot != NO_SLOT {
            return slot;
        }
        let id = flow_id(pair, number);
        let entropy = id.hash(&self.rules.hash_keys);
        let address = Address { dst: pair.dst, at_dst, class: pair.class, entropy };
        let granted_psn = if self.rules.transport.admission.is_some() { 0 } else { u32::MAX };
        let flight = self.law.as_ref().map(Flight::new);
        let qp = SendQp::new(address, id, &self.params, granted_psn, flight);
        let slot = place(&mut self.senders, &mut self.free_senders, qp);
        self.sends[local as usize].slot = slot;
        slot
    }

    /// A flow is delivered here or acknowledged to this host: those that wait for it may go on.
    pub(super) fn complete(&mut self, now_ns: u64, flow: u32, wait: Wait, out: &mut Outbox) {
        let rules = Arc::clone(&self.rules);
        let first = rules.edges.partition_point(|edge| edge.from < flow);
        for edge in rules.edges[first..].iter().take_while(|edge| edge.from == flow) {
            if edge.wait != wait {
                continue;
            }
            let index = rules.local_flows[edge.to as usize];
            let pair = rules.workload.pairs()[rules.workload.flows()[edge.to as usize].qp as usize];
            if pair.src == self.number {
                self.on_notice(now_ns, index);
            } else {
                let at_ns = now_ns + rules.notice_ns;
                out.push(Message { at_ns, node: pair.src, what: Delivery::Notice(index) });
            }
        }
    }
}
