//! The notification point.

use super::*;

const INTERVAL_NS: u64 = 50_000;
const MARKED_DATAGRAM: Roce = Roce { ecn: Ecn::CE, ..DATAGRAM };
const TAG: VlanTagRepr = VlanTagRepr { pcp: 3, dei: true, vid: 0x0a77, ethertype: EtherType::VLAN };

fn clone_mark(host: &mut MockHost, p: &Params, roce: &Roce) -> Option<u32> {
    host.ingress(p, &roce.frame()).1.clone_mark
}

/// A host that has received a marked packet and, 10 ns later, another one, which is pending.
fn host_with_pending_mark(p: &Params) -> MockHost {
    let mut host = MockHost::new();
    clone_mark(&mut host, p, &MARKED);
    host.now_ns += 10;
    clone_mark(&mut host, p, &MARKED);
    host
}

/// A host whose NP table is full of flows of host 9's, which `change` changes by way.
fn host_with_full_table(change: impl Fn(u64, &mut NpFlow)) -> MockHost {
    let mut host = MockHost::new();
    for set in &mut host.np {
        for (way, flow) in (0..).zip(&mut set.ways) {
            let receiver = QpId { addr: [8; 4], qpn: way, vlan: 0 };
            *flow = NpFlow::new(FlowId { src: [9; 4], receiver });
            change(way.into(), flow);
        }
    }
    host
}

#[test]
fn first_mark_of_interval_answered() {
    let (p, mut host) = (params(|_| {}), MockHost::new());
    assert_eq!(clone_mark(&mut host, &p, &MARKED), Some(p.port.cnp_mark));
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::NpEcnMarked]);
    assert_eq!(host.time(Time::NP_PENDING), 0);
    host.now_ns += INTERVAL_NS - 1;
    assert_eq!(clone_mark(&mut host, &p, &MARKED), None);
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::NpEcnMarked, Stat::NpCnpSuppressed]);
    assert_eq!(host.time(Time::NP_PENDING), host.now_ns);
    host.now_ns += 1;
    assert_eq!(clone_mark(&mut host, &p, &MARKED), Some(p.port.cnp_mark));
    let flow = host.np_flow(&MARKED.id()).copied();
    assert_eq!(flow.map(|flow| (flow.ecn_marked_packets, flow.cnp_sent, flow.pending)), Some((3, 2, 0)));
}

#[test]
fn unmarked_or_control_not_answered() {
    let p = params(|_| {});
    let ack = Roce { opcode: Opcode::RC_ACKNOWLEDGE, ..MARKED };
    let management = Roce { dest_qpn: 1, ..MARKED };
    for (roce, stat) in [(DATA, Stat::RoceData), (ack, Stat::RoceControl), (management, Stat::RoceControl)] {
        let mut host = MockHost::new();
        assert_eq!(clone_mark(&mut host, &p, &roce), None);
        assert_eq!((host.counted_once(), host.np_flow(&roce.id())), (vec![stat], None));
    }
}

#[test]
fn ect_answered_while_host_is_congested() {
    let p = scalars(|s| s.np_host_congestion = 1);
    let off = params(|_| {});
    let until_ns = 60 * SECOND_NS;
    let answered = |p: &Params, roce: &Roce, now_ns| {
        let mut host = MockHost::new();
        host.now_ns = now_ns;
        host.set_time(Time::HOST_CONGESTED_UNTIL, until_ns);
        clone_mark(&mut host, p, roce).is_some()
    };
    assert!(answered(&p, &DATA, until_ns - 1));
    assert!(!answered(&p, &DATA, until_ns), "the daemon has stopped");
    assert!(!answered(&off, &DATA, until_ns - 1));
    assert!(!answered(&p, &NOT_ECT, until_ns - 1));
    assert_eq!(clone_mark(&mut MockHost::new(), &p, &DATA), None, "never reported");
}

