//! Passes the daemon's readings to the programs: pause storms, and congestion of this host.

use dcqcn_common::layout::Time;
use dcqcn_common::pfc::Storms;

use super::{Error, Maps};

impl Maps {
    /// Stores the priorities in a storm at `now_ns`; valid for
    /// [`STORM_AGE_NS`](dcqcn_common::pfc::STORM_AGE_NS).
    pub fn set_storms(&mut self, storms: Storms, now_ns: u64) -> Result<(), Error> {
        self.set_time(Time::Storms, storms.word(now_ns))
    }

    /// Stores until when this host counts as congested; 0 = it does not.
    pub fn set_host_congested_until(&mut self, until_ns: u64) -> Result<(), Error> {
        self.set_time(Time::HostCongestedUntil, until_ns)
    }

    fn set_time(&mut self, which: Time, value: u64) -> Result<(), Error> {
        self.times.get_mut()?.set(which as u32, value, 0).map_err(super::error::at("TIMES_NS"))
    }
}
