//! The vectors of `tests/vectors/`, through the P4 program in `simple_switch`: results and final registers must equal
//! the interpreter's.

use dcqcn_replay::{Bmv2, Engine as _, P4};
use dcqcn_tests::prelude::*;
use dcqcn_tests::{skip, vectors};

#[test]
fn bmv2_passes_vectors() {
    let test = "bmv2_passes_vectors";
    if !skip::runnable(test, &[]).unwrap() {
        return;
    }
    for (name, _) in vectors::scenarios() {
        let vector = vectors::load(name).unwrap();
        let params = Params::new(&vector.config().unwrap(), Port::new(1, 1, 1)).unwrap();
        let mut switch = match Bmv2::new(&params, vector.packet_bytes) {
            Ok(switch) => switch,
            Err(error) if error.to_string().contains("p4lang-bmv2") => {
                eprintln!("SKIPPED {test}: {error}");
                return;
            }
            Err(error) => panic!("{name}: {error}"),
        };
        let differences = vector.differences(&mut switch).unwrap();
        assert!(differences.is_empty(), "{name}: {}", differences.join("\n"));
        let mut interpreter = P4::new(&params, vector.packet_bytes, 1).unwrap();
        vector.observe(&mut interpreter).unwrap();
        let (in_switch, interpreted) = (switch.state().unwrap(), interpreter.state().unwrap());
        assert!(in_switch == interpreted, "{name}: registers differ from the interpreter's");
        println!("{name}: {} steps", vector.steps.len());
    }
}
