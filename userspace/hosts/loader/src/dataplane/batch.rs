//! Batch reads of arrays: with one call per set, the calls would take longer than the reads.

use std::os::fd::{AsFd as _, AsRawFd as _};

use aya::Pod;
use aya::maps::{Array, IterableMap as _, MapData, MapError};
use aya::sys::SyscallError;

use super::error::at;
use super::{Error, Maps};
use crate::syscall::{Batch, lookup_batch};

/// Elements per call.
const BATCH: usize = 256;

impl Maps {
    /// Number of flows in the NP table. Each set is read once, without its lock.
    pub fn np_count(&self) -> Result<usize, Error> {
        // Overwritten by the reads.
        let mut sets = vec![self.np.read(0)?; BATCH];
        let (mut flows, mut last) = (0, None);
        loop {
            let (read, next) = read(self.np.get()?, last, &mut sets).map_err(at("NP"))?;
            let ways = sets.iter().take(read).flat_map(|set| &set.ways);
            flows += ways.filter(|flow| flow.last_seen_ns != 0).count();
            match next {
                Some(next) => last = Some(next),
                None => return Ok(flows),
            }
        }
    }
}

/// Reads the elements after `last` into `values`.
///
/// Returns their number, and the cursor if there may be more.
fn read<V: Pod>(
    array: &Array<MapData, V>,
    last: Option<u32>,
    values: &mut [V],
) -> Result<(usize, Option<u32>), MapError> {
    let mut keys = vec![0_u32; values.len()];
    let mut next = 0_u32;
    let mut batch = Batch {
        in_batch: last.as_ref().map_or(0, |last| std::ptr::from_ref(last) as u64),
        out_batch: std::ptr::from_mut(&mut next) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: u32::try_from(values.len()).unwrap_or(u32::MAX),
        map_fd: array.map().fd().as_fd().as_raw_fd().cast_unsigned(),
        ..Batch::default()
    };
    // SAFETY: there is room for `count` keys and values. Any bytes are a valid `V`, which is `Pod` and has
    // the map's value size, as checked by `Array`. All buffers outlive the call.
    let is_end = match unsafe { lookup_batch(&mut batch) } {
        Ok(()) => false,
        // Fewer elements were left than requested.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
        Err(io_error) => {
            return Err(MapError::SyscallError(SyscallError { call: "bpf_map_lookup_batch", io_error }));
        }
    };
    let read = values.len().min(batch.count as usize);
    Ok((read, (!is_end && read != 0).then_some(next)))
}
