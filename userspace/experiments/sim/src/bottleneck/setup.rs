//! Builds a simulation from its scenario.

use std::collections::HashMap;

use dcqcn_common::params::{PACER_FQ, Params, Port as Interface};

use super::Simulation;
use super::agenda::{Agenda, Event, Lanes};
use super::collect::Collector;
use super::endpoints::{Qp, Sender, transport};
use super::port::Port;
use super::tcp::Tcp;
use crate::network::{Random, Transmitter};
use crate::{Counters, MAX_FRAME_BYTES, RoceGroup, Scenario, SimError, Work};

impl<'s> Simulation<'s> {
    /// A simulation at time 0, with all scheduled events.
    pub(super) fn new(scenario: &'s Scenario) -> Result<Self, SimError> {
        let params = scenario.roce.iter().map(|group| group_params(scenario, Some(group)));
        let params: Vec<Params> = params.collect::<Result<_, _>>()?;
        let port_params = group_params(scenario, None)?;
        let overhead_bytes = port_params.config.scalars.wire_overhead_bytes;
        let delays_ns = scenario.sender_delays_ns();
        let mut simulation = Self {
            scenario,
            now_ns: 0,
            over: false,
            agenda: Agenda::new(scenario.duration_ns),
            random: Random::new(scenario.seed),
            params,
            transports: scenario.roce.iter().map(transport).collect(),
            overhead_bytes,
            qps: Vec::new(),
            tcps: Vec::new(),
            senders: Vec::new(),
            nps: HashMap::new(),
            port: Port::new(scenario, &port_params.wred, overhead_bytes),
            up: Lanes::new(delays_ns.iter().copied()),
            down: Lanes::new([scenario.receiver_delay_ns]),
            back: Lanes::new(delays_ns.iter().map(|&delay_ns| delay_ns + scenario.receiver_delay_ns)),
            held: vec![Vec::new(); scenario.roce.len()],
            unfinished: vec![0; scenario.roce.len()],
            all_unfinished: 0,
            counters: Counters::default(),
            collector: Collector::new(scenario),
        };
        simulation.add_flows(&delays_ns);
        simulation.plan();
        Ok(simulation)
    }

    fn add_flows(&mut self, delays_ns: &[u64]) {
        let scenario = self.scenario;
        let delay_index = |own_ns: Option<u64>| {
            let delay_ns = own_ns.unwrap_or(scenario.sender_delay_ns);
            // The list, of at most 64 delays, contains every delay.
            delays_ns.iter().position(|&listed_ns| listed_ns == delay_ns).unwrap_or(0) as u8
        };
        for (group, spec) in (0..).zip(&scenario.roce) {
            let delay = delay_index(spec.sender_delay_ns);
            for i in 0..spec.flows {
                if i % spec.flows_per_sender == 0 {
                    self.senders.push(Sender::new(scenario.sender_rate_bps, delay));
                }
                let (number, sender) = (self.qps.len() as u32, self.senders.len() as u32 - 1);
                self.qps.push(Qp::new(number, group, sender, spec.class, &self.params[group as usize]));
                let start_ns = spec.start_ns + self.random.up_to(spec.start_jitter_ns);
                if matches!(spec.work, Work::Once { .. }) {
                    self.unfinished[group as usize] += 1;
                    self.all_unfinished += 1;
                }
                if spec.after.is_some() {
                    self.held[group as usize].push((number, start_ns));
                    continue;
                }
                self.schedule(number, start_ns, spec.stop_ns);
                if spec.work == Work::Bulk {
                    self.collector.add_bulk_flow(number, start_ns, spec.stop_ns);
                }
            }
        }
        for (group, spec) in (scenario.roce.len() as u32..).zip(&scenario.tcp) {
            let delay = delay_index(spec.sender_delay_ns);
            for _ in 0..spec.flows {
                let (number, sender) = ((self.qps.len() + self.tcps.len()) as u32, self.senders.len() as u32);
                self.senders.push(Sender::new(scenario.sender_rate_bps, delay));
                self.tcps.push(Tcp::new(group, sender, spec));
                let start_ns = spec.start_ns + self.random.up_to(spec.start_jitter_ns);
                self.schedule(number, start_ns, spec.stop_ns);
            }
        }
    }

    pub(super) fn schedule(&mut self, flow: u32, start_ns: u64, stop_ns: Option<u64>) {
        self.agenda.at(start_ns, Event::Start(flow));
        if let Some(stop_ns) = stop_ns {
            self.agenda.at(stop_ns.max(start_ns), Event::Stop(flow));
        }
    }

    fn plan(&mut self) {
        if self.scenario.stats_from_ns != 0 {
            self.agenda.at(self.scenario.stats_from_ns, Event::StatsFrom);
        }
        if let Some(at_ns) = self.collector.next_sample_ns() {
            self.agenda.at(at_ns, Event::Sample);
        }
        if let Some(at_ns) = self.collector.next_window_ns() {
            self.agenda.at(at_ns, Event::FairWindow);
        }
        self.agenda.at(self.scenario.duration_ns, Event::End);
    }
}

/// The parameters of a group with a NIC's pacer, whose credit is one packet of each QP of its NIC.
///
/// A packet that waits for others on the link must not cost rate, and times in whole nanoseconds make a flow at line
/// rate fractionally late. `None`: the parameters of the port.
fn group_params(scenario: &Scenario, group: Option<&RoceGroup>) -> Result<Params, SimError> {
    let mut config = scenario.link_config();
    let (flows, bytes) = group.map_or((1, MAX_FRAME_BYTES), |group| {
        (group.flows_per_sender.min(group.flows), group.payload_bytes + group.header_bytes)
    });
    let wire_bytes = u64::from(bytes) + config.scalars.wire_overhead_bytes;
    let packet_ns = Transmitter::time_ns(scenario.sender_rate_bps, wire_bytes);
    config.scalars.pacer = PACER_FQ;
    config.scalars.pacing_credit_ns = (packet_ns * u64::from(flows)).min(1_000_000_000);
    Ok(Params::new(&config, Interface::new(1, 1, 1))?)
}
