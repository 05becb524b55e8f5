//! ECN bits and DSCP of a host's own packets.

use dcqcn_common::hooks::TcVerdict;
use dcqcn_common::hooks::memory::PacketContext;
use dcqcn_common::params::Config;
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Opcode;
use dcqcn_common::wire::ecn::Ecn;

use super::mock_host::{MockHost, params};
use super::packets::{DATA, Roce};

fn ect(config: &mut Config) {
    config.scalars.ect_enable = 1;
    config.scalars.rp_enable = 0;
}

fn ect_and_dscp(config: &mut Config) {
    ect(config);
    config.scalars.roce_dscp = 26;
}

/// The packet as it leaves, and how many were changed.
fn send_with(change: fn(&mut Config), roce: &Roce, context: PacketContext) -> (Vec<u8>, u64) {
    let mut host = MockHost::new();
    let (verdict, outcome) = host.egress_with(&params(change), &roce.frame(), context);
    assert_eq!(verdict, TcVerdict::Pass);
    (outcome.bytes, host.count_of(Stat::TosSet))
}

#[test]
fn own_not_ect_data_leaves_as_ect0() {
    for v6 in [false, true] {
        let roce = Roce { ecn: Ecn::NOT_ECT, dscp: 0, v6, ..DATA };
        let here = PacketContext::default();
        assert_eq!(send_with(ect, &roce, here), (Roce { ecn: Ecn::ECT0, ..roce }.frame(), 1));
        assert_eq!(
            send_with(ect_and_dscp, &roce, here),
            (Roce { ecn: Ecn::ECT0, dscp: 26, ..roce }.frame(), 1)
        );
        assert_eq!(send_with(|_| (), &roce, here), (roce.frame(), 0));
    }
}

#[test]
fn packets_without_data_get_the_dscp_only() {
    let ack = Roce { opcode: Opcode::RC_ACKNOWLEDGE, ecn: Ecn::NOT_ECT, dscp: 0, payload: 0, ..DATA };
    assert_eq!(
        send_with(ect_and_dscp, &ack, PacketContext::default()),
        (Roce { dscp: 26, ..ack }.frame(), 1)
    );
}

#[test]
fn other_packets_keep_ecn_and_dscp() {
    let here = PacketContext::default();
    for ecn in [Ecn::ECT0, Ecn::ECT1, Ecn::CE] {
        let roce = Roce { ecn, ..DATA };
        assert_eq!(send_with(ect_and_dscp, &roce, here), (roce.frame(), 0), "it has both");
    }
    let forwarded = PacketContext { ingress_ifindex: 7, ..here };
    let roce = Roce { ecn: Ecn::NOT_ECT, dscp: 0, ..DATA };
    assert_eq!(send_with(ect_and_dscp, &roce, forwarded), (roce.frame(), 0));
    let mut host = MockHost::new();
    let cnp = DATA.cnp(Some(1));
    let (_, outcome) = host.egress_with(&params(ect_and_dscp), &cnp, here);
    assert_eq!((outcome.bytes, host.count_of(Stat::TosSet)), (cnp, 0));
}

#[test]
fn failed_write_is_counted_and_passes() {
    let mut host = MockHost::new();
    let roce = Roce { ecn: Ecn::NOT_ECT, ..DATA };
    let (verdict, outcome) = host.egress_with(
        &params(ect),
        &roce.frame(),
        PacketContext { no_write_from: 14, ..PacketContext::default() },
    );
    assert_eq!((verdict, outcome.bytes), (TcVerdict::Pass, roce.frame()));
    assert_eq!((host.count_of(Stat::WriteFailed), host.count_of(Stat::TosSet)), (1, 0));
}

#[test]
fn new_dscp_decides_the_class() {
    let mut host = MockHost::new();
    let p = params(|config| {
        ect_and_dscp(config);
        config.scalars.priority_major = 1;
    });
    let roce = Roce { ecn: Ecn::NOT_ECT, dscp: 0, ..DATA };
    let (_, outcome) = host.egress(&p, &roce.frame());
    assert_eq!(outcome.priority, Some(1 << 16 | 4), "DSCP 26 is in queue 3");
}
