//! The reaction point.

use super::*;

fn paced(pacer: u64) -> Params {
    scalars(|s| (s.pacer, s.pacing_credit_ns) = (pacer, 0))
}

fn send(host: &mut MockHost, p: &Params, roce: &Roce) -> PacketOutcome {
    let (verdict, outcome) = host.egress(p, &roce.frame());
    assert_eq!(verdict, TcVerdict::Pass);
    outcome
}

/// A host that has sent these packets; its counters are 0.
fn host_after(p: &Params, sent: &[Roce]) -> MockHost {
    let mut host = MockHost::new();
    sent.iter().for_each(|roce| drop(send(&mut host, p, roce)));
    host.take_counted();
    host
}

fn cnp(host: &mut MockHost, p: &Params, roce: &Roce) -> TcVerdict {
    host.ingress(p, &roce.cnp(None)).0
}

fn flow<'a>(host: &'a mut MockHost, p: &Params, id: &FlowId) -> &'a mut RpHot {
    let (set, way) = host.set_and_way(p, id);
    &mut host.rp[set as usize].hot[way]
}

/// Flows of the same set as `DATA`'s, with the same primary way.
fn at_the_same_home(p: &Params) -> impl Iterator<Item = Roce> {
    let hash = |roce: &Roce| roce.id().hash(&p.port.hash_keys);
    let home = move |roce: &Roce| (set_index(hash(roce), p.port.rp_set_mask), hash(roce) >> 29);
    // One of 32.
    (100..1_000).map(|dest_qpn| Roce { dest_qpn, ..DATA }).filter(move |other| home(other) == home(&DATA))
}

/// Data of a flow with an even or odd hash, and that hash.
fn of_parity(p: &Params, parity: u32) -> (Roce, u32) {
    let data = (RECEIVER_QPN..).map(|dest_qpn| Roce { dest_qpn, ..DATA });
    let mut hashed = data.map(|data| (data, data.id().hash(&p.port.hash_keys)));
    hashed.find(|(_, hash)| hash % 2 == parity).unwrap_or_else(|| unreachable!("one of two"))
}

#[test]
fn cnp_cuts_only_its_flow() {
    for pacer in [PACER_FQ, PACER_HTB] {
        for roce in [DATA, Roce { v6: true, ..DATA }] {
            let p = paced(pacer);
            let other = Roce { dest_qpn: OTHER.dest_qpn, ..roce };
            let mut host = host_after(&p, &[roce, other]);
            assert_eq!(cnp(&mut host, &p, &roce), TcVerdict::Pass);
            assert_eq!(host.counted_once(), [Stat::RoceCnp, Stat::RpCnpHandled]);
            let rates = |host: &MockHost, roce: &Roce| host.flow(&roce.id()).map(|flow| flow.hot.rates());
            assert_eq!(rates(&host, &roce), Some([500_000_000, 1_000_000_000]));
            assert_eq!(rates(&host, &other), Some([1_000_000_000; 2]));
            let (id, values) = host.only_event(EventKind::RateCut);
            assert_eq!((id, values), (roce.id().receiver, [500_000_000, 1_000_000_000]));
            let (set, way) = host.set_and_way(&p, &roce.id());
            let cut = (pacer == PACER_HTB).then_some(Cut { set, way: way as u32 });
            assert_eq!(host.cuts, Vec::from_iter(cut));
        }
    }
}

/// A port whose hardware has the speed of its `link_rate`.
fn on_wire(pacer: u64) -> Params {
    let p = paced(pacer);
    let port = Port { wire_bps: p.config.scalars.link_rate_bps, ..p.port };
    Params::new(&p.config, port).unwrap_or_else(|invalid| panic!("{invalid}"))
}

#[test]
fn flow_at_wire_rate_needs_no_clock() {
    let p = on_wire(PACER_FQ);
    let mut host = host_after(&p, &[DATA]);
    let frame_ns = 8 * DATA.frame().len() as u64;
    // The first packet is on the wire; a coarse clock does not know that yet.
    (host.now_ns, host.coarse_lag_ns) = (host.now_ns + frame_ns, 1);
    host.clock_reads = 0;
    assert_eq!(send(&mut host, &p, &DATA).departure_ns, None);
    assert_ne!(host.clock_reads, 0);
    (host.now_ns, host.coarse_lag_ns, host.clock_reads) = (host.now_ns + frame_ns, 0, 0);
    let at_once = PacketContext { departure_ns: 77, ..HERE };
    for _ in 0..5 {
        let (verdict, outcome) = host.egress_with(&p, &DATA.frame(), at_once);
        assert_eq!((verdict, outcome.departure_ns), (TcVerdict::Pass, Some(0)));
        assert!(outcome.hash.is_some(), "fq needs a flow's hash");
    }
    send(&mut host, &p, &ACK);
    assert_eq!(host.clock_reads, 0);
    let flow = host.flow(&DATA.id()).unwrap().hot;
    assert_eq!((flow.packets, flow.bytes), (7, 7 * DATA.frame().len() as u64));
    assert_eq!(flow.last_seen_ns(), host.now_ns, "the flow is in use");
}

