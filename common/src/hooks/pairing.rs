//! Which two QPs belong together, learned from the messages that connect them.
//!
//! REQ and REP each name their sender's QP; who sees both, on a host or on the way between two, knows the pair. DREQ,
//! DREP and REJ end it. (IBTA vol. 1, 12.6; see [`crate::wire::cm`].)

use super::{Env, Host, record, within};
use crate::classify::{QP_GSI, Roce};
use crate::events::EventKind;
use crate::flow::QpId;
use crate::layout::{Pair, PairSource, Time};
use crate::limit::Limit;
use crate::params::Params;
use crate::stats::Stat;
use crate::wire::bth::{Bth, Class, Opcode};
use crate::wire::cm::{Attribute, CommIds, Dreq, Mad, Rep, Req};
use crate::wire::ext::Deth;

/// How many pairs are learned: 1,000 a second, and 8,192 at once, as when a large job starts.
pub const LEARNING: Limit = Limit::new(1_000, 8_192);

/// Whether a packet carries a management datagram of the general services interface.
#[inline(always)]
#[must_use]
pub(super) fn is_management(roce: &Roce) -> bool {
    // The class first: it tells the verifier that nothing else gets here.
    roce.class == Class::Datagram && roce.dest_qpn == QP_GSI && roce.opcode == Opcode::UD_SEND_ONLY
}

/// Learns from a management datagram, if it is one of connection management.
#[inline(always)]
pub(super) fn snoop<'p, H: Host<'p>>(h: &mut H, p: &Params, roce: &Roce) {
    let at = roce.bth() + Bth::LEN + Deth::LEN;
    h.pull(at + Mad::LEN);
    let Some(mad) = h.header(at) else {
        return;
    };
    let mad = Mad::new(mad);
    if !mad.is_cm() {
        return;
    }
    let attribute = mad.attribute();
    let comm_ids = CommIds::parse(mad);
    let qpn = match attribute {
        Attribute::REQ => Req::parse(mad).local_qpn,
        Attribute::REP => Rep::parse(mad).local_qpn,
        Attribute::DREQ => Dreq::parse(mad).remote_qpn,
        Attribute::DREP | Attribute::REJ | Attribute::RTU | Attribute::MRA => 0,
        _ => return,
    };
    let Some((src, dst)) = roce.addresses(h) else {
        return;
    };
    let vlan = roce.vlan(h);
    h.env().count(Stat::CmMessages);
    let (sender, receiver) =
        (QpId { addr: src, qpn: comm_ids.local, vlan }, QpId { addr: dst, qpn: comm_ids.remote, vlan });
    match attribute {
        Attribute::REQ => h.env().set_named(&sender, qpn),
        Attribute::REP => {
            h.env().set_named(&sender, qpn);
            if let Some(asked_qpn) = h.env().named(&receiver) {
                h.env().count(Stat::PairCm);
                let source = PairSource::Cm as u32;
                learn(h, p, &QpId { addr: src, qpn, vlan }, Pair { qpn: asked_qpn, source, addr: dst });
                learn(h, p, &QpId { addr: dst, qpn: asked_qpn, vlan }, Pair { qpn, source, addr: src });
            }
        }
        Attribute::DREQ => forget(h, &QpId { addr: dst, qpn, vlan }, src),
        // These name no QP, only the connection, and an end that sent a REJ may not have named itself.
        Attribute::DREP | Attribute::REJ => {
            if let Some(qpn) = h.env().named(&receiver) {
                forget(h, &QpId { addr: dst, qpn, vlan }, src);
            }
        }
        _ => {}
    }
}

/// Enters what the messages say is at the other end of `id`, unless a more trusted source says something else.
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

/// Enters a pair, if not too many were recently: whoever makes them up is to push out the true ones slowly at most.
#[inline(always)]
pub(super) fn enter<'p, H: Host<'p>>(h: &mut H, p: &Params, id: &QpId, pair: Pair) {
    if within(h, Time::Pairs, &LEARNING) {
        h.env().learn_pair(id, pair);
        record(h, p, EventKind::FlowPaired, *id, [pair.qpn.into(), pair.source.into()]);
    } else {
        h.env().count(Stat::PairLimited);
    }
}

/// Removes the pair of `id` and the QP at `other_addr`, as far as messages made it known, and only if it is theirs: nobody else
/// ends a connection.
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
