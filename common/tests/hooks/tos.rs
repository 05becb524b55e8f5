//! ECN bits and DSCP of a host's own packets.

use super::*;

fn ect(s: &mut Scalars) {
    (s.ect_enable, s.rp_enable) = (1, 0);
}

fn ect_and_dscp(s: &mut Scalars) {
    (s.ect_enable, s.rp_enable, s.roce_dscp) = (1, 0, 26);
}

const UNSET: Roce = Roce { dscp: 0, ..NOT_ECT };

/// The packet as it leaves, and how many were changed.
fn send_with(change: fn(&mut Scalars), roce: &Roce, context: PacketContext) -> (Vec<u8>, u64) {
    let mut host = MockHost::new();
    let (verdict, outcome) = host.egress_with(&scalars(change), &roce.frame(), context);
    assert_eq!(verdict, TcVerdict::Pass);
    (outcome.bytes, host.count_of(Stat::TosSet))
}

#[test]
fn own_not_ect_data_leaves_as_ect0() {
    for v6 in [false, true] {
        let roce = Roce { v6, ..UNSET };
        assert_eq!(send_with(ect, &roce, HERE), (Roce { ecn: Ecn::ECT0, ..roce }.frame(), 1));
        assert_eq!(send_with(ect_and_dscp, &roce, HERE), (Roce { v6, ..DATA }.frame(), 1));
        assert_eq!(send_with(|_| (), &roce, HERE), (roce.frame(), 0));
    }
}

#[test]
fn packets_without_data_get_the_dscp_only() {
    let ack = Roce { opcode: Opcode::RC_ACKNOWLEDGE, ecn: Ecn::NOT_ECT, dscp: 0, payload: 0, ..DATA };
    assert_eq!(send_with(ect_and_dscp, &ack, HERE), (Roce { dscp: 26, ..ack }.frame(), 1));
}

#[test]
fn other_packets_keep_ecn_and_dscp() {
    for ecn in [Ecn::ECT0, Ecn::ECT1, Ecn::CE] {
        let roce = Roce { ecn, ..DATA };
        assert_eq!(send_with(ect_and_dscp, &roce, HERE), (roce.frame(), 0), "it has both");
    }
    let forwarded = PacketContext { ingress_ifindex: 7, ..HERE };
    assert_eq!(send_with(ect_and_dscp, &UNSET, forwarded), (UNSET.frame(), 0));
    let mut host = MockHost::new();
    let cnp = DATA.cnp(Some(1));
    let (_, outcome) = host.egress_with(&scalars(ect_and_dscp), &cnp, HERE);
    assert_eq!((outcome.bytes, host.count_of(Stat::TosSet)), (cnp, 0));
}

#[test]
fn failed_write_is_counted_and_passes() {
    let mut host = MockHost::new();
    let (verdict, outcome) =
        host.egress_with(&scalars(ect), &NOT_ECT.frame(), PacketContext { no_write_from: 14, ..HERE });
    assert_eq!((verdict, outcome.bytes), (TcVerdict::Pass, NOT_ECT.frame()));
    assert_eq!((host.count_of(Stat::WriteFailed), host.count_of(Stat::TosSet)), (1, 0));
}

#[test]
fn new_dscp_decides_the_class() {
    let p = scalars(|s| {
        ect_and_dscp(s);
        s.priority_major = 1;
    });
    let (_, outcome) = MockHost::new().egress(&p, &UNSET.frame());
    assert_eq!(outcome.priority, Some(1 << 16 | 4), "DSCP 26 is in queue 3");
}
