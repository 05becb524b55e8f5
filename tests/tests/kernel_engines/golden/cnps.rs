//! CNPs compared with bytes computed here.

use super::*;

#[test]
fn kernel_cnps_equal_library_cnps() {
    let mut config = sender();
    config.scalars.min_time_between_cnps_ns = 50_000;
    let Some(mut both) = Both::load("kernel_cnps_equal_library_cnps", 64, &config) else { return };
    let known = QpId { addr: mapped(v4(2)), qpn: 0x33, vlan: 0 };
    both.set_pair(&known, &Pair::new(0xabcdef, PairSource::Static));
    let known = QpId { addr: words(v6(2)), qpn: 0x33, vlan: 0 };
    both.set_pair(&known, &Pair::new(0xabcdef, PairSource::Static));
    let mut now_ns = START_NS;
    for v6 in [false, true] {
        for tags in
            [vec![], vec![(EtherType::VLAN, 0x7009)], vec![(EtherType::QINQ, 7), (EtherType::VLAN, 9)]]
        {
            for (opcode, dest_qpn, sender_qpn) in [
                (Opcode::RC_RDMA_WRITE_MIDDLE, 0x33, Some(0xabcdef)),
                (Opcode::RC_RDMA_WRITE_MIDDLE, 0x44, None),
                (Opcode::UD_SEND_ONLY, 0x55, Some(0x22)),
                // Shorter than the CNP that answers it.
                (Opcode::RC_SEND_ONLY, 0x66, None),
            ] {
                let payload = if dest_qpn == 0x66 { 0 } else { 4_096 };
                let data = Roce {
                    v6,
                    tags: tags.clone(),
                    opcode,
                    dest_qpn,
                    payload,
                    ecn: Ecn::CE,
                    ..Roce::default()
                };
                let frame = data.frame();
                let arrived = both.process(Hook::Ingress, now_ns, &frame, &received());
                assert_eq!((arrived.verdict, arrived.mark, arrived.departure_ns), (Verdict::Pass, 0, 0));
                assert!(arrived.packet == frame, "the data passes unchanged");
                let [cnp] = &arrived.emitted[..] else {
                    panic!("{} CNPs for {data:?}", arrived.emitted.len());
                };
                // The outermost tag gets the CNP's priority, 6; its other bits are unchanged.
                let mut tags = tags.clone();
                if let Some((_, tci)) = tags.first_mut() {
                    *tci = (*tci & 0x1fff) | (6 << 13);
                }
                let expected = Roce { tags, ..data.clone() }.cnp(sender_qpn, CNP_TOS);
                assert!(cnp.packet == expected, "{data:?}\n{:02x?}\n{expected:02x?}", cnp.packet);
                assert!(icrc::verify(&cnp.packet[data.l3()..]));
                assert_eq!((cnp.verdict, cnp.mark, cnp.departure_ns), (Verdict::Pass, 0, 0));
                // One CNP per interval.
                for (after_ns, cnps) in [(1, 0), (49_999, 0), (50_000, 1)] {
                    let again = both.process(Hook::Ingress, now_ns + after_ns, &frame, &received());
                    assert_eq!(again.emitted.len(), cnps, "after {after_ns} ns");
                }
                now_ns += 1_000_000;
            }
        }
    }
    let state = both.state();
    assert_eq!(count(&state, Hook::Ingress, Stat::NpEcnMarked), 24 * 4);
    assert_eq!(count(&state, Hook::Ingress, Stat::NpCnpSuppressed), 24 * 2);
    assert_eq!(count(&state, Hook::Egress, Stat::NpCnpSent), 24 * 2);
    assert_eq!(count(&state, Hook::Egress, Stat::NpCnpHinted), 12 * 2);
    assert_eq!(count(&state, Hook::Egress, Stat::NpCnpFailed), 0);
    assert!(flows(&state).is_empty(), "CNPs are not paced");
}

