//! The array of programs that hand CNPs on to each other.
//!
//! A CNP may return by another interface of the namespace than the one its data left by.

use std::collections::BTreeSet;
use std::path::Path;

use aya::Ebpf;
use aya::maps::{Map, MapData, ProgramArray};
use dcqcn_common::layout::SIBLINGS;

use super::Error;
use super::journal::{Record, UndoStep};
use super::state_dir::StateDir;
use crate::dataplane::{Error as Failed, PROGRAMS, classifier};

/// Name of the map and of its pin.
const MAP: &str = "SIBLINGS";

/// Indices that no attachment of the namespace uses, with the lock held.
pub(super) fn free(state_dir: &StateDir) -> Result<impl Iterator<Item = u32> + use<>, Error> {
    let mut taken = BTreeSet::new();
    for ifindex in state_dir.pinned()? {
        // Unreadable journals are reported elsewhere.
        taken.extend(state_dir.read_shared(ifindex).ok().flatten().and_then(|record| of(&record)));
    }
    Ok((0..SIBLINGS).filter(move |slot| !taken.contains(slot)))
}

/// Index that an attachment uses.
pub(super) fn of(record: &Record) -> Option<u32> {
    // Steps of an incomplete rollback come first.
    record.steps.iter().rev().find_map(|step| match step {
        UndoStep::Sibling { slot } => Some(*slot),
        _ => None,
    })
}

/// Enters the TC ingress program of a loaded object in the array.
///
/// # Errors
/// The kernel rejects it: all programs of an array must be of the same kind.
pub(super) fn enter(ebpf: &mut Ebpf, slot: u32) -> Result<(), Error> {
    let failed = |source| Failed::Map { name: MAP, source };
    let program = classifier(ebpf, PROGRAMS[1])?.fd().and_then(|fd| Ok(fd.try_clone()?));
    let program = program.map_err(|source| Failed::Program { name: MAP.into(), source: Box::new(source) })?;
    let map = ebpf.map_mut(MAP).ok_or(Failed::Missing(MAP))?;
    let mut siblings = ProgramArray::try_from(map).map_err(failed)?;
    siblings.set(slot, &program, 0).map_err(failed)?;
    Ok(())
}

/// Clears the entry at `slot`; false if there was none, or the map was removed.
pub(super) fn clear(pins: &Path, slot: u32) -> Result<bool, Error> {
    let failed = |source| Failed::Map { name: MAP, source };
    let path = pins.join(MAP);
    if !path.exists() {
        return Ok(false);
    }
    let map = MapData::from_pin(path).and_then(Map::from_map_data).map_err(failed)?;
    let mut siblings = ProgramArray::try_from(map).map_err(failed)?;
    match siblings.clear_index(&slot) {
        Ok(()) => Ok(true),
        // The entry is empty.
        Err(aya::maps::MapError::SyscallError(error))
            if error.io_error.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(false)
        }
        Err(error) => Err(failed(error).into()),
    }
}
