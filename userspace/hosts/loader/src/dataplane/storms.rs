//! Passes the PFC watchdog's state to the programs.

use dcqcn_common::layout::Time;
use dcqcn_common::pfc::Storms;

use super::{Error, Maps};

impl Maps {
    /// Stores the priorities in a storm at `now_ns`; valid for
    /// [`STORM_AGE_NS`](dcqcn_common::pfc::STORM_AGE_NS).
    pub fn set_storms(&mut self, storms: Storms, now_ns: u64) -> Result<(), Error> {
        let times = self.times.get_mut()?;
        times.set(Time::Storms as u32, storms.word(now_ns), 0).map_err(super::error::at("TIMES_NS"))
    }
}
