//! The engine of a single bottleneck: a loop over all events in order of time.
//!
//! Packets on links with a constant delay are in separate queues; only events with their own time (departures, timers)
//! are in the agenda. The cost of an event depends neither on the number of senders nor on the packets in flight. With
//! 1,000 senders the network engine takes 2.6 times as long per packet hop: each of its hosts and ports has more state.

mod agenda;
mod collect;
mod endpoints;
mod meters;
mod port;
mod setup;
mod tcp;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::ControlFlow;

use dcqcn_common::flow::NpFlow;
use dcqcn_common::params::Params;

use self::agenda::{Agenda, Event, Lanes};
use self::collect::Collector;
use self::endpoints::{Qp, Reply, Sender};
use self::port::Port;
use self::tcp::Tcp;
use super::{Counters, Outcome, RoceGroup, Scenario, SimError, Work};
use crate::network::{Packet, PacketKind, Random, Recovery, SendPhase, Transport};

/// Events between two progress reports: some ten milliseconds.
const REPORT_EVERY: u64 = 1 << 16;

/// Runs `scenario`. `progress` is called with the simulated time at intervals, and may stop the run.
///
/// The outcome depends on the scenario only.
///
/// # Errors
/// The scenario is invalid, all work is done before statistics start, or `progress` stopped the run.
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

/// Simulated time per step of the progress line.
const NS_PER_STEP: u64 = 1_000;

impl crate::Simulation for Scenario {
    type Outcome = Outcome;

    fn steps(&self) -> u64 {
        self.duration_ns / NS_PER_STEP
    }

    fn simulate(
        &self,
        _threads: usize,
        progress: &mut (dyn FnMut(u64, u64) -> ControlFlow<()> + Send),
    ) -> anyhow::Result<Option<Outcome>> {
        match run(self, &mut |now_ns| progress(now_ns / NS_PER_STEP, now_ns)) {
            Err(SimError::Stopped { .. }) => Ok(None),
            result => Ok(Some(result?)),
        }
    }
}

struct Simulation<'s> {
    scenario: &'s Scenario,
    now_ns: u64,
    over: bool,
    agenda: Agenda,
    random: Random,
    /// One per RoCE group, as their pacing credits differ.
    params: Vec<Params>,
    /// By RoCE group.
    transports: Vec<Transport>,
    overhead_bytes: u64,
    /// RoCE flows come first in the numbering of flows.
    qps: Vec<Qp>,
    tcps: Vec<Tcp>,
    senders: Vec<Sender>,
    /// NP state if CNPs are not limited per QP: by sender, or for all.
    nps: HashMap<u32, NpFlow>,
    port: Port,
    /// Sender to switch, per distinct delay.
    up: Lanes<Packet>,
    /// Switch to receiver.
    down: Lanes<Packet>,
    /// Receiver to sender, per distinct delay.
    back: Lanes<Reply>,
    /// By RoCE group: its flows with their time after its start, if it waits for another group.
    held: Vec<Vec<(u32, u64)>>,
    /// Incomplete messages of flows that send a single one: by RoCE group, and in total.
    unfinished: Vec<u32>,
    all_unfinished: u64,
    counters: Counters,
    collector: Collector,
}

impl Simulation<'_> {
    /// Processes some events and returns the time reached, or `None` at the end.
    fn some_events(&mut self) -> Option<u64> {
        for _ in 0..REPORT_EVERY {
            if self.over {
                return None;
            }
            self.step();
        }
        Some(self.now_ns)
    }

    /// The next event. Simultaneous events are ordered: the agenda, the port, then the lanes from the receiver back.
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
                self.qps[flow as usize].send.phase = SendPhase::Idle;
                self.wake(flow);
            }
            Event::Window(flow) => self.on_window(flow),
            Event::LinkFree(sender) => self.on_link_free(sender),
            Event::Timer(flow) => self.on_timer(flow),
            Event::Start(flow) => self.on_start(flow),
            Event::Stop(flow) => self.on_stop(flow),
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
                // Scheduled long before the sample of the same time.
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

    /// Index of a TCP flow in `tcps`; `None` for a RoCE flow.
    #[inline]
    fn tcp_index(&self, flow: u32) -> Option<usize> {
        (flow as usize).checked_sub(self.qps.len())
    }

    /// An acknowledgement reaches its sender.
    #[inline]
    fn on_reply(&mut self, Reply { flow, answer }: Reply) {
        let now_ns = self.now_ns;
        if let Some(i) = self.tcp_index(flow) {
            self.tcps[i].on_ack(now_ns, answer.named_psn.into(), answer.marked);
            self.wake(flow);
            return;
        }
        let qp = &mut self.qps[flow as usize];
        let group = qp.group;
        match answer.kind {
            PacketKind::Cnp => {
                let params = &self.params[group as usize];
                qp.counters.cnps += 1;
                if params.config.scalars.rp_enable != 0 {
                    qp.send.rp.on_cnp(&params.rp, now_ns, &mut qp.send.debt);
                }
                return;
            }
            PacketKind::Nak => {
                qp.counters.naks += 1;
                qp.send.on_nak(now_ns, answer.psn, answer.named_psn, false, Recovery::GoBackN);
            }
            PacketKind::Ack
            | PacketKind::Data
            | PacketKind::Request
            | PacketKind::Grant
            | PacketKind::Pfc => {}
        }
        let mut completed = 0;
        qp.send.on_ack(now_ns, answer.psn, |message| {
            completed += 1;
            self.collector.complete(group, now_ns, message);
        });
        if completed != 0 {
            qp.counters.messages += u64::from(completed);
            qp.completed_ns = Some(now_ns);
            self.on_messages(flow, completed);
        }
        self.wake(flow);
    }

    /// `count` messages of a RoCE flow are complete: a closed loop posts the same number again.
    fn on_messages(&mut self, flow: u32, count: u32) {
        let qp = &mut self.qps[flow as usize];
        let group = qp.group as usize;
        let spec: &RoceGroup = &self.scenario.roce[group];
        match spec.work {
            Work::Blocks { bytes, .. } if spec.stop_ns.is_none_or(|stop_ns| self.now_ns < stop_ns) => {
                for _ in 0..count {
                    qp.send.post(self.now_ns, 0, bytes, &self.transports[group]);
                }
            }
            Work::Once { .. } => self.on_completed(group, count),
            Work::Bulk | Work::Blocks { .. } | Work::Messages { .. } => {}
        }
    }

    /// `count` messages of a group whose flows send a single one are complete. With the last one of a group, dependent
    /// groups start; with the last one of all, the simulation ends.
    fn on_completed(&mut self, group: usize, count: u32) {
        self.unfinished[group] -= count;
        self.all_unfinished -= u64::from(count);
        if self.unfinished[group] == 0 {
            for (waiting, spec) in self.scenario.roce.iter().enumerate() {
                if self.scenario.dependency_of(spec) == Some(group) {
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
            qp.reset();
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