/// The CNP interval bounds the answers to congestion of the host too.
#[test]
fn host_congestion_answered_once_per_interval() {
    let (p, mut host) = (scalars(|s| s.np_host_congestion = 1), MockHost::new());
    host.set_time(Time::HOST_CONGESTED_UNTIL, u64::MAX);
    let answers = [0, 1, INTERVAL_NS - 2, 1].map(|ns| {
        host.now_ns += ns;
        clone_mark(&mut host, &p, &DATA).is_some()
    });
    assert_eq!(answers, [true, false, false, true]);
    assert_eq!(host.count_of(Stat::NpEcnMarked), 0, "only real marks are counted");
}

/// A mark within the interval is answered when the interval is over, by the next packet of its flow.
#[test]
fn pending_mark_answered_by_unmarked_packet() {
    let both = params(|_| {});
    let start = scalars(|s| s.np_window = NP_WINDOW_START);
    for (p, is_answered) in [(&both, true), (&start, false)] {
        let mut host = host_with_pending_mark(p);
        host.take_counted();
        host.now_ns += INTERVAL_NS - 11;
        assert_eq!(clone_mark(&mut host, p, &DATA), None);
        assert_eq!(host.counted_once(), [Stat::RoceData]);
        host.now_ns += 1;
        // Another flow has no pending mark, and is not inserted.
        assert_eq!(clone_mark(&mut host, p, &OTHER), None);
        assert_eq!((host.counted_once(), host.np_flow(&OTHER.id())), (vec![Stat::RoceData], None));
        assert_eq!(clone_mark(&mut host, p, &DATA), is_answered.then_some(p.port.cnp_mark));
        assert_eq!(host.count_of(Stat::NpCnpWindowEnd), u64::from(is_answered));
        assert_eq!(clone_mark(&mut host, p, &DATA), None, "once");
    }
}

/// After a pause of four intervals an old mark is meaningless.
#[test]
fn pending_mark_expires_after_four_intervals() {
    for (interval_ns, wait_ns, is_answered) in [
        (INTERVAL_NS, 4 * INTERVAL_NS - 1, true),
        (INTERVAL_NS, 4 * INTERVAL_NS, false),
        (INTERVAL_NS, SECOND_NS - 1, false),
        // The largest interval.
        (SECOND_NS, 4 * SECOND_NS - 1, true),
        (SECOND_NS, 4 * SECOND_NS, false),
    ] {
        let p = scalars(|s| s.min_time_between_cnps_ns = interval_ns);
        let mut host = host_with_pending_mark(&p);
        host.now_ns += wait_ns;
        assert_eq!(clone_mark(&mut host, &p, &DATA), is_answered.then_some(p.port.cnp_mark), "{wait_ns}");
        assert_eq!(host.np_flow(&MARKED.id()).map(|flow| flow.pending), Some(0));
    }
}

/// Another flow's marks keep the port's time recent, but not those of an idle flow.
#[test]
fn pending_mark_expires_under_other_marks() {
    let p = params(|_| {});
    let mut host = host_with_pending_mark(&p);
    let other = Roce { ecn: Ecn::CE, ..OTHER };
    host.now_ns += 600 * SECOND_NS;
    clone_mark(&mut host, &p, &other);
    clone_mark(&mut host, &p, &other);
    assert_eq!(clone_mark(&mut host, &p, &DATA), None);
    host.now_ns += INTERVAL_NS;
    assert_eq!(clone_mark(&mut host, &p, &OTHER), Some(p.port.cnp_mark));
}

#[test]
fn unmarked_port_reads_no_clock() {
    let p = params(|_| {});
    let mut host = host_with_pending_mark(&p);
    let pending_ns = host.now_ns;
    host.now_ns = pending_ns + SECOND_NS - 1;
    clone_mark(&mut host, &p, &DATA);
    assert_eq!(host.time(Time::NP_PENDING), pending_ns);
    host.now_ns += 1;
    clone_mark(&mut host, &p, &DATA);
    assert_eq!(host.time(Time::NP_PENDING), 0);
}

