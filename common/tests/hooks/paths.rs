//! Paths of a packet through a hook.

use super::*;

const RTU: CmMessage = CmMessage::Rtu(CommIds { local: 1, remote: 2 });

/// Neither IPv4 nor IPv6.
fn arp() -> Vec<u8> {
    let mut frame = DATA.frame();
    frame[12..14].copy_from_slice(&[0x08, 0x06]);
    frame
}

/// RoCE but for its UDP port.
fn other_udp() -> Vec<u8> {
    let mut frame = DATA.frame();
    frame[36] ^= 1;
    frame
}

fn from(ingress_ifindex: u32) -> PacketContext {
    PacketContext { ingress_ifindex, ..HERE }
}

#[test]
fn without_parameters_all_packets_pass() {
    for frame in [DATA.frame(), arp(), MARKED.frame()] {
        let mut host = MockHost::new();
        assert_eq!(host.all_hooks_without_parameters(&frame), [(); 3].map(|()| with_bytes(frame.clone())));
    }
}

#[test]
fn kinds_counted_at_ingress() {
    let p = scalars(|s| s.rp_enable = 0);
    let kinds = [
        (DATA.frame(), Stat::RoceData),
        (ACK.frame(), Stat::RoceControl),
        (DATA.cnp(Some(1)), Stat::RoceCnp),
        (other_udp(), Stat::NotRoce),
        (arp(), Stat::NotRoce),
    ];
    for (frame, stat) in kinds {
        let mut host = MockHost::new();
        assert_eq!(host.ingress(&p, &frame).0, TcVerdict::Pass);
        assert_eq!(host.counted_once(), [stat]);
        host.is_from_sibling = true;
        let (verdict, _) = host.ingress(&p, &frame);
        // A CNP passed on by another interface's hook was counted there.
        let is_cnp = stat == Stat::RoceCnp;
        assert_eq!(verdict, if is_cnp { TcVerdict::TrySiblings } else { TcVerdict::Pass });
        assert_eq!(host.counted_once(), if is_cnp { vec![] } else { vec![stat] });
        host.is_from_sibling = false;
        host.egress(&p, &frame);
        assert_eq!(host.counted_once(), [stat]);
    }
}

#[test]
fn inline_redirects_to_peer_port() {
    let p = params(|_| {});
    for frame in [DATA.frame(), arp(), DATA.cnp(Some(1)), cm(&RTU, false)] {
        for (ingress, egress) in [(PORTS[0], PORTS[1]), (PORTS[1], PORTS[0])] {
            let mut host = MockHost::new();
            host.is_inline = true;
            let (verdict, outcome) = host.xdp(&p, &frame, from(ingress));
            assert_eq!((verdict, &outcome.bytes), (XdpVerdict::Redirect(egress), &frame));
            assert_eq!(host.count_of(Stat::InlineForwarded), 1);
            assert_eq!(host.count_of(Stat::CmMessages), u64::from(frame == cm(&RTU, false)));
            assert_eq!(host.counters.class, [ClassCounters::default(); 8], "the congestion point is off");
        }
    }
}

#[test]
fn inline_packets_marked_and_dropped() {
    let p = scalars(|s| (s.cp_enable, s.drop_not_ect, s.queue_source) = (1, 1, QUEUE_SOURCE_BACKLOG));
    let mut host = MockHost::with_backlog(1 << 20);
    host.is_inline = true;
    let (verdict, outcome) = host.xdp(&p, &DATA.frame(), from(PORTS[1]));
    assert_eq!((verdict, outcome.bytes), (XdpVerdict::Redirect(PORTS[0]), MARKED.frame()));
    let not_ect = NOT_ECT.frame();
    assert_eq!(host.xdp(&p, &not_ect, from(PORTS[1])).0, XdpVerdict::Drop);
    assert_eq!(host.count_of(Stat::InlineForwarded), 1);
}

#[test]
fn cnp_is_not_management() {
    let (p, mut host) = (params(|_| {}), MockHost::new());
    assert_eq!(host.ingress(&p, &cm(&RTU, false)).0, TcVerdict::Pass);
    assert_eq!(host.counted_once(), [Stat::RoceControl, Stat::CmMessages]);
    assert_eq!(host.ingress(&p, &ACK.frame()).0, TcVerdict::Pass);
    assert_eq!(host.counted_once(), [Stat::RoceControl]);
}

#[test]
fn udp_socket_makes_no_pair() {
    let p = params(|_| {});
    for (is_from_process, stat) in [(false, Stat::CmMessages), (true, Stat::RpFromProcess)] {
        let mut host = MockHost::new();
        host.egress_with(&p, &cm(&RTU, false), PacketContext { is_from_process, ..HERE });
        assert_eq!(host.counted_once(), [Stat::RoceControl, stat]);
    }
}

#[test]
fn packet_queued_by_class() {
    let of_operator = scalars(|s| s.priority_major = 1);
    let queues = scalars(|s| s.queues = QUEUES_ETS);
    let neither = params(|_| {});
    let priority = |p, frame: &[u8]| MockHost::new().egress(p, frame).1.priority;
    for (frame, is_roce) in [(DATA.frame(), true), (other_udp(), false)] {
        assert_eq!(priority(&of_operator, &frame), is_roce.then_some(0x0001_0004));
        assert_eq!(priority(&queues, &frame), Some(0xdc03_0005));
        assert_eq!(priority(&neither, &frame), None);
    }
    let forwarded = MockHost::new().egress_with(&queues, &arp(), from(5)).1.priority;
    assert_eq!(forwarded, Some(queues.priority[0]), "no DSCP is DSCP 0");
}

