//! Short tasks: removal of idle flows, backlogs, events, classes of the HTB pacer, and PFC transmission.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use dcqcn_common::events::{EventKind, Table};
use dcqcn_common::flow::QpId;
use dcqcn_common::params::{Params, QUEUES_NONE};
use dcqcn_loader::dataplane::Expire;
use dcqcn_loader::events::Reader;
use dcqcn_loader::pacer::htb::Classes;
use dcqcn_loader::pfc_tx::{PfcPoll, PfcSender, Ports};
use dcqcn_loader::queues::{self, QueueStats};
use dcqcn_loader::{attach, backlog};
use dcqcn_netlink::Netlink;
use dcqcn_params::{PacerChoice, word};
use dcqcn_support::clock::monotonic_ns;
use dcqcn_telemetry::event::{EventRow, Kind};

use super::work::{Begun, IDLE_PERIOD, Port, Settings, Start, Work};
use crate::error::{Context as _, Result};

/// Range of the interval between scans of a table.
const SCAN_INTERVAL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));

/// Removal of idle flows.
///
/// User space can write a set of flows only as a whole, and would lose packets' changes between the read and the write.
/// So it only finds the sets with idle flows; a BPF program removes them, under the lock of the flow (RP) or of the set
/// (NP), after checking the time again.
pub(super) struct Age {
    port: Arc<Port>,
    settings: Arc<Settings>,
    /// Opened when aging is enabled.
    expire: Option<Expire>,
}

impl Age {
    pub(super) fn begin(Start { port, settings, .. }: Start<'_>) -> Begun {
        Ok(Some(Box::new(Self { port, settings, expire: None })))
    }
}

impl Work for Age {
    fn run(&mut self, _: &Netlink) -> Result<Duration> {
        let Some(idle) = self.settings.age_idle() else {
            return Ok(IDLE_PERIOD);
        };
        let Self { port, expire, .. } = self;
        let expire = match expire {
            Some(expire) => expire,
            None => expire.insert(attach::open_expire(&port.info)?),
        };
        let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        let before_ns = monotonic_ns().saturating_sub(idle_ns);
        let is_idle = |last_seen_ns: u64| last_seen_ns != 0 && last_seen_ns < before_ns;
        let (mut rp_flows, mut np_flows) = (0, 0);
        let params = port.maps().params()?;
        // Set by set, because other tasks need the maps in the meantime.
        for index in 0..=params.port.rp_set_mask {
            if port.maps().rp_set(index)?.flows().any(|(_, flow)| is_idle(flow.hot.last_seen_ns())) {
                rp_flows += expire.run(Table::Rp, index, before_ns)?;
            }
        }
        for index in 0..=params.port.np_set_mask {
            if port.maps().np_set(index)?.ways.iter().any(|flow| is_idle(flow.last_seen_ns)) {
                np_flows += expire.run(Table::Np, index, before_ns)?;
            }
        }
        if rp_flows + np_flows != 0 {
            tracing::info!(iface = port.info.iface, rp_flows, np_flows, "idle flows removed");
        }
        let (shortest, longest) = SCAN_INTERVAL;
        Ok((idle / 4).clamp(shortest, longest))
    }
}

/// Interval between readings of the queues' drops.
const DROPS_PERIOD: Duration = Duration::from_millis(200);

/// Publishes the real backlog to the congestion point, and queue drops to the event log.
pub(super) struct Feeder {
    port: Arc<Port>,
    /// Time of the last drop check, and the counters of the port's queues then.
    last_sample: Option<(Instant, QueueStats)>,
}

impl Feeder {
    pub(super) fn begin(Start { port, .. }: Start<'_>) -> Begun {
        Ok(Some(Box::new(Self { port, last_sample: None })))
    }

    /// Logs drops of the port's own queues as events, a few times a second.
    fn note_drops(&mut self, netlink: &Netlink, params: &Params) -> Result<()> {
        let is_due = self.last_sample.as_ref().is_none_or(|(at, _)| at.elapsed() >= DROPS_PERIOD);
        if params.config.scalars.queues == QUEUES_NONE || !is_due {
            return Ok(());
        }
        let now = queues::stats(netlink, self.port.info.ifindex, &params.config)?;
        let Some((_, before)) = self.last_sample.replace((Instant::now(), now)) else { return Ok(()) };
        for (queue, (before, now)) in (0..).zip(before.iter().zip(&now)) {
            let (Some(before), Some(now)) = (before, now) else { continue };
            let drops = u64::from(now.drops.wrapping_sub(before.drops));
            if drops != 0 {
                let (maps, values) = (self.port.maps(), [queue, drops]);
                maps.record(EventKind::QueueDrop, QpId::NONE, monotonic_ns(), values)?;
            }
        }
        Ok(())
    }
}

impl Work for Feeder {
    fn run(&mut self, netlink: &Netlink) -> Result<Duration> {
        let params = self.port.maps().params()?;
        self.note_drops(netlink, &params)?;
        let Some(backlogs) = backlog::read(netlink, self.port.info.ifindex, &params.config)? else {
            let has_queues = params.config.scalars.queues != QUEUES_NONE;
            return Ok(if has_queues { DROPS_PERIOD } else { IDLE_PERIOD });
        };
        let mut maps = self.port.maps_mut();
        for (index, backlog) in (0..).zip(&backlogs) {
            maps.set_backlog(index, backlog)?;
        }
        Ok(backlog::PERIOD)
    }
}

