//! What the watchdog tells the programs.

use dcqcn_common::layout::Time;
use dcqcn_common::pfc::Storms;

use super::{Error, Maps};

impl Maps {
    /// Says at `now_ns` which priorities are in a storm; believed for [`STORM_AGE_NS`](dcqcn_common::pfc::STORM_AGE_NS).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_storms(&mut self, storms: Storms, now_ns: u64) -> Result<(), Error> {
        self.times.set(Time::Storms as u32, storms.word(now_ns), 0).map_err(super::maps::at("TIMES_NS"))
    }
}
