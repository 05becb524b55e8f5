//! The vectors of `tests/vectors/`, through the P4 program in `simple_switch`: results and final registers must equal
//! the interpreter's.

use dcqcn_replay::{Bmv2, Engine as _, P4};
use dcqcn_tests::prelude::*;
use dcqcn_tests::vectors;

#[test]
fn bmv2_passes_vectors() -> Result<()> {
    require_bmv2!();
    for (name, _) in vectors::scenarios() {
        let vector = vectors::load(name)?;
        let params = Params::new(&vector.config()?, Port::new(1, 1, 1))?;
        let mut switch = Bmv2::new(&params, vector.packet_bytes)?;
        let differences = vector.differences(&mut switch)?;
        assert!(differences.is_empty(), "{name}: {}", differences.join("\n"));
        let mut interpreter = P4::new(&params, vector.packet_bytes, 1)?;
        vector.observe(&mut interpreter)?;
        assert!(switch.state()? == interpreter.state()?, "{name}: registers differ from the interpreter's");
        println!("{name}: {} steps", vector.steps.len());
    }
    Ok(())
}
