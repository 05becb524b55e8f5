//! The pushed configuration of a switch, stored on the host: a switch reports packets and microseconds, not the bytes
//! and rates they were derived from.
//!
//! One file per switch, `/run/dcqcn/bmv2/NETNS-PORT.json`; NETNS is the inode number of the network namespace of its
//! Thrift server. It is valid only while the switch matches it ([`super::push::verify`]).

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use dcqcn_common::params::Config;
use dcqcn_netlink::netns;
use dcqcn_params::{Key, differing};
use dcqcn_support::file::replace;
use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::switch::Switch;

const DIRECTORY: &str = "/run/dcqcn/bmv2";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredConfig {
    pub config: Config,
    pub switch: Switch,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// Parameters that differ from the defaults, in their base units.
    parameters: BTreeMap<String, u64>,
    switch: Switch,
}

impl StoredConfig {
    /// The configuration pushed to the switch at a Thrift port of the calling thread's network namespace.
    pub fn load(port: u16) -> Result<Self> {
        let path = path(port)?;
        let failed = |source| Error::File { path: path.clone(), source };
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(Error::NothingPushed { port }),
            text => text.map_err(failed)?,
        };
        let stored: Stored = serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
        let mut config = Config::DEFAULT;
        for (name, value) in &stored.parameters {
            let other = |reason: String| failed(std::io::Error::other(reason));
            let key: Key =
                name.parse().map_err(|error: dcqcn_params::UnknownKey| other(error.to_string()))?;
            key.set(&mut config, *value).map_err(|error| other(error.to_string()))?;
        }
        Ok(Self { config, switch: stored.switch })
    }

    /// Stores the configuration, replacing any other.
    pub fn save(&self, port: u16) -> Result<()> {
        let path = path(port)?;
        let failed = |source| Error::File { path: path.clone(), source };
        let keys = differing(&Config::DEFAULT, &self.config);
        let parameters = keys.map(|key| (key.to_string(), key.get(&self.config))).collect();
        let stored = Stored { parameters, switch: self.switch.clone() };
        let text = serde_json::to_vec_pretty(&stored).map_err(|error| failed(error.into()))?;
        fs::create_dir_all(DIRECTORY).map_err(failed)?;
        replace(&path, &text).map_err(failed)
    }
}

/// A lock on a switch, held from the first read to the last write of a change and its stored configuration.
#[derive(Debug)]
pub struct Claim {
    _lock: File,
}

impl Claim {
    /// Locks the switch at a Thrift port of the calling thread's network namespace.
    ///
    /// # Errors
    /// Another process holds the lock for longer than `TIMEOUT`, or the lock file cannot be created.
    pub fn acquire(port: u16) -> Result<Self> {
        let path = path(port)?.with_extension("lock");
        let failed = |source| Error::File { path: path.clone(), source };
        fs::create_dir_all(DIRECTORY).map_err(failed)?;
        let lock = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        let until = Instant::now() + TIMEOUT;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { _lock: lock }),
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(TICK),
                Err(TryLockError::WouldBlock) => return Err(Error::Busy { port, path }),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
    }
}

/// Maximum wait for the lock: a push of a large configuration takes seconds.
const TIMEOUT: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(20);

fn path(port: u16) -> Result<PathBuf> {
    let netns = netns::current_inode()
        .map_err(|error| Error::File { path: DIRECTORY.into(), source: std::io::Error::other(error) })?;
    Ok(PathBuf::from(DIRECTORY).join(format!("{netns}-{port}.json")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switch_lock_is_exclusive() {
        // A port without a switch: no server listens there, and the file is unique.
        const PORT: u16 = 1;
        let Ok(claim) = Claim::acquire(PORT) else {
            eprintln!("SKIPPED switch_lock_is_exclusive: {DIRECTORY} cannot be written");
            return;
        };
        let lock_time = Duration::from_millis(300);
        let second = thread::spawn(|| {
            let began = Instant::now();
            Claim::acquire(PORT).map(|_| began.elapsed())
        });
        thread::sleep(lock_time);
        drop(claim);
        let waited = second.join().unwrap().unwrap();
        assert!(waited >= lock_time / 2 && waited < TIMEOUT, "{waited:?}");
    }
}
