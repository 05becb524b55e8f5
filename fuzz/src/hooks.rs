//! The three hooks over a history.

use std::collections::HashMap;

use dcqcn_common::classify::{Roce, classify};
use dcqcn_common::flow::FlowId;
use dcqcn_common::params::{Config, PACER_FQ, Params, Port};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Stream;
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_common::wire::icrc;
use dcqcn_common::wire::ipv4::Ipv4;
use dcqcn_loader::dataplane::Sizes;
use dcqcn_replay::{Engine as _, Hook, Meta, Outcome, Reference, Verdict};
use dcqcn_tests::both::LO;

use crate::cursor::{Cursor, Step, config};

/// Departure of the last packet of each sequence.
type Last = HashMap<(FlowId, bool), u64>;

/// Runs a history through the reference engine and checks its invariants.
pub(crate) fn run(bytes: &[u8]) {
    let sizes = Sizes { rp_flows: 16, np_flows: 16 };
    let port = Port::new(LO, sizes.rp_sets(), sizes.np_sets());
    let mut active = config(bytes.first().copied().unwrap_or(0));
    let params = |config: &Config| Params::new(config, port).expect("parameters in range");
    let mut engine = Reference::new(sizes, &params(&active), 1);
    let mut cursor = Cursor::new(bytes, 1_000_000_000);
    let mut last = Last::new();
    while let Some(step) = cursor.next() {
        match step {
            Step::Params(config) => {
                active = *config;
                engine.set_params(&params(&active)).expect("the reference engine never fails");
                last.clear();
            }
            Step::Packet { hook, frame, meta } => {
                let lost = lost_flows(&engine);
                let outcome = engine.process(hook, cursor.now_ns, &frame, &meta);
                let outcome = outcome.expect("the reference engine never fails");
                check_drop(hook, &frame, &meta, &outcome, &active);
                check_bytes(hook, &frame, &meta, &outcome);
                for cnp in &outcome.emitted {
                    check_cnp(cnp);
                }
                if lost_flows(&engine) != lost {
                    last.clear();
                } else if hook == Hook::Egress && active.scalars.pacer == PACER_FQ {
                    check_order(&mut last, cursor.now_ns, &outcome);
                }
            }
        }
    }
}

/// Whether flows were evicted or not inserted: their last departures are unknown then.
fn lost_flows(engine: &Reference) -> [u64; 3] {
    let counters = engine.counters().expect("the reference engine never fails");
    let stat = &counters[Hook::Egress.slot()].stat;
    [Stat::RpFlowEvicted, Stat::RpTableFull, Stat::TableBusy].map(|which| stat[which as usize])
}

fn check_drop(hook: Hook, frame: &[u8], meta: &Meta, outcome: &Outcome, config: &Config) {
    if outcome.verdict != Verdict::Drop {
        return;
    }
    let s = &config.scalars;
    let roce = classify(&mut { frame }).expect("only RoCE packets are dropped");
    let reasons = [
        s.drop_not_ect != 0 && roce.ecn() == Ecn::NOT_ECT && hook == Hook::Egress,
        s.pacing_horizon_drop != 0 && roce.congests() && hook == Hook::Egress,
        s.cnp_consume != 0 && roce.is_cnp() && hook == Hook::Ingress,
        // A clone of the data plane's own that cannot become a CNP.
        meta.mark | 1 == 0x0dcc_0a01 && roce.congests() && hook == Hook::Egress,
    ];
    assert!(reasons.contains(&true), "dropped at {hook:?}: {frame:02x?}");
}

/// A packet leaves unchanged, except for its ECN field and IPv4's checksum, which stays correct if it was.
fn check_bytes(hook: Hook, frame: &[u8], meta: &Meta, outcome: &Outcome) {
    let becomes_a_cnp = meta.mark | 1 == 0x0dcc_0a01 && hook == Hook::Egress;
    if becomes_a_cnp || outcome.packet == frame {
        return;
    }
    let roce = classify(&mut { frame }).expect("only RoCE packets are changed");
    assert!(hook == Hook::Egress && roce.ecn().is_ect(), "only ECT is marked, and only here");
    assert_eq!(outcome.packet.len(), frame.len());
    let marked = classify(&mut &outcome.packet[..]).expect("still RoCE");
    assert_eq!(marked, Roce { tos: roce.tos | Ecn::CE.bits(), ..roce });
    let changed = outcome.packet.iter().zip(frame).enumerate().filter(|(_, (new, old))| new != old);
    let allowed: &[usize] = if roce.v6 { &[0, 1] } else { &[1, 10, 11] };
    assert!(changed.into_iter().all(|(at, _)| at >= roce.l3 && allowed.contains(&(at - roce.l3))));
    let is_right = |bytes: &[u8]| -> Option<bool> {
        Some(Ipv4::new(bytes.get(roce.l3..)?.first_chunk()?).checksum_ok())
    };
    if !roce.v6 && is_right(frame) == Some(true) {
        assert_eq!(is_right(&outcome.packet), Some(true), "IPv4's checksum");
    }
}

fn check_cnp(cnp: &Outcome) {
    if cnp.verdict == Verdict::Drop {
        return;
    }
    let roce = classify(&mut &cnp.packet[..]).expect("a CNP is RoCE");
    assert!(roce.is_cnp() && cnp.mark == 0 && roce.ecn() == Ecn::NOT_ECT);
    assert!(icrc::verify(&cnp.packet[roce.l3..]));
}

/// No packet of a sequence departs before one that was sent earlier.
fn check_order(last: &mut Last, now_ns: u64, outcome: &Outcome) {
    let frame = &outcome.packet[..];
    let Ok(roce) = classify(&mut &outcome.packet[..]) else { return };
    if !roce.is_sequenced() || outcome.verdict != Verdict::Pass {
        return;
    }
    let flow = roce.flow(&frame).expect("addresses");
    let is_response = roce.class.stream() == Stream::Responses;
    let leaves_ns = outcome.departure_ns.max(now_ns);
    let before_ns = last.insert((flow, is_response), leaves_ns).unwrap_or(0);
    assert!(
        leaves_ns >= before_ns,
        "{:?} of {flow:?} leaves at {leaves_ns}, the one before at {before_ns}",
        roce.opcode
    );
}
