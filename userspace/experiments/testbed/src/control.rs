//! The data plane in the lab, attached as by `dcqcn attach`.

use std::collections::HashMap;
use std::net::IpAddr;

use dcqcn_common::classify::{mapped, words};
use dcqcn_common::flow::{FlowId, QpId};
use dcqcn_common::layout::Counters;
use dcqcn_common::params::{Config, PACER_FQ, Params, QUEUES_NONE};
use dcqcn_common::stats::Stat;
use dcqcn_loader::attach::{self, Attachment, Request};
use dcqcn_loader::queues;
use dcqcn_netlink::Netns;
use dcqcn_netlink::tc::Handle;
use dcqcn_params::{Assignment, Profile, QueuesChoice, Role, SetError, Settings};
use dcqcn_support::causes::one_line;
use dcqcn_support::clock::monotonic_ns;

use super::bmv2::Probe;
use super::error::{Error, Result};
use super::host::{Host, ROCE_TC};
use super::task::Task;
use super::{ControlSample, QueuePair, Thresholds, Topology};

/// Flows per table: many times the lab's maximum.
const FLOWS: u32 = 4_096;
const INGRESS: usize = 1;
const EGRESS: usize = 2;

/// Location of the hosts' notification and reaction points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum RpLocation {
    /// In the hosts, in eBPF.
    #[default]
    Host,
    /// In the switch, in P4.
    Switch,
}

/// DCQCN on every host of the lab.
#[derive(Clone, Debug)]
pub struct DataPlane {
    /// Rate of every link, which a veth pair does not report.
    pub link_bps: u64,
    /// Parameters on top of the profile, for hosts and switch.
    pub settings: Settings,
    /// Location of the hosts' points; in the switch only if that is BMv2.
    pub rp: RpLocation,
    /// Attaches the hosts too; without it, they react only to PFC.
    pub hosts: bool,
}

impl DataPlane {
    fn attach_to(
        &self,
        netns: &Netns,
        iface: &str,
        role: Role,
        changes: &[(&str, String)],
        queues: Option<QueuesChoice>,
    ) -> Result<AttachedPort> {
        let link_rate = [("link_rate", format!("{}bit", self.link_bps))];
        let changes = link_rate.iter().chain(changes);
        let changes =
            changes.map(|(key, value)| Assignment::new(key, value)).collect::<Result<_, SetError>>()?;
        let settings = Settings {
            role: Some(role),
            profile: Some(Profile::Lab),
            flows: Some(FLOWS),
            queues,
            changes,
            ..Settings::default()
        };
        let request = Request { iface: iface.to_owned(), settings: settings.then(self.settings.clone()) };
        let attached = netns.run(|| attach::attach(&request).and_then(|_| attach::open(iface)))?;
        let Attachment { info, maps } = attached.map_err(|error| {
            let (iface, netns, source) = (iface.to_owned(), netns.name().to_owned(), Box::new(error));
            Error::Attach { iface, netns, source }
        })?;
        let params = maps.params()?;
        let mut host = AttachedPort {
            netns: netns.try_clone()?,
            iface: iface.to_owned(),
            params: *params,
            attachment: Attachment { info, maps },
            tasks: Vec::new(),
        };
        if host.attachment.info.pacer == "htb" {
            host.tasks.push(Task::pacer(netns, iface)?);
        }
        if queues.is_some() {
            host.tasks.push(Task::feeder(netns, iface)?);
            host.tasks.push(Task::pfc_sender(netns, iface)?);
        }
        Ok(host)
    }

    /// Attaches only the bottleneck's port.
    pub(super) fn attach_port(&self, network: &Topology) -> Result<AttachedPort> {
        match self.attach_switch(network)? {
            AttachedSwitch::Linux { port, .. } => Ok(*port),
            AttachedSwitch::Bmv2(_) | AttachedSwitch::Unseen => Err(Error::NotLinux),
        }
    }

    /// Attaches only a sender, which honours pauses of RoCE's class.
    pub(super) fn attach_host(&self, host: &Host, settings: Settings) -> Result<AttachedPort> {
        let data_plane = Self { settings: settings.then(self.settings.clone()), ..self.clone() };
        let changes = [("pfc.3.rx", "on".to_owned())];
        data_plane.attach_to(&host.netns, &host.ifname, Role::Host, &changes, None)
    }

