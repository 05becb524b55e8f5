//! Strict and weighted queues of a port, for all its egress traffic.
//!
//! The egress program assigns each packet to the class of its DSCP, by `skb->priority`, before the qdisc.
//! The classes are bands of `ets`, or classes of `htb` on kernels without ets. Each has a `bfifo`, whose
//! backlog and drops are the queue's.

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{
    Config, QUEUES_ETS, QUEUES_HTB, QUEUES_MAJOR, QUEUES_NONE, Quantity, SCHEDULER_STRICT, Unit,
};
use dcqcn_netlink::tc::{Ets, Handle, HtbClass, QdiscSpec, Shaper, Stats, kernel_has_qdisc};
use dcqcn_netlink::{self as net, Link, Netlink};
use dcqcn_params::QueuesChoice;
use nix::errno::Errno;

use crate::Error;
use crate::pacer::install_qdisc;

pub(crate) const HANDLE: Handle = Handle::new(QUEUES_MAJOR, 0);
/// htb: class of the whole port, with this minor number below the pacer too.
pub const PORT: Handle = Handle::new(QUEUES_MAJOR, 0xffff);
/// htb: a turn is at least one packet.
///
/// Before GSO splits it, a packet is up to 64 KiB, or what its sender sends in a millisecond. With shorter
/// turns, weights would count packets instead of bytes.
const GSO_BYTES: u64 = 65_536;
/// htb: a rate above that of any parent token bucket, so that the port's class never delays packets.
const UNLIMITED_BPS: u64 = 800_000_000_000;

/// Selects the qdisc for `choice`; returns notes on it.
pub(crate) fn choose(choice: QueuesChoice) -> Result<(QueuesChoice, Vec<String>), Error> {
    let htb = |why: &str| {
        format!(
            "queues htb{why}: a turn of a weighted queue is a millisecond at link rate for the lowest weight (at least a frame, at \
             most 64 KiB) and proportionally longer for others; queues wait longer for their turn than with ets"
        )
    };
    match choice {
        QueuesChoice::None => Ok((choice, Vec::new())),
        QueuesChoice::Ets if !kernel_has_qdisc("ets")? => Err(Error::Queues { qdisc: "ets" }),
        QueuesChoice::Htb if !kernel_has_qdisc("htb")? => Err(Error::Queues { qdisc: "htb" }),
        QueuesChoice::Ets => Ok((choice, vec!["queues ets, as requested".into()])),
        QueuesChoice::Htb => Ok((choice, vec![htb(", as requested")])),
        QueuesChoice::Auto if kernel_has_qdisc("ets")? => Ok((QueuesChoice::Ets, vec!["queues ets".into()])),
        QueuesChoice::Auto if kernel_has_qdisc("htb")? => {
            Ok((QueuesChoice::Htb, vec![htb(", as this kernel has no ets")]))
        }
        QueuesChoice::Auto => Err(Error::Queues { qdisc: "ets" }),
    }
}

pub(crate) const fn number(choice: QueuesChoice) -> u64 {
    match choice {
        QueuesChoice::None | QueuesChoice::Auto => QUEUES_NONE,
        QueuesChoice::Ets => QUEUES_ETS,
        QueuesChoice::Htb => QUEUES_HTB,
    }
}

pub(crate) const fn kind(choice: QueuesChoice) -> &'static str {
    match choice {
        QueuesChoice::Htb => "htb",
        QueuesChoice::None | QueuesChoice::Auto | QueuesChoice::Ets => "ets",
    }
}

/// Parent of the queues: a token bucket that shapes the port, otherwise the root. Adds notes.
pub(crate) fn choose_parent(
    netlink: &Netlink,
    link: &Link,
    config: &Config,
    notes: &mut Vec<String>,
) -> Result<Handle, Error> {
    notes.push(
        "marking uses the depth that `dcqcn run` samples every millisecond; start it on the interface".into(),
    );
    let shaping = netlink.shaping(link.index)?;
    let Some(root) = netlink.root_qdisc(link.index)?.filter(|root| root.handle != Handle::UNSPEC) else {
        return at_root(link, config, notes);
    };
    match (root.kind.as_str(), shaping.map(|shaping| shaping.shaper)) {
        ("tbf", Some(Shaper::Tbf)) => Ok(Handle::new(root.handle.major(), 1)),
        ("htb" | "hfsc" | "drr" | "ets" | "prio", _) => {
            let (iface, kind, handle) = (link.name.clone(), root.kind, root.handle);
            Err(Error::HasClasses { iface, kind, handle })
        }
        _ => at_root(link, config, notes),
    }
}

