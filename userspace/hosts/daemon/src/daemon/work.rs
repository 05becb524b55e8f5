//! What a task has: an attached interface, the file's settings, and turns.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use anyhow::Result;
use dcqcn_loader::attach::{self, Attachment, Info};
use dcqcn_loader::dataplane::Maps;
use dcqcn_loader::pfc_tx::PauseSocket;
use dcqcn_netlink::Netlink;

use crate::depths::Watched;

/// An attached interface, as tasks share it.
pub(super) struct Port {
    /// How it is attached.
    pub(super) info: Info,
    maps: RwLock<Maps>,
}

impl Port {
    /// Opens its maps.
    ///
    /// # Errors
    /// It is not attached any more.
    pub(super) fn open(iface: &str) -> Result<Arc<Self>> {
        let Attachment { info, maps } = attach::open(iface)?;
        Ok(Arc::new(Self { info, maps: RwLock::new(maps) }))
    }

    /// Its maps, to read. Not to be kept while waiting for anything.
    pub(super) fn maps(&self) -> RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its maps, to write. Not to be kept while waiting for anything.
    pub(super) fn maps_mut(&self) -> RwLockWriteGuard<'_, Maps> {
        self.maps.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the file says of tasks, what others see of theirs, and what they need that was opened while there were more rights.
#[derive(Default)]
pub(super) struct Settings {
    age_idle_ns: AtomicU64,
    watched: Arc<Watched>,
    /// `None` where the process may not send frames.
    pause_socket: Option<PauseSocket>,
}

impl Settings {
    /// With what is seen of queues and flows, and with what PFC frames are sent.
    pub(super) fn new(watched: Arc<Watched>, pause_socket: Option<PauseSocket>) -> Self {
        Self { watched, pause_socket, ..Self::default() }
    }

    /// What is seen of queues and flows.
    pub(super) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// With what PFC frames are sent, if that is allowed.
    pub(super) const fn pause_socket(&self) -> Option<&PauseSocket> {
        self.pause_socket.as_ref()
    }

    /// After how long a flow counts as idle, if anybody wants to know.
    pub(super) fn age_idle(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.age_idle_ns.load(Ordering::Relaxed))).filter(|idle| !idle.is_zero())
    }

    pub(super) fn set_age_idle(&self, idle: Option<Duration>) {
        let ns = idle.map_or(0, |idle| u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX));
        self.age_idle_ns.store(ns, Ordering::Relaxed);
    }
}

/// A task of one interface.
pub(super) trait Work {
    /// Does what is due, and returns how long there is nothing to do.
    ///
    /// # Errors
    /// Told in the log; the task is begun again.
    fn turn(&mut self, netlink: &Netlink) -> Result<Duration>;

    /// Something to read here ends the rest.
    fn wakes(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
