//! The event log, the same in both engines.

use dcqcn_common::classify::mapped;
use dcqcn_common::events::{Event, EventKind, Table};
use dcqcn_common::flow::QpId;
use dcqcn_common::layout::PairSource;
use dcqcn_common::params::{Config, PACER_FQ};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Opcode;
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_replay::{Hook, Meta};
use dcqcn_tests::both::{Both, LO, count};
use dcqcn_tests::packets::{self, CNP_TOS, Roce};

const SECOND_NS: u64 = 1_000_000_000;

/// A host whose tables have one set of eight flows.
fn host(test: &str, set: impl FnOnce(&mut Config)) -> Option<Both> {
    let mut config = Config::DEFAULT;
    config.scalars.link_rate_bps = SECOND_NS;
    config.scalars.pacer = PACER_FQ;
    set(&mut config);
    Both::load(test, 8, &config)
}

fn send(both: &mut Both, hook: Hook, now_ns: u64, frame: &[u8]) {
    both.process(hook, now_ns, frame, &Meta { ingress_ifindex: LO, ..Meta::default() });
}

fn qp(host: u8, qpn: u32) -> QpId {
    QpId { addr: mapped(packets::v4(host)), qpn, vlan: 0 }
}

fn event(kind: EventKind, at_ns: u64, id: QpId, values: [u64; 2]) -> Event {
    Event { at_ns, left_out: 0, id, kind: kind as u32, values }
}

#[test]
fn cut_event_has_resulting_rates() {
    let Some(mut both) = host("cut_event_has_resulting_rates", |_| {}) else { return };
    let data = Roce::default();
    send(&mut both, Hook::Egress, 1_000, &data.frame());
    send(&mut both, Hook::Ingress, 2_000, &data.cnp(None, CNP_TOS));
    // Within the interval of the last CNP, and for an unknown flow: no cut.
    send(&mut both, Hook::Ingress, 3_000, &data.cnp(None, CNP_TOS));
    send(&mut both, Hook::Ingress, SECOND_NS, &Roce { dest_qpn: 0x77, ..data }.cnp(None, CNP_TOS));
    let values = [SECOND_NS / 2, SECOND_NS];
    assert_eq!(both.state().events, [event(EventKind::RateCut, 2_000, qp(2, 0x11), values)]);
}

#[test]
fn horizon_event_recorded() {
    let Some(mut both) = host("horizon_event_recorded", |config| {
        config.scalars.pacing_horizon_ns = 1_000_000;
        config.scalars.pacing_horizon_drop = 1;
        config.scalars.rpg_time_reset_ns = 0;
        config.scalars.rate_reduce_monitor_period_ns = 0;
    }) else {
        return;
    };
    let data = Roce { payload: 4_096, ..Roce::default() };
    let frame = data.frame();
    send(&mut both, Hook::Egress, 1_000, &frame);
    for n in 0..20 {
        send(&mut both, Hook::Ingress, 2_000 + n, &data.cnp(None, CNP_TOS));
    }
    (0..4).for_each(|n| send(&mut both, Hook::Egress, 3_000 + n, &frame));
    let state = both.state();
    let dropped = count(&state, Hook::Egress, Stat::RpHorizonDrop);
    let reported: Vec<_> = state.events.iter().filter(|e| e.kind == EventKind::HorizonDrop as u32).collect();
    assert!(dropped > 0 && reported.len() as u64 == dropped, "{dropped}: {reported:?}");
    let last = event(EventKind::HorizonDrop, 3_003, qp(2, 0x11), [frame.len() as u64, 0]);
    assert_eq!(reported.last(), Some(&&last));
}

#[test]
fn eviction_event_in_both_tables() {
    let Some(mut both) = host("eviction_event_in_both_tables", |_| {}) else { return };
    for n in 0..9 {
        let data = Roce { dest_qpn: 0x100 + n, ..Roce::default() };
        // Spaced so far apart that no packet is delayed.
        let at_ns = 1_000 + u64::from(n) * 1_000_000;
        send(&mut both, Hook::Egress, at_ns, &data.frame());
        send(&mut both, Hook::Ingress, at_ns, &Roce { ecn: Ecn::CE, ..data }.frame());
    }
    let state = both.state();
    let full = |table| event(EventKind::TableFull, 8_001_000, qp(2, 0x108), [8_000_000, table as u64]);
    assert_eq!(state.events, [full(Table::Rp), full(Table::Np)]);
    assert_eq!(count(&state, Hook::Egress, Stat::RpFlowEvicted), 1);
    assert_eq!(count(&state, Hook::Ingress, Stat::NpFlowEvicted), 1);
}

#[test]
fn datagram_pair_recorded_once() {
    let Some(mut both) = host("datagram_pair_recorded_once", |_| {}) else { return };
    let datagram = Roce { opcode: Opcode::UD_SEND_ONLY, source_qpn: 0x32, ..Roce::default() };
    (0..3).for_each(|n| send(&mut both, Hook::Egress, 1_000 + n, &datagram.frame()));
    let values = [0x11, PairSource::Datagram as u64];
    assert_eq!(both.state().events, [event(EventKind::FlowPaired, 1_000, qp(1, 0x32), values)]);
}

#[test]
fn event_flood_limited_and_counted() {
    const CUTS: u64 = 300;
    let Some(mut both) = host("event_flood_limited_and_counted", |config| {
        config.scalars.event_rate = 10;
        config.scalars.rate_reduce_monitor_period_ns = 0;
    }) else {
        return;
    };
    let data = Roce::default();
    send(&mut both, Hook::Egress, SECOND_NS, &data.frame());
    // Three seconds of a CNP every 10 ms.
    (1..=CUTS)
        .for_each(|n| send(&mut both, Hook::Ingress, SECOND_NS + n * 10_000_000, &data.cnp(None, CNP_TOS)));
    let state = both.state();
    assert_eq!(count(&state, Hook::Ingress, Stat::RpCnpHandled), CUTS);
    let entries = state.events.len() as u64;
    assert!((38..=41).contains(&entries), "{entries}");
    assert_eq!(count(&state, Hook::Ingress, Stat::EventLost), CUTS - entries);
    let left_out = state.events.last().map(|event| u64::from(event.left_out));
    assert!(left_out > Some(240) && left_out <= Some(CUTS - entries), "{left_out:?}");

    let mut config = both.params.config;
    config.scalars.event_rate = 0;
    both.set_config(&config);
    send(&mut both, Hook::Ingress, 100 * SECOND_NS, &data.cnp(None, CNP_TOS));
    let after = both.state();
    assert_eq!(after.events, state.events);
    assert_eq!(count(&after, Hook::Ingress, Stat::EventLost), CUTS - entries);
}
