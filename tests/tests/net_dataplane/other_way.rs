//! RP: CNPs that arrive by another interface than that of their flow's data.

use dcqcn_tests::host::datagram;
use dcqcn_tests::prelude::*;

const LINE_BPS: u64 = 1_000_000_000;
/// Nothing raises a rate, and every CNP may cut.
const CHANGES: [&str; 4] =
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
        pair.a.attach(iface, Role::Host, &CHANGES)?;
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
    let stack = pair.a.roce_socket("a1")?;
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
    pair.a.attach("a0", Role::Host, &CHANGES)?;
    pair.a.attach("a1", Role::Host, &CHANGES)?;
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
        pair.a.attach("a0", Role::Host, &CHANGES)?;
    }
    Ok(())
}
