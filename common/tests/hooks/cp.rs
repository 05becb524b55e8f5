//! The congestion point.

use super::*;

/// Class 3 marks above 1,000 bytes, at random up to 2,000.
fn marks(config: &mut Config) {
    let s = &mut config.scalars;
    (s.cp_enable, s.rp_enable, s.queue_source) = (1, 0, QUEUE_SOURCE_BACKLOG);
    let wred = &mut config.wred[3];
    (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (1_000, 2_000, 1_000_000);
}

/// As [`marks`], with changed scalars.
fn marking(change: impl FnOnce(&mut Scalars)) -> Params {
    params(|config| {
        marks(config);
        change(&mut config.scalars);
    })
}

/// Verdict on a packet at this depth, and its counters.
fn egress_at_depth(
    bytes: u64,
    p: &Params,
    roce: &Roce,
    context: PacketContext,
) -> (TcVerdict, PacketOutcome, Vec<(Stat, u64)>) {
    let mut host = MockHost::with_backlog(bytes);
    let (verdict, outcome) = host.egress_with(p, &roce.frame(), context);
    let marked = host.count_of(Stat::CpEcnMarked);
    assert_eq!(host.counters.class[3].ecn_marked_packets, marked);
    (verdict, outcome, host.take_counted())
}

const TAG: VlanTagRepr = VlanTagRepr { pcp: 3, dei: false, vid: 77, ethertype: EtherType::VLAN };

#[test]
fn deep_queue_marks_only_ecn() {
    let p = marking(|_| {});
    for roce in [DATA, Roce { v6: true, ..DATA }, Roce { tag: Some(TAG), ..DATA }] {
        let (verdict, outcome, counted) = egress_at_depth(2_001, &p, &roce, HERE);
        assert_eq!(verdict, TcVerdict::Pass);
        assert_eq!(outcome, with_bytes(Roce { ecn: Ecn::CE, ..roce }.frame()));
        assert_eq!(counted, [(Stat::RoceData, 1), (Stat::CpEcnMarked, 1)]);
    }
}

#[test]
fn shallow_queue_does_not_mark() {
    let p = marking(|_| {});
    for (depth_bytes, roce) in [(1_000, DATA), (2_001, MARKED)] {
        let (_, outcome, counted) = egress_at_depth(depth_bytes, &p, &roce, HERE);
        assert_eq!((outcome.bytes, counted), (roce.frame(), vec![(Stat::RoceData, 1)]));
    }
    let mut host = MockHost::new();
    host.backlogs[6] = Backlog { bytes: 1 << 20, read_at_ns: host.now_ns };
    let cnp = DATA.cnp(Some(1));
    let (_, outcome) = host.egress(&p, &cnp);
    assert_eq!((outcome.bytes, host.take_counted()), (cnp, vec![(Stat::RoceCnp, 1)]));
}

#[test]
fn not_ect_dropped_above_kmax_if_enabled() {
    let passed = vec![(Stat::RoceData, 1), (Stat::CpNotEct, 1)];
    for (drop, bytes) in [(0, 2_001), (1, 2_000), (0, 2_000)] {
        let p = marking(|s| s.drop_not_ect = drop);
        let (verdict, outcome, counted) = egress_at_depth(bytes, &p, &NOT_ECT, HERE);
        assert_eq!((verdict, outcome.bytes), (TcVerdict::Pass, NOT_ECT.frame()), "{drop}");
        assert_eq!(counted, passed);
    }
    let p = marking(|s| s.drop_not_ect = 1);
    let (verdict, _, counted) = egress_at_depth(2_001, &p, &NOT_ECT, HERE);
    assert_eq!(verdict, TcVerdict::Drop);
    assert_eq!(counted, [(Stat::RoceData, 1), (Stat::CpNotEct, 1), (Stat::CpNotEctDropped, 1)]);
}

/// 1,000 packets at once, none of which leaves in the meantime.
#[test]
fn dropped_packets_do_not_fill_virtual_queue() {
    let frame = NOT_ECT.frame();
    let (p, mut host) = (marking(|s| (s.queue_source, s.drop_not_ect) = (0, 1)), MockHost::new());
    for _ in 0..1_000 {
        host.egress(&p, &frame);
    }
    let wire_bytes = frame.len() as u64 + p.config.scalars.wire_overhead_bytes;
    let depth_bytes = p.drain[3].depth_bytes(host.queues[3], host.now_ns);
    assert!((2_000..=2_000 + wire_bytes).contains(&depth_bytes), "{depth_bytes}");
    assert_eq!(host.count_of(Stat::CpNotEctDropped), 1_000 - (2_000 / wire_bytes + 1));
    // If it passes, it occupies the line.
    let mut host = MockHost::new();
    let p = marking(|s| s.queue_source = 0);
    for _ in 0..10 {
        host.egress(&p, &frame);
    }
    assert!(p.drain[3].depth_bytes(host.queues[3], host.now_ns) > 9 * frame.len() as u64);
}

#[test]
fn failed_mark_not_counted() {
    let p = marking(|_| {});
    let v6 = Roce { v6: true, ..DATA };
    // The field itself; the checksum behind it.
    for (roce, no_write_from) in [(DATA, 15), (DATA, 24), (v6, 14)] {
        let (verdict, outcome, counted) =
            egress_at_depth(2_001, &p, &roce, PacketContext { no_write_from, ..HERE });
        assert_eq!((verdict, counted), (TcVerdict::Pass, vec![(Stat::RoceData, 1), (Stat::WriteFailed, 1)]));
        assert_eq!(outcome.bytes == roce.frame(), no_write_from != 24);
    }
}

#[test]
fn classes_count_packets_bytes_and_ect() {
    let (p, mut host) = (marking(|_| {}), MockHost::new());
    let small = Roce { payload: 4, ecn: Ecn::NOT_ECT, ..DATA };
    let frames = [DATA.frame(), small.frame(), Roce { opcode: Opcode::RC_ACKNOWLEDGE, ..MARKED }.frame()];
    for frame in &frames {
        host.egress(&p, frame);
    }
    let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
    let expected = ClassCounters { packets: 3, bytes, ect_packets: 2, ecn_marked_packets: 0 };
    assert_eq!(host.counters.class[3], expected);
}

/// A byte takes a nanosecond, which is 64 ticks.
#[test]
fn each_port_class_has_its_queue() {
    let p = marking(|s| (s.link_rate_bps, s.wire_overhead_bytes) = (8_000_000_000, 24));
    let frame = DATA.frame();
    let expected = |queue: usize, now_ns: u64| {
        let mut queues = [0; QUEUES as usize];
        queues[queue] = (now_ns + frame.len() as u64 + 24) << 6;
        queues
    };
    let mut host = MockHost::new();
    host.egress(&p, &frame);
    assert_eq!(host.queues, expected(3, host.now_ns));
    for (ingress_ifindex, queue) in [(PORTS[0], 8 + 3), (PORTS[1], 3)] {
        let mut host = MockHost::new();
        host.is_inline = true;
        host.xdp(&p, &frame, PacketContext { ingress_ifindex, ..HERE });
        assert_eq!(host.queues, expected(queue, host.now_ns));
    }
}

#[test]
fn stale_backlog_ignored() {
    let p = marking(|_| {});
    for (age_ns, is_believed) in
        [(BACKLOG_AGE_NS - 1, true), (BACKLOG_AGE_NS, false), (BACKLOG_AGE_NS + 1, false)]
    {
        let mut host = MockHost::new();
        host.backlogs[3] = Backlog { bytes: 2_001, read_at_ns: host.now_ns - age_ns };
        host.egress(&p, &DATA.frame());
        assert_eq!(host.count_of(Stat::CpEcnMarked), u64::from(is_believed), "{age_ns}");
        assert_eq!(host.count_of(Stat::CpBacklogStale), u64::from(!is_believed), "{age_ns}");
    }
    // The real backlog is not read unless enabled.
    let p = marking(|s| s.queue_source = 0);
    let (_, _, counted) = egress_at_depth(2_001, &p, &DATA, HERE);
    assert_eq!(counted, [(Stat::RoceData, 1)]);
}

/// DSCP of trimmed packets, of class 5.
const TRIM_DSCP: u8 = 10;

/// As `marks`, with room for 4,000 bytes in the queue of class 3.
fn trims(config: &mut Config) {
    marks(config);
    config.scalars.trim_dscp_value = TRIM_DSCP.into();
    config.dscp_to_tc[usize::from(TRIM_DSCP)] = 5;
    config.wred[3].queue_limit_bytes = 4_000;
}

/// As [`trims`], with changed scalars.
fn trimming(change: impl FnOnce(&mut Scalars)) -> Params {
    params(|config| {
        trims(config);
        change(&mut config.scalars);
    })
}

const FORWARDED: PacketContext = PacketContext { ingress_ifindex: PORTS[1], ..HERE };

/// The headers of a packet, with adjusted IP length and DSCP.
fn trimmed(roce: &Roce) -> Vec<u8> {
    let mut bytes = Roce { dscp: TRIM_DSCP, ..*roce }.frame();
    bytes.truncate(bytes.len() - 4 - roce.payload);
    let (l3, len) = (roce.l3(), bytes.len() - roce.l3());
    if roce.v6 {
        bytes[l3 + 4..l3 + 6].copy_from_slice(&(len as u16 - 40).to_be_bytes());
    } else {
        bytes[l3 + 2..l3 + 4].copy_from_slice(&(len as u16).to_be_bytes());
        bytes[l3 + 10..l3 + 12].fill(0);
        let sum = bytes[l3..].first_chunk().map_or(0, header_checksum);
        bytes[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

#[test]
fn data_beyond_limit_is_trimmed() {
    let p = trimming(|_| {});
    let opcodes = [
        Opcode::RC_RDMA_WRITE_FIRST,
        Opcode::RC_RDMA_WRITE_MIDDLE,
        Opcode::RC_RDMA_READ_RESPONSE_ONLY,
        Opcode::UD_SEND_ONLY,
    ];
    for (opcode, v6, tag, ecn) in opcodes.into_iter().flat_map(|opcode| {
        [(false, None, Ecn::ECT0), (true, Some(TAG), Ecn::NOT_ECT), (false, Some(TAG), Ecn::CE)]
            .map(|(v6, tag, ecn)| (opcode, v6, tag, ecn))
    }) {
        let roce = Roce { opcode, v6, tag, ecn, ..DATA };
        let frame = roce.frame();
        let wire_bytes = frame.len() as u64 + p.config.scalars.wire_overhead_bytes;
        let (verdict, outcome, counted) = egress_at_depth(4_000 - wire_bytes + 1, &p, &roce, FORWARDED);
        assert_eq!((verdict, &outcome.bytes), (TcVerdict::EnqueueAgain, &trimmed(&roce)), "{opcode:?}");
        assert_eq!(counted, [(Stat::RoceData, 1), (Stat::CpTrimmed, 1)]);
        assert_eq!(classify(&mut &outcome.bytes[..]), Err(Stat::Trimmed));
        let (_, outcome, _) = egress_at_depth(4_000 - wire_bytes, &p, &roce, FORWARDED);
        assert_eq!(outcome.bytes.len(), frame.len(), "the last one that fits");
    }
}

/// The second run is of the same packet.
#[test]
fn trimmed_packet_counted_once() {
    let p = params(|config| {
        trims(config);
        (config.scalars.queues, config.pfc[5].tx, config.tc_to_queue[5]) = (QUEUES_ETS, 1, 5);
    });
    for opcode in [DATA.opcode, Opcode::UD_SEND_ONLY] {
        let mut host = MockHost::with_backlog(1 << 20);
        let (_, outcome) = host.egress_with(&p, &Roce { opcode, ..DATA }.frame(), FORWARDED);
        assert!(host.ingress_bytes.is_empty());
        let again = PacketContext { is_enqueued_again: true, ..FORWARDED };
        let (verdict, second) = host.egress_with(&p, &outcome.bytes, again);
        assert_eq!((verdict, &second.bytes), (TcVerdict::Pass, &outcome.bytes));
        assert_eq!(host.counted_once(), [Stat::RoceData, Stat::CpTrimmed]);
        assert_eq!(host.ingress_bytes, [(PORTS[1], 5, outcome.bytes.len() as u64)]);
    }
}

#[test]
fn packets_without_payload_not_trimmed() {
    let p = trimming(|_| {});
    let deep = 1 << 20;
    let passed = |roce: &Roce, context| {
        let (_, outcome, counted) = egress_at_depth(deep, &p, roce, context);
        assert_eq!(outcome.bytes.len(), roce.frame().len());
        assert!(counted.iter().all(|(stat, _)| *stat != Stat::CpTrimmed), "{counted:?}");
    };
    passed(&ACK, FORWARDED);
    passed(&REQUEST, FORWARDED);
    passed(&Roce { dest_qpn: 1, ..DATA }, FORWARDED);
    passed(&DATA, PacketContext { segment_bytes: 256, ..FORWARDED });
    passed(&DATA, PacketContext { segment_bytes: 2_000, ..FORWARDED });
    // The host's own.
    passed(&DATA, HERE);
}

#[test]
fn refused_trim_passes_packet() {
    let (verdict, outcome, counted) =
        egress_at_depth(1 << 20, &trimming(|_| {}), &DATA, PacketContext { no_rebuild: true, ..FORWARDED });
    assert_eq!((verdict, outcome.priority), (TcVerdict::Pass, None));
    assert_eq!(counted, [(Stat::RoceData, 1), (Stat::WriteFailed, 1)]);
}

#[test]
fn not_ect_super_packet_counts_its_segments() {
    let p = marking(|_| {});
    let context = PacketContext { segment_bytes: 250, ..FORWARDED };
    let (_, _, counted) = egress_at_depth(1 << 20, &p, &NOT_ECT, context);
    let of = |stat| counted.iter().find(|(counted, _)| *counted == stat).map(|(_, packets)| *packets);
    assert!(of(Stat::RoceData) > Some(1), "{counted:?}");
    assert_eq!(of(Stat::CpNotEct), of(Stat::RoceData));
}

#[test]
fn trimmed_packet_has_own_priority() {
    let p = params(|config| {
        trims(config);
        config.scalars.priority_major = 1;
        config.tc_to_queue[5] = 5;
    });
    assert_ne!(p.priority[3], p.priority[5]);
    assert_eq!(egress_at_depth(1 << 20, &p, &DATA, FORWARDED).1.priority, Some(p.priority[5]));
    assert_eq!(egress_at_depth(0, &p, &DATA, FORWARDED).1.priority, Some(p.priority[3]));
    // So has one that another switch trimmed.
    let (_, outcome) = MockHost::new().egress_with(&p, &trimmed(&DATA), FORWARDED);
    assert_eq!(outcome.priority, Some(p.priority[5]));
}

#[test]
fn trim_triggers_fast_cnp() {
    let p = trimming(|s| s.fast_cnp = 1);
    let (_, outcome, counted) = egress_at_depth(1 << 20, &p, &NOT_ECT, FORWARDED);
    assert!(outcome.clone_mark.is_some());
    assert_eq!(
        (outcome.bytes, counted),
        (trimmed(&NOT_ECT), vec![(Stat::RoceData, 1), (Stat::CpTrimmed, 1)])
    );
}

/// The real buffer has no room for it, so the next packet meets the same depth.
#[test]
fn refused_trim_does_not_fill_virtual_queue() {
    for queue_source in [0, QUEUE_SOURCE_BACKLOG] {
        let p = trimming(|s| s.queue_source = queue_source);
        let mut host = MockHost::with_backlog(4_000);
        host.set_time(Time::TRIMS, u64::MAX / 2);
        for _ in 0..8 {
            host.egress_with(&p, &DATA.frame(), FORWARDED);
        }
        assert!(host.count_of(Stat::CpTrimLimited) >= 4, "{queue_source}");
        assert!(p.drain[3].depth_bytes(host.queues[3], host.now_ns) <= 4_000, "{queue_source}");
    }
}

/// Four times the link's rate for a second, in packets of 256 bytes: trimmed packets use at most their share,
/// and every CNP passes.
#[test]
fn overload_trims_within_share() {
    let p = trimming(|s| {
        s.queue_source = 0;
        (s.link_rate_bps, s.trim_share_ppm) = (100_000_000, 100_000);
    });
    let frame = Roce { payload: 198, ..DATA }.frame();
    let wire_bytes = frame.len() as u64 + p.config.scalars.wire_overhead_bytes;
    let gap_ns = wire_bytes * 8_000_000_000 / 400_000_000;
    let mut host = MockHost::new();
    let (mut trimmed_bytes, mut limited) = (0, 0);
    for packet in 0..1_000_000_000 / gap_ns {
        host.now_ns += gap_ns;
        let before = host.count_of(Stat::CpTrimmed);
        let (_, outcome) = host.egress_with(&p, &frame, FORWARDED);
        if host.count_of(Stat::CpTrimmed) != before {
            trimmed_bytes += outcome.bytes.len() as u64 + p.config.scalars.wire_overhead_bytes;
        }
        limited = host.count_of(Stat::CpTrimLimited);
        if packet % 50 == 0 {
            let cnp = DATA.cnp(Some(1));
            assert_eq!(host.egress_with(&p, &cnp, FORWARDED).1.bytes, cnp);
        }
    }
    assert!((500_000..=1_260_000).contains(&trimmed_bytes), "{trimmed_bytes} of 1.25 MB");
    assert!(limited > 0);
}