#[test]
fn first_cnp_at_wire_rate_leaves_no_credit() {
    let mut p = on_wire(PACER_FQ);
    p.hot.pacing_credit_ns = 1_000_000_000;
    let mut host = host_after(&p, &[DATA]);
    (host.now_ns, host.clock_reads) = (host.now_ns + SECOND_NS / 2, 0);
    send(&mut host, &p, &DATA);
    assert_eq!(host.clock_reads, 0);
    cnp(&mut host, &p, &DATA);
    send(&mut host, &p, &DATA);
    // Half of 1 Gbit/s from the CNP on.
    let next_ns = host.now_ns + 16 * DATA.frame().len() as u64;
    assert_eq!(send(&mut host, &p, &DATA).departure_ns, Some(next_ns));
}

#[test]
fn queued_packets_at_wire_rate_keep_order() {
    let p = on_wire(PACER_FQ);
    let mut host = host_after(&p, &[DATA]);
    cnp(&mut host, &p, &DATA);
    send(&mut host, &p, &DATA);
    // Recovered, with a packet of the slow time still queued.
    let state = flow(&mut host, &p, &DATA.id());
    (state.machine.rate_bps, state.machine.target_bps) = (p.rp.line_rate_bps, p.rp.line_rate_bps);
    let queued_until_ns = state.next_ns;
    assert!(queued_until_ns > host.now_ns);
    assert_eq!(send(&mut host, &p, &DATA).departure_ns, Some(queued_until_ns));
}

#[test]
fn link_slower_than_wire_is_paced() {
    let p = on_wire(PACER_FQ);
    assert!(p.hot.is_on(Switch::WirePaces));
    assert!(!on_wire(PACER_HTB).hot.is_on(Switch::WirePaces), "a flow's class orders its packets");
    let wire_paces = |config: &Config| Params::new(config, p.port).unwrap().hot.is_on(Switch::WirePaces);
    let mut limited = p.config;
    limited.scalars.rpg_max_rate_bps = limited.scalars.link_rate_bps - 1;
    assert!(!wire_paces(&limited), "`rpg_max_rate` is below the hardware's rate");
    let mut shaped = p.config;
    shaped.scalars.link_rate_bps -= 1;
    assert!(!wire_paces(&shaped));
    assert!(!paced(PACER_FQ).hot.is_on(Switch::WirePaces), "unknown hardware");
}

#[test]
fn cnp_with_sender_qpn_resolves_pair() {
    let p = paced(PACER_FQ);
    let mut host = host_after(&p, &[DATA]);
    let frame = DATA.cnp(Some(SENDER_QPN));
    assert_eq!(host.ingress(&p, &frame).0, TcVerdict::TrySiblings);
    assert_eq!(host.count_of(Stat::RpCnpUnknownFlow), 1);
    host.pairs.insert(qp(1, SENDER_QPN), Pair::new(RECEIVER_QPN, PairSource::Static));
    assert_eq!(host.ingress(&p, &frame).0, TcVerdict::Pass);
    assert_eq!(host.count_of(Stat::RpCnpHandled), 1);
}

#[test]
fn handled_cnp_consumed_if_enabled() {
    let p = scalars(|s| s.cnp_consume = 1);
    assert_eq!(cnp(&mut MockHost::new(), &p, &DATA), TcVerdict::TrySiblings);
    let mut host = host_after(&p, &[DATA]);
    assert_eq!(cnp(&mut host, &p, &DATA), TcVerdict::Drop);
    assert_eq!(host.counted_once(), [Stat::RoceCnp, Stat::RpCnpHandled]);
    host.now_ns += 1;
    assert_eq!(cnp(&mut host, &p, &DATA), TcVerdict::Drop);
    assert_eq!(host.counted_once(), [Stat::RoceCnp, Stat::RpCnpIgnored, Stat::RpCnpTooSoon]);
    // Of a sender behind this host.
    let forwarded = PacketContext { is_for_other_host: true, ..HERE };
    assert_eq!(host.ingress_with(&p, &DATA.cnp(None), forwarded).0, TcVerdict::Pass);
    host.take_counted();
    let mut damaged = DATA.cnp(None);
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(host.ingress(&p, &damaged).0, TcVerdict::Pass);
    assert_eq!(host.counted_once(), [Stat::RoceCnp, Stat::RpCnpIgnored, Stat::RpCnpInvalid]);
}

