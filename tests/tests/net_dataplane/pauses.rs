//! PFC frames of the neighbour hold what the pacer sends, in the running kernel.

use anyhow::Result;
use dcqcn_tests::pauses::run;

use crate::runnable;

#[test]
fn a_neighbour_s_pause_holds_what_waits_for_it() -> Result<()> {
    if !runnable("a_neighbour_s_pause_holds_what_waits_for_it", &["fq"])? {
        return Ok(());
    }
    let held = run("pfc")?;
    assert_eq!(held.wrong(), [""; 0], "{held:?}");
    Ok(())
}
