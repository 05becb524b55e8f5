//! Pairs of connected QPs, learned from connection management (CM) messages.
//!
//! REQ and REP each carry their sender's QPN, so an observer of both, at a host or on the path, learns the
//! pair. DREQ, DREP and REJ end it. (IBTA vol. 1, 12.6; see [`crate::wire::cm`].)

use super::{Env, Host, record, within};
use crate::classify::{QP_GSI, Roce};
use crate::events::EventKind;
use crate::flow::QpId;
use crate::layout::{Pair, PairSource, Time};
use crate::limit::Limit;
use crate::params::Params;
use crate::stats::Stat;
use crate::wire::bth::{Bth, Class, Opcode};
use crate::wire::cm::{Attribute, CommIds, Mad};
use crate::wire::ext::Deth;

/// Rate limit of learning in a network namespace: 1,000 pairs per second, with bursts of 8,192, as when a large job
/// starts.
pub const LEARNING: Limit = Limit::new(1_000, 8_192);

/// Whether a packet carries a management datagram of the general services interface.
#[inline(always)]
pub(super) fn is_management(roce: &Roce) -> bool {
    // Check the class first: from it the verifier derives that no other packet gets here.
    roce.class == Class::Datagram && roce.dest_qpn == QP_GSI && roce.opcode == Opcode::UD_SEND_ONLY
}

/// Learns QP pairs from a management datagram, if it is a CM message.
#[inline(always)]
pub(super) fn snoop<'p, H: Host<'p>>(h: &mut H, p: &Params, roce: &Roce) {
    let at = roce.bth() + Bth::LEN + Deth::LEN;
    h.pull(at + Mad::LEN);
    let Some(mad) = h.header(at) else { return };
    let mad = Mad::new(mad);
    if !mad.is_cm() {
        return;
    }
    let attribute = mad.attribute();
    let comm_ids = CommIds::parse(mad);
    let qpn = match attribute {
        Attribute::REQ => mad.req_qpn(),
        Attribute::REP => mad.rep_qpn(),
        Attribute::DREQ => mad.dreq_qpn(),
        Attribute::DREP | Attribute::REJ | Attribute::RTU | Attribute::MRA => 0,
        _ => return,
    };
    let Some((src, dst)) = roce.addresses(h) else { return };
    let vlan = roce.vlan;
    h.env().count(Stat::CmMessages);
    let (sender, receiver) =
        (QpId { addr: src, qpn: comm_ids.local, vlan }, QpId { addr: dst, qpn: comm_ids.remote, vlan });
    match attribute {
        Attribute::REQ => h.env().set_announced_qpn(&sender, qpn),
        Attribute::REP => {
            h.env().set_announced_qpn(&sender, qpn);
            if let Some(requester_qpn) = h.env().announced_qpn(&receiver) {
                h.env().count(Stat::PairCm);
                let source = PairSource::Cm as u32;
                learn(h, p, &QpId { addr: src, qpn, vlan }, Pair { qpn: requester_qpn, source, addr: dst });
                learn(h, p, &QpId { addr: dst, qpn: requester_qpn, vlan }, Pair { qpn, source, addr: src });
            }
        }
        Attribute::DREQ => forget(h, &QpId { addr: dst, qpn, vlan }, src),
        // These carry no QPN, only communication identifiers, and the sender of a REJ may not have
        // announced its QPN.
        Attribute::DREP | Attribute::REJ => {
            if let Some(qpn) = h.env().announced_qpn(&receiver) {
                forget(h, &QpId { addr: dst, qpn, vlan }, src);
            }
        }
        _ => {}
    }
}

/// Stores the pair of `id` learned from CM, unless a more trusted source reported another one.
#[inline(always)]
fn learn<'p, H: Host<'p>>(h: &mut H, p: &Params, id: &QpId, pair: Pair) {
    if let Some(known) = h.env().pair(id) {
        if known.qpn != pair.qpn && known.source != pair.source {
            h.env().count(Stat::PairConflict);
        }
        if known.source < pair.source || known == pair {
            return;
        }
    }
    enter(h, p, id, pair);
}

/// Stores a pair within the [`LEARNING`] limit, so that forged messages evict valid pairs only slowly.
#[inline(always)]
pub(super) fn enter<'p, H: Host<'p>>(h: &mut H, p: &Params, id: &QpId, pair: Pair) {
    if within(h, Time::PAIRS, &LEARNING) {
        h.env().learn_pair(id, pair);
        record(h, p, EventKind::FlowPaired, *id, [pair.qpn.into(), pair.source.into()]);
    } else {
        h.env().count(Stat::PairLimited);
    }
}

/// Removes the pair of `id` and the QP at `other_addr`, in both directions.
///
/// Only pairs learned from CM between exactly these two hosts, so that no third host can end a connection.
#[inline(always)]
fn forget<'p, H: Host<'p>>(h: &mut H, id: &QpId, other_addr: [u32; 4]) {
    let source = PairSource::Cm as u32;
    let Some(pair) = h.env().pair(id).filter(|pair| pair.source == source && pair.addr == other_addr) else {
        return;
    };
    h.env().forget_pair(id);
    let other = QpId { addr: other_addr, qpn: pair.qpn, vlan: id.vlan };
    if h.env().pair(&other).is_some_and(|back| back.source == source && back.qpn == id.qpn) {
        h.env().forget_pair(&other);
    }
}