#[test]
fn mark_at_time_zero_is_pending() {
    let (p, mut host) = (params(|_| {}), MockHost::new());
    host.now_ns = 0;
    clone_mark(&mut host, &p, &MARKED);
    clone_mark(&mut host, &p, &MARKED);
    assert_eq!(host.time(Time::NP_PENDING), 1);
}

#[test]
fn group_and_other_host_not_answered() {
    let own = params(|_| {});
    let others = scalars(|s| s.np_other_host = 1);
    let answers = |p: &Params, first: u8, is_for_other_host| {
        let mut host = MockHost::new();
        let frame = Roce { dst_mac: [first, 0, 0, 0, 0, 2], ..MARKED }.frame();
        let (_, outcome) = host.ingress_with(p, &frame, PacketContext { is_for_other_host, ..HERE });
        let is_answered = outcome.clone_mark.is_some();
        assert_eq!(host.count_of(Stat::NpNotForHost), u64::from(!is_answered));
        is_answered
    };
    assert!(answers(&own, 2, false) && answers(&others, 2, false) && answers(&others, 2, true));
    assert!(!answers(&own, 2, true));
    for first in [1, 3] {
        assert!(!answers(&own, first, false));
        assert!(!answers(&others, first, false) && !answers(&others, first, true));
    }
    // Nor with an invalid address, whatever the frame's address.
    const SRC_AT: usize = 26;
    const DST_AT: usize = 30;
    const SRC_MAC_AT: usize = 6;
    for (at, addr) in [
        (DST_AT, &[239, 1, 1, 1][..]),
        (DST_AT, &[127, 0, 0, 1]),
        (SRC_AT, &[0; 4]),
        (SRC_AT, &[255; 4]),
        (SRC_MAC_AT, &[1, 0, 0x5e, 1, 1, 1]),
        (SRC_MAC_AT, &[0xff; 6]),
    ] {
        let mut frame = MARKED.frame();
        frame[at..at + addr.len()].copy_from_slice(addr);
        let mut host = MockHost::new();
        assert_eq!(host.ingress(&others, &frame).1.clone_mark, None, "{at} {addr:?}");
        assert_eq!(host.count_of(Stat::NpNotForHost), 1);
    }
    // An unmarked packet for another host is ignored.
    let mut host = MockHost::new();
    host.set_time(Time::NP_PENDING, host.now_ns);
    host.ingress_with(&own, &DATA.frame(), PacketContext { is_for_other_host: true, ..HERE });
    assert_eq!(host.counted_once(), [Stat::RoceData]);
}

/// Within the interval no CNP can follow, so neither routing table nor lock is needed; the next CNP looks
/// again, because the address may have moved.
#[test]
fn routing_table_read_once_per_cnp() {
    let (p, mut host) = (params(|_| {}), MockHost::new());
    clone_mark(&mut host, &p, &MARKED);
    let moved = PacketContext { is_for_other_host: true, ..HERE };
    host.take_counted();
    host.ingress_with(&p, &MARKED.frame(), moved);
    assert_eq!(host.count_of(Stat::NpCnpSuppressed), 1);
    let locks = host.np_locks;
    clone_mark(&mut host, &p, &DATA);
    assert_eq!(host.np_locks, locks);
    host.now_ns += INTERVAL_NS;
    assert_eq!(host.ingress_with(&p, &MARKED.frame(), moved).1.clone_mark, None);
    assert_eq!(host.count_of(Stat::NpNotForHost), 1);
}

#[test]
fn full_set_evicts_longest_silent() {
    let p = params(|_| {});
    let mut host = host_with_full_table(|way, flow| flow.last_seen_ns = SECOND_NS / 2 + way);
    assert_eq!(clone_mark(&mut host, &p, &MARKED), Some(p.port.cnp_mark));
    assert_eq!(host.count_of(Stat::NpFlowEvicted), 1);
    let (id, values) = host.only_event(EventKind::TableFull);
    assert_eq!((id, values), (MARKED.id().receiver, [SECOND_NS / 2, Table::Np as u64]));
    host.events.clear();
    clone_mark(&mut host, &p, &MARKED);
    assert_eq!((host.count_of(Stat::NpFlowEvicted), host.events.len()), (1, 0));
}