fn at_root(link: &Link, config: &Config, notes: &mut Vec<String>) -> Result<Handle, Error> {
    let link_bps = config.scalars.link_rate_bps;
    if config.scalars.queues == QUEUES_HTB {
        if link_bps == 0 {
            return Err(Error::LinkRate { iface: link.name.clone() });
        }
        let rate = Quantity(link_bps, Unit::BitsPerSecond);
        notes.push(format!(
            "htb limits the port to {rate}, so that packets queue there and not in the device"
        ));
    } else if link.is_virtual() {
        notes.push(format!(
            "{} is virtual and accepts packets at any rate: its queues stay empty unless a token bucket limits it (`tc qdisc \
             add dev {} root tbf ...` before attaching)",
            link.name, link.name
        ));
    }
    Ok(Handle::ROOT)
}

/// Installs the queues at `parent`; the replaced qdisc was saved before.
pub(crate) fn install(netlink: &Netlink, ifindex: u32, parent: Handle, config: &Config) -> net::Result<()> {
    let frame_bytes = frame_bytes(netlink, ifindex)?;
    let spec = if config.scalars.queues == QUEUES_HTB {
        QdiscSpec::Htb { default_minor: default_band(config) + 1, direct_qlen: 1_000 }
    } else {
        QdiscSpec::Ets(ets(config, frame_bytes))
    };
    install_qdisc(netlink, ifindex, parent, HANDLE, &spec)?;
    if config.scalars.queues == QUEUES_HTB {
        put_htb_classes(netlink, ifindex, parent, config, frame_bytes)?;
    }
    put_buffers(netlink, ifindex, config, frame_bytes)
}

/// Updates the queues of an attached interface to `new`; returns whether anything had to be changed.
///
/// Queued packets are preserved. If a queue becomes strict or weighted, later packets may overtake them.
pub(crate) fn revise(ifindex: u32, old: &Config, new: &Config) -> net::Result<bool> {
    let of = |config: &Config| {
        let limits = config.wred.map(|wred| (wred.queue_limit_bytes, wred.kmax_bytes));
        (config.queue, config.tc_to_queue, config.dscp_to_tc[0], config.scalars.link_rate_bps, limits)
    };
    if new.scalars.queues == QUEUES_NONE || of(old) == of(new) {
        return Ok(false);
    }
    let netlink = Netlink::connect()?;
    let qdiscs = netlink.qdiscs(ifindex)?;
    // Another process removed the queues; `dcqcn status` reports that.
    let Some(there) = qdiscs.iter().find(|qdisc| qdisc.handle == HANDLE) else {
        return Ok(false);
    };
    let frame_bytes = frame_bytes(&netlink, ifindex)?;
    if new.scalars.queues == QUEUES_HTB {
        put_htb_classes(&netlink, ifindex, there.parent, new, frame_bytes)?;
    } else {
        netlink.replace_qdisc(ifindex, there.parent, HANDLE, &QdiscSpec::Ets(ets(new, frame_bytes)))?;
    }
    put_buffers(&netlink, ifindex, new, frame_bytes)?;
    Ok(true)
}

/// Backlog and counters by queue.
///
/// `None` if the queue does not exist: no traffic class uses it, the port has no queues, or another process
/// removed them.
pub type QueueStats = [Option<Stats>; CLASSES];

