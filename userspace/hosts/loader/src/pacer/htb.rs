//! Control loop of the HTB pacer: a class per QP that was cut, with its current rate.
//!
//! The RP announces each flow that a CNP has cut, and the loop sets its class's rate immediately. Between
//! cuts a rate changes by the flow's timer and byte counter, at times that the last read predicts; the flow
//! is read again then. A flow back at line rate is not read until its next cut. A tick reads a limited
//! number of flows, those longest overdue first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::ops::Deref;
use std::time::Duration;

use dcqcn_common::flow::{FlowId, RpFlow};
use dcqcn_common::hooks::{HTB_FIRST_FLOW, htb_minor, htb_slot};
use dcqcn_common::layout::Cut;
use dcqcn_common::params::Params;
use dcqcn_common::rate::{Due, RateMachine, RpParams};
use dcqcn_netlink::tc::{self, Batch, Handle};
use dcqcn_netlink::{self as net, Netlink};
use dcqcn_support::clock::monotonic_ns;

use super::{Frame, HTB_MAJOR, REST, class, port_classes, port_rate_bps};
use crate::dataplane::Maps;
use crate::error::Error;

type Result<T> = std::result::Result<T, Error>;

/// Minimum interval between updates of recovering rates.
const TICK: Duration = Duration::from_millis(1);
const TICK_NS: u64 = 1_000_000;
/// Maximum flows read per tick, so that a tick does not take its whole millisecond.
const MAX_READS: usize = 128;
/// Time that a loop without classes waits for a cut.
const IDLE_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval at which unused classes are removed, and flows whose class was removed are checked.
const PRUNE_NS: u64 = 1_000_000_000;
/// Interval at which the whole table is scanned for flows without a class.
///
/// Such flows were cut while no loop ran, or while the ring was full.
const SWEEP_NS: u64 = 10_000_000_000;
/// Classes removed per batch.
const PRUNE_BATCH: usize = 64;
/// Idle time after which a flow's class is removed.
const IDLE_NS: u64 = 30_000_000_000;

struct Class {
    id: FlowId,
    rate_bps: u64,
    /// Time in [`Classes::due`]; `u64::MAX` = not in there.
    due_ns: u64,
}

/// Classes of one interface, and the state of their flows.
#[derive(Default)]
pub struct Classes {
    ifindex: u32,
    frame: Frame,
    /// Last rate set for the port's fixed classes; 0 = not set.
    line_bps: u64,
    /// By minor number, which stands for the flow's slot in the RP table ([`htb_minor`]).
    classes: HashMap<u32, Class>,
    waiting: Waiting,
    /// Times at which the rate of a class can next change, CLOCK_MONOTONIC; at most one entry per class.
    due: BTreeSet<(u64, u32)>,
    /// Parameters from which `due` was computed.
    rp: Option<RpParams>,
    ticked_ns: u64,
    /// Idle flows whose class was removed; they get it again when they send.
    idle: HashMap<u32, FlowId>,
    /// Classes of an earlier loop, until their flow is found or they are removed.
    found: BTreeSet<u32>,
    swept_ns: u64,
    pruned_ns: u64,
}

/// Changes of the classes in one call of [`Classes::update`].
struct Update<'a> {
    batch: Batch,
    params: &'a Params,
    now_ns: u64,
}

impl Classes {
    /// Takes over the classes of an interface attached with the HTB pacer.
    pub fn take_over(netlink: &Netlink, ifindex: u32) -> Result<Self> {
        let frame = Frame { mtu_bytes: netlink.link_by_index(ifindex)?.mtu, ..Frame::default() };
        let handles = netlink.classes(ifindex)?.into_iter().map(|class| class.handle);
        let found = handles.filter_map(flow_minor).collect();
        Ok(Self { ifindex, frame, found, ..Self::default() })
    }

    /// Updates the classes; `cuts` are the flows announced by the data plane since the last call. Does not
    /// lock the maps during a query or commit.
    pub fn update<M: Deref<Target = Maps>>(
        &mut self,
        netlink: &Netlink,
        maps: impl Fn() -> M,
        cuts: &[Cut],
    ) -> Result<()> {
        let params = maps().params()?;
        let now_ns = monotonic_ns();
        let mut update = Update { batch: Batch::new(self.ifindex), params: &params, now_ns };
        self.plan(&mut update, &maps(), cuts)?;
        if now_ns.saturating_sub(self.pruned_ns) > PRUNE_NS {
            self.pruned_ns = now_ns;
            self.restore_idle(&mut update, &maps())?;
            self.commit(netlink, update.batch)?;
            return self.prune(netlink, maps, now_ns);
        }
        if !self.waiting.is_empty() {
            let queued = netlink.class_stats(self.ifindex, REST)?.backlog_packets;
            self.admit(&mut update, &maps(), queued == 0)?;
        }
        self.commit(netlink, update.batch)
    }