#[test]
fn live_cnp_interval_is_not_evicted() {
    let p = params(|_| {});
    let interval_ns = p.config.scalars.min_time_between_cnps_ns;
    let answered = |age_ns: u64| {
        let mut host = host_with_full_table(|_, flow| {
            (flow.last_seen_ns, flow.last_cnp_ns, flow.cnp_sent) = (SECOND_NS, SECOND_NS - age_ns, 1);
        });
        let is_answered = clone_mark(&mut host, &p, &MARKED).is_some();
        assert_eq!(host.count_of(Stat::NpCnpSuppressed), u64::from(!is_answered));
        is_answered
    };
    assert!(!answered(0) && !answered(interval_ns - 1) && answered(interval_ns));
}

#[test]
fn unmarked_packet_of_unknown_flow_ends_early() {
    let (p, mut host) = (params(|_| {}), MockHost::new());
    host.set_time(Time::NP_PENDING, host.now_ns);
    host.ingress(&p, &DATA.frame());
    assert_eq!((host.counted_once(), host.np_locks), (vec![Stat::RoceData], 0));
    clone_mark(&mut host, &p, &MARKED);
    host.ingress(&p, &DATA.frame());
    assert_eq!(host.np_locks, 1, "of the marked packet");
    host.now_ns += INTERVAL_NS;
    host.ingress(&p, &DATA.frame());
    assert_eq!(host.np_locks, 2, "its interval is over");
}

#[test]
fn events_recorded_only_if_enabled() {
    let (p, mut host) = (scalars(|s| s.event_rate = 0), MockHost::new());
    host.pairs.insert(qp(1, SENDER_QPN), Pair::new(RECEIVER_QPN, PairSource::Static));
    let frame = Roce { source_qpn: 5, ..DATAGRAM }.frame();
    host.egress(&p, &frame);
    assert!(host.pairs.contains_key(&qp(1, 5)) && host.events.is_empty());
}

#[test]
fn limited_and_failed_cnps_counted() {
    let (p, mut host) = (params(|_| {}), MockHost::new());
    host.set_time(Time::CNPS, host.now_ns + p.cnps.burst_ns + 1);
    assert_eq!(clone_mark(&mut host, &p, &MARKED), None);
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::NpEcnMarked, Stat::NpCnpLimited]);
    let unlimited = scalars(|s| s.cnp_rate = 0);
    host.now_ns += INTERVAL_NS;
    assert!(clone_mark(&mut host, &unlimited, &MARKED).is_some());
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::NpEcnMarked]);
    host.now_ns += SECOND_NS;
    host.ingress_with(&p, &MARKED.frame(), PacketContext { no_clone: Some(Cloned::Failed), ..HERE });
    assert_eq!(host.counted_once(), [Stat::RoceData, Stat::NpEcnMarked, Stat::NpCnpFailed]);
    // Each has used up its time.
    assert_eq!(host.time(Time::CNPS), host.now_ns + p.cnps.gap_ns);
}

