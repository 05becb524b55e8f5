//! What is told of a packet: nothing. The object that is attached unless asked otherwise.

use dcqcn_common::classify::Frame;
use dcqcn_common::stats::Stat;

use crate::env::Hook;

/// One packet, of which nothing is told.
pub struct PacketTrace;

impl PacketTrace {
    pub const NONE: Self = Self;

    #[inline(always)]
    pub fn of<F: Frame>(_hook: Hook, _frame: &mut F) -> Self {
        Self
    }

    #[inline(always)]
    pub fn counted(&mut self, _stat: Stat) {}

    #[inline(always)]
    pub fn end(&self, _departure_ns: impl FnOnce() -> u64, _verdict: i32) {}
}