    /// Adds the changes by cuts, and those due, to a batch.
    fn plan(&mut self, update: &mut Update<'_>, maps: &Maps, cuts: &[Cut]) -> Result<()> {
        self.follow_line(update);
        for Cut { set, way } in cuts {
            if let Some(minor) = htb_minor(*set, *way as usize)
                && let Some(flow) = flow_at(maps, minor)?
            {
                self.update_flow(update, minor, flow);
            }
        }
        if update.now_ns.saturating_sub(self.swept_ns) > SWEEP_NS {
            self.swept_ns = update.now_ns;
            self.sweep(update, maps)?;
        } else if update.now_ns.saturating_sub(self.ticked_ns) >= TICK_NS {
            self.tick(update, maps)?;
        }
        Ok(())
    }

    /// Time until the next update is due without a cut.
    pub fn until_next(&self) -> Duration {
        match (self.swept_ns, self.due.first()) {
            // The first update finds flows that were cut while no loop ran.
            (0, _) => Duration::ZERO,
            _ if !self.waiting.is_empty() => TICK,
            (_, None) => IDLE_TIMEOUT,
            (_, Some((due_ns, _))) => {
                Duration::from_nanos(due_ns.saturating_sub(monotonic_ns())).clamp(TICK, IDLE_TIMEOUT)
            }
        }
    }

    /// Commits the changes.
    ///
    /// A class that the kernel rejects, for example because another process removed it, is forgotten. Its
    /// flow gets a new one at its next change.
    fn commit(&mut self, netlink: &Netlink, batch: Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        match netlink.commit(batch) {
            Err(net::Error::Batch { interface, failed, .. }) => {
                for (handle, refusal) in failed {
                    let Some(minor) = flow_minor(handle) else {
                        // A fixed class of the port, without which there is no pacing.
                        return Err(Error::PortClass { iface: interface, handle, refusal });
                    };
                    tracing::debug!(iface = interface, %handle, error = %refusal, "HTB class rejected");
                    self.found.remove(&minor);
                    if let Some(class) = self.classes.remove(&minor) {
                        self.due.remove(&(class.due_ns, minor));
                    }
                }
                Ok(())
            }
            done => Ok(done?),
        }
    }

    /// Updates the port's classes if the link rate or `wire_overhead` has changed.
    fn follow_line(&mut self, Update { batch, params, .. }: &mut Update<'_>) {
        let line_bps = port_rate_bps(&params.config);
        let frame = Frame { mtu_bytes: self.frame.mtu_bytes, ..Frame::of(&params.config) };
        if line_bps != 0 && (line_bps, frame) != (self.line_bps, self.frame) {
            for class in port_classes(line_bps, frame) {
                batch.replace_htb_class(&class);
            }
            if frame != self.frame {
                // No flow has rate 0, so each class is set again when its flow is read, which is due now.
                self.classes.values_mut().for_each(|class| class.rate_bps = 0);
                self.rp = None;
            }
            (self.line_bps, self.frame) = (line_bps, frame);
        }
    }

    /// Sets the new rate of a cut flow's class; a flow without a class is queued for one.
    fn update_flow(&mut self, update: &mut Update<'_>, minor: u32, flow: RpFlow) {
        if self.classes.contains_key(&minor) || self.found.contains(&minor) {
            self.follow(update, minor, flow);
        } else if flow.hot.machine.active != 0 {
            self.waiting.enter(minor, update.now_ns);
        }
    }

    /// Creates the classes of waiting flows, if it is time.
    fn admit(&mut self, update: &mut Update<'_>, maps: &Maps, is_queue_empty: bool) -> Result<()> {
        for minor in self.waiting.take_due(is_queue_empty, update.now_ns) {
            if let Some(flow) = flow_at(maps, minor)? {
                self.follow(update, minor, flow);
            }
        }
        Ok(())
    }

