//! Properties of all fabrics: determinism, no loss with PFC, completion under loss.

use super::nscc::NSCC;
use super::*;

/// All features combined, on an irregular topology.
fn everything(seed: u64, flows: usize) -> Scenario {
    let mut topology = Topology::leaf_spine(4, 2, 4, CABLES).unwrap();
    let spine = topology.node("spine0").unwrap();
    topology.links.push(Link { a: spine, b: spine + 1, rate_bps: 40 * GBIT, delay_ns: 3 * US });
    topology.links.push(Link { a: spine, b: spine - 1, rate_bps: 25 * GBIT, delay_ns: 2 * US });
    let mut random = crate::network::Random::new(seed);
    let mut workload = Workload::new();
    for number in 0..flows {
        let src = random.up_to(15) as u32;
        let dst = (src + 1 + random.up_to(14) as u32) % 16;
        let class = [0, 3, 3, 4][random.up_to(3) as usize];
        let flow = workload.flow(src, dst, class, random.exponential(200_000), random.up_to(300 * US));
        if number % 5 == 4 {
            workload.after(flow, flow - 3, [Wait::Delivered, Wait::Acknowledged][number % 2]);
        }
    }
    let mut scenario = Scenario::new(topology, workload, Config::DEFAULT);
    scenario.seed = seed;
    scenario.switch.buffer_bytes = 3_000_000;
    scenario.switch.balance = Balance::Spray;
    (scenario.transport.recovery, scenario.transport.reordering) = (Recovery::Selective, 8);
    scenario.transport.timeout_ns = 300 * US;
    scenario.switch.reroute_ns = 50 * US;
    scenario.switch.watchdog =
        Some(Watchdog { detection_ns: 200 * US, restoration_ns: 100 * US, action: StormAction::Drop });
    scenario.faults = vec![
        Fault { at_ns: 100 * US, kind: FaultKind::LinkDown(17) },
        Fault { at_ns: 200 * US, kind: FaultKind::StormBegins { host: 3, classes: 1 << 3 } },
        Fault { at_ns: 900 * US, kind: FaultKind::StormEnds { host: 3 } },
        Fault { at_ns: 700 * US, kind: FaultKind::LinkUp(17) },
    ];
    scenario.sample_ns = Some(20 * US);
    scenario.duration_ns = 30 * MS;
    scenario
}

#[test]
fn outcome_independent_of_cores() {
    for seed in 0..4 {
        let mut scenario = everything(seed, 200);
        if seed % 2 == 1 {
            scenario.transport.admission =
                Some(Admission { bytes: 150_000, chunk_bytes: 20_000, class: None });
        }
        if seed >= 2 {
            scenario.control = Control::Nscc(NSCC);
        }
        let one = outcome(&scenario);
        assert!(one.flows.iter().filter(|flow| flow.fct_ns.is_some()).count() >= 190, "{:?}", one.transport);
        for threads in [2, 3, 6] {
            let many = scenario.run(threads, &mut |_| ControlFlow::Continue(())).unwrap();
            assert!(many == one, "seed {seed}, {threads} threads");
        }
        assert_ne!(outcome(&everything(seed + 100, 200)), one);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 20, ..ProptestConfig::default() })]
    #[test]
    fn flows_complete_once_under_loss(
        seed in 0u64..1 << 32, limit in 20_000u64..300_000, reordering in 0u32..64, selective in any::<bool>(),
        spray in any::<bool>(), trims in any::<bool>(), window in prop_oneof![Just(0u64), Just(100_000u64)],
        ack_every in 1u32..40, nscc in any::<bool>(), admitted in prop_oneof![Just(None), (5_000u64..400_000).prop_map(Some)],
    ) {
        let mut scenario = everything(seed, 60);
        scenario.faults.clear();
        scenario.switch.watchdog = None;
        for class in [3, 4, 0] {
            scenario.switch.classes[class] = Class { loss: Loss::Lossy(Threshold::Bytes(limit)), ..lossy() };
        }
        // Every packet that overtakes another costs go-back-N a window. Trimming keeps it in step: see
        // `trimming_without_window_may_lockstep`.
        scenario.switch.balance = if spray && selective { Balance::Spray } else { Balance::Ecmp };
        scenario.transport.recovery = if selective { Recovery::Selective } else { Recovery::GoBackN };
        scenario.transport.reordering = reordering;
        scenario.switch.trim_to = (trims && (selective || window != 0)).then_some(5);
        if nscc && selective {
            scenario.control = Control::Nscc(NSCC);
        }
        (scenario.transport.window_bytes, scenario.transport.ack_every) = (window, ack_every);
        scenario.transport.admission =
            admitted.map(|bytes| Admission { bytes, chunk_bytes: bytes.min(30_000), class: Some(0) });
        scenario.duration_ns = 2_000 * MS;
        let out = outcome(&scenario);
        prop_assert!(complete(&out), "{:?}", out.transport);
        let lost: u64 = out.classes.iter().map(|class| class.dropped_packets).sum();
        prop_assert!(out.transport.delivered_packets <= out.transport.data_packets + lost);
    }

    #[test]
    fn pfc_loses_nothing(seed in 0u64..1 << 32, alpha in 0.01f64..8.0, offset in 0u64..50_000) {
        let mut scenario = everything(seed, 60);
        scenario.faults.clear();
        scenario.switch.watchdog = None;
        scenario.control = if seed % 2 == 0 { Control::Dcqcn } else { Control::Off };
        scenario.switch.balance = Balance::Ecmp;
        for class in [0, 3, 4] {
            let Loss::Lossless(pfc) = scenario.switch.classes[3].loss else { panic!("class 3 is lossless") };
            let pfc = Pfc { xoff: Threshold::Alpha(alpha), xon_offset_bytes: offset, ..pfc };
            scenario.switch.classes[class].loss = Loss::Lossless(pfc);
        }
        scenario.duration_ns = 500 * MS;
        scenario.transport.timeout_ns = 50 * MS;
        let out = outcome(&scenario);
        prop_assert!(no_loss(&out), "{:?}", out.classes);
        prop_assert!(complete(&out), "{:?}", out.transport);
    }
}
