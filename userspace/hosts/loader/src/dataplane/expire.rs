//! Removes idle flows.

use std::path::Path;

use aya::TestRunOptions;
use aya::programs::{SchedClassifier, TestRun as _};
use dcqcn_common::events::Table;

use super::{EXPIRE, Error};

/// The program that removes idle flows, pinned with its maps.
pub struct Expire(SchedClassifier);

impl Expire {
    /// Opens the program pinned in `pins`.
    pub(crate) fn pinned(pins: &Path) -> Result<Self, Error> {
        let program = SchedClassifier::from_pin(pins.join(EXPIRE));
        program
            .map(Self)
            .map_err(|source| Error::Program { name: EXPIRE.to_owned(), source: Box::new(source) })
    }

    /// Removes the flows of set `index` last used before `before_ns` (CLOCK_MONOTONIC); returns how many.
    ///
    /// Checked under the lock, so a flow that has just become active is not removed.
    ///
    /// # Errors
    /// The kernel cannot run the program.
    pub fn run(&self, table: Table, index: u32, before_ns: u64) -> Result<u32, Error> {
        /// `cb` in `struct __sk_buff` (include/uapi/linux/bpf.h).
        const CB: usize = 48;
        let mut ctx = [0; 192];
        let words = [table as u32, index, before_ns as u32, (before_ns >> 32) as u32].map(u32::to_ne_bytes);
        for (at, byte) in ctx.iter_mut().skip(CB).zip(words.as_flattened()) {
            *at = *byte;
        }
        let options = TestRunOptions { data_in: Some(&[0; 64]), ctx_in: Some(&ctx), ..TestRunOptions::new() };
        let ran = self.0.test_run(options);
        ran.map(|ran| ran.return_value)
            .map_err(|source| Error::Program { name: EXPIRE.to_owned(), source: Box::new(source) })
    }
}
