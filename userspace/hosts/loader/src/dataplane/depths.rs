//! Preserves the depths of virtual queues across rate changes.

use aya::maps::{MapError, PerCpuValues};
use dcqcn_common::layout::{CLASSES, QUEUES};
use dcqcn_common::params::Params;
use dcqcn_common::vqueue::Share;

use super::error::at;
use super::{Error, Maps};

impl Maps {
    /// Preserves the bytes in each queue at `now_ns` (CLOCK_MONOTONIC), when `params` replaced `before`.
    ///
    /// A queue is stored as the time at which it is empty, which depends on the rate. Ordering: none; a packet that
    /// arrives between the reads and the writes is not counted.
    pub(crate) fn preserve_depths(
        &mut self,
        before: &Params,
        params: &Params,
        now_ns: u64,
    ) -> Result<(), Error> {
        for index in 0..QUEUES {
            let class = index as usize % CLASSES;
            let (Some(was), Some(is)) = (before.drain.get(class), params.drain.get(class)) else { continue };
            if was.ticks_per_byte_q16 == is.ticks_per_byte_q16 {
                continue;
            }
            let mut queue = self.queue.get()?.get(&index, 0).map_err(at("QUEUE"))?;
            let shares = self.shares.get()?.get(&index, 0).map_err(at("SHARES"))?;
            queue.empty_at = is.carried_over(was, queue.empty_at, &shares, now_ns);
            let none = vec![Share::NONE; shares.len()];
            let none = PerCpuValues::try_from(none).map_err(MapError::IoError).map_err(at("SHARES"))?;
            self.queue.get_mut()?.set(index, queue, 0).map_err(at("QUEUE"))?;
            self.shares.get_mut()?.set(index, none, 0).map_err(at("SHARES"))?;
        }
        Ok(())
    }
}
