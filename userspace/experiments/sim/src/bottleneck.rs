//! The engine: one loop over everything that happens, in order of time.
//!
//! What waits for the end of a constant delay (a link, the way back) stands in a queue of its own; only what has a time of
//! its own (departures, timers) is in the agenda. What an event costs depends neither on the number of senders nor on that of
//! packets in flight; memory does.
//!
//! DCQCN itself is not here: marking, the CNP interval, the rate machine and pacing are those of `dcqcn-common`.

mod agenda;
mod bottleneck;
mod collect;
mod depth;
mod fct;
mod lane;
mod packet;
mod port;
mod qp;
mod receiver;
mod sender;
mod sending;
mod setup;
mod tcp;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use crate::network::Random;
use dcqcn_common::flow::NpFlow;
use dcqcn_common::params::Params;

use self::agenda::{Agenda, Event};
use self::collect::Collector;
use self::lane::Lanes;
use self::packet::{Packet, Reply, ReplyKind};
use self::port::Port;
use self::qp::{Qp, Turn};
use self::sender::Sender;
use self::tcp::Tcp;
use super::{Counters, Outcome, RoceGroup, Scenario, SimError, Work};

/// Events between two reports of progress: some ten milliseconds.
const REPORT_EVERY: u64 = 1 << 16;

/// Runs `scenario`. `progress` is told the simulated time now and then, and may stop the run.
///
/// The outcome depends on nothing but the scenario.
///
/// # Errors
/// The scenario is invalid, its work is done before statistics begin, or `progress` stopped the run.
pub fn run(
    scenario: &Scenario,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Outcome, SimError> {
    scenario.validate()?;
    let mut simulation = Simulation::new(scenario)?;
    while let Some(reached_ns) = simulation.some_events() {
        if progress(reached_ns).is_break() {
            return Err(SimError::Stopped { now_ns: reached_ns });
        }
    }
    let (now_ns, stats_from_ns) = (simulation.now_ns, scenario.stats_from_ns);
    if now_ns < stats_from_ns {
        return Err(SimError::NothingMeasured { now_ns, stats_from_ns });
    }
    Ok(simulation.finish())
}

struct Simulation<'s> {
    scenario: &'s Scenario,
    now_ns: u64,
    over: bool,
    agenda: Agenda,
    random: Random,
    /// One per RoCE group: they differ in their pacing credit.
    params: Vec<Params>,
    overhead_bytes: u64,
    /// RoCE flows come first in the numbering of flows.
    qps: Vec<Qp>,
    tcps: Vec<Tcp>,
    senders: Vec<Sender>,
    /// NP state where CNPs are not limited per QP: per sender, or one for all.
    nps: Vec<NpFlow>,
    port: Port,
    /// Sender to switch, per distinct delay.
    up: Lanes<Packet>,
    /// Switch to receiver.
    down: Lanes<Packet>,
    /// Receiver to sender, per distinct delay.
    back: Lanes<Reply>,
    /// By RoCE group: its flows, with their time from its start on, if it waits for another group.
    held: Vec<Vec<(u32, u64)>>,
    /// By RoCE group: messages of flows that send one which are not complete; and of all groups.
    unfinished: Vec<u32>,
    all_unfinished: u64,
    counters: Counters,
    collector: Collector,
}