const fn tag(vid: u16) -> Option<VlanTagRepr> {
    Some(VlanTagRepr { pcp: 0, dei: false, vid, ethertype: EtherType::VLAN })
}

/// Packets of a flow.
fn packets(host: &MockHost, roce: &Roce) -> Option<u64> {
    host.flow(&roce.id()).map(|flow| flow.hot.packets)
}

/// CNPs that have cut a flow.
fn cut(host: &MockHost, roce: &Roce) -> Option<u32> {
    host.flow(&roce.id()).map(|flow| flow.cnps.handled)
}

/// Two tenants of one port, in VLANs 10 and 20, with equal addresses and QPNs.
#[test]
fn tenants_in_two_vlans_have_two_flows() {
    let p = paced(PACER_FQ);
    for v6 in [false, true] {
        let [a, b] = [10, 20].map(|vid| Roce { tag: tag(vid), v6, ..DATA });
        let mut host = host_after(&p, &[a, b, b]);
        assert_eq!([a, b].map(|roce| packets(&host, &roce)), [Some(1), Some(2)]);
        // A CNP cuts the flow with its own tag, whichever is in the packet and whichever next to it.
        cnp(&mut host, &p, &b);

        assert_eq!([a, b].map(|roce| cut(&host, &roce)), [Some(0), Some(1)]);
        let stripped = PacketContext { stripped_vid: 10, ..HERE };
        host.ingress_with(&p, &Roce { tag: None, ..a }.cnp(None), stripped);
        assert_eq!([a, b].map(|roce| cut(&host, &roce)), [Some(1), Some(1)]);
        assert_eq!(host.count_of(Stat::RpCnpOtherVlan), 0);
        // With a third tag it may belong to either, so it is ignored.
        host.take_counted();
        host.now_ns += 1_000_000;
        cnp(&mut host, &p, &Roce { tag: tag(30), ..a });
        assert_eq!(host.count_of(Stat::RpCnpUnknownFlow), 1);
        assert_eq!([a, b].map(|roce| cut(&host, &roce)), [Some(1), Some(1)]);
    }
}

/// Tenants with equal addresses and QPN share a set, whatever the size of the table.
#[test]
fn tenant_beyond_the_ways_passes_unpaced() {
    let p = paced(PACER_FQ);
    let tenant = |vid| Roce { tag: tag(vid), ..DATA };
    let tenants: Vec<Roce> = (1..=WAYS as u16).map(tenant).collect();
    let (mut host, late) = (host_after(&p, &tenants), tenant(WAYS as u16 + 1));
    for roce in &tenants {
        cnp(&mut host, &p, roce);
        assert_eq!(cut(&host, roce), Some(1));
    }
    host.take_counted();
    host.now_ns += SECOND_NS / 2;
    assert_eq!(send(&mut host, &p, &late), with_bytes(late.frame()));
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::RpTableFull]);
    // Its CNP cuts none of the others, of which none is the only one.
    cnp(&mut host, &p, &late);
    assert_eq!(host.count_of(Stat::RpCnpUnknownFlow), 1);
    assert!(tenants.iter().all(|roce| cut(&host, roce) == Some(1)));
    // A second after their last packets, it takes the slot of one.
    host.now_ns += SECOND_NS;
    send(&mut host, &p, &late);
    assert_eq!(packets(&host, &late), Some(1));
    assert_eq!(tenants.iter().filter(|roce| packets(&host, roce).is_some()).count(), WAYS - 1);
}

#[test]
fn cnp_with_another_tag_cuts_the_only_flow() {
    let p = paced(PACER_FQ);
    for (sent, answered) in [(tag(10), None), (None, tag(10)), (tag(10), tag(20))] {
        let roce = Roce { tag: sent, ..DATA };
        let mut host = host_after(&p, &[roce]);
        cnp(&mut host, &p, &Roce { tag: answered, ..DATA });
        assert_eq!(host.counted_once(), [Stat::RoceCnp, Stat::RpCnpHandled, Stat::RpCnpOtherVlan]);
        assert_eq!(host.only_event(EventKind::RateCut).0, roce.id().receiver, "the flow's VLAN");
        assert_eq!(cut(&host, &roce), Some(1));
    }
}

