//! The vectors of `tests/vectors/`, through the programs in the kernel.

use dcqcn_common::params::{Params, Port};
use dcqcn_loader::dataplane::Sizes;
use dcqcn_replay::Kernel;
use dcqcn_tests::vectors;

const SIZES: Sizes = Sizes { rp_flows: 4_096, np_flows: 4_096 };

#[test]
fn kernel_engine_passes_vectors() {
    for (name, _) in vectors::scenarios() {
        let vector = vectors::load(name).unwrap();
        let port = Port::new(1, SIZES.rp_sets(), SIZES.np_sets());
        let params = Params::new(&vector.config().unwrap(), port).unwrap();
        let mut kernel = match Kernel::new(SIZES, &params, 1) {
            Ok(kernel) => kernel,
            Err(error) if error.to_string().contains("run it as root") => {
                eprintln!("SKIPPED kernel_engine_passes_vectors: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let differences = vector.differences(&mut kernel).unwrap();
        assert!(differences.is_empty(), "{name}: {}", differences.join("\n"));
    }
}