impl Simulation<'_> {
    /// Handles some events; says how far it got, or `None` if time is up.
    fn some_events(&mut self) -> Option<u64> {
        for _ in 0..REPORT_EVERY {
            if self.over {
                return None;
            }
            self.step();
        }
        Some(self.now_ns)
    }

    /// What happens next. Of several at one time: first what the agenda has, then the port, then the lanes from the receiver
    /// back.
    #[inline(always)]
    fn step(&mut self) {
        let (down_ns, up_ns, back_ns) = (self.down.next_ns(), self.up.next_ns(), self.back.next_ns());
        let lanes_ns = down_ns.min(up_ns).min(back_ns);
        let now_ns = self.agenda.next_ns().min(self.port.done_ns).min(lanes_ns);
        self.now_ns = now_ns;
        self.counters.events += 1;
        if self.agenda.next_ns() == now_ns {
            if let Some(event) = self.agenda.take() {
                self.on_event(event);
            }
        } else if self.port.done_ns == now_ns {
            self.on_port_done();
        } else if down_ns == now_ns {
            if let Some(packet) = self.down.take() {
                self.on_delivery(packet);
            }
        } else if up_ns == now_ns {
            if let Some(packet) = self.up.take() {
                self.on_arrival(packet);
            }
        } else if let Some(reply) = self.back.take() {
            self.on_reply(reply);
        }
    }

    fn on_event(&mut self, event: Event) {
        let now_ns = self.now_ns;
        match event {
            Event::Due(flow) => {
                self.qps[flow as usize].turn = Turn::Idle;
                self.wake(flow);
            }
            Event::Window(flow) => self.on_window(flow),
            Event::LinkFree(sender) => self.on_link_free(sender),
            Event::Timer(flow) => {
                let again_ns = match self.tcp_index(flow) {
                    None => self.qps[flow as usize].on_timer(now_ns),
                    Some(i) => self.tcps[i].on_timer(now_ns),
                };
                if let Some(again_ns) = again_ns {
                    self.agenda.at(again_ns, event);
                }
                self.wake(flow);
            }
            Event::Start(flow) => self.on_start(flow),
            Event::Stop(flow) => match self.tcp_index(flow) {
                None => self.qps[flow as usize].stop(),
                Some(i) => self.tcps[i].set_active(false),
            },
            Event::Post(flow) => self.on_post(flow),
            Event::Pfc(frame) => self.on_pfc(frame),
            Event::StatsFrom => self.reset_statistics(),
            Event::Sample => {
                self.sample();
                if let Some(at_ns) = self.collector.next_sample_ns() {
                    self.agenda.at(at_ns, Event::Sample);
                }
            }
            Event::FairWindow => {
                self.collector.end_window(now_ns, &self.qps);
                if let Some(at_ns) = self.collector.next_window_ns() {
                    self.agenda.at(at_ns, Event::FairWindow);
                }
            }
            Event::End => {
                // Entered long before the sample of the same time.
                if self.collector.next_sample_ns() == Some(now_ns) {
                    self.sample();
                }
                self.over = true;
            }
        }
    }

    fn sample(&mut self) {
        self.collector.sample(self.now_ns, &self.params, &self.qps, &self.tcps, &mut self.port);
    }

    /// The index of a TCP flow in `tcps`; `None`: it is a RoCE flow.
    #[inline]
    fn tcp_index(&self, flow: u32) -> Option<usize> {
        (flow as usize).checked_sub(self.qps.len())
    }

    /// An answer reaches its sender.
    #[inline]
    fn on_reply(&mut self, Reply { sequence, flow, kind }: Reply) {
        let now_ns = self.now_ns;
        if let Some(i) = self.tcp_index(flow) {
            self.tcps[i].on_ack(now_ns, sequence, kind == ReplyKind::AckCe);
            self.wake(flow);
            return;
        }
        let qp = &mut self.qps[flow as usize];
        let group = qp.group;
        match kind {
            ReplyKind::Cnp => {
                let params = &self.params[group as usize];
                qp.counters.cnps += 1;
                if params.config.scalars.rp_enable != 0 {
                    qp.rp.on_cnp(&params.rp, now_ns, &mut qp.debt);
                }
                return;
            }
            ReplyKind::Ack | ReplyKind::AckCe => {}
            ReplyKind::Nak => qp.on_nak(now_ns, sequence),
        }
        let mut completed = 0;
        qp.on_ack(now_ns, sequence, |message| {
            completed += 1;
            self.collector.complete(group, now_ns, message);
        });
        let spec: &RoceGroup = &self.scenario.roce[group as usize];
        if let Work::Blocks { bytes, .. } = spec.work
            && spec.stop_ns.is_none_or(|stop_ns| now_ns < stop_ns)
        {
            for _ in 0..completed {
                qp.post(now_ns, bytes, 0);
            }
        }
        if completed != 0 && matches!(spec.work, Work::Once { .. }) {
            self.on_completed(group as usize, completed);
        }
        self.wake(flow);
    }

    /// `count` messages of a group whose flows send one are complete: groups that wait for all of them start, and with the
    /// last of all the simulation is over.
    fn on_completed(&mut self, group: usize, count: u32) {
        self.unfinished[group] -= count;
        self.all_unfinished -= u64::from(count);
        if self.unfinished[group] == 0 {
            for (waiting, spec) in self.scenario.roce.iter().enumerate() {
                if self.scenario.waits_for(spec) == Some(group) {
                    for (flow, offset_ns) in std::mem::take(&mut self.held[waiting]) {
                        self.schedule(flow, self.now_ns + offset_ns, spec.stop_ns);
                    }
                }
            }
        }
        self.over |= self.all_unfinished == 0 && self.scenario.is_finite();
    }

    fn reset_statistics(&mut self) {
        self.port.reset(self.now_ns);
        self.collector.reset();
        for qp in &mut self.qps {
            qp.counters = Default::default();
        }
        for tcp in &mut self.tcps {
            tcp.counters = Default::default();
        }
    }

    fn finish(mut self) -> Outcome {
        self.port.end(self.now_ns);
        let on_links = self.up.len() + self.down.len();
        self.counters.in_flight_packets = (on_links + self.port.packets()) as u64;
        self.collector.outcome(
            self.scenario,
            self.now_ns,
            &self.params,
            &self.qps,
            &self.tcps,
            &mut self.port,
            self.counters,
        )
    }
}
