//! Both engines agree if a packet leaves by another port.

use super::*;

#[test]
fn engines_agree_inline_both_directions() {
    let mut config = everything();
    config.scalars.drop_not_ect = 1;
    let Some(mut both) = Both::load("engines_agree_inline_both_directions", 8, &config) else { return };
    let peer = 77;
    let mut now_ns = START_NS;
    for (ifindex, to, queue) in [([LO, peer], peer, CLASSES), ([peer, LO], peer, 0)] {
        let mut params = both.params;
        params.port.ifindex = ifindex;
        both.set_params(&params);
        let before = both.state().queues;
        for number in 0..120 {
            let roce = Roce {
                ecn: ECNS[number % 4],
                v6: number % 3 == 0,
                tags: taggings()[number % 5].clone(),
                ..Roce::default()
            };
            let frame = roce.frame();
            let passed = both.process(Hook::Xdp, now_ns, &frame, &received());
            if passed.verdict != Verdict::Drop {
                assert_eq!(passed.verdict, Verdict::Redirect { ifindex: to, neighbour: false });
            }
            now_ns += 1_000;
        }
        // The packet is forwarded in any case.
        let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0; 46]].concat();
        assert_eq!(
            both.process(Hook::Xdp, now_ns, &arp, &received()).verdict,
            Verdict::Redirect { ifindex: to, neighbour: false }
        );
        let after = both.state().queues;
        assert_ne!(before[queue + 3], after[queue + 3], "class 3 of the egress port");
        assert_eq!(before[CLASSES - queue + 3], after[CLASSES - queue + 3], "class 3 of the other port");
    }
    let state = both.state();
    assert!(count(&state, Hook::Xdp, Stat::CpEcnMarked) > 0);
    assert!(count(&state, Hook::Xdp, Stat::CpNotEctDropped) > 0);
    assert!(count(&state, Hook::Xdp, Stat::InlineForwarded) > 0);
}

#[test]
fn engines_agree_on_fast_cnps() {
    let mut config = everything();
    (config.scalars.fast_cnp, config.scalars.rp_enable) = (1, 0);
    let Some(mut both) = Both::load("engines_agree_on_fast_cnps", 64, &config) else { return };
    let mut now_ns = START_NS;
    for routed in [false, true] {
        let mut params = both.params;
        // A routed packet carries the port's own address as its source.
        params.port.macs[0] = if routed { dcqcn_tests::packets::mac(1) } else { [2, 0, 0, 0, 1, 1] };
        both.set_params(&params);
        for v6 in [false, true] {
            let mut answers = 0;
            for number in 0..100 {
                let roce = Roce { v6, tags: taggings()[number % 4].clone(), ..Roce::default() };
                let forwarded = both.process(Hook::Egress, now_ns, &roce.frame(), &received());
                for cnp in &forwarded.emitted {
                    answers += 1;
                    assert_eq!(cnp.verdict, Verdict::Redirect { ifindex: LO, neighbour: routed });
                    assert_eq!(cnp.mark, 0);
                }
                // Packets that this host sends are not answered.
                let own = both.process(Hook::Egress, now_ns, &roce.frame(), &Meta::default());
                assert!(own.emitted.is_empty());
                now_ns += 5_000;
            }
            assert!(answers > 2, "{answers}");
            both.state();
            now_ns += GBIT;
        }
    }
}
