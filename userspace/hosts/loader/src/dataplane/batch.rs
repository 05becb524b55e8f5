//! Many elements of an array by one call: a table has thousands of sets, and a call for each takes longer than reading them.

use std::os::fd::{AsFd as _, AsRawFd as _};

use aya::Pod;
use aya::maps::{Array, IterableMap as _, MapData, MapError};
use aya::sys::SyscallError;

use super::{Error, Maps};
use crate::syscall::{Batch, lookup_batch};

/// Elements of one call.
const AT_ONCE: usize = 256;

impl Maps {
    /// How many flows the NP table has. Each set is looked at once, as it is at that moment.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn np_count(&self) -> Result<usize, Error> {
        let failed = |source| Error::Map { name: "NP", source };
        // What is in them is overwritten.
        let mut sets = vec![self.np.get(&0, 0).map_err(failed)?; AT_ONCE];
        let (mut flows, mut last) = (0, None);
        loop {
            let (read, next) = read(&self.np, last, &mut sets).map_err(failed)?;
            let ways = sets.iter().take(read).flat_map(|set| &set.ways);
            flows += ways.filter(|flow| flow.last_seen_ns != 0).count();
            match next {
                Some(next) => last = Some(next),
                None => return Ok(flows),
            }
        }
    }
}

/// Reads elements behind `last` into `values`, as many as it has. Returns how many these are, and the last of them if there are more.
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
    // SAFETY: there is room for `count` keys and values; any bytes are a `V`, which is `Pod` and of the map's value size, as `Array`
    // has checked; and all of it lives longer than the call.
    let is_end = match unsafe { lookup_batch(&mut batch) } {
        Ok(()) => false,
        // Fewer were left than there is room for.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
        Err(io_error) => {
            return Err(MapError::SyscallError(SyscallError { call: "bpf_map_lookup_batch", io_error }));
        }
    };
    let read = values.len().min(batch.count as usize);
    Ok((read, (!is_end && read != 0).then_some(next)))
}