    /// Attaches to the switch's egress port (CP), the senders' interfaces (RP) and the receiver's (NP). Traffic starts
    /// when this returns.
    ///
    /// # Errors
    /// The kernel rejects a step; previous steps are undone.
    pub(super) fn attach(&self, network: &Topology, queue_pairs: &[QueuePair]) -> Result<AttachedLab> {
        let mut all = AttachedLab {
            switch: self.attach_switch(network)?,
            presumed: self.settings.clone().config(Some(self.link_bps))?,
            receiver: None,
            senders: Vec::new(),
            flows: Vec::new(),
        };
        if !self.hosts {
            return Ok(all);
        }
        if self.rp == RpLocation::Host {
            let attach = |host: &Host| self.attach_to(&host.netns, &host.ifname, Role::Host, &[], None);
            all.receiver = Some(attach(&network.receiver)?);
            for sender in &network.senders {
                all.senders.push(attach(sender)?);
            }
        }
        for pair in queue_pairs {
            let sender = network.senders.iter().position(|sender| sender.address == pair.sender_address);
            let sender = sender.ok_or(Error::NotSender(pair.sender_address))?;
            let receiver = QpId { addr: address(pair.receiver_address), qpn: pair.receiver_qpn, vlan: 0 };
            all.flows.push((sender, FlowId { src: address(pair.sender_address), receiver }));
        }
        Ok(all)
    }

    fn attach_switch(&self, network: &Topology) -> Result<AttachedSwitch> {
        let Some(switch) = &network.switch else { return Ok(AttachedSwitch::Unseen) };
        let Some(bmv2) = &switch.bmv2 else {
            if self.rp == RpLocation::Switch {
                return Err(Error::RpInLinux);
            }
            let limit = ("wred.3.queue_limit", format!("{}B", switch.buffer_bytes));
            if switch.queues {
                let queues = Some(QueuesChoice::Auto);
                let (netns, port) = (&switch.netns, &switch.egress_ifname);
                let port = self.attach_to(netns, port, Role::Switch, &[limit], queues)?;
                let hosts = network.senders.iter();
                let back = hosts.map(|host| self.attach_to(netns, &host.port, Role::Switch, &[], None));
                let back = back.collect::<Result<_>>()?;
                return Ok(AttachedSwitch::Linux { port: Box::new(port), back });
            }
            let on_port = [
                // The port's qdisc is 1:, its class for queue q is 1:q+1.
                ("priority_major", "1".to_owned()),
                ("wred.3.drain_rate", format!("{}bit", switch.roce_bps)),
                limit,
            ];
            let (netns, port) = (&switch.netns, &switch.egress_ifname);
            let port = self.attach_to(netns, port, Role::Switch, &on_port, None)?;
            return Ok(AttachedSwitch::Linux { port: Box::new(port), back: Vec::new() });
        };
        let settings = Settings {
            role: Some(Role::Switch),
            profile: Some(Profile::Lab),
            changes: bmv2_changes(self.link_bps, switch.buffer_bytes)?,
            ..Settings::default()
        };
        let mut config = settings.then(self.settings.clone()).config(Some(self.link_bps))?;
        let in_switch = u64::from(self.rp == RpLocation::Switch);
        (config.scalars.np_enable, config.scalars.rp_enable) = (in_switch, in_switch);
        config.scalars.pacer = PACER_FQ;
        bmv2.configure(&config)?;
        let probe = bmv2.probe()?;
        Ok(AttachedSwitch::Bmv2(Box::new(P4Switch { config, probe, rp: self.rp, slots: HashMap::new() })))
    }
}

/// Thresholds for BMv2's queue of 64 packets, as the profile's are for a buffer of hundreds.
fn bmv2_changes(link_bps: u64, buffer_bytes: u32) -> Result<Vec<Assignment>, SetError> {
    let changes = [
        ("link_rate", format!("{link_bps}bit")),
        ("wred.3.kmin", format!("{}B", buffer_bytes / 8)),
        ("wred.3.kmax", format!("{}B", buffer_bytes / 2)),
        ("wred.3.queue_limit", format!("{buffer_bytes}B")),
    ];
    changes.iter().map(|(key, value)| Assignment::new(key, value)).collect()
}

/// An attached interface; detached on drop.
pub(super) struct AttachedPort {
    netns: Netns,
    iface: String,
    params: Params,
    attachment: Attachment,
    tasks: Vec<Task>,
}

impl AttachedPort {
    fn counters(&self) -> Result<[Counters; 3]> {
        Ok(self.attachment.maps.counters()?)
    }

    pub(super) fn detach(&mut self) -> Result<()> {
        self.tasks.drain(..).try_for_each(Task::stop)?;
        if !self.iface.is_empty() {
            let iface = std::mem::take(&mut self.iface);
            self.netns.run(|| attach::detach(&iface))??;
        }
        Ok(())
    }
}

impl Drop for AttachedPort {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            tracing::warn!("{}", one_line(&error));
        }
    }
}

enum AttachedSwitch {
    /// The data plane at the ports of a Linux switch.
    Linux {
        /// The port to the receiver.
        port: Box<AttachedPort>,
        /// Senders' ports, if the reverse traffic is counted.
        back: Vec<AttachedPort>,
    },
    Unseen,
    /// A BMv2 switch, which may have the hosts' points too.
    Bmv2(Box<P4Switch>),
}

struct P4Switch {
    config: Config,
    probe: Probe,
    rp: RpLocation,
    slots: HashMap<FlowId, u64>,
}