    /// Creates the class of a cut flow, or sets its new rate.
    fn follow(&mut self, update: &mut Update<'_>, minor: u32, mut flow: RpFlow) {
        let Update { batch, params, now_ns } = update;
        if flow.hot.machine.active == 0 {
            return;
        }
        flow.hot.machine.advance(&params.rp, *now_ns);
        let mut rate_bps = flow.hot.machine.rate_bps;
        let due_ns = next_change_ns(&flow.hot.machine, &params.rp, *now_ns);
        let old = self.classes.remove(&minor);
        if let Some(old) = &old {
            self.due.remove(&(old.due_ns, minor));
        }
        // 0.1 % is less than the kernel's own rounding of bursts.
        match old.filter(|class| class.id == flow.id) {
            Some(class) if class.rate_bps.abs_diff(rate_bps) <= rate_bps / 1_000 => rate_bps = class.rate_bps,
            _ => batch.replace_htb_class(&class(handle(minor), rate_bps, self.frame)),
        }
        if due_ns != u64::MAX {
            self.due.insert((due_ns, minor));
        }
        self.found.remove(&minor);
        self.classes.insert(minor, Class { id: flow.id, rate_bps, due_ns });
    }

    /// Reads the flows whose rate may have changed, up to [`MAX_READS`].
    fn tick(&mut self, update: &mut Update<'_>, maps: &Maps) -> Result<()> {
        let now_ns = update.now_ns;
        self.ticked_ns = now_ns;
        if self.rp != Some(update.params.rp) {
            // With other periods all predicted times are invalid.
            self.rp = Some(update.params.rp);
            self.due.clear();
            for (minor, class) in &mut self.classes {
                class.due_ns = 0;
                self.due.insert((0, *minor));
            }
        }
        for _ in 0..MAX_READS {
            let Some(&(due_ns, minor)) = self.due.first().filter(|(due_ns, _)| *due_ns <= now_ns) else {
                break;
            };
            let Some(class) = self.classes.get_mut(&minor) else {
                self.due.remove(&(due_ns, minor));
                continue;
            };
            // Cleared unless `follow` sets a new time. Removed flows are left to the next pruning.
            class.due_ns = u64::MAX;
            self.due.remove(&(due_ns, minor));
            if let Some(flow) = flow_at(maps, minor)? {
                self.follow(update, minor, flow);
            }
        }
        Ok(())
    }

    /// Scans the whole table.
    fn sweep(&mut self, update: &mut Update<'_>, maps: &Maps) -> Result<()> {
        for index in 0..=update.params.port.rp_set_mask {
            for (way, flow) in maps.rp_set(index)?.flows() {
                let Some(minor) = htb_minor(index, way) else { continue };
                if !is_idle(&flow, update.now_ns) {
                    self.update_flow(update, minor, flow);
                } else if flow.hot.machine.active != 0 && !self.classes.contains_key(&minor) {
                    self.idle.insert(minor, flow.id);
                }
            }
        }
        Ok(())
    }

    /// Creates the classes of flows that are active again.
    fn restore_idle(&mut self, update: &mut Update<'_>, maps: &Maps) -> Result<()> {
        for (minor, id) in mem::take(&mut self.idle) {
            match flow_of(maps, minor, &id)? {
                Some(flow) if is_idle(&flow, update.now_ns) => _ = self.idle.insert(minor, id),
                Some(flow) => self.update_flow(update, minor, flow),
                None => {}
            }
        }
        Ok(())
    }

    /// Removes the classes of idle and removed flows.
    ///
    /// Removing a class drops its packets. So it must be empty, and no flow that uses it may have sent for
    /// [`IDLE_NS`]. The latter is checked again right before each small batch.
    fn prune<M: Deref<Target = Maps>>(
        &mut self,
        netlink: &Netlink,
        maps: impl Fn() -> M,
        now_ns: u64,
    ) -> Result<()> {
        let mut unused: Vec<u32> = self.found.iter().copied().collect();
        for (minor, class) in &self.classes {
            if flow_of(&maps(), *minor, &class.id)?.is_none_or(|flow| is_idle(&flow, now_ns)) {
                unused.push(*minor);
            }
        }
        if unused.is_empty() {
            return Ok(());
        }
        let waits = |class: &tc::Class| class.stats.backlog_bytes != 0 || class.stats.backlog_packets != 0;
        let listed = netlink.classes(self.ifindex)?;
        let empty: BTreeSet<u32> = listed
            .iter()
            .filter(|class| !waits(class))
            .filter_map(|class| flow_minor(class.handle))
            .collect();
        unused.retain(|minor| empty.contains(minor));
        for some in unused.chunks(PRUNE_BATCH) {
            let mut batch = Batch::new(self.ifindex);
            for minor in some {
                let maps = maps();
                if is_used(&maps, *minor)? {
                    continue;
                }
                batch.delete_class(handle(*minor));
                self.found.remove(minor);
                if let Some(class) = self.classes.remove(minor) {
                    self.due.remove(&(class.due_ns, *minor));
                    if flow_of(&maps, *minor, &class.id)?.is_some() {
                        self.idle.insert(*minor, class.id);
                    }
                }
            }
            self.commit(netlink, batch)?;
        }
        Ok(())
    }
}