/// A CNP that the limit or the kernel prevented is sent with the next packet, marked or not.
#[test]
fn cnp_not_sent_leaves_the_interval_unused() {
    let p = params(|_| {});
    let used_up = |host: &MockHost| host.now_ns + p.cnps.burst_ns + 1;
    for (sent_before, next) in [(0, MARKED), (0, DATA), (1, MARKED), (1, DATA)] {
        for no_clone in [None, Some(Cloned::Failed), Some(Cloned::Unseen)] {
            let mut host = MockHost::new();
            if sent_before != 0 {
                clone_mark(&mut host, &p, &MARKED);
                host.now_ns += INTERVAL_NS;
            }
            let before_ns = host.np_flow(&MARKED.id()).map_or(0, |flow| flow.last_cnp_ns);
            if no_clone.is_none() {
                host.set_time(Time::CNPS, used_up(&host));
            }
            host.take_counted();
            host.ingress_with(&p, &MARKED.frame(), PacketContext { no_clone, ..HERE });
            let refused = match no_clone {
                Some(Cloned::Unseen) => Stat::NpCloneUnseen,
                Some(_) => Stat::NpCnpFailed,
                None => Stat::NpCnpLimited,
            };
            assert_eq!(host.count_of(refused), 1);
            let flow = host.np_flow(&MARKED.id()).copied();
            let flow = flow.map(|flow| (flow.cnp_sent, flow.pending, flow.last_cnp_ns));
            assert_eq!(flow, Some((sent_before, 1, before_ns)));
            host.now_ns += 1;
            host.set_time(Time::CNPS, 0);
            if no_clone == Some(Cloned::Unseen) {
                assert_eq!(clone_mark(&mut host, &p, &next), None, "no clone for a second");
                host.now_ns += SECOND_NS;
                assert_eq!(clone_mark(&mut host, &p, &MARKED), Some(p.port.cnp_mark));
                continue;
            }
            assert_eq!(clone_mark(&mut host, &p, &next), Some(p.port.cnp_mark), "{sent_before} {no_clone:?}");
        }
    }
}

#[test]
fn interval_per_qp_peer_or_port() {
    let assert_stored = |cnp_limit, roce: &Roce, id: FlowId| {
        let (p, mut host) = (scalars(|s| s.cnp_limit = cnp_limit), MockHost::new());
        clone_mark(&mut host, &p, roce);
        assert!(host.np_flow(&id).is_some(), "{cnp_limit}");
    };
    assert_stored(0, &MARKED, MARKED.id());
    // A datagram QP receives from many senders: there the QP is the sender's.
    assert_stored(0, &MARKED_DATAGRAM, FlowId { src: addr(false, 2), receiver: qp(1, SENDER_QPN) });
    for roce in [MARKED, MARKED_DATAGRAM] {
        assert_stored(CNP_LIMIT_PEER, &roce, FlowId { src: addr(false, 1), receiver: QpId::NONE });
        assert_stored(CNP_LIMIT_PORT, &roce, FlowId::NONE);
    }
}

/// A clone of a marked packet.
fn clone_of(p: &Params) -> PacketContext {
    PacketContext { mark: p.port.cnp_mark, ..HERE }
}

#[test]
fn clone_becomes_cnp() {
    let p = scalars(|s| s.priority_major = 1);
    let tags = [(false, None), (false, Some(TAG)), (true, None), (true, Some(TAG))];
    for ((v6, tag), (opcode, is_known)) in tags.into_iter().flat_map(|link| {
        [(MARKED.opcode, false), (MARKED.opcode, true), (DATAGRAM.opcode, false)].map(|sender| (link, sender))
    }) {
        let roce = Roce { v6, tag, opcode, ..MARKED };
        let mut host = MockHost::new();
        if is_known {
            host.pairs.insert(roce.id().receiver, Pair::new(SENDER_QPN, PairSource::Static));
        }
        let (verdict, outcome) = host.egress_with(&p, &roce.frame(), clone_of(&p));
        let sender = (is_known || opcode == DATAGRAM.opcode).then_some(SENDER_QPN);
        let tag = tag.map(|tag| VlanTagRepr { pcp: 6, ..tag });
        let cnp = Roce { tag, ..roce }.cnp(sender);
        // DSCP 48 is class 6, in queue 6.
        let (priority, tag_priority) = (Some(0x0001_0007), Some(6));
        let expected = PacketOutcome { priority, tag_priority, ..with_bytes(cnp.clone()) };
        assert_eq!((verdict, outcome), (TcVerdict::EnqueueAgain, expected));
        let again = PacketContext { is_enqueued_again: true, ..HERE };
        assert_eq!(host.egress_with(&p, &cnp, again), (TcVerdict::Pass, with_bytes(cnp)));
        let hinted = sender.is_none().then_some(Stat::NpCnpHinted);
        assert_eq!(host.counted_once(), Vec::from_iter([Stat::NpCnpSent].into_iter().chain(hinted)));
    }
}