impl P4Switch {
    /// Adds the switch's counters, and the rates of its reaction points.
    fn sample(&mut self, flows: &[(usize, FlowId)], sample: &mut ControlSample) -> Result<()> {
        let mut reader = self.probe.reader();
        sample.ce_marks = reader.stat(Stat::CpEcnMarked)?;
        if self.rp == RpLocation::Host {
            return Ok(());
        }
        sample.cnps_sent = reader.stat(Stat::NpCnpSent)?;
        sample.cnps_handled = reader.stat(Stat::RpCnpHandled)?;
        sample.cnps_ignored = reader.stat(Stat::RpCnpIgnored)?;
        if flows.iter().any(|(_, id)| !self.slots.contains_key(id)) {
            self.slots = reader.rp_indices()?.into_iter().map(|(slot, id)| (id, slot)).collect();
        }
        for (_, id) in flows {
            let rate_bps = self.slots.get(id).map(|slot| reader.rp_rate_bps(*slot)).transpose()?;
            sample.rates_bps.push(rate_bps.flatten());
        }
        Ok(())
    }
}

pub(super) struct AttachedLab {
    switch: AttachedSwitch,
    presumed: Config,
    /// `None`, with no `senders`, if the switch also runs the hosts' RP and NP.
    receiver: Option<AttachedPort>,
    senders: Vec<AttachedPort>,
    flows: Vec<(usize, FlowId)>,
}

impl AttachedLab {
    pub(super) fn thresholds(&self) -> Thresholds {
        let config = match &self.switch {
            AttachedSwitch::Linux { port, .. } => &port.params.config,
            AttachedSwitch::Bmv2(switch) => &switch.config,
            // A foreign switch cannot be queried: its settings are given.
            AttachedSwitch::Unseen => &self.presumed,
        };
        let wred = &config.wred[ROCE_TC];
        Thresholds { kmin_bytes: wred.kmin_bytes, kmax_bytes: wred.kmax_bytes }
    }

    /// The class of the bottleneck's qdisc for RoCE; `None` for the lab's own.
    pub(super) fn roce_class(&self) -> Option<Handle> {
        match &self.switch {
            AttachedSwitch::Linux { port, .. } if port.params.config.scalars.queues != QUEUES_NONE => {
                let config = &port.params.config;
                Some(queues::class(config, config.tc_to_queue[ROCE_TC].into()))
            }
            _ => None,
        }
    }

    /// Reads the current state from the maps. Called about every millisecond while traffic runs.
    pub(super) fn sample(&mut self) -> Result<ControlSample> {
        let now_ns = monotonic_ns();
        let mut sample = ControlSample::default();
        match &mut self.switch {
            AttachedSwitch::Linux { port, back } => {
                if port.params.config.scalars.queues == QUEUES_NONE {
                    let empty_at = port.attachment.maps.queues()?[ROCE_TC];
                    let depth_bytes = port.params.drain[ROCE_TC].depth_bytes(empty_at, now_ns);
                    sample.virtual_queue_bytes = Some(depth_bytes);
                }
                sample.ce_marks = stat(&port.counters()?[EGRESS], Stat::CpEcnMarked);
                for port in back {
                    let counters = &port.counters()?[EGRESS];
                    for (returned, class) in sample.returned.iter_mut().zip(&counters.class) {
                        *returned += class.packets;
                    }
                }
            }
            AttachedSwitch::Bmv2(switch) => switch.sample(&self.flows, &mut sample)?,
            AttachedSwitch::Unseen => {}
        }
        let Some(receiver) = &self.receiver else { return Ok(sample) };
        sample.cnps_sent = stat(&receiver.counters()?[EGRESS], Stat::NpCnpSent);
        for sender in &self.senders {
            let counters = sender.counters()?;
            sample.cnps_handled += stat(&counters[INGRESS], Stat::RpCnpHandled);
            sample.cnps_ignored += stat(&counters[INGRESS], Stat::RpCnpIgnored);
        }
        for (sender, id) in &self.flows {
            let sender = &self.senders[*sender];
            let flow = sender.attachment.maps.rp_find(&sender.params, id)?;
            sample.rates_bps.push(flow.filter(|flow| flow.hot.machine.active != 0).map(|mut flow| {
                flow.hot.machine.advance(&sender.params.rp, now_ns);
                flow.hot.machine.rate_bps
            }));
        }
        Ok(sample)
    }

    /// Detaches everything. Called after traffic has ended and before the network is removed.
    pub(super) fn detach(mut self) -> Result<()> {
        let switch: Vec<&mut AttachedPort> = match &mut self.switch {
            AttachedSwitch::Linux { port, back } => back.iter_mut().chain([port.as_mut()]).collect(),
            AttachedSwitch::Bmv2(_) | AttachedSwitch::Unseen => Vec::new(),
        };
        for host in self.senders.iter_mut().chain(&mut self.receiver).chain(switch) {
            host.detach()?;
        }
        Ok(())
    }
}

fn stat(counters: &Counters, stat: Stat) -> u64 {
    counters.stat[stat as usize]
}

fn address(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(address) => mapped(address.octets()),
        IpAddr::V6(address) => words(address.octets()),
    }
}