/// Flow in the slot of a class, whichever that is.
fn flow_at(maps: &Maps, minor: u32) -> Result<Option<RpFlow>> {
    let Some((set, way)) = htb_slot(minor) else { return Ok(None) };
    Ok(maps.rp_flow(set, way)?)
}

/// Flow that a class was created for, if it still exists.
fn flow_of(maps: &Maps, minor: u32, id: &FlowId) -> Result<Option<RpFlow>> {
    let flow = flow_at(maps, minor)?;
    Ok(flow.filter(|flow| flow.id == *id && flow.hot.machine.active != 0))
}

fn is_used(maps: &Maps, minor: u32) -> Result<bool> {
    let flow = flow_at(maps, minor)?;
    Ok(flow.is_some_and(|flow| flow.hot.machine.active != 0 && !is_idle(&flow, monotonic_ns())))
}

/// Minor number, if this is the class of a flow.
fn flow_minor(handle: Handle) -> Option<u32> {
    let minor = u32::from(handle.minor());
    (handle.major() == HTB_MAJOR && (HTB_FIRST_FLOW..0xffff).contains(&minor)).then_some(minor)
}

/// Time of a machine's next rate change without a CNP; `u64::MAX` = never.
///
/// The machine was advanced to `now_ns`. The byte counter advances no faster than the rate allows.
fn next_change_ns(machine: &RateMachine, rp: &RpParams, now_ns: u64) -> u64 {
    let Due { cut_ns, increase_ns, .. } = machine.due(rp, now_ns);
    let is_at_line = machine.rate_bps >= rp.line_rate_bps;
    let left_bytes = rp.byte_reset_bytes.saturating_sub(machine.bytes);
    let bytes_ns = (rp.byte_reset_bytes != 0 && !is_at_line)
        .then(|| left_bytes.saturating_mul(8_000_000_000).checked_div(machine.rate_bps))
        .flatten()
        .map(|after_ns| now_ns.saturating_add(after_ns));
    let next_ns = [cut_ns, increase_ns.filter(|_| !is_at_line), bytes_ns].into_iter().flatten().min();
    next_ns.map_or(u64::MAX, |next_ns| next_ns.max(now_ns.saturating_add(TICK_NS)))
}

/// Idle for so long that its class is not needed.
fn is_idle(flow: &RpFlow, now_ns: u64) -> bool {
    now_ns.saturating_sub(flow.last_seen_ns()) >= IDLE_NS
}

/// Class that a flow's packets select in `skb->priority`; `htb_minor` is at most 16 bits.
fn handle(minor: u32) -> Handle {
    Handle((u32::from(HTB_MAJOR) << 16) | minor)
}

/// Maximum time that a flow waits for its class while earlier packets may still be queued.
const WAIT_TIMEOUT_NS: u64 = 50_000_000;

/// Flows that wait for a class: its future minor number, and the time since when.
///
/// HTB sends the first packets of a new class before all other queued packets, whatever their priorities,
/// because a class starts with its full guarantee. To prevent reordering, a class is created only when the
/// class its flow has used so far is empty.
#[derive(Debug, Default)]
struct Waiting(BTreeMap<u32, u64>);

impl Waiting {
    /// Whether no flow waits.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a flow at `now_ns`, unless it already waits.
    fn enter(&mut self, minor: u32, now_ns: u64) {
        self.0.entry(minor).or_insert(now_ns);
    }

    /// Removes the flows whose class must be created now.
    ///
    /// These are all flows if nothing is queued, otherwise those that timed out.
    fn take_due(&mut self, is_queue_empty: bool, now_ns: u64) -> Vec<u32> {
        let is_next = |_: &u32, since_ns: &mut u64| {
            is_queue_empty || now_ns.saturating_sub(*since_ns) >= WAIT_TIMEOUT_NS
        };
        self.0.extract_if(.., is_next).map(|(minor, _)| minor).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn htb_class_created_when_queue_drains() {
        let mut waiting = Waiting::default();
        waiting.enter(0x100, 1_000);
        waiting.enter(0x200, 40_000_000);
        // Another cut does not postpone it.
        waiting.enter(0x100, 50_000_000);
        let taken = [(false, 50_000_999), (false, 50_001_000), (true, 50_001_001), (true, 50_001_002)]
            .map(|(is_queue_empty, now_ns)| waiting.take_due(is_queue_empty, now_ns));
        assert_eq!(taken, [vec![], vec![0x100], vec![0x200], vec![]]);
        assert!(waiting.is_empty());
    }
}
