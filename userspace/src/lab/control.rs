//! The data plane in the lab: attached as on any host, with the same calls as `dcqcn attach`.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use dcqcn_common::classify::{mapped, words};
use dcqcn_common::flow::QpId;
use dcqcn_common::layout::Counters;
use dcqcn_common::params::Params;
use dcqcn_common::stats::Stat;

use super::{Attached, Control, ControlSample, QueuePair, Thresholds, Topology};
use crate::attach::{self, Attachment, Request};
use crate::clock::monotonic_ns;
use crate::net::{Netlink, Netns};
use crate::pacer::htb::HtbPacer;
use crate::params::{Assignment, Profile, Role, Settings};

/// Traffic class of the lab's RoCE: DSCP 26.
const ROCE_TC: usize = 3;
/// Flows each table holds: many times the lab's most.
const FLOWS: u32 = 4_096;
/// Hooks in the counter map.
const XDP: usize = 0;
const EGRESS: usize = 2;

/// DCQCN on every host of the lab.
#[derive(Clone, Debug)]
pub struct DataPlane {
    /// Rate of every link: a veth pair does not know its own.
    pub link_bps: u64,
    /// Parameters beyond the profile, for hosts and switch alike.
    pub settings: Settings,
}

impl DataPlane {
    fn attach(&self, netns: &Netns, iface: &str, role: Role, changes: &[(&str, String)]) -> Result<Host> {
        let link_rate = [("link_rate", format!("{}bit", self.link_bps))];
        let changes = link_rate.iter().chain(changes);
        let changes = changes.map(|(key, value)| Assignment::new(key, value)).collect::<Result<_, _>>()?;
        let settings = Settings {
            role: Some(role),
            profile: Some(Profile::Lab),
            flows: Some(FLOWS),
            changes,
            ..Settings::default()
        };
        let request = Request {
            iface: iface.to_owned(),
            inline_peer: None,
            settings: settings.then(self.settings.clone()),
        };
        let attached = netns.run(|| attach::attach(&request).and_then(|_| attach::open(iface)))?;
        let Attachment { info, maps } = attached.with_context(|| format!("{} in {}", iface, netns.name()))?;
        let params = maps.params()?;
        let mut host = Host {
            netns: Netns::open(netns.name())?,
            iface: iface.to_owned(),
            params,
            attachment: Attachment { info, maps },
            pacer: None,
        };
        if host.attachment.info.pacer == "htb" {
            host.pacer = Some(PacerThread::start(netns, iface)?);
        }
        Ok(host)
    }
}

impl Control for DataPlane {
    fn attach(&self, network: &Topology, queue_pairs: &[QueuePair]) -> Result<Box<dyn Attached>> {
        let switch = &network.switch;
        let on_port = [
            // The port's qdisc is 1:, its class for queue q is 1:q+1.
            ("priority_major", "1".to_owned()),
            ("wred.3.drain_rate", format!("{}bit", switch.roce_bps)),
            ("wred.3.queue_limit", format!("{}B", switch.buffer_bytes)),
        ];
        let mut all = Hosts {
            switch: self.attach(&switch.netns, &switch.egress_ifname, Role::Switch, &on_port)?,
            receiver: self.attach(&network.receiver.netns, &network.receiver.ifname, Role::Host, &[])?,
            senders: Vec::new(),
            flows: Vec::new(),
        };
        for sender in &network.senders {
            all.senders.push(self.attach(&sender.netns, &sender.ifname, Role::Host, &[])?);
        }
        for pair in queue_pairs {
            let sender = network.senders.iter().position(|sender| sender.address == pair.sender_address);
            let sender = sender.ok_or_else(|| anyhow!("no sender has {}", pair.sender_address))?;
            all.flows.push((sender, QpId { addr: address(pair.receiver_address), qpn: pair.receiver_qpn }));
        }
        Ok(Box::new(all))
    }
}

/// An attached interface; detached when dropped.
struct Host {
    netns: Netns,
    iface: String,
    params: Params,
    attachment: Attachment,
    pacer: Option<PacerThread>,
}

impl Host {
    fn counters(&self) -> Result<[Counters; 3]> {
        Ok(self.attachment.maps.counters()?)
    }

    fn detach(&mut self) -> Result<()> {
        if let Some(pacer) = self.pacer.take() {
            pacer.stop()?;
        }
        if !self.iface.is_empty() {
            let iface = std::mem::take(&mut self.iface);
            self.netns.run(|| attach::detach(&iface))??;
        }
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            tracing::warn!("{error:#}");
        }
    }
}

/// The data plane of the whole lab.
struct Hosts {
    switch: Host,
    receiver: Host,
    senders: Vec<Host>,
    /// Sender and identity of each flow.
    flows: Vec<(usize, QpId)>,
}

impl Attached for Hosts {
    fn thresholds(&self) -> Thresholds {
        let wred = &self.switch.params.config.wred[ROCE_TC];
        Thresholds { kmin_bytes: wred.kmin_bytes, kmax_bytes: wred.kmax_bytes }
    }

    fn sample(&mut self) -> Result<ControlSample> {
        let now_ns = monotonic_ns();
        let switch = self.switch.counters()?;
        let empty_at = self.switch.attachment.maps.queues()?[ROCE_TC];
        let mut sample = ControlSample {
            virtual_queue_bytes: self.switch.params.drain[ROCE_TC].depth_bytes(empty_at, now_ns),
            ce_marks: stat(&switch[EGRESS], Stat::CpEcnMarked),
            cnps_sent: stat(&self.receiver.counters()?[EGRESS], Stat::NpCnpSent),
            ..ControlSample::default()
        };
        for sender in &self.senders {
            let counters = sender.counters()?;
            sample.cnps_handled += stat(&counters[XDP], Stat::RpCnpHandled);
            sample.cnps_ignored += stat(&counters[XDP], Stat::RpCnpIgnored);
        }
        for (sender, id) in &self.flows {
            let sender = &self.senders[*sender];
            let flow = sender.attachment.maps.rp_find(&sender.params, id)?;
            sample.rates_bps.push(flow.filter(|flow| flow.machine.active != 0).map(|mut flow| {
                flow.machine.advance(&sender.params.rp, now_ns);
                flow.machine.rate_bps
            }));
        }
        Ok(sample)
    }

    fn detach(mut self: Box<Self>) -> Result<()> {
        for host in self.senders.iter_mut().chain([&mut self.receiver, &mut self.switch]) {
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

/// What `dcqcn run` does for a host whose kernel has no fq.
struct PacerThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl PacerThread {
    fn start(netns: &Netns, iface: &str) -> Result<Self> {
        let Attachment { info, maps } = netns.run(|| attach::open(iface))??;
        let mut pacer = HtbPacer::new(Netlink::connect_in(netns)?, maps, info.ifindex)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                pacer.turn()?;
            }
            Ok(())
        });
        Ok(Self { stop, thread })
    }

    fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the pacer's thread panicked"))?
    }
}
