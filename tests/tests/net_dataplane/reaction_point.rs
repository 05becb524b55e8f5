//! RP: data creates a flow, a CNP cuts it, and a forged one does not.

use dcqcn_common::flow::{Cnps, RpFlow};
use dcqcn_common::layout::Pair as QpPair;
use dcqcn_tests::host::datagram;
use dcqcn_tests::prelude::*;

const LINE_BPS: u64 = 1_000_000_000;
/// Rates never increase, and the interval between cuts exceeds the test's duration.
const CHANGES: [&str; 4] =
    ["link_rate=1gbit", "rpg_time_reset=0ns", "rpg_byte_reset=0B", "rate_reduce_monitor_period=1s"];

/// Sends a CNP to host 1 and returns the counter that it incremented.
fn outcome(pair: &Pair, cnp: &[u8]) -> Result<Stat> {
    const OUTCOMES: [Stat; 4] =
        [Stat::RpCnpHandled, Stat::RpCnpInvalid, Stat::RpCnpUnknownFlow, Stat::RpCnpTooSoon];
    let before = pair.a.counters("a0", Hook::Ingress)?.stat;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    b.send(cnp)?;
    assert_eq!(a.expect()?, cnp, "a CNP reaches the host's own stack");
    let after = pair.a.counters("a0", Hook::Ingress)?.stat;
    let counted = |stat: Stat| after[stat as usize] - before[stat as usize];
    assert_eq!(counted(Stat::RoceCnp), 1);
    let mut outcomes = OUTCOMES.into_iter().filter(|stat| counted(*stat) == 1);
    let outcome = outcomes.next().context("no counter was incremented")?;
    assert_eq!(outcomes.next(), None, "counted twice");
    assert_eq!(counted(Stat::RpCnpIgnored), u64::from(outcome != Stat::RpCnpHandled));
    Ok(outcome)
}

#[test]
fn cnp_halves_only_its_flow() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Host, &CHANGES)?;
    let a = pair.a.socket("a0")?;
    let flows = [
        Roce::default(),
        Roce { dest_qpn: 0x12, ..Roce::default() },
        Roce { v6: true, ..Roce::default() },
        Roce { tags: vec![(EtherType::VLAN, 0x6005)], dest_qpn: 0x13, ..Roce::default() },
    ];
    for data in &flows {
        a.send(&data.frame())?;
        a.send(&Roce { psn: 8, ..data.clone() }.frame())?;
        // These are not data, and have no effect.
        a.send(&Roce { opcode: Opcode::RC_ACKNOWLEDGE, payload: 0, ..data.clone() }.frame())?;
        let flow = pair.a.flow("a0", data)?;
        assert_eq!((flow.hot.packets, flow.hot.bytes), (2, 2 * data.frame().len() as u64), "{data:?}");
        assert_eq!((flow.hot.machine.rate_bps, flow.hot.machine.active), (LINE_BPS, 0));
    }
    assert_eq!(pair.a.count("a0", Hook::Egress, Stat::RpFlowNew)?, 4);

    for (cut, data) in flows.iter().enumerate() {
        assert_eq!(outcome(&pair, &data.cnp(None, CNP_TOS))?, Stat::RpCnpHandled, "{data:?}");
        let rates = flows.iter().map(|data| Ok(pair.a.flow("a0", data)?.hot.machine.rate_bps));
        let rates = rates.collect::<Result<Vec<_>>>()?;
        let expected: Vec<_> =
            (0..flows.len()).map(|flow| if flow <= cut { LINE_BPS / 2 } else { LINE_BPS }).collect();
        assert_eq!(rates, expected, "after the CNP for {data:?}");
    }
    Ok(())
}

