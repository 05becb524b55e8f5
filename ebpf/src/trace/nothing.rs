//! Packet trace stub of the object attached by default.

use dcqcn_common::classify::Frame;
use dcqcn_common::stats::Stat;

use crate::env::Hook;

/// A packet that is not traced.
pub struct PacketTrace;

impl PacketTrace {
    #[inline(always)]
    pub fn discarded() -> Option<Self> {
        Some(Self)
    }

    #[inline(always)]
    pub fn begin<F: Frame>(_hook: Hook, _frame: &mut F) -> Option<Self> {
        None
    }

    #[inline(always)]
    pub fn count_stat(&mut self, _stat: Stat, _n: u64) {}

    #[inline(always)]
    pub fn end(&self, _departure_ns: impl FnOnce() -> u64, _verdict: i32) {}
}