#[test]
fn priority_tag_is_no_vlan() {
    let p = paced(PACER_FQ);
    let host = host_after(&p, &[DATA, Roce { tag: tag(0), ..DATA }]);
    assert_eq!(packets(&host, &DATA), Some(2));
}

/// A learned pair applies to its VLAN; one added by the daemon to every VLAN.
#[test]
fn learned_pair_is_of_one_vlan() {
    let p = paced(PACER_FQ);
    let [a, b] = [10, 20].map(|vid| Roce { tag: tag(vid), ..DATA });
    for (source, is_handled) in
        [(PairSource::Cm, false), (PairSource::Rdma, true), (PairSource::Static, true)]
    {
        let mut host = host_after(&p, &[a, b]);
        let vlan = if source == PairSource::Cm { 10 } else { 0 };
        host.pairs.insert(QpId { vlan, ..qp(1, SENDER_QPN) }, Pair::new(RECEIVER_QPN, source));
        host.ingress(&p, &b.cnp(Some(SENDER_QPN)));
        assert_eq!(host.count_of(Stat::RpCnpHandled), u64::from(is_handled), "{source:?}");
        assert_eq!(cut(&host, &a), Some(0));
    }
}

/// 16 packets with a UDP payload of 1,056 bytes each in one buffer.
#[test]
fn super_packet_is_charged_by_segment() {
    const SEGMENT: usize = 1_056;
    let p =
        scalars(|s| (s.cp_enable, s.pacer, s.pacing_credit_ns, s.wire_overhead_bytes) = (1, PACER_FQ, 0, 24));
    let bth_at = 14 + 20 + 8;
    let roce = Roce { payload: 16 * SEGMENT - 12 - 4, ..DATA };
    let frame = roce.frame();
    assert_eq!(frame.len(), bth_at + 16 * SEGMENT);
    let bytes = 16 * (bth_at + SEGMENT) as u64;
    let mut host = MockHost::new();
    let context = PacketContext { segment_bytes: SEGMENT as u32, ..HERE };
    host.egress_with(&p, &frame, context);
    assert_eq!(host.take_counted(), [(Stat::RoceData, 16), (Stat::RpFlowNew, 1), (Stat::GsoPackets, 1)]);
    let class = host.counters.class[3];
    assert_eq!((class.packets, class.bytes, class.ect_packets), (16, bytes, 16));
    let wire_bytes = bytes + 16 * 24;
    assert!(p.drain[3].depth_bytes(host.queues[3], host.now_ns).abs_diff(wire_bytes) <= 1);
    let flow = host.flow(&roce.id()).map(|flow| (flow.hot.packets, flow.hot.bytes, flow.hot.next_ns));
    // A byte takes 8 ns.
    assert_eq!(flow, Some((16, bytes, host.now_ns + 8 * wire_bytes)));
    // One that is not full at its end is one more.
    let longer = Roce { payload: roce.payload + 1, ..roce };
    host.egress_with(&p, &longer.frame(), context);
    assert_eq!(host.count_of(Stat::RoceData), 17);
    let marked = Roce { ecn: Ecn::CE, ..roce };
    host.take_counted();
    host.ingress_with(&p, &marked.frame(), context);
    assert_eq!(host.count_of(Stat::NpEcnMarked), 16);
    // One CNP for all, then none within the interval.
    assert_eq!(host.count_of(Stat::NpCnpSuppressed), 15);
    host.ingress_with(&p, &marked.frame(), context);
    assert_eq!(host.count_of(Stat::NpCnpSuppressed), 31);
    let for_other = PacketContext { is_for_other_host: true, ..context };
    host.ingress_with(&p, &Roce { dest_qpn: OTHER.dest_qpn, ..marked }.frame(), for_other);
    assert_eq!(host.count_of(Stat::NpNotForHost), 16);
}