#[test]
fn forged_cnp_ignored_and_counted() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Host, &CHANGES)?;
    for v6 in [false, true] {
        let data = Roce { v6, ..Roce::default() };
        pair.a.socket("a0")?.send(&data.frame())?;
        let before = pair.a.flow("a0", &data)?;
        let valid = data.cnp(None, CNP_TOS);

        let damaged = |at: usize| {
            let mut cnp = valid.clone();
            cnp[at] ^= 1;
            cnp
        };
        // The QPN in the BTH and the ICRC itself. The hint then names no flow, for which no ICRC is computed.
        for (at, expected) in [
            (data.bth() + 7, Stat::RpCnpInvalid),
            (data.bth() + 12 + 7, Stat::RpCnpUnknownFlow),
            (valid.len() - 1, Stat::RpCnpInvalid),
        ] {
            assert_eq!(outcome(&pair, &damaged(at))?, expected, "byte {at}");
        }
        let mut cut = valid.clone();
        cut.truncate(valid.len() - 1);
        let trimmed = pair.a.count("a0", Hook::Ingress, Stat::Trimmed)?;
        let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
        b.send(&cut)?;
        assert_eq!(a.expect()?, cut, "a truncated packet is not a CNP, and passes");
        assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::Trimmed)?, trimmed + 1);
        for (forged, what) in [
            (Roce { dest_qpn: 0x99, ..data.clone() }.cnp(None, CNP_TOS), "another QP's hint"),
            (Roce { dst: 9, ..data.clone() }.cnp(None, CNP_TOS), "another peer's address"),
            (data.cnp(Some(0x11), CNP_TOS), "an unknown sender's QPN"),
            (data.cnp(Some(0), CNP_TOS), "no QPN at all"),
        ] {
            assert_eq!(outcome(&pair, &forged)?, Stat::RpCnpUnknownFlow, "{what}");
        }
        assert_eq!(pair.a.flow("a0", &data)?, before, "none of them has changed the flow");

        assert_eq!(outcome(&pair, &valid)?, Stat::RpCnpHandled);
        let once = pair.a.flow("a0", &data)?;
        for soon in 1..=3 {
            assert_eq!(outcome(&pair, &valid)?, Stat::RpCnpTooSoon);
            let now = pair.a.flow("a0", &data)?;
            let cnps = Cnps { ignored: soon, ..once.cnps };
            assert_eq!(now, RpFlow { cnps, ..once }, "a flood cuts once per interval");
        }
    }
    Ok(())
}

#[test]
fn nic_cnp_resolved_by_sender_qpn() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Host, &CHANGES)?;
    let a = pair.a.socket("a0")?;
    // A pair that the operator entered: local QP 0x22 sends to 0x11.
    let data = Roce::default();
    let own = QpId { addr: mapped(v4(1)), qpn: 0x22, vlan: 0 };
    let peer = QpPair::new(0x11, PairSource::Static);
    pair.a.attachment("a0")?.maps.set_pair(&own, &peer)?;
    a.send(&data.frame())?;
    assert_eq!(outcome(&pair, &data.cnp(Some(0x22), CNP_TOS))?, Stat::RpCnpHandled);
    assert_eq!(pair.a.flow("a0", &data)?.hot.machine.rate_bps, LINE_BPS / 2);
    // A datagram's pair is learned from the datagram.
    let datagram = Roce { opcode: Opcode::UD_SEND_ONLY, dest_qpn: 0x31, source_qpn: 0x32, ..data };
    a.send(&datagram.frame())?;
    assert_eq!(outcome(&pair, &datagram.cnp(Some(0x32), CNP_TOS))?, Stat::RpCnpHandled);
    assert_eq!(pair.a.flow("a0", &datagram)?.hot.machine.rate_bps, LINE_BPS / 2);
    Ok(())
}

#[test]
fn handled_cnps_consumed_if_enabled() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Host, &CHANGES)?;
    pair.a.set("a0", &["cnp_consume=on"])?;
    // A packet socket sees each packet before TC does.
    let stack = pair.a.roce_socket("a0")?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let data = Roce::default();
    a.send(&data.frame())?;
    // One that cuts, and one within the interval: both were for this host's flow. Another host's passes.
    let foreign = Roce { dest_qpn: 0x99, ..data.clone() }.cnp(None, CNP_TOS);
    for cnp in [data.cnp(None, CNP_TOS), data.cnp(None, CNP_TOS), foreign.clone()] {
        b.send(&cnp)?;
    }
    assert_eq!(datagram(&stack)?, foreign[data.bth()..]);
    assert_eq!(pair.a.flow("a0", &data)?.hot.machine.rate_bps, LINE_BPS / 2);
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::RoceCnp)?, 3);
    // Disabled, the program ignores CNPs.
    pair.a.set("a0", &["rp_enable=off"])?;
    b.send(&data.cnp(None, CNP_TOS))?;
    assert_eq!(datagram(&stack)?, data.cnp(None, CNP_TOS)[data.bth()..]);
    Ok(())
}