/// Not-ECT data and data after the end are not answered.
#[test]
fn congested_host_answers_ect_data() {
    let mut config = sender();
    config.scalars.np_host_congestion = 1;
    let Some(mut both) = Both::load("congested_host_answers_ect_data", 64, &config) else { return };
    let until_ns = START_NS + 1_000_000_000;
    both.set_host_congested_until(until_ns);
    for (ecn, now_ns, cnps) in [
        (Ecn::ECT0, START_NS, 1),
        (Ecn::NOT_ECT, START_NS + 100_000_000, 0),
        (Ecn::ECT0, until_ns - 1, 1),
        (Ecn::ECT0, until_ns + 1_000_000, 0),
    ] {
        let frame = Roce { ecn, ..Roce::default() }.frame();
        let arrived = both.process(Hook::Ingress, now_ns, &frame, &received());
        assert_eq!(arrived.emitted.len(), cnps, "{ecn:?} at {now_ns}");
        assert!(arrived.packet == frame, "the data passes unchanged");
    }
}

#[test]
fn forged_cnps_change_nothing() {
    let Some(mut both) = Both::load("forged_cnps_change_nothing", 64, &sender()) else { return };
    let mut invalid = 0;
    let mut unknown = 0;
    for v6 in [false, true] {
        let data = Roce { v6, ..Roce::default() };
        send(&mut both, START_NS, &data.frame());
        let before = both.state();
        let now_ns = START_NS + 10_000;
        let right = data.cnp(None, CNP_TOS);
        // Every bit of the BTH, the reserved bytes and the ICRC: the ICRC detects it. (BECN and its neighbours are not
        // covered, but BECN must be set; FECN and the reserved bits may be anything.)
        for bit in data.bth() * 8..right.len() * 8 {
            let mut forged = right.clone();
            forged[bit / 8] ^= 0x80 >> (bit % 8);
            let at = bit - data.bth() * 8;
            if at < 8 || (12..16).contains(&at) || (at / 8 == 4 && at != 33) {
                // Another opcode, TVer, or a bit outside the ICRC.
                continue;
            }
            let passed = both.process(Hook::Ingress, now_ns, &forged, &received());
            assert_eq!((passed.verdict, &passed.packet), (Verdict::Pass, &forged), "bit {at}");
            // With another hint it names an unknown flow, and its ICRC is not computed.
            if (96..160).contains(&at) {
                unknown += 1;
            } else {
                invalid += 1;
            }
        }
        // Valid, but for unknown flows.
        for unknown_sender in [
            Roce { dest_qpn: 0x12, ..data.clone() },
            Roce { dst: 3, ..data.clone() },
            Roce { v6: !v6, dest_qpn: 0x99, ..data.clone() },
        ] {
            both.process(Hook::Ingress, now_ns, &unknown_sender.cnp(None, CNP_TOS), &received());
            unknown += 1;
        }
        // Valid, but without a hint, and for an unknown QP.
        both.process(Hook::Ingress, now_ns, &data.cnp(Some(0x22), CNP_TOS), &received());
        unknown += 1;
        let after = both.state();
        // `selected` is the end of the last search; nothing else may have changed.
        assert_eq!(flows(&before), flows(&after));
        assert_eq!((before.pairs, before.queues), (after.pairs, after.queues));
    }
    let state = both.state();
    assert_eq!(count(&state, Hook::Ingress, Stat::RpCnpInvalid), invalid);
    assert_eq!(count(&state, Hook::Ingress, Stat::RpCnpUnknownFlow), unknown);
    assert_eq!(count(&state, Hook::Ingress, Stat::RpCnpIgnored), invalid + unknown);
    assert_eq!(count(&state, Hook::Ingress, Stat::RpCnpHandled), 0);
}

#[test]
fn cnps_within_interval_ignored() {
    let Some(mut both) = Both::load("cnps_within_interval_ignored", 64, &sender()) else { return };
    let data = Roce::default();
    let cnp = data.cnp(None, CNP_TOS);
    send(&mut both, START_NS, &data.frame());
    both.process(Hook::Ingress, START_NS + 1, &cnp, &received());
    let first = flows(&both.state());
    for number in 1..40 {
        both.process(Hook::Ingress, START_NS + number * 1_000, &cnp, &received());
        let state = both.state();
        let flow = flows(&state)[0];
        assert_eq!((flow.hot.machine, flow.hot.pacer()), (first[0].hot.machine, first[0].hot.pacer()));
        assert_eq!((flow.cnps.handled, u64::from(flow.cnps.ignored)), (1, number));
        assert_eq!(count(&state, Hook::Ingress, Stat::RpCnpTooSoon), number);
    }
    // 40 us after the effective one.
    both.process(Hook::Ingress, START_NS + 40_001, &cnp, &received());
    assert_eq!(flows(&both.state())[0].cnps.handled, 2);
}
