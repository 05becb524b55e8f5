//! The vectors of `tests/vectors/`, through the programs in the kernel.

use dcqcn_tests::prelude::*;
use dcqcn_tests::vectors;

#[test]
fn kernel_engine_passes_vectors() -> Result<()> {
    require!();
    for (name, _) in vectors::scenarios() {
        let differences = vectors::load(name)?.kernel_differences()?;
        ensure!(differences.is_empty(), "{name}: {}", differences.join("\n"));
    }
    Ok(())
}