/// A copy that a switch floods must not move its receiver to this port.
#[test]
fn cnp_for_other_host_has_port_address() {
    const PORT: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
    const LOCAL: [u8; 6] = [0, 0, 0, 0, 0, 0x77];
    let receiver = MARKED.frame()[..6].to_vec();
    let source = |other_host: u64, mark: u32| {
        let mut p = scalars(|s| s.np_other_host = other_host);
        p.port.mac = PORT;
        let context = PacketContext { mark: p.port.cnp_mark | mark, ..HERE };
        MockHost::new().egress_with(&p, &MARKED.frame(), context).1.bytes[6..12].to_vec()
    };
    assert_eq!(source(0, 0), receiver);
    assert_eq!(source(1, 0), PORT);
    // Its own address would be a loop to a bridge.
    assert_eq!((source(0, 1), source(1, 1)), (LOCAL.to_vec(), LOCAL.to_vec()));
}

/// A VLAN device's `egress-qos-map` translates the priority of a frame that has no tag yet.
#[test]
fn cnp_has_its_priority_without_tag_and_queues() {
    let p = scalars(|s| s.cnp_802p_prio = 5);
    let context = PacketContext { priority: 3, ..clone_of(&p) };
    let (_, outcome) = MockHost::new().egress_with(&p, &MARKED.frame(), context);
    assert_eq!(outcome.priority, Some(5));
}

#[test]
fn tenants_in_two_vlans_have_two_cnp_intervals() {
    for limit in [CNP_LIMIT_QP, CNP_LIMIT_PEER] {
        let (p, mut host) = (scalars(|s| s.cnp_limit = limit), MockHost::new());
        for vid in [10, 20] {
            let context = PacketContext { stripped_vid: vid, ..HERE };
            let outcome = host.ingress_with(&p, &MARKED.frame(), context).1;
            assert_eq!(outcome.clone_mark, Some(p.port.cnp_mark), "{vid}");
        }
        // Two tags: the outer is next to the packet.
        let outer = PacketContext { stripped_vid: 20, ..HERE };
        let inner = Roce { tag: Some(TAG), ..MARKED };
        assert_eq!(host.ingress_with(&p, &inner.frame(), outer).1.clone_mark, Some(p.port.cnp_mark));
        // Three: its inner ones alone would be another tenant's.
        let mut inner = inner.frame();
        inner.splice(12..12, [0x88, 0xa8, 0, 5]);
        assert_eq!(host.ingress_with(&p, &inner, outer).1.clone_mark, None);
        assert_eq!(host.count_of(Stat::VlanTooDeep), 1);
    }
}

/// QPN 0x11 was host 9's peer, and is reused for a connection that was not observed.
#[test]
fn pair_of_another_host_leaves_the_hint() {
    let p = params(|_| {});
    let pair = |host| Pair { qpn: SENDER_QPN, source: PairSource::Cm as u32, addr: qp(host, 0).addr };
    for (pair, sender) in [(pair(9), None), (pair(1), Some(SENDER_QPN))] {
        let mut host = MockHost::new();
        host.pairs.insert(MARKED.id().receiver, pair);
        let (_, outcome) = host.egress_with(&p, &MARKED.frame(), clone_of(&p));
        assert_eq!(outcome.bytes, MARKED.cnp(sender));
        assert_eq!(host.count_of(Stat::PairConflict), u64::from(sender.is_none()));
    }
}

