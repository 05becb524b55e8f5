//! The data plane in the running kernel, on real interfaces (veth), attached as a user would.

mod change;
mod congestion_point;
mod fast_cnp;
mod inline;
mod memory;
mod notification_point;
mod pacer;
mod reaction_point;
mod survive;
mod under_tcp;
mod untrusted;

use dcqcn_tests::prelude::*;

/// Class 3 marks every packet unless its queue is empty, and its queue takes seconds to drain: see [`fill`].
const MARKING: [&str; 3] = ["wred.3.drain_rate=100kbit", "wred.3.kmin=0B", "wred.3.kmax=0B"];

/// Fills the virtual queue of [`MARKING`] between two interfaces to almost 4 s, the maximum, with a
/// frame of 1 KB that must not be marked itself.
fn fill(from: &RawSocket, to: &RawSocket, not_ect: &[u8]) -> Result<()> {
    for _ in 0..45 {
        from.send(not_ect)?;
        to.expect()?;
    }
    Ok(())
}
