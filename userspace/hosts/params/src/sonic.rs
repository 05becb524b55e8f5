//! A SONiC switch's configuration (`config_db.json`) onto an interface and back.
//!
//! | SONiC | here |
//! |---|---|
//! | `PORT` speed (Mbit/s) | `link_rate` |
//! | `PORT_QOS_MAP` of the port, else of `global` | which maps the port uses |
//! | `DSCP_TO_TC_MAP`, `TC_TO_QUEUE_MAP` | `dscp_to_tc`, `tc_to_queue`; what a map leaves out is 0, as in SAI |
//! | `QUEUE` `PORT\|N` wred_profile | WRED of the traffic classes that go to queue N |
//! | `WRED_PROFILE` green_{min,max}_threshold, green_drop_probability | `kmin`, `kmax`, `pmax` |
//! | `WRED_PROFILE` green_ect_{min,max}_threshold, green_ect_mark_probability | the same, where marking has thresholds apart from dropping |
//! | then green_max_threshold, at which all is dropped | `queue_limit` |
//! | `WRED_PROFILE` ecn, wred_green_enable; a queue without a profile | `ecn` |
//! | `SCHEDULER` type, weight of a queue | `queue.N.scheduler`, `queue.N.weight` |
//! | `SCHEDULER` pir (bytes/s) of a queue | `drain_rate` |
//! | `PORT_QOS_MAP` pfc_enable of the port | `pfc.N.rx` |
//! | `MAP_PFC_PRIORITY_TO_QUEUE` by pfc_to_queue_map | `pfc.N.queue`; what the map leaves out stays |
//! | `PFC_WD` detection_time, restoration_time (ms), action | `pfc_wd_detection_time`, `pfc_wd_restoration_time`, `pfc_wd_action` |
//!
//! Field names and meanings are SONiC's Configuration wiki and sonic-swss `qosorch.cpp`; the `ect` thresholds are those of its
//! pull request 4719, which is under discussion: they are read and not written. The old way of writing a
//! reference, `[WRED_PROFILE|NAME]`, and the old separator `:` are read too.

mod db;
mod export;
mod import;

pub use db::{Database, Error};
pub use export::{Export, export};
pub use import::{Import, Unmapped, import};

#[cfg(test)]
mod tests;
