//! A single bottleneck: a star of hosts around one switch, whose last host receives everything, in the network engine.

mod collect;
#[cfg(test)]
mod tests;

use std::iter::repeat_n;
use std::ops::ControlFlow;
use std::sync::Arc;

use self::collect::Collector;
use super::{Group, Outcome, Scenario, SimError, Work};
use crate::network::workload::{Pair, Source, Wait, Workload};
use crate::network::{
    Bottleneck, Class, Control, Link, Loss, Random, Scenario as Network, Switching, Threshold, Topology,
    Transport, simulate,
};

/// Runs `scenario`. `progress` is called with the simulated time at intervals, and may stop the run.
///
/// The outcome depends on the scenario only.
///
/// # Errors
/// The scenario is invalid, all work is done before statistics start, or `progress` stopped the run.
pub fn run(
    scenario: &Scenario,
    progress: &mut (dyn FnMut(u64) -> ControlFlow<()> + Send),
) -> Result<Outcome, SimError> {
    scenario.validate()?;
    let (network, flows) = scenario.network();
    let mut collector = Collector::new(scenario, flows);
    let (nodes, now_ns) = simulate(&network, 1, &mut collector, &mut |now| progress(now.now_ns))?;
    collector.outcome(nodes, now_ns)
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

/// A flow of the scenario. Its number is that of its QP, at the receiver too.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Index of its group.
    group: u32,
    /// Sending host, and its QP there.
    host: u32,
    local: u32,
    start_ns: u64,
}

impl Group {
    /// Number of senders.
    const fn senders(&self) -> u32 {
        self.flows.div_ceil(self.flows_per_sender)
    }
}

impl Scenario {
    /// One-way delay of the links of a group's senders.
    fn sender_delay_of(&self, group: &Group) -> u64 {
        group.sender_delay_ns.unwrap_or(self.sender_delay_ns)
    }

    /// The scenario for the network engine, and its flows.
    fn network(&self) -> (Network, Vec<Flow>) {
        let mut workload = Workload::new();
        let mut flows: Vec<Flow> = Vec::new();
        let mut random = Random::new(self.seed);
        let delays_ns: Vec<u64> = self
            .groups
            .iter()
            .flat_map(|group| repeat_n(self.sender_delay_of(group), group.senders() as usize))
            .collect();
        let receiver = delays_ns.len() as u32;
        let mut first_host = 0;
        for (index, group) in (0..).zip(&self.groups) {
            let source = Source { work: Arc::new(group.work.clone()), stop_ns: group.stop_ns };
            for i in 0..group.flows {
                let (host, local) = (first_host + i / group.flows_per_sender, i % group.flows_per_sender);
                let start_ns = group.start_ns + random.up_to(group.start_jitter_ns);
                flows.push(Flow { group: index, host, local, start_ns });
                let pair = Pair { src: host, dst: receiver, class: group.class, transport: index as u16 };
                let qp = workload.connect(pair);
                let posted_ns = if group.after.is_some() { 0 } else { start_ns };
                let flow = match group.work {
                    Work::Once { bytes } => workload.send(qp, bytes, posted_ns),
                    _ => workload.send_from(qp, posted_ns, source.clone()),
                };
                workload.delay(flow, start_ns - posted_ns);
            }
            first_host += group.senders();
        }
        for (index, group) in self.groups.iter().enumerate() {
            let Some(before) = self.dependency_of(group) else { continue };
            let numbers =
                |group: usize| (0_u32..).zip(&flows).filter(move |(_, flow)| flow.group as usize == group);
            // A flow that waits for all of one group, and for which all of the other wait.
            let Some((_, first)) = numbers(index).next() else { continue };
            let barrier = workload.compute(first.host, 0);
            numbers(before).for_each(|(flow, _)| workload.after(barrier, flow, Wait::Acknowledged));
            numbers(index).for_each(|(flow, _)| workload.after(flow, barrier, Wait::Acknowledged));
        }

        let switch = receiver + 1;
        let to_switch = |(a, &delay_ns)| Link { a, b: switch, rate_bps: self.sender_rate_bps, delay_ns };
        let mut links: Vec<Link> = (0..).zip(&delays_ns).map(to_switch).collect();
        let (rate_bps, delay_ns) = (self.port_rate_bps, self.receiver_delay_ns);
        links.push(Link { a: receiver, b: switch, rate_bps, delay_ns });
        let topology = Topology { hosts: receiver + 1, switches: 1, links, names: Vec::new() };

        let mut network = Network::new(topology, workload, self.link_config());
        network.seed = self.seed;
        network.duration_ns = self.duration_ns;
        network.control = if self.control { Control::Dcqcn } else { Control::Off };
        network.switch = Switching {
            buffer_bytes: self.buffer_bytes,
            classes: self.classes.map(|class| Class {
                schedule: class.schedule,
                loss: Loss::Lossy(Threshold::Bytes(class.limit_bytes.unwrap_or(self.buffer_bytes))),
            }),
            marking: self.marking,
            ..network.switch
        };
        let transport = |group: &Group| Transport {
            qps_per_host: group.flows_per_sender.min(group.flows),
            ..group.transport
        };
        network.bottleneck = Some(Bottleneck {
            transports: self.groups.iter().map(transport).collect(),
            reply_ns: delays_ns.iter().map(|delay_ns| delay_ns + self.receiver_delay_ns).collect(),
            pfc: self.classes.map(|class| class.pfc),
        });
        (network, flows)
    }
}