#[test]
fn segments_counted_whatever_delays_them() {
    type Case = (fn(&mut Scalars), fn(&mut MockHost), &'static [Stat]);
    let cases: [Case; 7] = [
        (|_| {}, |_| {}, &[Stat::RpPaced]),
        (|s| s.rpg_max_rate_bps = 10_000_000, |_| {}, &[Stat::RpHorizonPass]),
        (|s| (s.rpg_max_rate_bps, s.pacing_horizon_drop) = (10_000_000, 1), |_| {}, &[Stat::RpHorizonDrop]),
        (
            |_| {},
            |host| host.set_time(Time::paused_until(3), host.now_ns + 1_000),
            &[Stat::RpPaced, Stat::RpPfcHeld],
        ),
        (|_| {}, |host| host.set_storms(Storms { forwards: 0, drops: 8 }), &[Stat::PfcWatchdogDrop]),
        (|_| {}, |host| host.fill(&paced(PACER_FQ).rp, host.now_ns + 1), &[Stat::RpTableFull]),
        (
            |s| (s.cp_enable, s.pacer, s.queue_source) = (1, PACER_NONE, QUEUE_SOURCE_BACKLOG),
            |_| {},
            &[Stat::CpBacklogStale],
        ),
    ];
    // Four segments, which take longer than the horizon at 10 Mbit/s.
    let (large, context) = (Roce { payload: 2_000, ..DATA }, PacketContext { segment_bytes: 504, ..HERE });
    for (change, prepare, expected) in cases {
        let p = params(|config| {
            let s = &mut config.scalars;
            (s.pacer, s.pacing_credit_ns, s.pacing_horizon_ns) = (PACER_FQ, 0, 1_000_000);
            config.pfc[3].rx = 1;
            change(&mut config.scalars);
        });
        let mut host = MockHost::new();
        host.egress_with(&p, &large.frame(), context);
        prepare(&mut host);
        host.take_counted();
        host.egress_with(&p, &large.frame(), context);
        let counted = host.take_counted().into_iter().filter(|(_, packets)| *packets == 4);
        let counted: Vec<_> = counted.map(|(stat, _)| stat).collect();
        assert_eq!(counted, [&[Stat::RoceData], expected].concat());
        assert_eq!(host.counters.pause.held[3], if expected.contains(&Stat::RpPfcHeld) { 4 } else { 0 });
    }
    let from_process = PacketContext { is_from_process: true, ..context };
    let mut host = MockHost::new();
    host.egress_with(&paced(PACER_FQ), &large.frame(), from_process);
    assert_eq!(host.count_of(Stat::RpFromProcess), 4);
}

/// The ICRC is computed only if a flow is found: a forged CNP for none is unknown, whatever its ICRC.
#[test]
fn cnp_for_no_flow_needs_no_icrc() {
    let p = params(|_| {});
    let mut host = host_after(&p, &[DATA]);
    let unknown = Roce { dest_qpn: 0x99, ..DATA };
    for (roce, last, expected) in [
        (DATA, 1, Stat::RpCnpInvalid),
        (unknown, 1, Stat::RpCnpUnknownFlow),
        (unknown, 0, Stat::RpCnpUnknownFlow),
        (DATA, 0, Stat::RpCnpHandled),
    ] {
        let mut frame = roce.cnp(None);
        *frame.last_mut().unwrap() ^= last;
        host.ingress(&p, &frame);
        assert!(host.take_counted().contains(&(expected, 1)), "{expected:?}");
    }
}

#[test]
fn cnp_of_sibling_counted_once() {
    let (p, mut host) = (params(|_| {}), MockHost::new());
    assert_eq!(cnp(&mut host, &p, &DATA), TcVerdict::TrySiblings);
    assert_eq!(host.counted_once(), [Stat::RoceCnp, Stat::RpCnpIgnored, Stat::RpCnpUnknownFlow]);
    host.is_from_sibling = true;
    let result = |host: &mut MockHost, p| (cnp(host, p, &DATA), host.counted_once());
    assert_eq!(result(&mut host, &p), (TcVerdict::TrySiblings, vec![]));
    send(&mut host, &p, &DATA);
    host.take_counted();
    assert_eq!(result(&mut host, &p), (TcVerdict::Pass, vec![Stat::RpCnpHandled]));
    // Without reaction points here it passes unchanged.
    let off = scalars(|s| s.rp_enable = 0);
    assert_eq!(result(&mut host, &off), (TcVerdict::TrySiblings, vec![]));
    host.is_from_sibling = false;
    assert_eq!(result(&mut host, &off), (TcVerdict::Pass, vec![Stat::RoceCnp]));
}

#[test]
fn locked_flow_is_not_cut() {
    let p = params(|_| {});
    let mut host = host_after(&p, &[DATA]);
    flow(&mut host, &p, &DATA.id()).lock = 1;
    assert_eq!(cnp(&mut host, &p, &DATA), TcVerdict::TrySiblings);
    let unknown = [Stat::RoceCnp, Stat::RpCnpIgnored, Stat::RpCnpUnknownFlow, Stat::TableBusy];
    assert_eq!(host.counted_once(), unknown);
}

#[test]
fn flow_not_stored_without_line_rate() {
    let (p, mut host) = (scalars(|s| (s.link_rate_bps, s.pacer) = (0, PACER_FQ)), MockHost::new());
    assert_eq!(send(&mut host, &p, &DATA), with_bytes(DATA.frame()));
    assert_eq!(host.flow(&DATA.id()), None);
}

#[test]
fn udp_socket_traffic_is_not_a_flow() {
    let (p, mut host) = (paced(PACER_FQ), MockHost::new());
    let (_, outcome) = host.egress_with(&p, &DATA.frame(), PacketContext { is_from_process: true, ..HERE });
    assert_eq!(outcome, with_bytes(DATA.frame()));
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::RpFromProcess]);
    assert_eq!(host.flow(&DATA.id()), None);
}