pub fn stats(netlink: &Netlink, ifindex: u32, config: &Config) -> net::Result<QueueStats> {
    let mut stats = [None; CLASSES];
    if config.scalars.queues == QUEUES_NONE {
        return Ok(stats);
    }
    let is_used = |queue: usize| config.tc_to_queue.iter().any(|of_tc| usize::from(*of_tc) == queue);
    let bands = config.bands().into_iter().enumerate();
    for (stats, (_, band)) in stats.iter_mut().zip(bands).filter(|(_, (queue, _))| is_used(*queue)) {
        *stats = match netlink.qdisc_stats(ifindex, class_of(band)) {
            Ok(stats) => Some(stats),
            // Another process removed the queue or the interface.
            Err(net::Error::Refused { refusal, .. })
                if [Errno::ENOENT, Errno::ENODEV].contains(&refusal.errno) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
    }
    Ok(stats)
}

/// Class of queue `queue` (modulo 8).
pub fn class(config: &Config, queue: usize) -> Handle {
    class_of(config.bands()[queue % CLASSES])
}

const fn class_of(band: u8) -> Handle {
    Handle::new(QUEUES_MAJOR, band as u16 + 1)
}

/// Maximum frame size with Ethernet header and one tag.
fn frame_bytes(netlink: &Netlink, ifindex: u32) -> net::Result<u64> {
    Ok(u64::from(netlink.link_by_index(ifindex)?.mtu) + 18)
}

/// Band of packets that the program has not classified: that of DSCP 0.
fn default_band(config: &Config) -> u16 {
    let [tc, ..] = config.dscp_to_tc;
    let queue = config.tc_to_queue.get(usize::from(tc)).copied().unwrap_or(0);
    config.bands().get(usize::from(queue)).copied().unwrap_or(0).into()
}

/// Bytes per turn of each weighted queue, by its number: `turn_bytes` for the lowest weight.
fn quanta_bytes(config: &Config, turn_bytes: u64) -> [u32; CLASSES] {
    let weighted = config.queue.iter().filter(|queue| queue.scheduler != SCHEDULER_STRICT);
    let least = weighted.map(|queue| queue.weight).min().unwrap_or(1).max(1);
    config.queue.map(|queue| u32::try_from(queue.weight * turn_bytes / least).unwrap_or(u32::MAX))
}

fn ets(config: &Config, frame_bytes: u64) -> Ets {
    let mut by_band = [0; Ets::BANDS];
    for (band, quantum) in config.bands().into_iter().zip(quanta_bytes(config, frame_bytes)) {
        if let Some(slot) = by_band.get_mut(usize::from(band)) {
            *slot = quantum;
        }
    }
    Ets { strict: config.strict_queues(), quanta_bytes: by_band, default_band: default_band(config) as u8 }
}

/// Sets the class of the port and those of the queues, which may use all of its rate.
fn put_htb_classes(
    netlink: &Netlink,
    ifindex: u32,
    parent: Handle,
    config: &Config,
    frame_bytes: u64,
) -> net::Result<()> {
    let rate_bps = if parent == Handle::ROOT { config.scalars.link_rate_bps } else { UNLIMITED_BPS };
    let htb_class =
        |handle| HtbClass::sharing(PORT, handle, rate_bps, u32::try_from(frame_bytes).unwrap_or(u32::MAX));
    netlink.replace_htb_class(ifindex, &htb_class(PORT).of_port(HANDLE))?;
    let strict = config.strict_queues();
    // One millisecond at the link rate.
    let turn_bytes = (config.scalars.link_rate_bps / 8_000).clamp(frame_bytes, GSO_BYTES.max(frame_bytes));
    for (band, quantum_bytes) in config.bands().into_iter().zip(quanta_bytes(config, turn_bytes)) {
        // Strict bands have one priority each; all weighted bands have the last of htb's eight priorities,
        // because htb applies a new priority to a backlogged class only once it is empty.
        let priority = if band < strict { u32::from(band) } else { 7 };
        let class = HtbClass { quantum_bytes, priority, ..htb_class(class_of(band)) };
        netlink.replace_htb_class(ifindex, &class)?;
    }
    Ok(())
}

/// Sets the buffer size of each queue.
fn put_buffers(netlink: &Netlink, ifindex: u32, config: &Config, frame_bytes: u64) -> net::Result<()> {
    for (queue, band) in config.bands().into_iter().enumerate() {
        let limit_bytes = u32::try_from(config.buffer_bytes(queue, frame_bytes)).unwrap_or(u32::MAX);
        netlink.replace_qdisc(ifindex, class_of(band), Handle::UNSPEC, &QdiscSpec::Bfifo { limit_bytes })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::SCHEDULER_DWRR;

    use super::*;

    #[test]
    fn quanta_proportional_to_weights() {
        let mut config = Config::DEFAULT;
        for (queue, weight) in config.queue.iter_mut().zip([50, 35, 15, 15, 15, 15, 15, 15]) {
            (queue.scheduler, queue.weight) = (SCHEDULER_DWRR, weight);
        }
        // A strict queue's weight is ignored, however small.
        (config.queue[6].scheduler, config.queue[6].weight) = (SCHEDULER_STRICT, 1);
        let ets = ets(&config, 1_500);
        assert_eq!(ets.strict, 1);
        // Queues 7, 5, 4, 3, 2, 1, 0 after the strict one.
        assert_eq!(ets.quanta_bytes[1..], [1_500, 1_500, 1_500, 1_500, 1_500, 3_500, 5_000]);
        assert_eq!(ets.default_band, 7);
    }
}
