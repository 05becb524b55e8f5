//! Context of a task: an attached interface, settings, and its runs.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use dcqcn_loader::attach::{self, Attachment, Info};
use dcqcn_loader::dataplane::Maps;
use dcqcn_loader::pfc_tx::PauseSocket;
use dcqcn_netlink::Netlink;

use super::depths::DepthSamples;
use super::host_congestion::LastReading;
use super::pairs::RdmaView;
use crate::error::Result;

/// An attached interface, shared by tasks.
pub(super) struct Port {
    pub(super) info: Info,
    maps: RwLock<Maps>,
    /// A repair restored its qdisc, which has no classes of flows.
    pub(super) has_new_qdisc: AtomicBool,
}

impl Port {
    pub(super) fn open(info: &Info) -> Result<Arc<Self>> {
        let Attachment { info, maps } = attach::reopen(info)?;
        Ok(Arc::new(Self { info, maps: RwLock::new(maps), has_new_qdisc: AtomicBool::new(false) }))
    }

    /// Maps, for reading. Must not be held while blocking.
    pub(super) fn maps(&self) -> RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps, for writing. Must not be held while blocking.
    pub(super) fn maps_mut(&self) -> RwLockWriteGuard<'_, Maps> {
        self.maps.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settings and shared state of tasks, and resources opened with more privileges.
#[derive(Default)]
pub(super) struct Settings {
    age_idle_ns: AtomicU64,
    pub(super) depth_samples: Arc<DepthSamples>,
    /// RDMA devices and QPs, shared by all interfaces.
    pub(super) rdma: Mutex<RdmaView>,
    /// Last reading of receive processing, shared by all interfaces.
    pub(super) last_reading: LastReading,
    /// `None` if the process may not send frames.
    pub(super) pause_socket: Option<PauseSocket>,
}

impl Settings {
    pub(super) fn new(depth_samples: Arc<DepthSamples>, pause_socket: Option<PauseSocket>) -> Self {
        Self { depth_samples, pause_socket, ..Self::default() }
    }

    /// Idle time of flows, if aging is enabled.
    pub(super) fn age_idle(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.age_idle_ns.load(Ordering::Relaxed))).filter(|idle| !idle.is_zero())
    }

    pub(super) fn set_age_idle(&self, idle: Option<Duration>) {
        let ns = idle.map_or(0, |idle| u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX));
        self.age_idle_ns.store(ns, Ordering::Relaxed);
    }
}

/// Context in which a task of an interface starts.
pub(super) struct Start<'a> {
    pub(super) port: Arc<Port>,
    pub(super) settings: Arc<Settings>,
    pub(super) netlink: &'a Netlink,
}

/// A started task; `None` if the interface does not need it.
pub(super) type Begun = Result<Option<Box<dyn Work>>>;

/// Interval between checks whether the parameters, or a device, require a task.
pub(super) const IDLE_PERIOD: Duration = Duration::from_secs(1);

/// A task of one interface.
pub(super) trait Work {
    /// Does the work that is due, and returns the time until the next run.
    ///
    /// # Errors
    /// Logged; the task keeps its state and runs again after a second.
    fn run(&mut self, netlink: &Netlink) -> Result<Duration>;

    /// A file descriptor that wakes the task when readable.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