/// At 1 Gbit/s a frame of data takes 8 ns a byte. The two sequences of a QP have separate hashes.
#[test]
fn data_paced_control_in_order() {
    let p = paced(PACER_FQ);
    let (roce, hash) = of_parity(&p, 1);
    let mut host = MockHost::new();
    let turn_ns = host.now_ns + roce.frame().len() as u64 * 8;
    let request = Roce { opcode: REQUEST.opcode, payload: 0, ..roce };
    let ack = Roce { opcode: ACK.opcode, payload: 0, ..roce };
    for (packet, hash, departure_ns, counted) in [
        (roce, hash, None, &[Stat::RoceData, Stat::RpFlowNew][..]),
        (roce, hash, Some(turn_ns), &[Stat::RoceData, Stat::RpPaced]),
        (request, hash, Some(turn_ns), &[Stat::RoceControl, Stat::RpInOrder]),
        (ack, hash ^ 1, None, &[Stat::RoceControl]),
    ] {
        let outcome = send(&mut host, &p, &packet);
        assert_eq!((outcome.hash, outcome.departure_ns, outcome.priority), (Some(hash), departure_ns, None));
        assert_eq!(host.counted_once(), counted);
    }
    assert_eq!(packets(&host, &roce), Some(2));
}

#[test]
fn departure_time_replaces_rxe_stamp() {
    let (p, mut host) = (paced(PACER_FQ), MockHost::new());
    let (_, outcome) = host.egress_with(&p, &DATA.frame(), PacketContext { departure_ns: 5, ..HERE });
    assert_eq!((outcome.departure_ns, host.count_of(Stat::RpPaced)), (Some(host.now_ns), 0));
}

#[test]
fn cut_flow_has_htb_class() {
    let p = paced(PACER_HTB);
    // In a set in which it is not first.
    let other = at_the_same_home(&p).next().unwrap_or_else(|| unreachable!("one of 32"));
    let mut host = host_after(&p, &[other]);
    let outcome = send(&mut host, &p, &DATA);
    assert_eq!((outcome.priority, outcome.departure_ns, outcome.hash), (None, None, None));
    cnp(&mut host, &p, &DATA);
    host.take_counted();
    let (set, way) = host.set_and_way(&p, &DATA.id());
    let minor = 0x100 + set * WAYS as u32 + way as u32;
    assert_eq!(send(&mut host, &p, &DATA).priority, Some(0xdc00_0000 | minor));
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::RpPaced]);
    assert_eq!(send(&mut host, &p, &REQUEST).priority, Some(0xdc00_0000 | minor));
    assert_eq!(host.counted_once(), [Stat::RoceControl, Stat::RpInOrder]);
    assert_eq!(send(&mut host, &p, &other).priority, None);
    // Without a pacer no cut is reported.
    assert_eq!(send(&mut host, &paced(PACER_NONE), &DATA), with_bytes(DATA.frame()));
}

#[test]
fn cut_flow_without_htb_class_counted() {
    // More flows than a qdisc has classes: those of the last sets have none.
    const MANY_SETS: u32 = 1 << 14;
    let mut p = paced(PACER_HTB);
    p.port.rp_set_mask = MANY_SETS - 1;
    let mut host = MockHost::new();
    host.rp.resize_with(MANY_SETS as usize, || RpSet::EMPTY);
    let set = |roce: &Roce| set_index(roce.id().hash(&p.port.hash_keys), p.port.rp_set_mask);
    let of_a_set = |is_it: &dyn Fn(u32) -> bool| {
        let mut all = (100..).map(|dest_qpn| Roce { dest_qpn, ..DATA });
        all.find(|roce| is_it(set(roce))).unwrap_or_else(|| unreachable!("one of two"))
    };
    let last = of_a_set(&|set| htb_minor(set, 0).is_none());
    let other = of_a_set(&|set| htb_minor(set, WAYS - 1).is_some());
    for roce in [&last, &other] {
        send(&mut host, &p, roce);
        cnp(&mut host, &p, roce);
    }
    host.take_counted();
    assert_eq!(send(&mut host, &p, &last).priority, None);
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::RpUnpaced]);
    assert!(send(&mut host, &p, &other).priority.is_some());
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::RpPaced]);
}

