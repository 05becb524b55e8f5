//! Strict and weighted queues on a port, for all that leaves by it.
//!
//! The egress program puts each packet into the class of its DSCP, by `skb->priority`, before the qdisc sees it. The classes
//! are bands of `ets`, or classes of `htb` where the kernel has no ets; each holds a `bfifo`, whose backlog is the queue's depth
//! and whose drops are the queue's.

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{
    Config, QUEUES_ETS, QUEUES_HTB, QUEUES_MAJOR, QUEUES_NONE, Quantity, SCHEDULER_STRICT, Unit,
};
use dcqcn_netlink::tc::{Ets, Handle, HtbClass, QdiscSpec, Shaper, Stats, kernel_has_qdisc};
use dcqcn_netlink::{self as net, Link, Netlink};
use dcqcn_params::QueuesChoice;
use nix::errno::Errno;

use crate::Error;

/// The qdisc that has the queues.
pub(crate) const HANDLE: Handle = Handle::new(QUEUES_MAJOR, 0);
/// htb: the port as a whole.
const PORT: Handle = Handle::new(QUEUES_MAJOR, 0xffff);
/// htb: a turn is one packet at least, and one that the kernel has not cut up yet (GSO) has up to 64 KiB, or what its sender
/// sends in a millisecond. With turns shorter than that weights would count packets.
const GSO_BYTES: u64 = 65_536;
/// htb: a rate that no token bucket above it has, so that the port's class never waits there.
const UNLIMITED_BPS: u64 = 800_000_000_000;

/// The qdisc for `choice`, and what is to be known of it.
///
/// # Errors
/// The kernel lacks it.
pub(crate) fn choose(choice: QueuesChoice) -> Result<(QueuesChoice, Vec<String>), Error> {
    let htb = |why: &str| {
        format!(
            "queues htb{why}: turns of weighted queues are a millisecond of the port's rate for the least weight (a frame at least, \
             64 KiB at most) and longer by weight, so one may wait longer for its turn than with ets, where it is a frame or more"
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

/// The number of the parameter `queues`.
pub(crate) const fn number(choice: QueuesChoice) -> u64 {
    match choice {
        QueuesChoice::None | QueuesChoice::Auto => QUEUES_NONE,
        QueuesChoice::Ets => QUEUES_ETS,
        QueuesChoice::Htb => QUEUES_HTB,
    }
}

/// The kernel's name for the qdisc.
pub(crate) const fn kind(choice: QueuesChoice) -> &'static str {
    match choice {
        QueuesChoice::Htb => "htb",
        QueuesChoice::None | QueuesChoice::Auto | QueuesChoice::Ets => "ets",
    }
}

/// Where the queues go: below a token bucket that shapes the port, else at the root. Adds what is to be known of that.
///
/// # Errors
/// The interface is shaped by something with classes of its own, or nothing tells htb its rate.
pub(crate) fn place(
    netlink: &Netlink,
    link: &Link,
    config: &Config,
    notes: &mut Vec<String>,
) -> Result<Handle, Error> {
    notes.push("marking goes by the depth that `dcqcn run` reads a thousand times a second; start it on the interface".into());
    let shaping = netlink.shaping(link.index)?;
    let Some(root) = netlink.root_qdisc(link.index)?.filter(|root| root.handle != Handle::UNSPEC) else {
        return at_root(link, config, notes);
    };
    match (root.kind.as_str(), shaping.map(|shaping| shaping.shaper)) {
        ("tbf", Some(Shaper::Tbf)) => Ok(Handle::new(root.handle.major(), 1)),
        ("htb" | "hfsc" | "drr" | "ets" | "prio", _) => Err(Error::Unsupported(format!(
            "{} has the classes of {} {} already: remove it (`tc qdisc del dev {} root`), or attach without --queues and name \
             its classes with priority_major",
            link.name, root.kind, root.handle, link.name
        ))),
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
        notes
            .push(format!("htb holds the port to {rate}: packets wait in its queues, and not in the device"));
    } else if link.is_virtual() {
        notes.push(format!(
            "{} is virtual and takes packets at any rate: nothing waits in its queues unless a token bucket holds it (`tc qdisc \
             add dev {} root tbf ...` before attaching)",
            link.name, link.name
        ));
    }
    Ok(Handle::ROOT)
}

/// Puts the queues at `parent`; what is there has been saved.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn install(netlink: &Netlink, ifindex: u32, parent: Handle, config: &Config) -> net::Result<()> {
    let frame_bytes = frame_bytes(netlink, ifindex)?;
    let spec = if config.scalars.queues == QUEUES_HTB {
        QdiscSpec::Htb { default_minor: default_band(config) + 1, direct_qlen: 1_000 }
    } else {
        QdiscSpec::Ets(ets(config, frame_bytes))
    };
    if parent == Handle::ROOT {
        netlink.replace_root(ifindex, HANDLE, &spec)?;
    } else {
        netlink.replace_qdisc(ifindex, parent, HANDLE, &spec)?;
    }
    if config.scalars.queues == QUEUES_HTB {
        let rate_bps = if parent == Handle::ROOT { config.scalars.link_rate_bps } else { UNLIMITED_BPS };
        netlink.replace_htb_class(ifindex, &port_class(rate_bps, frame_bytes))?;
        put_htb_classes(netlink, ifindex, config, rate_bps, frame_bytes)?;
    }
    put_buffers(netlink, ifindex, config, frame_bytes)
}

/// Whether anything was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revised {
    /// Something was.
    Yes,
    /// Nothing had to be.
    No,
}

