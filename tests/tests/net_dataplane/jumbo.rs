//! Frames of 8 KB, which TC sees in pages.

use dcqcn_tests::prelude::*;

use crate::{MARKING, fill};

#[test]
fn jumbo_frames_are_marked_answered_and_counted() -> Result<()> {
    require!();
    let pair = Pair::with_mtu("jumbo", 9_000)?;
    let marking = [&["link_rate=1gbit", "cp_enable=on"], &MARKING[..]].concat();
    pair.a.attach("a0", Role::Host, &marking)?;
    pair.b.attach("b0", Role::Host, &["link_rate=1gbit"])?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let first = Roce { payload: 8_192, ..Roce::default() };
    a.send(&first.frame())?;
    assert_eq!(b.expect()?, first.frame(), "an empty queue marks nothing");
    fill(&a, &b, &Roce { ecn: Ecn::NOT_ECT, ..Roce::default() }.frame())?;
    let mut dest_qpn = 0x20;
    for v6 in [false, true] {
        for tags in [vec![], vec![(EtherType::VLAN, 0xc005)]] {
            dest_qpn += 1;
            let data = Roce { v6, tags, dest_qpn, ..first.clone() };
            a.send(&data.frame())?;
            assert_eq!(b.expect()?, Roce { ecn: Ecn::CE, ..data.clone() }.frame(), "{data:?}");
            assert_eq!(a.expect()?, data.cnp(None, CNP_TOS), "{data:?}");
        }
    }
    assert_eq!(pair.b.count("b0", Hook::Ingress, Stat::RoceData)?, 5 + 45);
    assert_eq!(pair.b.count("b0", Hook::Ingress, Stat::NpEcnMarked)?, 4);
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::RpCnpHandled)?, 4);
    Ok(())
}