/// Pauses, LACP, STP, ARP and control packets marked by a daemon leave first; forwarded frames do not.
#[test]
fn link_control_uses_the_first_band() {
    let p = params(|config| (config.scalars.queues, config.pfc[0].tx) = (QUEUES_ETS, 1));
    let of_type = |ethertype: u16| {
        let mut frame = arp();
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame
    };
    let control = PacketContext { priority: 7, ..HERE };
    let first = (Some(0xdc03_0001), true);
    for (frame, context, expected) in [
        (of_type(0x8808), HERE, first),
        (of_type(0x8809), HERE, first),
        (of_type(38), HERE, first),
        (arp(), HERE, first),
        (of_type(0x88cc), control, first),
        (other_udp(), control, first),
        (of_type(0x88cc), HERE, (Some(p.priority[0]), false)),
        (of_type(0x8809), from(5), (Some(p.priority[0]), false)),
        (of_type(0x88cc), PacketContext { ingress_ifindex: 5, ..control }, (Some(p.priority[0]), false)),
    ] {
        let mut host = MockHost::new();
        let (_, outcome) = host.egress_with(&p, &frame, context);
        assert_eq!((outcome.priority, host.ingress_bytes.is_empty()), expected, "{:02x?}", &frame[12..14]);
    }
}

#[test]
fn ingress_counted_by_port_and_queue() {
    let counts = params(|config| (config.scalars.queues, config.pfc[3].tx) = (QUEUES_ETS, 1));
    let frame = DATA.frame();
    let mut host = MockHost::new();
    host.egress_with(&counts, &frame, from(5));
    host.egress_with(&counts, &Roce { dscp: 0, ..DATA }.frame(), from(5));
    assert_eq!(host.ingress_bytes, [(5, 3, frame.len() as u64)]);
}

#[test]
fn packet_dropped_by_pacing_not_queued() {
    let p = params(|config| {
        (config.scalars.queues, config.scalars.pacer) = (QUEUES_ETS, PACER_FQ);
        (config.pfc[3].tx, config.pfc[3].rx) = (1, 1);
    });
    for (drops, expected, counted) in [(8, TcVerdict::Drop, 0), (0, TcVerdict::Pass, 1)] {
        let mut host = MockHost::new();
        host.set_storms(Storms { forwards: 0, drops });
        assert_eq!(host.egress_with(&p, &DATA.frame(), from(5)).0, expected);
        assert_eq!(host.ingress_bytes.len(), counted, "{drops}");
    }
}

#[test]
fn disabled_points_leave_packets_unchanged() {
    let off = scalars(|s| (s.np_enable, s.rp_enable, s.pacer) = (0, 0, PACER_FQ));
    let mut host = MockHost::new();
    assert_eq!(host.ingress(&off, &MARKED.frame()).1.clone_mark, None);
    assert_eq!(host.counted_once(), [Stat::RoceData]);
    let (verdict, outcome) = host.egress(&off, &DATA.frame());
    assert_eq!((verdict, outcome), (TcVerdict::Pass, with_bytes(DATA.frame())));
    assert_eq!((host.counted_once(), host.flow(&DATA.id())), (vec![Stat::RoceData], None));
}

#[test]
fn cnp_is_not_paced() {
    let (p, mut host) = (scalars(|s| s.pacer = PACER_FQ), MockHost::new());
    let cnp = DATA.cnp(Some(1));
    assert_eq!(host.egress(&p, &cnp).1, with_bytes(cnp));
}

/// The congestion point directly answers packets from another port, and only if enabled.
#[test]
fn fast_cnp_answers_forwarded_mark() {
    let marks = |fast_cnp| {
        scalars(|s| {
            (s.cp_enable, s.rp_enable, s.queue_source, s.fast_cnp) = (1, 0, QUEUE_SOURCE_BACKLOG, fast_cnp)
        })
    };
    for (fast_cnp, ingress_ifindex, roce, is_answered) in [
        (1, 5, DATA, true),
        (1, 0, DATA, false),
        (0, 5, DATA, false),
        (0, 0, DATA, false),
        (1, 5, ACK, false),
    ] {
        let p = marks(fast_cnp);
        let mut host = MockHost::with_backlog(1 << 20);
        let (_, outcome) = host.egress_with(&p, &roce.frame(), from(ingress_ifindex));
        assert_eq!(host.count_of(Stat::CpEcnMarked), 1);
        assert_eq!(outcome.clone_mark, is_answered.then_some(p.port.cnp_mark | 1));
        assert_eq!(host.np_flow(&roce.id()).is_some(), is_answered);
    }
    // A group address cannot be the source of an answer.
    for (at, group) in [(30, &[239, 1, 1, 1][..]), (0, &[1, 0, 0x5e, 1, 1, 1]), (6, &[0xff; 6])] {
        let mut host = MockHost::with_backlog(1 << 20);
        let mut frame = DATA.frame();
        frame[at..at + group.len()].copy_from_slice(group);
        let (_, outcome) = host.egress_with(&marks(1), &frame, from(5));
        assert_eq!((host.count_of(Stat::CpEcnMarked), outcome.clone_mark), (1, None), "{at} {group:?}");
    }
}
