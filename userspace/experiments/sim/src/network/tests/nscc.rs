//! NSCC in a fabric.

use super::*;

/// For the fabrics of these tests: four links of 1 us, with frames of 4,162 bytes in one direction and ACKs
/// in the other.
pub(super) const NSCC: Nscc = Nscc { base_rtt_ns: 9_400, target_delay_ns: 9_400 };

/// Marks from one fifth to four fifths of the bandwidth-delay product.
fn nscc(mut scenario: Scenario) -> Scenario {
    scenario.control = Control::Nscc(NSCC);
    scenario.transport.recovery = Recovery::Selective;
    scenario.transport.ack_every = 1;
    scenario.transport.ack_class = Some(6);
    let wred = &mut scenario.config.wred[3];
    (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (24_000, 96_000, 1_000_000);
    scenario
}

#[test]
fn single_flow_has_no_slowdown() {
    for topology in [Topology::leaf_spine(1, 0, 16, CABLES), Topology::leaf_spine(4, 2, 4, CABLES)] {
        for bytes in [1, 100_000, 5_000_000] {
            let mut workload = Workload::new();
            workload.flow(0, 15, 3, bytes, 0);
            let scenario = nscc(Scenario::new(topology.clone().unwrap(), workload, Config::DEFAULT));
            assert!(scenario.base_rtt_ns() <= NSCC.base_rtt_ns);
            let flow = outcome(&scenario).flows[0];
            let slowdown = flow.fct_ns.unwrap() as f64 / flow.ideal_ns as f64;
            assert!((0.999..1.01).contains(&slowdown), "{bytes} bytes: {slowdown}");
        }
    }
}

#[test]
fn base_rtt_is_to_farthest_host() {
    let mut scenario = star(4, incast(3, 1_000));
    (scenario.transport.payload_bytes, scenario.transport.header_bytes) = (4_000, 64);
    scenario.config.scalars.wire_overhead_bytes = 0;
    // Two links each way: 1 us, 325.12 ns for a packet and 5.44 for its ACK, rounded up.
    assert_eq!(scenario.base_rtt_ns(), 4 * US + 2 * 326 + 2 * 6);
    scenario.topology = Topology::leaf_spine(2, 1, 2, CABLES).unwrap();
    assert_eq!(scenario.base_rtt_ns(), 8 * US + 4 * 326 + 4 * 6);
}

/// After the first windows the queue is as long as the target: 9.4 us are 117 KB.
#[test]
fn queue_converges_to_target() {
    let mut scenario = nscc(star(9, incast(8, 20_000_000)));
    scenario.sample_ns = Some(100 * US);
    let out = outcome(&scenario);
    let depths = &out.samples.as_ref().unwrap().switches[0].max_queue_bytes;
    assert!(depths[0] > 700_000, "{depths:?}");
    let rest = &depths[20..100];
    let mean = rest.iter().map(|&depth| u64::from(depth)).sum::<u64>() / rest.len() as u64;
    assert!((30_000..200_000).contains(&mean), "{mean} of {rest:?}");
    assert!(no_loss(&out), "{:?}", out.transport);
    // The link stays busy: 160 MB at 100 Gbit/s, with headers.
    assert!(out.duration_ns < 13_500 * US, "{}", out.duration_ns);
}

#[test]
fn trimmed_packets_alone_retransmitted() {
    let mut scenario = nscc(star(17, incast(16, 2_000_000)));
    scenario.switch.classes[3] = lossy();
    scenario.switch.trim_to = Some(6);
    let out = outcome(&scenario);
    let trimmed: u64 = out.classes.iter().map(|class| class.trimmed_packets).sum();
    assert!(trimmed > 0 && out.transport.timeouts == 0, "{:?}", out.transport);
    assert_eq!(out.transport.retransmitted_packets, trimmed);
    // Without NSCC, every arrival at a full queue is trimmed: 16 packets arrive per departure.
    scenario.control = Control::Off;
    let off: u64 = outcome(&scenario).classes.iter().map(|class| class.trimmed_packets).sum();
    assert!(trimmed * 5 < off, "{trimmed} of {off}");
}

/// Packets dropped without notification: the timeout removes them from the window, which would stay full otherwise.
#[test]
fn window_of_lost_packets_times_out() {
    let mut workload = Workload::new();
    workload.flow(0, 4, 3, 5_000_000, 0);
    let mut scenario = nscc(leaf_spine(2, 1, 4, workload));
    scenario.transport.timeout_ns = 200 * US;
    scenario.switch.reroute_ns = 100 * US;
    // Link 8 is the only uplink of leaf 0.
    scenario.faults = vec![
        Fault { at_ns: 100 * US, kind: FaultKind::LinkDown(8) },
        Fault { at_ns: 150 * US, kind: FaultKind::LinkUp(8) },
    ];
    let out = outcome(&scenario);
    assert!(out.flows[0].fct_ns.is_some() && out.transport.timeouts > 0, "{:?}", out.transport);
}

#[test]
fn nscc_requires_selective_repeat() {
    let mut scenario = nscc(star(4, incast(3, 1_000)));
    assert_eq!(scenario.validate(), Ok(()));
    for (change, expected) in [
        ((|s| s.transport.recovery = Recovery::GoBackN) as fn(&mut Scenario), "NSCC needs every packet"),
        (
            |s| s.control = Control::Nscc(Nscc { base_rtt_ns: 99, ..NSCC }),
            "base round trip = 99ns is out of range",
        ),
        (
            |s| s.control = Control::Nscc(Nscc { target_delay_ns: 0, ..NSCC }),
            "target delay = 0ns is out of range",
        ),
    ] {
        let mut other = scenario.clone();
        change(&mut other);
        let refused = other.validate().unwrap_err().to_string();
        assert!(refused.starts_with(expected), "{refused}");
    }
    scenario.control = Control::Off;
    scenario.transport.recovery = Recovery::GoBackN;
    assert_eq!(scenario.validate(), Ok(()));
}
