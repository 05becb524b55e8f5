//! Construction of nodes from a scenario.

use std::collections::HashMap;
use std::sync::Arc;

use dcqcn_common::flow::HashKeys;
use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Params, Port};
use dcqcn_common::wred::Wred;

use crate::network::agenda::{Agenda, Event};
use crate::network::host::{Host, HostRules};
use crate::network::random::Random;
use crate::network::scenario::{Change, ChangeKind, Loss, Scenario, SimError, changes};
use crate::network::scheduler::Scheduler;
use crate::network::switch::{Switch, SwitchRules};
use crate::network::topology::{PortSpec, Routes, Topology};
use crate::network::wire::{Delivery, Outbox};

#[derive(Debug)]
pub(crate) enum Node {
    Host(Box<Host>),
    Switch(Box<Switch>),
}

impl Node {
    pub(crate) fn run(&mut self, end_ns: u64, out: &mut Outbox) {
        match self {
            Self::Host(host) => host.run(end_ns, out),
            Self::Switch(switch) => switch.run(end_ns, out),
        }
    }

    #[inline]
    pub(crate) fn enter(&mut self, at_ns: u64, what: Delivery) {
        match (self, what) {
            (Self::Host(host), what) => host.enter(at_ns, what),
            (Self::Switch(switch), Delivery::Packet(port, packet)) => switch.enter(port, at_ns, packet),
            // Only hosts have flows.
            (Self::Switch(_), Delivery::Notice(_)) => {}
        }
    }

    pub(crate) fn next_ns(&self) -> u64 {
        match self {
            Self::Host(host) => host.agenda.next_ns(),
            Self::Switch(switch) => switch.agenda.next_ns(),
        }
    }

    fn agenda(&mut self) -> &mut Agenda {
        match self {
            Self::Host(host) => &mut host.agenda,
            Self::Switch(switch) => &mut switch.agenda,
        }
    }

    pub(crate) fn done(&self) -> u64 {
        match self {
            Self::Host(host) => host.done,
            Self::Switch(_) => 0,
        }
    }
}

/// The nodes of `scenario`, with these ports, at time 0 with all scheduled events.
pub(crate) fn build(scenario: &Scenario, ports: &[Vec<PortSpec>]) -> Result<Vec<Node>, SimError> {
    let topology = &scenario.topology;
    let (changes, epochs) = changes(scenario);
    let changes: Arc<[_]> = changes.into();
    let mut random = Random::new(scenario.seed);
    let hash_keys = HashKeys::new(random.draw().into());
    let config = scenario.host_config(0, &scenario.transport);
    let overhead_bytes = config.scalars.wire_overhead_bytes;

    let mut lossless = 0;
    for (tc, class) in scenario.switch.classes.iter().enumerate() {
        lossless |= u8::from(matches!(class.loss, Loss::Lossless(_))) << tc;
    }
    let switch_rules = Arc::new(SwitchRules {
        switching: scenario.switch.clone(),
        wred: wred_by_rate(scenario, ports),
        lossless,
        routes: epochs
            .iter()
            .map(|down| Arc::new(Routes::new(topology, &|link| !down.contains(&link))))
            .collect(),
        changes: Arc::clone(&changes),
        sample_ns: scenario.sample_ns,
        overhead_bytes,
        frame_bytes: scenario.frame_bytes(),
        queue_pfc: scenario.bottleneck.as_ref().map(|bottleneck| bottleneck.pfc),
    });
    let hosts = hosts(scenario, ports, &changes, hash_keys)?;
    let mut nodes: Vec<Node> = hosts.into_iter().map(|host| Node::Host(Box::new(host))).collect();
    for (number, specs) in (0..).zip(&ports[topology.hosts as usize..]) {
        let seed = u64::from(random.draw()) << 32 | u64::from(random.draw());
        let mut switch =
            Switch::new(number, specs, &switch_rules, seed).map_err(|taken_bytes| SimError::Buffer {
                switch: topology.name(topology.hosts + number),
                ports: specs.len(),
                buffer_bytes: scenario.switch.buffer_bytes,
                taken_bytes,
            })?;
        if let Some(watchdog) = scenario.switch.watchdog {
            switch.agenda.at(watchdog.poll_ns(), Event::Watchdog, 0);
        }
        nodes.push(Node::Switch(Box::new(switch)));
    }
    for ((number, node), specs) in (0..).zip(&mut nodes).zip(ports) {
        for (index, change) in (0..).zip(changes.iter()) {
            let concerns = match change.what {
                ChangeKind::Link { link, .. } => specs.iter().any(|port| port.link == link),
                ChangeKind::Storm { host, .. } => host == number,
                ChangeKind::Routes { .. } => number >= topology.hosts,
            };
            if concerns {
                node.agenda().at(change.at_ns, Event::Fault, index);
            }
        }
        if let Some(sample_ns) = scenario.sample_ns {
            node.agenda().at(sample_ns, Event::Sample, 0);
        }
    }
    Ok(nodes)
}