/// Has the queues of an attached interface be as `new` says. Packets that wait stay; where a queue becomes strict or weighted
/// they may be overtaken by those that come after.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn revise(ifindex: u32, old: &Config, new: &Config) -> net::Result<Revised> {
    let of = |config: &Config| {
        let limits = config.wred.map(|wred| (wred.queue_limit_bytes, wred.kmax_bytes));
        (config.queue, config.tc_to_queue, config.dscp_to_tc[0], config.scalars.link_rate_bps, limits)
    };
    if new.scalars.queues == QUEUES_NONE || of(old) == of(new) {
        return Ok(Revised::No);
    }
    let netlink = Netlink::connect()?;
    let qdiscs = netlink.qdiscs(ifindex)?;
    // Where somebody has taken them away there is nothing to revise; `dcqcn status` says so.
    let Some(there) = qdiscs.iter().find(|qdisc| qdisc.handle == HANDLE) else {
        return Ok(Revised::No);
    };
    let frame_bytes = frame_bytes(&netlink, ifindex)?;
    if new.scalars.queues == QUEUES_HTB {
        let rate_bps = if there.parent == Handle::ROOT { new.scalars.link_rate_bps } else { UNLIMITED_BPS };
        netlink.replace_htb_class(ifindex, &port_class(rate_bps, frame_bytes))?;
        put_htb_classes(&netlink, ifindex, new, rate_bps, frame_bytes)?;
    } else {
        netlink.replace_qdisc(ifindex, there.parent, HANDLE, &QdiscSpec::Ets(ets(new, frame_bytes)))?;
    }
    put_buffers(&netlink, ifindex, new, frame_bytes)?;
    Ok(Revised::Yes)
}

/// What waits in each queue and what it sent and dropped, by the queue's number. `None` where there is none: no traffic class
/// goes to it, the port has no queues, or somebody took them away.
pub type QueueStats = [Option<Stats>; CLASSES];

/// Reads [`QueueStats`].
///
/// # Errors
/// The kernel refuses.
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
            // Somebody took the queue, or the interface.
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

/// The class of queue `queue` (taken modulo 8).
#[must_use]
pub fn class(config: &Config, queue: usize) -> Handle {
    class_of(config.bands()[queue % CLASSES])
}

/// The class of a band.
const fn class_of(band: u8) -> Handle {
    Handle::new(QUEUES_MAJOR, band as u16 + 1)
}

/// The largest frame with its Ethernet header and one tag.
fn frame_bytes(netlink: &Netlink, ifindex: u32) -> net::Result<u64> {
    Ok(u64::from(netlink.link_by_index(ifindex)?.mtu) + 18)
}

/// The band of packets that the program has not put anywhere: that of DSCP 0.
fn default_band(config: &Config) -> u16 {
    let [tc, ..] = config.dscp_to_tc;
    let queue = config.tc_to_queue.get(usize::from(tc)).copied().unwrap_or(0);
    config.bands().get(usize::from(queue)).copied().unwrap_or(0).into()
}

/// What each weighted queue sends in its turn, by its number: `turn_bytes` for the least weight.
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

fn port_class(rate_bps: u64, frame_bytes: u64) -> HtbClass {
    let class = htb_class(PORT, rate_bps, frame_bytes);
    // All of its rate is guaranteed.
    HtbClass { parent: HANDLE, rate_bps, burst_bytes: class.cburst_bytes, ..class }
}

/// A class below [`PORT`] that takes what there is.
fn htb_class(handle: Handle, rate_bps: u64, frame_bytes: u64) -> HtbClass {
    HtbClass::sharing(PORT, handle, rate_bps, u32::try_from(frame_bytes).unwrap_or(u32::MAX))
}

fn put_htb_classes(
    netlink: &Netlink,
    ifindex: u32,
    config: &Config,
    rate_bps: u64,
    frame_bytes: u64,
) -> net::Result<()> {
    let strict = config.strict_queues();
    // A millisecond of the link's rate.
    let turn_bytes = (config.scalars.link_rate_bps / 8_000).clamp(frame_bytes, GSO_BYTES.max(frame_bytes));
    for (band, quantum_bytes) in config.bands().into_iter().zip(quanta_bytes(config, turn_bytes)) {
        // Strict bands one after the other, weighted ones in the last of htb's eight priorities, whatever their number: htb gives
        // a class that has packets waiting another priority only once it is empty.
        let priority = if band < strict { u32::from(band) } else { 7 };
        let class = HtbClass { quantum_bytes, priority, ..htb_class(class_of(band), rate_bps, frame_bytes) };
        netlink.replace_htb_class(ifindex, &class)?;
    }
    Ok(())
}

/// Gives each queue the buffer it may have.
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
        // A strict queue's weight means nothing, however small.
        (config.queue[6].scheduler, config.queue[6].weight) = (SCHEDULER_STRICT, 1);
        let ets = ets(&config, 1_500);
        assert_eq!(ets.strict, 1);
        // Queues 7, 5, 4, 3, 2, 1, 0 behind the strict one.
        assert_eq!(ets.quanta_bytes[1..], [1_500, 1_500, 1_500, 1_500, 1_500, 3_500, 5_000]);
        assert_eq!(ets.default_band, 7);
    }
}
