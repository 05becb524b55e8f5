//! `Pod` implementations for the map types that user space reads and writes as bytes.
//!
//! SAFETY of all: `repr(C)`, explicit padding only (asserted by the sizes next to each), every bit pattern valid.

use crate::events::EventLog;
use crate::flow::{FlowId, NpSet, QpId, RpSet};
use crate::layout::{Active, Backlog, Counters, Cut, Pair, Queue, Test};
use crate::params::Params;
use crate::recovery::Requester;
use crate::vqueue::Share;

macro_rules! pod {
    ($($ty:ty),+) => { $(
        // SAFETY: see the module.
        unsafe impl aya::Pod for $ty {}
    )+ };
}
pod!(
    Active, Backlog, Counters, Cut, EventLog, NpSet, Pair, Params, Queue, QpId, Requester, RpSet, Share,
    Test, FlowId
);