const EVENTS_PERIOD: Duration = Duration::from_secs(1);

/// Copies events of the data plane to the log.
pub(super) struct Events {
    iface: String,
    reader: Reader,
}

impl Events {
    /// Starts following the event log at its current end.
    pub(super) fn begin(Start { port, .. }: Start<'_>) -> Begun {
        let reader = Reader::new(port.maps().event_log()?, 0);
        Ok(Some(Box::new(Self { iface: port.info.iface.clone(), reader })))
    }
}

impl Work for Events {
    fn run(&mut self, _: &Netlink) -> Result<Duration> {
        let (clock, now_ns, iface) = (SystemTime::now(), monotonic_ns(), &self.iface);
        let entries = self.reader.read();
        let rows = entries.iter().filter_map(|entry| EventRow::new(iface, entry, clock, now_ns));
        // Of warnings, log the last one of each kind, and their number.
        let mut wrong: Vec<(EventRow, u64)> = Vec::new();
        for row in rows {
            match row.event {
                // Normal operation of DCQCN.
                Kind::RateCut => {
                    tracing::debug!(iface, omitted = row.omitted, "{}: {}", word(&row.event), row.detail)
                }
                Kind::FlowPaired => {
                    tracing::info!(iface, omitted = row.omitted, "{}: {}", word(&row.event), row.detail)
                }
                _ => match wrong.iter_mut().find(|(last, _)| last.event == row.event) {
                    Some((last, times)) => (*times, *last) = (*times + 1 + row.omitted, row),
                    None => wrong.push((row.clone(), 1 + row.omitted)),
                },
            }
        }
        for (last, times) in wrong {
            tracing::warn!(iface, times, "{}: {}", word(&last.event), last.detail);
        }
        Ok(EVENTS_PERIOD)
    }
}

/// Maintains the classes of the HTB pacer.
pub(super) struct Pacer {
    port: Arc<Port>,
    /// Readable when a rate was cut.
    cuts: OwnedFd,
    /// `None` after an error or another process lost changes of the kernel's classes.
    classes: Option<Classes>,
}

impl Pacer {
    /// Starts the task, if HTB is the pacer.
    pub(super) fn begin(Start { port, .. }: Start<'_>) -> Begun {
        if port.info.pacer != word(&PacerChoice::Htb) {
            return Ok(None);
        }
        let cuts = port.maps().cuts_fd()?.try_clone_to_owned().context("cannot wait for the data plane")?;
        Ok(Some(Box::new(Self { port, cuts, classes: None })))
    }
}

impl Work for Pacer {
    fn run(&mut self, netlink: &Netlink) -> Result<Duration> {
        let is_new = self.port.has_new_qdisc.swap(false, Ordering::Relaxed);
        let mut classes = match self.classes.take() {
            Some(classes) if !is_new => classes,
            _ => Classes::take_over(netlink, self.port.info.ifindex)?,
        };
        let cuts = self.port.maps_mut().cuts()?;
        classes.update(netlink, || self.port.maps(), &cuts)?;
        Ok(self.classes.insert(classes).until_next())
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.cuts.as_fd())
    }
}

/// Interval between samples of the backlog.
const PFC_PERIOD: Duration = Duration::from_millis(1);

/// PFC transmission to the neighbours of ingress ports, if enabled.
pub(super) struct PfcTask {
    port: Arc<Port>,
    settings: Arc<Settings>,
    sender: PfcSender,
    /// Whether the lack of a socket was logged.
    has_warned: bool,
}

impl PfcTask {
    pub(super) fn begin(Start { port, settings, .. }: Start<'_>) -> Begun {
        Ok(Some(Box::new(Self { port, settings, sender: PfcSender::default(), has_warned: false })))
    }
}

impl Work for PfcTask {
    fn run(&mut self, netlink: &Netlink) -> Result<Duration> {
        let Some(socket) = &self.settings.pause_socket else {
            let wanted = self.port.maps().params()?.pauses.counted.contains(&1);
            if wanted && !std::mem::replace(&mut self.has_warned, true) {
                let iface = &self.port.info.iface;
                tracing::error!(
                    iface,
                    "pfc.N.tx is on, but no PFC frame can be sent: start the daemon with CAP_NET_RAW, and allow AF_PACKET"
                );
            }
            return Ok(IDLE_PERIOD);
        };
        let (port, now_ns) = (Arc::clone(&self.port), monotonic_ns());
        if self.sender.is_behind(now_ns) {
            let config = port.maps().params()?.config;
            if let Some(ports) = Ports::list(netlink, port.info.ifindex, &config)? {
                self.sender.adopt(ports, &mut port.maps_mut(), now_ns)?;
            }
        }
        let polled = self.sender.poll(netlink, port.info.ifindex, || port.maps(), socket, now_ns)?;
        Ok(if polled == PfcPoll::Disabled { IDLE_PERIOD } else { PFC_PERIOD })
    }
}

impl Drop for PfcTask {
    /// Sends XON to every neighbour that is paused.
    fn drop(&mut self) {
        if let Some(socket) = &self.settings.pause_socket {
            self.sender.release(self.port.info.ifindex, socket, monotonic_ns());
        }
    }
}
