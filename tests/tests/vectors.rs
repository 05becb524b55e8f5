//! The vectors of `tests/vectors/`: the files match the current scenarios, and the reference engine and the P4 program in
//! the interpreter give the recorded results.

use std::{env, fs};

use dcqcn_common::params::{Params, Port};
use dcqcn_loader::dataplane::Sizes;
use dcqcn_replay::{P4, Reference};
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
