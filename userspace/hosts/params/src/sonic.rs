//! Import and export of a SONiC switch's configuration (`config_db.json`).
//!
//! | SONiC | here |
//! |---|---|
//! | `PORT` speed (Mbit/s) | `link_rate` |
//! | `PORT_QOS_MAP` of the port, else of `global` | which maps the port uses |
//! | `DSCP_TO_TC_MAP`, `TC_TO_QUEUE_MAP` | `dscp_to_tc`, `tc_to_queue`; absent entries of a map are 0, as in SAI |
//! | `QUEUE` `PORT\|N` wred_profile | WRED of the traffic classes that go to queue N |
//! | `WRED_PROFILE` green_{min,max}_threshold, green_drop_probability | `kmin`, `kmax`, `pmax` |
//! | `WRED_PROFILE` ecn_green_{min,max}_threshold, ecn_green_mark_probability | `kmin`, `kmax`, `pmax`, if marking and dropping have separate thresholds |
//! | then green_max_threshold, at which all packets are dropped | `queue_limit` |
//! | `WRED_PROFILE` ecn, wred_green_enable; a queue without a profile | `ecn` |
//! | `SCHEDULER` type, weight of a queue | `queue.N.scheduler`, `queue.N.weight` |
//! | `SCHEDULER` pir (bytes/s) of a queue | `drain_rate` |
//! | `PORT_QOS_MAP` pfc_enable of the port; all priorities with `PORT` pfc_asym | `pfc.N.rx` |
//! | `MAP_PFC_PRIORITY_TO_QUEUE` by pfc_to_queue_map | `pfc.N.queue`; absent entries of the map are unchanged |
//! | `PFC_WD` detection_time, restoration_time (ms), action | `pfc_wd_detection_time`, `pfc_wd_restoration_time`, `pfc_wd_action` |
//!
//! Field names and meanings are those of SONiC's Configuration wiki, its YANG models and sonic-swss
//! `qosorch.cpp`. The `ecn_green` thresholds, also as `green_ect_...` of pull request 4719, are imported but
//! not exported. The old syntax of references, `[WRED_PROFILE|NAME]`, and the old separator `:` are accepted
//! too.

mod db;
mod export;
mod import;

pub use db::{Database, Error};
pub use export::{Export, export};
pub use import::{Import, Unmapped, import};

#[cfg(test)]
mod tests;
