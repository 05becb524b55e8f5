//! Paths of a packet through a hook.

use dcqcn_common::hooks::{TcVerdict, XdpVerdict};
use dcqcn_common::layout::{Backlog, ClassCounters};
use dcqcn_common::params::{Config, PACER_FQ, QUEUE_SOURCE_BACKLOG, QUEUES_ETS};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Opcode;
use dcqcn_common::wire::cm::{CmMessage, CommIds};
use dcqcn_common::wire::ecn::Ecn;

use super::host::{Around, Left};
use super::packets::{DATA, MARKED, Roce, cm};
use super::world::{PORTS, World, params};

const ACK: Roce = Roce { opcode: Opcode::RC_ACKNOWLEDGE, payload: 0, ..DATA };
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

fn from(ingress_ifindex: u32) -> Around {
    Around { ingress_ifindex, ..Around::default() }
}

#[test]
fn without_parameters_all_packets_pass() {
    for frame in [DATA.frame(), arp(), MARKED.frame()] {
        let mut w = World::new();
        let untouched = Left { bytes: frame.clone(), ..Left::default() };
        assert_eq!(w.all_hooks_without_parameters(&frame), [untouched.clone(), untouched.clone(), untouched]);
    }
}

#[test]
fn kinds_counted_at_ingress() {
    let p = params(|config| config.scalars.rp_enable = 0);
    let kinds = [
        (DATA.frame(), Stat::RoceData),
        (ACK.frame(), Stat::RoceControl),
        (DATA.cnp(Some(1)), Stat::RoceCnp),
        (other_udp(), Stat::NotRoce),
        (arp(), Stat::NotRoce),
    ];
    for (frame, stat) in kinds {
        let mut w = World::new();
        assert_eq!(w.ingress(&p, &frame, Around::default()).0, TcVerdict::Pass);
        assert_eq!(w.counted(), [(stat, 1)]);
        w.is_handed_on = true;
        let (verdict, _) = w.ingress(&p, &frame, Around::default());
        // A CNP passed on by another interface's hook was counted there.
        let is_cnp = stat == Stat::RoceCnp;
        assert_eq!(verdict, if is_cnp { TcVerdict::HandOn } else { TcVerdict::Pass });
        assert_eq!(w.counted(), if is_cnp { vec![] } else { vec![(stat, 1)] });
        w.is_handed_on = false;
        w.egress(&p, &frame, Around::default());
        assert_eq!(w.counted(), [(stat, 1)]);
    }
}

#[test]
fn inline_redirects_to_peer_port() {
    let p = params(|_| {});
    for frame in [DATA.frame(), arp(), DATA.cnp(Some(1)), cm(&RTU, false)] {
        for (came_by, leaves_by) in [(PORTS[0], PORTS[1]), (PORTS[1], PORTS[0])] {
            let mut w = World::new();
            w.is_inline = true;
            let (verdict, left) = w.xdp(&p, &frame, from(came_by));
            assert_eq!((verdict, &left.bytes), (XdpVerdict::Redirect(leaves_by), &frame));
            assert_eq!(w.count_of(Stat::InlineForwarded), 1);
            assert_eq!(w.count_of(Stat::CmMessages), u64::from(frame == cm(&RTU, false)));
            assert_eq!(w.classes, [ClassCounters::default(); 8], "the congestion point is off");
        }
    }
}

#[test]
fn inline_packets_marked_and_dropped() {
    let p = params(|config: &mut Config| {
        let s = &mut config.scalars;
        (s.cp_enable, s.drop_not_ect, s.queue_source) = (1, 1, QUEUE_SOURCE_BACKLOG);
    });
    let mut w = World::new();
    w.is_inline = true;
    w.backlogs.insert(3, Backlog { bytes: 1 << 20, read_at_ns: w.now_ns });
    let (verdict, left) = w.xdp(&p, &DATA.frame(), from(PORTS[1]));
    assert_eq!((verdict, left.bytes), (XdpVerdict::Redirect(PORTS[0]), MARKED.frame()));
    let not_ect = Roce { ecn: Ecn::NOT_ECT, ..DATA }.frame();
    assert_eq!(w.xdp(&p, &not_ect, from(PORTS[1])).0, XdpVerdict::Drop);
    assert_eq!(w.count_of(Stat::InlineForwarded), 1);
}

#[test]
fn cnp_is_not_management() {
    let p = params(|_| {});
    let mut w = World::new();
    assert_eq!(w.ingress(&p, &cm(&RTU, false), Around::default()).0, TcVerdict::Pass);
    assert_eq!(w.counted(), [(Stat::RoceControl, 1), (Stat::CmMessages, 1)]);
    assert_eq!(w.ingress(&p, &ACK.frame(), Around::default()).0, TcVerdict::Pass);
    assert_eq!(w.counted(), [(Stat::RoceControl, 1)]);
}

#[test]
fn udp_socket_makes_no_pair() {
    let p = params(|_| {});
    for (is_from_process, stat) in [(false, Stat::CmMessages), (true, Stat::RpFromProcess)] {
        let mut w = World::new();
        w.egress(&p, &cm(&RTU, false), Around { is_from_process, ..Around::default() });
        assert_eq!(w.counted(), [(Stat::RoceControl, 1), (stat, 1)]);
    }
}

