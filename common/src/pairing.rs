//! Which two QPs belong together, learned from the messages that connect them.
//!
//! REQ and REP each name their sender's QP; who sees both, on a host or on the way between two, knows the pair. DREQ,
//! DREP and REJ end it. (IBTA vol. 1, 12.6; see [`crate::wire::cm`].)

use crate::classify::{QP_GSI, Roce};
use crate::events::EventKind;
use crate::flow::{QpId, set_index};
use crate::hooks::{Env, Host, record};
use crate::layout::{CM_SETS, CmFlow, Pair, PairSource};
use crate::params::Params;
use crate::stats::Stat;
use crate::wire::bth::{Bth, Class, Opcode};
use crate::wire::cm::{Attribute, CommIds, Dreq, Mad, Rep, Req};
use crate::wire::ext::Deth;

/// Whether a packet carries a management datagram of the general services interface.
#[inline(always)]
#[must_use]
pub fn is_management(roce: &Roce) -> bool {
    // The class first: it tells the verifier that nothing else gets here.
    roce.class == Class::Datagram && roce.dest_qpn == QP_GSI && roce.opcode == Opcode::UD_SEND_ONLY
}

/// Learns from a management datagram, if it is one of connection management.
#[inline(always)]
pub fn snoop<'p, H: Host<'p>>(h: &mut H, p: &Params, roce: &Roce) {
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
    h.env().count(Stat::CmMessages);
    let (sender, receiver) =
        (QpId { addr: src, qpn: comm_ids.local }, QpId { addr: dst, qpn: comm_ids.remote });
    match attribute {
        Attribute::REQ => note(h, p, sender, qpn),
        Attribute::REP => {
            note(h, p, sender, qpn);
            if let Some(asked_qpn) = noted(h, p, &receiver) {
                h.env().count(Stat::PairCm);
                learn(h, p, &QpId { addr: src, qpn }, asked_qpn);
                learn(h, p, &QpId { addr: dst, qpn: asked_qpn }, qpn);
            }
        }
        Attribute::DREQ => forget(h, &QpId { addr: dst, qpn }, src),
        // These name no QP, only the connection, and an end that sent a REJ may not have named itself.
        Attribute::DREP | Attribute::REJ => {
            if let Some(qpn) = noted(h, p, &receiver) {
                forget(h, &QpId { addr: dst, qpn }, src);
            }
        }
        _ => {}
    }
}

/// Keeps in mind which QP an end has named for a connection.
#[inline(always)]
fn note<'p, H: Host<'p>>(h: &mut H, p: &Params, id: QpId, qpn: u32) {
    let hash = id.hash(p.port.hash_seed);
    let last_seen_ns = h.env().now_ns().max(1);
    h.env().cm_set(
        set_index(hash, CM_SETS - 1),
        #[inline(always)]
        |set| {
            set.find(&id, hash);
            set.insert(hash, CmFlow { id, qpn, last_seen_ns });
        },
    );
}

/// Which QP an end has named for a connection.
#[inline(always)]
fn noted<'p, H: Host<'p>>(h: &mut H, p: &Params, id: &QpId) -> Option<u32> {
    let hash = id.hash(p.port.hash_seed);
    let qpn = h.env().cm_set(
        set_index(hash, CM_SETS - 1),
        #[inline(always)]
        |set| if set.find_known(id, hash) { set.ways[set.place().way].qpn } else { u32::MAX },
    )?;
    (qpn != u32::MAX).then_some(qpn)
}

/// Enters what the messages say is at the other end of `id`, unless a surer source says something else.
#[inline(always)]
fn learn<'p, H: Host<'p>>(h: &mut H, p: &Params, id: &QpId, qpn: u32) {
    let source = PairSource::Cm as u32;
    if let Some(known) = h.env().pair(id) {
        if known.qpn != qpn && known.source != source {
            h.env().count(Stat::PairConflict);
        }
        if known.source < source || known == (Pair { qpn, source }) {
            return;
        }
    }
    if h.env().set_pair(id, Pair { qpn, source }) {
        record(h, p, EventKind::FlowPaired, *id, [qpn.into(), source.into()]);
    }
}

/// Removes the pair of `id` and the QP at `other_addr`, as far as messages made it known.
#[inline(always)]
fn forget<'p, H: Host<'p>>(h: &mut H, id: &QpId, other_addr: [u32; 4]) {
    let source = PairSource::Cm as u32;
    let Some(pair) = h.env().pair(id).filter(|pair| pair.source == source) else {
        return;
    };
    h.env().forget_pair(id);
    let other = QpId { addr: other_addr, qpn: pair.qpn };
    if h.env().pair(&other).is_some_and(|back| back.source == source && back.qpn == id.qpn) {
        h.env().forget_pair(&other);
    }
}
