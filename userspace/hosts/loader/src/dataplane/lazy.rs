//! Maps opened on first use: a daemon serves hundreds of ports, and needs few maps of each. Reads arrays in batches.

use std::borrow::Borrow;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::sync::OnceLock;

use aya::Pod;
use aya::maps::{Array, HashMap, IterableMap as _, Map, MapData, MapError, PerCpuArray, PerCpuValues};
use aya::sys::SyscallError;

use super::error::at;
use super::{Error, Maps};
use crate::syscall::{Batch, lookup_batch};

pub(super) enum Source {
    Open(Map),
    Pin(PathBuf),
}

/// A map of an attachment.
pub(super) struct Lazy<T> {
    name: &'static str,
    /// Empty if the map was open from the start.
    pin: PathBuf,
    map: OnceLock<T>,
}

impl<T: TryFrom<Map, Error = MapError>> Lazy<T> {
    /// Takes the map called `name` from `of`.
    pub(super) fn open(
        name: &'static str,
        of: impl FnOnce(&'static str) -> Result<Source, Error>,
    ) -> Result<Self, Error> {
        Ok(match of(name)? {
            Source::Pin(pin) => Self { name, pin, map: OnceLock::new() },
            Source::Open(map) => {
                let map = OnceLock::from(T::try_from(map).map_err(at(name))?);
                Self { name, pin: PathBuf::new(), map }
            }
        })
    }

    /// The map, opened if necessary.
    pub(super) fn get(&self) -> Result<&T, Error> {
        if let Some(map) = self.map.get() {
            return Ok(map);
        }
        let map = self.open_pin()?;
        Ok(self.map.get_or_init(|| map))
    }

    /// Calls `work` with the map, which is closed after it unless it was open.
    pub(super) fn with<R>(&self, work: impl FnOnce(&T) -> R) -> Result<R, Error> {
        match self.map.get() {
            Some(map) => Ok(work(map)),
            None => Ok(work(&self.open_pin()?)),
        }
    }

    fn open_pin(&self) -> Result<T, Error> {
        let map = MapData::from_pin(&self.pin).and_then(Map::from_map_data).and_then(T::try_from);
        map.map_err(at(self.name))
    }

    pub(super) fn get_mut(&mut self) -> Result<&mut T, Error> {
        self.get()?;
        self.map.get_mut().ok_or(Error::Missing(self.name))
    }

    /// Items of the map, or the error of opening it.
    pub(super) fn items<'a, V, I: Iterator<Item = Result<V, Error>>>(
        &'a self,
        items: impl FnOnce(&'a T) -> I,
    ) -> impl Iterator<Item = Result<V, Error>> {
        let (items, error) = match self.get() {
            Ok(map) => (Some(items(map)), None),
            Err(error) => (None, Some(Err(error))),
        };
        error.into_iter().chain(items.into_iter().flatten())
    }
}

impl<V: Pod> Lazy<Array<MapData, V>> {
    pub(super) fn read(&self, index: u32) -> Result<V, Error> {
        self.get()?.get(&index, 0).map_err(at(self.name))
    }

    pub(super) fn write(&mut self, index: u32, value: impl Borrow<V>) -> Result<(), Error> {
        let name = self.name;
        self.get_mut()?.set(index, value, 0).map_err(at(name))
    }
}

impl<V: Pod> Lazy<PerCpuArray<MapData, V>> {
    pub(super) fn read(&self, index: u32) -> Result<PerCpuValues<V>, Error> {
        self.get()?.get(&index, 0).map_err(at(self.name))
    }

    pub(super) fn write(&mut self, index: u32, values: Vec<V>) -> Result<(), Error> {
        let name = self.name;
        let values = PerCpuValues::try_from(values).map_err(MapError::IoError).map_err(at(name))?;
        self.get_mut()?.set(index, values, 0).map_err(at(name))
    }
}

impl<K: Pod, V: Pod> Lazy<HashMap<MapData, K, V>> {
    pub(super) fn find(&self, key: &K) -> Result<Option<V>, Error> {
        match self.get()?.get(key, 0) {
            Err(MapError::KeyNotFound) => Ok(None),
            value => value.map(Some).map_err(at(self.name)),
        }
    }

    pub(super) fn insert(&mut self, key: &K, value: &V) -> Result<(), Error> {
        let name = self.name;
        self.get_mut()?.insert(key, value, 0).map_err(at(name))
    }

    pub(super) fn remove(&mut self, key: &K) -> Result<(), Error> {
        let name = self.name;
        match self.get_mut()?.remove(key) {
            Err(error) if is_missing(&error) => Ok(()),
            removed => removed.map_err(at(name)),
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = Result<(K, V), Error>> {
        let name = self.name;
        self.items(move |map| map.iter().map(move |entry| entry.map_err(at(name))))
    }
}

/// Whether there is no entry with the key.
pub(super) fn is_missing(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound => true,
        MapError::SyscallError(error) => error.io_error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

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