#[test]
fn packet_queued_by_class() {
    let of_operator = params(|config| config.scalars.priority_major = 1);
    let queues = params(|config| config.scalars.queues = QUEUES_ETS);
    let neither = params(|_| {});
    let priority = |p, frame: &[u8]| World::new().egress(p, frame, Around::default()).1.priority;
    for (frame, is_roce) in [(DATA.frame(), true), (other_udp(), false)] {
        assert_eq!(priority(&of_operator, &frame), is_roce.then_some(0x0001_0004));
        assert_eq!(priority(&queues, &frame), Some(0xdc03_0005));
        assert_eq!(priority(&neither, &frame), None);
    }
    let forwarded = World::new().egress(&queues, &arp(), from(5)).1.priority;
    assert_eq!(forwarded, Some(queues.priority[0]), "no DSCP is DSCP 0");
}

/// Pauses, LACP, STP, ARP and control packets marked by a daemon leave first; forwarded frames do not.
#[test]
fn link_control_uses_the_first_band() {
    let p = params(|config| {
        config.scalars.queues = QUEUES_ETS;
        config.pfc[0].tx = 1;
    });
    let of_type = |ethertype: u16| {
        let mut frame = arp();
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame
    };
    let control = Around { priority: 7, ..Around::default() };
    let first = (Some(0xdc03_0001), true);
    for (frame, around, expected) in [
        (of_type(0x8808), Around::default(), first),
        (of_type(0x8809), Around::default(), first),
        (of_type(38), Around::default(), first),
        (arp(), Around::default(), first),
        (of_type(0x88cc), control, first),
        (other_udp(), control, first),
        (of_type(0x88cc), Around::default(), (Some(p.priority[0]), false)),
        (of_type(0x8809), from(5), (Some(p.priority[0]), false)),
        (of_type(0x88cc), Around { ingress_ifindex: 5, ..control }, (Some(p.priority[0]), false)),
    ] {
        let mut w = World::new();
        let (_, left) = w.egress(&p, &frame, around);
        assert_eq!((left.priority, w.came.is_empty()), expected, "{:02x?}", &frame[12..14]);
    }
}

#[test]
fn ingress_counted_by_port_and_queue() {
    let counts = params(|config| {
        config.scalars.queues = QUEUES_ETS;
        config.pfc[3].tx = 1;
    });
    let frame = DATA.frame();
    let mut w = World::new();
    w.egress(&counts, &frame, from(5));
    w.egress(&counts, &Roce { dscp: 0, ..DATA }.frame(), from(5));
    assert_eq!(w.came, [(5, 3, frame.len() as u64)]);
}

#[test]
fn disabled_points_leave_packets_unchanged() {
    let off = params(|config| {
        let s = &mut config.scalars;
        (s.np_enable, s.rp_enable, s.pacer) = (0, 0, PACER_FQ);
    });
    let mut w = World::new();
    assert_eq!(w.ingress(&off, &MARKED.frame(), Around::default()).1.clone_mark, None);
    assert_eq!(w.counted(), [(Stat::RoceData, 1)]);
    let (verdict, left) = w.egress(&off, &DATA.frame(), Around::default());
    assert_eq!((verdict, left), (TcVerdict::Pass, Left { bytes: DATA.frame(), ..Left::default() }));
    assert_eq!((w.counted(), w.flow(&DATA.id())), (vec![(Stat::RoceData, 1)], None));
}

#[test]
fn cnp_is_not_paced() {
    let p = params(|config| config.scalars.pacer = PACER_FQ);
    let mut w = World::new();
    let cnp = DATA.cnp(Some(1));
    assert_eq!(w.egress(&p, &cnp, Around::default()).1, Left { bytes: cnp, ..Left::default() });
}

/// The congestion point directly answers packets from another port, and only if enabled.
#[test]
fn fast_cnp_answers_forwarded_mark() {
    let marks = |fast_cnp| {
        params(|config| {
            let s = &mut config.scalars;
            (s.cp_enable, s.rp_enable, s.queue_source, s.fast_cnp) = (1, 0, QUEUE_SOURCE_BACKLOG, fast_cnp);
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
        let mut w = World::new();
        w.backlogs.insert(3, Backlog { bytes: 1 << 20, read_at_ns: w.now_ns });
        let (_, left) = w.egress(&p, &roce.frame(), from(ingress_ifindex));
        assert_eq!(w.count_of(Stat::CpEcnMarked), 1);
        assert_eq!(left.clone_mark, is_answered.then_some(p.port.cnp_mark | 1));
        assert_eq!(w.np_flow(&roce.id()).is_some(), is_answered);
    }
    // A group address cannot be the source of an answer.
    for (at, group) in [(30, &[239, 1, 1, 1][..]), (0, &[1, 0, 0x5e, 1, 1, 1]), (6, &[0xff; 6])] {
        let mut w = World::new();
        w.backlogs.insert(3, Backlog { bytes: 1 << 20, read_at_ns: w.now_ns });
        let mut frame = DATA.frame();
        frame[at..at + group.len()].copy_from_slice(group);
        let (_, left) = w.egress(&marks(1), &frame, from(5));
        assert_eq!((w.count_of(Stat::CpEcnMarked), left.clone_mark), (1, None), "{at} {group:?}");
    }
}
