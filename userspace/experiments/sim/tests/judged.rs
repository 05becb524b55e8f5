//! Comparison with Ultra Ethernet's htsim for equal flows (docs/measured/judges.md has more).

use std::ops::ControlFlow;

use dcqcn_sim::fabric::FabricSetup;
use dcqcn_sim::network::{Outcome, Simulation as _};

const COMMON: [(&str, &str); 5] = [
    ("topology", "leaf-spine:1x0x130"),
    ("mtu", "4000B"),
    ("header", "64B"),
    ("ack-every", "1"),
    ("wire_overhead", "0"),
];
const PFC: [(&str, &str); 4] =
    [("control", "off"), ("buffer", "4GB"), ("threshold", "200KB"), ("xon-offset", "40KB")];
const DCQCN: [(&str, &str); 10] = [
    ("buffer", "4GB"),
    ("threshold", "2GB"),
    ("profile", "paper"),
    ("rpg_threshold", "6"),
    ("rpg_ai_rate", "5gbit"),
    ("rpg_byte_reset", "10GB"),
    ("rpg_min_rate", "10mbit"),
    ("kmin", "195936B"),
    ("kmax", "195936B"),
    ("pmax", "100%"),
];

fn incast(senders: u32, settings: &[(&str, &str)]) -> Outcome {
    let mut setup = FabricSetup::default();
    for (key, value) in COMMON.iter().chain(settings) {
        setup.set(key, value).expect("a valid setting");
    }
    setup.set("size", "2MB").expect("a valid size");
    setup.set("workload", &format!("incast:{senders}")).expect("a valid workload");
    let scenario = setup.scenario().expect("a valid scenario");
    scenario.run(1, &mut |_| ControlFlow::Continue(())).expect("a run to its end")
}

fn close(outcome: &Outcome, htsim_us: f64, share: f64) {
    let fct = outcome.fct.expect("complete flows");
    assert!((fct.mean_ns / 1e3 / htsim_us - 1.0).abs() < share, "{fct:?}, htsim {htsim_us} us");
}

#[test]
fn incast_with_dcqcn_matches_htsim() {
    for (senders, mean_us, cnps, queue_bytes) in
        [(2, 573.9, 6, 264_160.0), (4, 1_178.0, 32, 1_018_032.0), (8, 1_916.6, 112, 3_200_400.0)]
    {
        let outcome = incast(senders, &DCQCN);
        close(&outcome, mean_us, 0.01);
        assert_eq!(outcome.transport.cnps_sent, cnps);
        let deepest = outcome.ports.iter().map(|port| port.max_queue_bytes).max().unwrap_or(0) as f64;
        assert!((deepest / queue_bytes - 1.0).abs() < 0.03, "{deepest}");
    }
}

#[test]
fn incast_with_pfc_matches_htsim() {
    for (senders, mean_us) in [(2, 329.1), (4, 653.0), (16, 2_601.0)] {
        close(&incast(senders, &PFC), mean_us, 0.01);
    }
}
