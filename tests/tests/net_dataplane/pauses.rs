//! PFC frames of the neighbour delay paced packets, in the running kernel.

use dcqcn_tests::pauses::run;
use dcqcn_tests::prelude::*;

#[test]
fn neighbour_pause_holds_its_queue() -> Result<()> {
    require!("fq");
    let observed = run("pfc")?;
    assert_eq!(observed.wrong(), [""; 0], "{observed:?}");
    Ok(())
}