/// A user-space sender on this machine, or in a virtual machine on it.
#[test]
fn cnp_checksum_is_completed_like_its_data() {
    let p = params(|_| {});
    let sum = |bytes: &[u8]| -> u16 {
        let words =
            bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| (*low).into()));
        let sum = words.sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    };
    for (v6, addresses, udp) in [(false, 26..34, 34), (true, 22..54, 54)] {
        let pseudo_header = |frame: &[u8]| {
            let length = &frame[udp + 4..udp + 6];
            sum(&[&frame[addresses.clone()], &[0, 17], length].concat())
        };
        let roce = Roce { v6, ..MARKED };
        for is_partial in [true, false] {
            let mut data = roce.frame();
            let checksum = pseudo_header(&data) ^ u16::from(!is_partial);
            data[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
            let (_, PacketOutcome { bytes: mut cnp, .. }) =
                MockHost::new().egress_with(&p, &data, clone_of(&p));
            if is_partial {
                // As `skb_checksum_help` does.
                let checksum = !sum(&cnp[udp..]);
                cnp[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
                let covered = [&pseudo_header(&cnp).to_be_bytes(), &cnp[udp..]].concat();
                assert_eq!(sum(&covered), 0xffff);
                cnp[udp + 6..udp + 8].fill(0);
            }
            assert_eq!(cnp, roce.cnp(None), "{v6} {is_partial}");
        }
    }
}

/// A sender without `dcqcn run` does not have the pair; a NIC ignores the hint.
#[test]
fn cnp_of_kernel_pair_has_both_qpns() {
    let (p, mut host) = (params(|_| {}), MockHost::new());
    host.pairs.insert(MARKED.id().receiver, Pair::new(SENDER_QPN, PairSource::Rdma));
    let (_, outcome) = host.egress_with(&p, &MARKED.frame(), clone_of(&p));
    let cnp = outcome.bytes[Ethernet::LEN..].first_chunk().and_then(cnp::parse_v4);
    assert_eq!(cnp, Some(Cnp { dest_qpn: SENDER_QPN, hint: RECEIVER_QPN }));
    assert_eq!(host.counted_once(), [Stat::NpCnpSent]);
}

#[test]
fn unusable_clone_dropped() {
    let p = params(|_| {});
    let tagged = Roce { tag: Some(TAG), ..MARKED };
    let failures = [
        (MARKED, PacketContext { no_rebuild: true, ..clone_of(&p) }),
        (Roce { v6: true, ..MARKED }, PacketContext { no_rebuild: true, ..clone_of(&p) }),
        (tagged, PacketContext { no_write_from: 14, ..clone_of(&p) }),
    ];
    for (roce, context) in failures {
        let mut host = MockHost::new();
        assert_eq!(host.egress_with(&p, &roce.frame(), context).0, TcVerdict::Drop);
        assert_eq!((host.count_of(Stat::WriteFailed), host.count_of(Stat::NpCnpSent)), (1, 0));
    }
    // Without a tag nothing is written there.
    let (verdict, outcome) =
        MockHost::new().egress_with(&p, &MARKED.frame(), PacketContext { no_write_from: 14, ..clone_of(&p) });
    assert_eq!((verdict, outcome.bytes), (TcVerdict::EnqueueAgain, MARKED.cnp(None)));
}

#[test]
fn foreign_mark_does_not_become_cnp() {
    let p = scalars(|s| s.rp_enable = 0);
    let ack = Roce { opcode: Opcode::RC_ACKNOWLEDGE, ..MARKED };
    for (roce, mark) in [(MARKED, 0), (MARKED, 1), (MARKED, 0x1234), (ack, p.port.cnp_mark)] {
        let (verdict, outcome) =
            MockHost::new().egress_with(&p, &roce.frame(), PacketContext { mark, ..HERE });
        assert_eq!((verdict, outcome.bytes, outcome.mark), (TcVerdict::Pass, roce.frame(), mark), "{mark}");
    }
}

/// The CNP takes the way of the receiver's own, from the port on which those arrive.
#[test]
fn fast_cnp_is_received_on_the_egress_port() {
    let p = params(|_| {});
    let context = PacketContext { mark: p.port.cnp_mark | 1, ingress_ifindex: 5, ..HERE };
    let mut host = MockHost::new();
    let (verdict, outcome) = host.egress_with(&p, &MARKED.frame(), context);
    assert_eq!(verdict, TcVerdict::Receive);
    assert_eq!((outcome.bytes, outcome.mark), (MARKED.cnp(None), 0));
    assert_eq!(host.count_of(Stat::NpCnpSent), 1);
}