#[test]
fn htb_classes_end_with_their_handles() {
    let last = 0xffff - 1 - HTB_FIRST_FLOW;
    assert_eq!(htb_minor(0, 0), Some(HTB_FIRST_FLOW));
    assert_eq!(htb_minor(last / 8, (last % 8) as usize), Some(0xfffe));
    assert_eq!(htb_minor((last + 1) / 8, ((last + 1) % 8) as usize), None);
    assert_eq!(htb_minor(1 << 16, 0), None);
    // Every slot of the largest table has a class.
    assert!((0..HTB_MAX_FLOWS).all(|flow| htb_minor(flow / 8, (flow % 8) as usize).is_some()));
    for minor in [HTB_FIRST_FLOW, HTB_FIRST_FLOW + 1, 0x1234, 0xfffe] {
        let slot = htb_slot(minor);
        assert_eq!(slot.and_then(|(set, way)| htb_minor(set, way)), Some(minor));
        assert!(slot.is_some_and(|(_, way)| way < WAYS));
    }
    assert_eq!([HTB_FIRST_FLOW - 1, 0, 0xffff, 0x1_0000].map(htb_slot), [None; 4]);
}

#[test]
fn ud_datagram_makes_pair() {
    let p = paced(PACER_FQ);
    let mut host = host_after(&p, &[DATAGRAM]);
    let learned = Pair { qpn: RECEIVER_QPN, source: PairSource::Datagram as u32, addr: qp(2, 0).addr };
    assert_eq!(host.pairs.get(&qp(1, SENDER_QPN)), Some(&learned));
    let (id, values) = host.only_event(EventKind::FlowPaired);
    assert_eq!((id, values), (qp(1, SENDER_QPN), [RECEIVER_QPN.into(), PairSource::Datagram as u64]));
    // The first counts: of several receivers a CNP could mean any.
    send(&mut host, &p, &Roce { dest_qpn: OTHER.dest_qpn, ..DATAGRAM });
    assert_eq!(host.pairs.get(&qp(1, SENDER_QPN)), Some(&learned));
}

/// Two packets of a flow cut to 10 Mbit/s: the third is beyond a horizon of a millisecond.
fn beyond_the_horizon(pacing_horizon_drop: u64, last: &Roce) -> (MockHost, TcVerdict, PacketOutcome) {
    let p = scalars(|s| {
        (s.pacer, s.pacing_credit_ns, s.pacing_horizon_drop) = (PACER_FQ, 0, pacing_horizon_drop);
        (s.rpg_max_rate_bps, s.pacing_horizon_ns) = (10_000_000, 1_000_000);
    });
    let mut host = host_after(&p, &[Roce { payload: 2_000, dest_qpn: last.dest_qpn, ..DATA }]);
    let (verdict, outcome) = host.egress(&p, &last.frame());
    (host, verdict, outcome)
}

#[test]
fn beyond_horizon_leaves_at_horizon() {
    let (mut host, verdict, outcome) = beyond_the_horizon(0, &DATA);
    assert_eq!((verdict, outcome.departure_ns), (TcVerdict::Pass, Some(host.now_ns + 1_000_000)));
    assert!(outcome.hash.is_some());
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::RpHorizonPass]);
    assert!(host.events.is_empty());
    let last_ns = host.flow(&DATA.id()).map(|flow| flow.hot.last_ns);
    assert_eq!(last_ns, Some([host.now_ns + 1_000_000, 0]));
}

#[test]
fn response_beyond_horizon_keeps_order() {
    for parity in 0..2 {
        let (data, hash) = of_parity(&paced(PACER_FQ), parity);
        let response = Roce { opcode: Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, ..data };
        let (host, _, outcome) = beyond_the_horizon(0, &response);
        assert_eq!((outcome.hash, host.count_of(Stat::RpHorizonPass)), (Some(hash ^ 1), 1));
    }
}

