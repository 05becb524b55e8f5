//! RP: data creates a flow, a CNP cuts it by whichever interface it arrives, and a forged one does not.

use dcqcn_common::flow::{Cnps, RpFlow};
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
        let rates = flows.iter().map(|data| rate_bps(&pair, data));
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
        let mut damaged = valid.clone();
        damaged[data.bth() + 7] ^= 1;
        for (forged, expected) in [
            (damaged, Stat::RpCnpInvalid),
            (Roce { dst: 9, ..data.clone() }.cnp(None, CNP_TOS), Stat::RpCnpUnknownFlow),
            (data.cnp(Some(0), CNP_TOS), Stat::RpCnpUnknownFlow),
        ] {
            assert_eq!(outcome(&pair, &forged)?, expected);
        }
        assert_eq!(pair.a.flow("a0", &data)?, before);
        assert_eq!(outcome(&pair, &valid)?, Stat::RpCnpHandled);
        let once = pair.a.flow("a0", &data)?;
        for soon in 1..=3 {
            assert_eq!(outcome(&pair, &valid)?, Stat::RpCnpTooSoon);
            let cnps = Cnps { ignored: soon, ..once.cnps };
            assert_eq!(pair.a.flow("a0", &data)?, RpFlow { cnps, ..once }, "a flood cuts once per interval");
        }
    }
    Ok(())
}

#[test]
fn handled_cnps_consumed_if_enabled() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Host, &CHANGES)?;
    pair.a.set("a0", &["cnp_consume=on"])?;
    // A packet socket sees each packet before TC does.
    let stack = pair.a.roce_socket("a0", 1)?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let data = Roce::default();
    a.send(&data.frame())?;
    // One that cuts, and one within the interval: both were for this host's flow. Another host's passes.
    let foreign = Roce { dest_qpn: 0x99, ..data.clone() }.cnp(None, CNP_TOS);
    for cnp in [data.cnp(None, CNP_TOS), data.cnp(None, CNP_TOS), foreign.clone()] {
        b.send(&cnp)?;
    }
    assert_eq!(datagram(&stack)?, foreign[data.bth()..]);
    assert_eq!(rate_bps(&pair, &data)?, LINE_BPS / 2);
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::RoceCnp)?, 3);
    // Disabled, the program ignores CNPs.
    pair.a.set("a0", &["rp_enable=off"])?;
    b.send(&data.cnp(None, CNP_TOS))?;
    assert_eq!(datagram(&stack)?, data.cnp(None, CNP_TOS)[data.bth()..]);
    Ok(())
}

/// Nothing raises a rate, and every CNP may cut.
const EACH_CUTS: [&str; 4] =
    ["link_rate=1gbit", "rpg_time_reset=0ns", "rpg_byte_reset=0B", "rate_reduce_monitor_period=0ns"];

fn rate_bps(pair: &Pair, data: &Roce) -> Result<u64> {
    Ok(pair.a.flow("a0", data)?.hot.machine.rate_bps)
}

/// CNP counters of an interface's ingress program: received, handled, of no known flow.
fn cnp_counts(pair: &Pair, iface: &str) -> Result<[u64; 3]> {
    let stat = pair.a.counters(iface, Hook::Ingress)?.stat;
    Ok([Stat::RoceCnp, Stat::RpCnpHandled, Stat::RpCnpUnknownFlow].map(|name| stat[name as usize]))
}

#[test]
fn cnp_on_any_interface_cuts_flow() -> Result<()> {
    let pair = new_pair!();
    for iface in ["1", "2"] {
        join((&pair.a, &format!("a{iface}"), 1), (&pair.b, &format!("b{iface}"), 2), 4_200)?;
    }
    // The flow's interface is neither the first nor the last.
    for iface in ["a1", "a0", "a2"] {
        pair.a.attach(iface, Role::Host, &EACH_CUTS)?;
    }
    let data = Roce::default();
    pair.a.socket("a0")?.send(&data.frame())?;
    assert_eq!(rate_bps(&pair, &data)?, LINE_BPS);

    let cnp = data.cnp(None, CNP_TOS);
    let mut rate = LINE_BPS;
    for (cuts, number) in (1..).zip(["1", "2"]) {
        let (a, b) = (pair.a.socket(&format!("a{number}"))?, pair.b.socket(&format!("b{number}"))?);
        b.send(&cnp)?;
        assert_eq!(a.expect()?, cnp, "the CNP reaches the host's own stack at its ingress interface");
        let now = rate_bps(&pair, &data)?;
        assert!(now < rate, "{now} after {rate}, by a{number}");
        rate = now;
        assert_eq!(cnp_counts(&pair, "a0")?, [0, cuts, 0]);
        assert_eq!(cnp_counts(&pair, &format!("a{number}"))?, [1, 0, 1]);
    }

    let unrelated = Roce { dest_qpn: 0x99, ..data.clone() }.cnp(None, CNP_TOS);
    let (a1, b1) = (pair.a.socket("a1")?, pair.b.socket("b1")?);
    b1.send(&unrelated)?;
    assert_eq!(a1.expect()?, unrelated);
    assert_eq!(rate_bps(&pair, &data)?, rate, "another's CNP");
    assert_eq!((cnp_counts(&pair, "a1")?, cnp_counts(&pair, "a0")?), ([2, 0, 2], [0, 2, 0]));

    pair.a.set("a0", &["cnp_consume=on"])?;
    // A packet socket sees each packet before TC does.
    let stack = pair.a.roce_socket("a1", 1)?;
    b1.send(&cnp)?;
    // A later packet is received, but not this one.
    b1.send(&unrelated)?;
    let received = datagram(&stack)?;
    assert_eq!(received, unrelated[data.bth()..], "the flow's interface decides that its CNPs are consumed");
    Ok(())
}

#[test]
fn detached_interface_gets_no_cnps() -> Result<()> {
    let pair = new_pair!();
    join((&pair.a, "a1", 1), (&pair.b, "b1", 2), 4_200)?;
    pair.a.attach("a0", Role::Host, &EACH_CUTS)?;
    pair.a.attach("a1", Role::Host, &EACH_CUTS)?;
    let data = Roce::default();
    let cnp = data.cnp(None, CNP_TOS);
    let (a1, b1) = (pair.a.socket("a1")?, pair.b.socket("b1")?);
    for round in 1..=2 {
        pair.a.socket("a0")?.send(&data.frame())?;
        b1.send(&cnp)?;
        assert_eq!(a1.expect()?, cnp);
        assert_eq!(cnp_counts(&pair, "a0")?[1], 1, "round {round}");
        let objects = LoadedObjects::by(&pair.a, "a0")?;
        pair.a.detach("a0")?;
        assert!(objects.wait_until_freed(), "{objects:?}");
        b1.send(&cnp)?;
        assert_eq!(a1.expect()?, cnp, "without another attachment to pass it to");
        assert_eq!(cnp_counts(&pair, "a1")?, [2 * round, 0, 2 * round]);
        pair.a.attach("a0", Role::Host, &EACH_CUTS)?;
    }
    Ok(())
}
