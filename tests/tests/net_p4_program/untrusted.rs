//! Effects of untrusted senders on the switch, and their bounds.

use dcqcn_p4::Control as _;
use dcqcn_p4::entry::{Command, Entry};
use dcqcn_replay::{Engine as _, Reference};
use dcqcn_tests::prelude::*;

use super::{Bench, SWITCH, TIMEOUT};

const SIZES: Sizes = Sizes { rp_flows: 4_096, np_flows: 4_096 };

/// Without an entry for a host no answer has its address, unless enabled.
#[test]
fn unknown_host_marks_answered_if_enabled() {
    let test = test_name!();
    for other_host in [false, true] {
        let here = format!("np_enable = true\nnp_other_host = {other_host}\nmin_time_between_cnps = '0us'");
        let Some(mut bench) = Bench::new(test, &SWITCH.replace("np_enable = false", &here), |_| {}).unwrap()
        else {
            return;
        };
        let (table, action) = bench.program.names("mac_forward", "to_port").unwrap();
        let elsewhere = Entry::default_action(table, action, vec![2_u16.into()]);
        bench.session.run(&Command::Write(elsewhere)).unwrap();
        let marked = Roce { ecn: Ecn::CE, ..Roce::default() };
        let known = marked.frame();
        let mut unknown = known.clone();
        unknown[5] = 0x77;
        let mut counted = [0; 2];
        for (frame, is_answered) in [(known, true), (unknown, other_host)] {
            assert_eq!(bench.across(&frame).unwrap(), frame);
            if is_answered {
                let cnp = bench.hosts[0].receive(TIMEOUT).unwrap().expect("the CNP arrives");
                assert_eq!(cnp[Ethernet::LEN..], marked.cnp(None, 48 << 2)[Ethernet::LEN..]);
            }
            counted[usize::from(!is_answered)] += 1;
        }
        // Both packets have left, and are counted.
        let stats = [Stat::NpCnpSent, Stat::NpNotForHost].map(|stat| bench.stat(stat).unwrap());
        assert_eq!(stats, counted, "{other_host}");
    }
}

/// Forged QPs of a local process are learned in a burst, and then at a limited rate, as in the reference engine.
#[test]
fn pairs_learned_up_to_limit() {
    let file = SWITCH.replace("rp_enable = false", "rp_enable = true");
    let Some(mut bench) = Bench::new("pairs_learned_up_to_limit", &file, |_| {}).unwrap() else { return };
    let config = bench.config;
    let params = Params::new(&config, Port::new(1, SIZES.rp_sets(), SIZES.np_sets())).unwrap();
    let mut reference = Reference::new(SIZES, &params, 1);
    let (table, action) = bench.program.names("clock", "fixed_time").unwrap();
    let (table, action) = (table.to_owned(), action.to_owned());
    let mut source_qpn = 0x1000;
    let mut now_us: u64 = 1_000_000;
    for (packets, later_us) in [(8_200, 0), (3, 999), (3, 1), (9, 5_500), (2, 100)] {
        now_us += later_us;
        let clock = Entry::default_action(&table, &action, vec![now_us.into()]);
        bench.session.run(&Command::Write(clock)).unwrap();
        for _ in 0..packets {
            source_qpn += 1;
            let frame =
                Roce { opcode: Opcode::UD_SEND_ONLY, source_qpn, payload: 16, ..Roce::default() }.frame();
            bench.across(&frame).unwrap();
            reference.process(Hook::Egress, now_us * 1_000, &frame, &Meta::default()).unwrap();
        }
        let counters = reference.counters().unwrap();
        let expected: u64 = counters.iter().map(|hook| hook.stat[Stat::PairLimited as usize]).sum();
        assert!(expected >= 8, "{packets} packets at {now_us} us");
        assert_eq!(bench.stat(Stat::PairLimited).unwrap(), expected, "{packets} packets at {now_us} us");
    }
}