#[test]
fn beyond_horizon_dropped_if_enabled() {
    let (mut host, verdict, outcome) = beyond_the_horizon(1, &DATA);
    assert_eq!((verdict, outcome.departure_ns), (TcVerdict::Drop, None));
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::RpHorizonDrop]);
    assert_eq!(host.only_event(EventKind::HorizonDrop), (DATA.id().receiver, [DATA.frame().len() as u64, 0]));
    assert_eq!(host.flow(&DATA.id()).map(|flow| flow.hot.last_ns), Some([host.now_ns, 0]), "it never leaves");
}

/// As in a virtual machine whose CPU was stopped with the flow locked.
#[test]
fn contended_flow_keeps_order() {
    for pacer in [PACER_FQ, PACER_HTB] {
        let p = paced(pacer);
        let mut host = host_after(&p, &[DATA, DATA]);
        cnp(&mut host, &p, &DATA);
        let state = flow(&mut host, &p, &DATA.id());
        (state.lock, state.last_ns) = (1, [2 * SECOND_NS, 3 * SECOND_NS]);
        state.next_ns = 4 * SECOND_NS;
        host.take_counted();
        let turns = [(DATA, 4 * SECOND_NS), (REQUEST, 2 * SECOND_NS), (ACK, 3 * SECOND_NS)];
        for (roce, departure_ns) in turns {
            let outcome = send(&mut host, &p, &roce);
            let is_fq = pacer == PACER_FQ;
            assert_eq!(outcome.departure_ns, is_fq.then_some(departure_ns));
            assert_eq!(outcome.priority.is_some(), !is_fq, "it was cut");
            assert_eq!(host.count_of(Stat::TableBusy), 1);
            host.take_counted();
        }
        let state = flow(&mut host, &p, &DATA.id());
        (state.machine.active, state.next_ns) = (0, 8 * SECOND_NS);
        let at_horizon_ns = host.now_ns + p.hot.pacing_horizon_ns;
        let departure_ns = (pacer == PACER_FQ).then_some(at_horizon_ns);
        assert_eq!(send(&mut host, &p, &DATA).departure_ns, departure_ns, "not beyond the horizon");
        host.now_ns = 8 * SECOND_NS;
        let outcome = send(&mut host, &p, &DATA);
        assert_eq!((outcome.departure_ns, outcome.priority), (None, None), "nothing waits, nothing was cut");
    }
}

/// The first is in its primary way, the second in the neighbouring way, the others in any empty way.
#[test]
fn displaced_flow_found_again() {
    let (p, mut host) = (paced(PACER_FQ), MockHost::new());
    let flows: Vec<Roce> = at_the_same_home(&p).take(WAYS - 1).chain([DATA]).collect();
    flows.repeat(3).iter().for_each(|roce| drop(send(&mut host, &p, roce)));
    let counted = [Stat::RpFlowNew, Stat::RpFlowEvicted].map(|stat| host.count_of(stat));
    assert_eq!((flows.len(), counted), (WAYS, [8, 0]));
    let home = host.set_and_way(&p, &flows[0].id()).1;
    let ways: Vec<usize> = flows.iter().map(|flow| host.set_and_way(&p, &flow.id()).1 ^ home).collect();
    assert_eq!(ways, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(flows.iter().all(|flow| packets(&host, flow) == Some(3)));
}

#[test]
fn full_set_evicts_longest_silent_or_none() {
    let (p, mut host) = (paced(PACER_FQ), MockHost::new());
    host.fill(&p.rp, SECOND_NS / 2);
    // A QP that sends no data needs no slot.
    send(&mut host, &p, &REQUEST);
    assert_eq!(host.counted_once(), [Stat::RoceControl]);
    send(&mut host, &p, &DATA);
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::RpFlowNew, Stat::RpFlowEvicted]);
    let (id, values) = host.only_event(EventKind::TableFull);
    assert_eq!((id, values), (DATA.id().receiver, [SECOND_NS / 2, Table::Rp as u64]));
    let mut host = MockHost::new();
    host.fill(&p.rp, 2 * SECOND_NS);
    let outcome = send(&mut host, &p, &DATA);
    assert_eq!(outcome, with_bytes(DATA.frame()));
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::RpTableFull]);
    send(&mut host, &p, &REQUEST);
    assert_eq!(host.counted_once(), [Stat::RoceControl]);
}

#[test]
fn locked_set_admits_no_flow() {
    let (p, mut host) = (paced(PACER_FQ), MockHost::new());
    host.rp.iter_mut().for_each(|set| set.lock = 1);
    send(&mut host, &p, &DATA);
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::TableBusy]);
    assert_eq!(host.flow(&DATA.id()), None);
}
