//! The vectors of `tests/vectors/`: the files match the current scenarios, and the reference engine and the
//! P4 program in the interpreter give the recorded results.

use std::env;

use dcqcn_replay::{Engine as _, P4, Reference};
use dcqcn_tests::prelude::*;
use dcqcn_tests::vectors;

const SIZES: Sizes = Sizes { rp_flows: 1_024, np_flows: 1_024 };

#[test]
fn reference_engine_passes_vectors() {
    for (name, scenario) in vectors::scenarios() {
        let port = Port::new(1, SIZES.rp_sets(), SIZES.np_sets());
        let params = Params::new(&scenario.config().unwrap(), port).unwrap();
        let answered = scenario.observe(&mut Reference::new(SIZES, &params, 1)).unwrap();
        if env::var_os("DCQCN_WRITE_VECTORS").is_some() {
            fs::write(vectors::path(name), answered.file().unwrap()).unwrap();
        }
        assert!(answered == vectors::load(name).unwrap(), "{name}: DCQCN_WRITE_VECTORS=1 regenerates it");
    }
}

#[test]
fn p4_interpreter_agrees() {
    for (name, _) in vectors::scenarios() {
        let vector = vectors::load(name).unwrap();
        let params = Params::new(&vector.config().unwrap(), Port::new(1, 1, 1)).unwrap();
        let mut engine = P4::new(&params, vector.packet_bytes, 1).unwrap();
        let differences = vector.differences(&mut engine).unwrap();
        assert!(differences.is_empty(), "{name}: {}", differences.join("\n"));
    }
}

/// More flows than the table of the notification point has entries. Flows that were answered within the
/// interval retain theirs.
#[test]
fn p4_answers_flow_once_per_interval() {
    const QPNS: std::ops::Range<u32> = 2..2_200;
    const NOW_NS: u64 = 1_000_000_000;
    let mut config = Config::DEFAULT;
    config.scalars.rp_enable = 0;
    let params = Params::new(&config, Port::new(1, 1, 1)).unwrap();
    let mut engine = P4::new(&params, 1_024, 1).unwrap();
    let mut cnps_of = |dest_qpn| {
        let marked = Roce { dest_qpn, ecn: Ecn::CE, payload: 16, ..Roce::default() };
        engine.process(Hook::Ingress, NOW_NS, &marked.frame(), &Meta::default()).unwrap().emitted.len()
    };
    let (first, second): (Vec<_>, Vec<_>) =
        (QPNS.map(&mut cnps_of).collect(), QPNS.map(&mut cnps_of).collect());
    let answered: usize = first.iter().sum();
    assert!((1_500..QPNS.len()).contains(&answered), "{answered} flows");
    assert_eq!(second.iter().sum::<usize>(), 0, "a second CNP in the interval");
}
