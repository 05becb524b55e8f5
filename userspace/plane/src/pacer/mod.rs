//! Who holds packets back until their departure time.
//!
//! `fq` takes the time from the packet. Where the kernel has no fq, HTB has one class per QP, chosen by the packet's
//! priority; the classes and their rates are kept by [`htb`].

pub mod htb;

use dcqcn_common::params::{Config, PACER_FQ, Quantity, Unit};
use dcqcn_netlink::tc::{Handle, HtbClass, QdiscSpec, kernel_has_qdisc};
use dcqcn_netlink::{self as net, Netlink};
use dcqcn_params::PacerChoice;

use crate::Error;

/// Major number of the HTB pacer's qdisc.
pub const HTB_MAJOR: u16 = 0xdc00;
/// The port as a whole: no flow leaves faster than the line.
const PORT: Handle = Handle::new(HTB_MAJOR, 0xffff);
/// What has no class of its own: flows never cut, and everything that is not RoCE.
const REST: Handle = Handle::new(HTB_MAJOR, 1);
/// Guaranteed to every class, so small that all of them share what the port has: bit/s.
const GUARANTEED_BPS: u64 = 8_000;

/// fq's limits: with the default of 100 packets a flow, the ACKs and READ responses of soft-RoCE are dropped, for which
/// it has no back-pressure.
const FQ_LIMIT: u32 = 40_000;
const FQ_FLOW_LIMIT: u32 = 20_000;
/// fq's own default horizon; the programs stay below it.
const FQ_HORIZON_NS: u64 = 10_000_000_000;

/// The pacer for `choice`, and why.
///
/// # Errors
/// The kernel lacks what was asked for.
pub fn choose(choice: PacerChoice, rp_enable: bool) -> Result<(PacerChoice, String), Error> {
    let pacer = |pacer, why: &str| Ok((pacer, why.to_owned()));
    match choice {
        PacerChoice::None => {
            pacer(PacerChoice::None, "pacer none, as asked: rates are computed, not enforced")
        }
        _ if !rp_enable => pacer(PacerChoice::None, "pacer none: nothing is paced without rp_enable"),
        PacerChoice::Fq if !kernel_has_qdisc("fq")? => Err(Error::Pacer { qdisc: "fq" }),
        PacerChoice::Htb if !kernel_has_qdisc("htb")? => Err(Error::Pacer { qdisc: "htb" }),
        PacerChoice::Fq => pacer(PacerChoice::Fq, "pacer fq, as asked"),
        PacerChoice::Htb => pacer(PacerChoice::Htb, "pacer htb, as asked: `dcqcn run` must keep its classes"),
        PacerChoice::Auto if kernel_has_qdisc("fq")? => {
            pacer(PacerChoice::Fq, "pacer fq: departure times are kept by the qdisc itself")
        }
        PacerChoice::Auto if kernel_has_qdisc("htb")? => pacer(
            PacerChoice::Htb,
            "pacer htb: this kernel has no fq; start `dcqcn run` on the interface, it keeps a class per QP",
        ),
        PacerChoice::Auto => pacer(
            PacerChoice::None,
            "pacer none: this kernel has neither fq nor htb, rates are computed but not enforced",
        ),
    }
}

/// Puts the pacer's qdisc at the root of an interface whose old one has been saved.
///
/// # Errors
/// The kernel refuses.
pub fn install(netlink: &Netlink, ifindex: u32, config: &Config, notes: &mut Vec<String>) -> net::Result<()> {
    if config.scalars.pacer == PACER_FQ {
        if netlink.root_qdisc(ifindex)?.is_some_and(|root| root.kind == "fq" && root.handle != Handle::UNSPEC)
        {
            notes.push("the fq that is there is kept, with its own limits".into());
            return Ok(());
        }
        let fq = QdiscSpec::Fq {
            limit: FQ_LIMIT,
            flow_limit: FQ_FLOW_LIMIT,
            horizon_ns: FQ_HORIZON_NS,
            horizon_drop: true,
        };
        return netlink.replace_root(ifindex, Handle::UNSPEC, &fq);
    }
    let line_bps = config.line_rate_bps();
    let mtu_bytes = netlink.link_by_index(ifindex)?.mtu;
    let htb = QdiscSpec::Htb { default_minor: REST.minor(), direct_qlen: 1_000 };
    netlink.replace_root(ifindex, Handle::new(HTB_MAJOR, 0), &htb)?;
    let root = Handle::new(HTB_MAJOR, 0);
    for class in port_classes(line_bps, mtu_bytes) {
        netlink.replace_htb_class(ifindex, &class)?;
    }
    notes.push(format!("htb {root} holds the port to {}", Quantity(line_bps, Unit::BitsPerSecond)));
    Ok(())
}

/// The classes every port has, for a line of this rate: the port as a whole, and what has no class of its own.
fn port_classes(line_bps: u64, mtu_bytes: u32) -> [HtbClass; 2] {
    let root = Handle::new(HTB_MAJOR, 0);
    let port = HtbClass { parent: root, rate_bps: line_bps, ..class(PORT, line_bps, mtu_bytes) };
    // First in line, so that what a flow sent before its first cut leaves before what it sends after.
    let rest = HtbClass { priority: 0, ..class(REST, line_bps, mtu_bytes) };
    [port, rest]
}

/// A class below [`PORT`] that sends at `rate_bps` and no faster.
fn class(handle: Handle, rate_bps: u64, mtu_bytes: u32) -> HtbClass {
    let frame_bytes = mtu_bytes.saturating_add(22);
    // What passes in the time between two looks of the kernel at its queue, 100 us, and two frames at least.
    let burst_bytes = u32::try_from(rate_bps / 8 / 10_000).unwrap_or(u32::MAX).max(2 * frame_bytes);
    HtbClass {
        parent: PORT,
        handle,
        rate_bps: GUARANTEED_BPS,
        ceil_bps: rate_bps,
        burst_bytes,
        cburst_bytes: burst_bytes,
        quantum_bytes: frame_bytes,
        priority: 1,
    }
}
