//! Maps opened on first use: a daemon serves hundreds of ports, and needs few maps of each.

use std::path::PathBuf;
use std::sync::OnceLock;

use aya::maps::{Map, MapData, MapError};

use super::Error;
use super::error::at;

/// Origin of a map.
pub(super) enum Source {
    /// An open map.
    Open(Map),
    /// Path of a pinned map.
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
    /// # Errors
    /// An open map has another type.
    pub(super) fn new(name: &'static str, source: Source) -> Result<Self, Error> {
        Ok(match source {
            Source::Pin(pin) => Self { name, pin, map: OnceLock::new() },
            Source::Open(map) => {
                let map = OnceLock::from(T::try_from(map).map_err(at(name))?);
                Self { name, pin: PathBuf::new(), map }
            }
        })
    }

    /// # Errors
    /// The pin is missing, or its map has another type.
    pub(super) fn get(&self) -> Result<&T, Error> {
        if let Some(map) = self.map.get() {
            return Ok(map);
        }
        let map = MapData::from_pin(&self.pin).and_then(Map::from_map_data).and_then(T::try_from);
        let map = map.map_err(at(self.name))?;
        Ok(self.map.get_or_init(|| map))
    }

    /// # Errors
    /// As [`Self::get`].
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