fn wred_by_rate(scenario: &Scenario, ports: &[Vec<PortSpec>]) -> Vec<(u64, [Wred; CLASSES])> {
    let own_bps = ports.first().and_then(|ports| ports.first()).map_or(1, |port| port.rate_bps);
    let mut rates: Vec<u64> = ports.iter().flatten().map(|port| port.rate_bps).collect();
    rates.sort_unstable();
    rates.dedup();
    let of = |rate_bps: u64| {
        let scaled = |bytes: u64| {
            let bytes = u128::from(bytes) * u128::from(rate_bps) / u128::from(own_bps);
            u64::try_from(bytes).unwrap_or(u64::MAX).min(crate::network::scenario::MAX_BUFFER_BYTES)
        };
        let wred = scenario.config.wred.map(|mut wred| {
            if scenario.switch.wred_by_rate {
                (wred.kmin_bytes, wred.kmax_bytes) = (scaled(wred.kmin_bytes), scaled(wred.kmax_bytes));
            }
            Wred::new(&wred)
        });
        (rate_bps, wred)
    };
    rates.into_iter().map(of).collect()
}

fn host_rules(scenario: &Scenario, changes: &Arc<[Change]>, hash_keys: HashKeys) -> HostRules {
    let Scenario { topology, workload, .. } = scenario;
    let config = scenario.host_config(0, &scenario.transport);
    // Numbers of pairs and flows at their hosts.
    let mut sends = vec![0_u32; topology.hosts as usize];
    let mut receives = sends.clone();
    let count = |counts: &mut Vec<u32>, host: u32| {
        let own = &mut counts[host as usize];
        *own += 1;
        *own - 1
    };
    let locals: Vec<(u32, u32)> = workload
        .pairs()
        .iter()
        .map(|pair| (count(&mut sends, pair.src), count(&mut receives, pair.dst)))
        .collect();
    let mut owns = vec![0_u32; topology.hosts as usize];
    let pair_of = |qp: u32| workload.pairs()[qp as usize];
    let local_flows: Vec<u32> =
        workload.flows().iter().map(|flow| count(&mut owns, pair_of(flow.qp).src)).collect();
    let schedules = scenario.switch.classes.map(|class| class.schedule);
    let cnp_dscp = config.scalars.cnp_dscp as usize;
    HostRules {
        transports: scenario.transports().to_vec(),
        reply_ns: scenario.bottleneck.as_ref().map_or_else(Vec::new, |own| own.reply_ns.clone()),
        frame_bytes: scenario.frame_bytes(),
        seed: scenario.seed,
        control: scenario.control,
        window_end: scenario.window_end,
        scheduler: Scheduler::new(schedules, scenario.frame_bytes()),
        cnp_class: config.dscp_to_tc.get(cnp_dscp).copied().unwrap_or(0) % CLASSES as u8,
        overhead_bytes: config.scalars.wire_overhead_bytes,
        workload: workload.clone(),
        locals,
        local_flows,
        edges: workload.edges(),
        notice_ns: topology.lookahead_ns(),
        changes: Arc::clone(changes),
        hash_keys,
        sample_ns: scenario.sample_ns,
    }
}

fn hosts(
    scenario: &Scenario,
    ports: &[Vec<PortSpec>],
    changes: &Arc<[Change]>,
    hash_keys: HashKeys,
) -> Result<Vec<Host>, SimError> {
    let Scenario { topology, workload, .. } = scenario;
    let rules = Arc::new(host_rules(scenario, changes, hash_keys));
    let waits = workload.waits(&rules.edges);
    let mut params: HashMap<u64, Arc<[Params]>> = HashMap::new();
    let mut hosts = Vec::with_capacity(topology.hosts as usize);
    for number in 0..topology.hosts {
        let spec = &ports[number as usize][0];
        let known = match params.get(&spec.rate_bps) {
            Some(known) => Arc::clone(known),
            None => {
                let of = |transport| {
                    Params::new(&scenario.host_config(spec.rate_bps, transport), Port::new(1, 1, 1))
                };
                let made = scenario.transports().iter().map(of).collect::<Result<Arc<[_]>, _>>()?;
                params.insert(spec.rate_bps, Arc::clone(&made));
                made
            }
        };
        hosts.push(Host::new(number, spec, &rules, known));
    }
    for (number, pair) in (0..).zip(workload.pairs()) {
        hosts[pair.src as usize].add_pair(number, true);
        hosts[pair.dst as usize].add_pair(number, false);
    }
    for (number, flow) in (0_u32..).zip(workload.flows()) {
        let qp = flow.qp as usize;
        let (pair, (at_src, at_dst)) = (workload.pairs()[qp], rules.locals[qp]);
        hosts[pair.src as usize].add_flow(at_src, true);
        hosts[pair.dst as usize].add_flow(at_dst, false);
        hosts[pair.src as usize].add_own(number, waits[number as usize]);
    }
    hosts.iter_mut().for_each(Host::ready);
    Ok(hosts)
}

/// Assigns the nodes with these ports to threads: switches in turn, by tier, and hosts with theirs.
pub(crate) fn owners(topology: &Topology, ports: &[Vec<PortSpec>], threads: usize) -> Vec<u32> {
    let (hosts, switches) = ports.split_at(topology.hosts as usize);
    let has_hosts = |ports: &&Vec<PortSpec>| ports.iter().any(|port| port.peer < topology.hosts);
    // Switches with hosts come first in every shape: neighbours stay together.
    let leaves = switches.iter().filter(has_hosts).count() as u32;
    let threads = threads as u32;
    let of_switch = |switch: u32| {
        if switch < leaves { switch * threads / leaves } else { (switch - leaves) % threads }
    };
    let of_host = hosts.iter().map(|ports| of_switch(ports[0].peer - topology.hosts));
    of_host.chain((0..topology.switches).map(of_switch)).collect()
}
