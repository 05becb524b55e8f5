//! Typed access to the maps of the data plane, with consistent reads of flows while programs change them.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use aya::Ebpf;
use aya::maps::{
    Array, HashMap, IterableMap as _, MapData, MapError, PerCpuArray, PerCpuHashMap, PerCpuValues, RingBuf,
};
use aya::util::nr_cpus;
use dcqcn_common::events::{Event, EventKind, EventLog};
use dcqcn_common::flow::{FlowId, NpFlow, NpSet, QpId, RpFlow, RpSet};
use dcqcn_common::layout::{
    Active, Backlog, CLASSES, Counters, Cut, IngressBytes, PARAMS_SLOTS, Pair, QUEUES, Queue, TIMES, Test,
    Time, WAYS,
};
use dcqcn_common::params::Params;
use dcqcn_common::pfc::Storms;
use dcqcn_common::recovery::Requester;
use dcqcn_common::vqueue::Share;
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::sync::lock;

use super::error::at;
use super::lazy::{Lazy, Source, is_missing};
use super::{Error, in_object};
use crate::events::Log;

/// Maximum reads of a set that programs are changing, about 20 ms.
///
/// At a million packets per second in one set, every second attempt succeeds. Even a CPU that does nothing
/// but change the set pauses between two batches of packets.
const MAX_SET_READS: u32 = 10_000;

/// Maximum reads of a requester that packets are changing: of a busy one, nothing is due.
const MAX_REQUESTER_READS: u32 = 16;

const INGRESS: &str = "INGRESS_BYTES";
/// Insert only: `BPF_NOEXIST` (include/uapi/linux/bpf.h).
const NO_REPLACE: u64 = 1;

pub struct Maps {
    /// Last parameters read, while `ACTIVE` has this value.
    known: Mutex<Option<(Active, Arc<Params>)>>,
    params: Lazy<Array<MapData, Params>>,
    active: Lazy<Array<MapData, Active>>,
    counters: Lazy<PerCpuArray<MapData, Counters>>,
    queue: Lazy<Array<MapData, Queue>>,
    shares: Lazy<PerCpuArray<MapData, Share>>,
    pairs: Lazy<HashMap<MapData, QpId, Pair>>,
    learned: Lazy<HashMap<MapData, QpId, Pair>>,
    pairs_ns: Lazy<Array<MapData, u64>>,
    rp: Lazy<Array<MapData, RpSet>>,
    pub(super) np: Lazy<Array<MapData, NpSet>>,
    cm: Lazy<HashMap<MapData, QpId, u32>>,
    times: Lazy<Array<MapData, u64>>,
    backlog: Lazy<Array<MapData, Backlog>>,
    ingress_bytes: Lazy<PerCpuHashMap<MapData, u32, IngressBytes>>,
    cuts: Lazy<RingBuf<MapData>>,
    events: Lazy<Array<MapData, EventLog>>,
    /// `events` mapped into memory, after the first own event.
    log: OnceLock<Log>,
    requesters: Lazy<HashMap<MapData, FlowId, Requester>>,
    test: Lazy<Array<MapData, Test>>,
}

pub(super) fn active(pin: &Path) -> Result<Active, Error> {
    Lazy::<Array<MapData, Active>>::open("ACTIVE", |_| Ok(Source::Pin(pin.to_owned())))?.read(0)
}

/// The first `N` elements of an array.
fn read_all<T: Copy + Default, const N: usize>(
    read: impl Fn(u32) -> Result<T, Error>,
) -> Result<[T; N], Error> {
    let mut all = [T::default(); N];
    for (index, value) in (0..).zip(&mut all) {
        *value = read(index)?;
    }
    Ok(all)
}

impl Maps {
    pub fn take(ebpf: &mut Ebpf) -> Result<Self, Error> {
        Self::open(|name| Ok(Source::Open(ebpf.take_map(in_object(name)).ok_or(Error::Missing(name))?)))
    }

    /// The maps pinned in `pins`, opened when they are used.
    pub(crate) fn pinned(pins: &Path) -> Result<Self, Error> {
        Self::open(|name| Ok(Source::Pin(pins.join(name))))
    }

    fn open(mut of: impl FnMut(&'static str) -> Result<Source, Error>) -> Result<Self, Error> {
        Ok(Self {
            known: Mutex::default(),
            params: Lazy::open("PARAMS", &mut of)?,
            active: Lazy::open("ACTIVE", &mut of)?,
            counters: Lazy::open("COUNTERS", &mut of)?,
            queue: Lazy::open("QUEUE", &mut of)?,
            shares: Lazy::open("SHARES", &mut of)?,
            pairs: Lazy::open("PAIRS", &mut of)?,
            learned: Lazy::open("LEARNED", &mut of)?,
            pairs_ns: Lazy::open("PAIRS_NS", &mut of)?,
            rp: Lazy::open("RP", &mut of)?,
            np: Lazy::open("NP", &mut of)?,
            cm: Lazy::open("CM", &mut of)?,
            times: Lazy::open("TIMES_NS", &mut of)?,
            backlog: Lazy::open("BACKLOG", &mut of)?,
            ingress_bytes: Lazy::open("INGRESS_BYTES", &mut of)?,
            cuts: Lazy::open("CUTS", &mut of)?,
            events: Lazy::open("EVENTS", &mut of)?,
            log: OnceLock::new(),
            requesters: Lazy::open("REQUESTERS", &mut of)?,
            test: Lazy::open("TEST", &mut of)?,
        })
    }

    /// Active parameters, copied from the kernel only after a change: a daemon reads them every second for each port.
    ///
    /// Every change moves the index and the time at which a slot became inactive, so `ACTIVE` identifies
    /// them. Ordering: the index is part of the address of the parameters, hence read before them.
    pub fn params(&self) -> Result<Arc<Params>, Error> {
        let active = self.active()?;
        let mut known = lock(&self.known);
        if let Some((of, params)) = known.as_ref()
            && *of == active
        {
            return Ok(Arc::clone(params));
        }
        let params = Arc::new(self.params.read(active.slot % PARAMS_SLOTS)?);
        // Unless the slot may have been reused in between.
        *known = (self.active()? == active).then(|| (active, Arc::clone(&params)));
        Ok(params)
    }

    fn active(&self) -> Result<Active, Error> {
        self.active.read(0)
    }

    /// Activates parameters, so that no packet sees a partial change.
    ///
    /// Parameters are written to the next slot, which then becomes the active one. Slots are used in turn, so
    /// that none is written while a program may be reading it. If the next slot was left less than a second
    /// ago, this first waits for running programs.
    ///
    /// # Errors
    /// A map write fails; the old parameters remain active.
    pub fn set_params(&mut self, params: &Params) -> Result<(), Error> {
        let mut active = self.active()?;
        let (old, new) = (active.slot % PARAMS_SLOTS, (active.slot + 1) % PARAMS_SLOTS);
        let left_ns = active.left_ns.get(new as usize).copied().unwrap_or(0);
        if left_ns != 0 && monotonic_ns().saturating_sub(left_ns) < MIN_REUSE_NS {
            wait_for_programs();
        }
        self.params.write(new, params)?;
        active.slot = new;
        active.classifies_all = params.classifies_all().into();
        if let Some(left_ns) = active.left_ns.get_mut(old as usize) {
            *left_ns = monotonic_ns();
        }
        // The parameters before their index. A program's loads are ordered by the address, which contains the index.
        fence(Ordering::Release);
        self.active.write(0, active)
    }

    /// Activates parameters while no program runs, as under test: writes the slot in use, without waiting.
    pub fn set_params_at_rest(&mut self, params: &Params) -> Result<(), Error> {
        let mut active = self.active()?;
        *self.known.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        self.params.write(active.slot % PARAMS_SLOTS, params)?;
        active.classifies_all = params.classifies_all().into();
        self.active.write(0, active)
    }

    /// Counters of the three hooks (XDP, ingress, egress), summed over all CPUs.
    pub fn counters(&self) -> Result<[Counters; 3], Error> {
        let mut sums = [Counters::ZERO; 3];
        for (hook, sum) in (0..).zip(&mut sums) {
            for cpu in self.counters.read(hook)?.iter() {
                let (pause, of_cpu) = (&mut sum.pause, cpu.pause);
                let pauses =
                    pause.frames.iter_mut().zip(of_cpu.frames).chain(pause.held.iter_mut().zip(of_cpu.held));
                let counts = sum.stat.iter_mut().zip(cpu.stat).chain(pauses);
                counts.for_each(|(sum, value)| *sum += value);
                for (sum, value) in sum.class.iter_mut().zip(cpu.class) {
                    sum.packets += value.packets;
                    sum.bytes += value.bytes;
                    sum.ect_packets += value.ect_packets;
                    sum.ecn_marked_packets += value.ecn_marked_packets;
                }
            }
        }
        Ok(sums)
    }

    /// "Empty at" of every virtual queue, eight per port; see [`Self::queue`].
    pub fn queues(&self) -> Result<[u64; QUEUES as usize], Error> {
        read_all(|index| self.queue(index))
    }

    /// One flow of the RP table, read consistently; `None` if the slot is empty.
    pub(crate) fn rp_flow(&self, set: u32, way: usize) -> Result<Option<RpFlow>, Error> {
        Ok(self.rp_set(set)?.flow(way))
    }

    pub fn rp_find(&self, params: &Params, id: &FlowId) -> Result<Option<RpFlow>, Error> {
        let index = id.rp_set_index(&params.port.hash_keys, params.port.rp_set_mask);
        Ok(self.rp_set(index)?.find(id))
    }

    /// Rate cuts announced by the RP since the last call. There is one ring: two readers would share it.
    pub fn cuts(&mut self) -> Result<Vec<Cut>, Error> {
        let (ring, mut cuts) = (self.cuts.get_mut()?, Vec::new());
        while let Some(item) = ring.next() {
            if let Some((set, way)) = item.split_first_chunk::<4>()
                && let Ok(way) = <[u8; 4]>::try_from(way)
            {
                cuts.push(Cut { set: u32::from_ne_bytes(*set), way: u32::from_ne_bytes(way) });
            }
        }
        Ok(cuts)
    }

    /// A descriptor that polls readable while there are cuts.
    pub fn cuts_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.cuts.get()?.as_fd())
    }

    /// Event log, mapped into this process, which needs no descriptor.
    pub fn event_log(&self) -> Result<Log, Error> {
        let log = self.events.with(|events| Log::of_map(events.map().fd().as_fd()))?;
        log.map_err(|source| Error::EventLog { source })
    }

    /// Adds an event to the event log, if events are enabled. Omitted events are counted in the log.
    pub fn record(&self, kind: EventKind, id: QpId, at_ns: u64, values: [u64; 2]) -> Result<(), Error> {
        let interval_ns = self.params()?.hot.event_interval_ns.into();
        if interval_ns != 0 {
            let event = Event { at_ns, left_out: 0, id, kind: kind as u32, values };
            let log = match self.log.get() {
                Some(log) => log,
                None => {
                    let log = self.event_log()?;
                    self.log.get_or_init(|| log)
                }
            };
            log.record(interval_ns, event);
        }
        Ok(())
    }

    /// "Empty at" of one virtual queue, including the unpublished shares of each CPU. Ordering: none; a batch that is
    /// published between the two reads is missing, as if its packets arrived later.
    pub fn queue(&self, index: u32) -> Result<u64, Error> {
        let shared = self.queue.read(index)?.empty_at;
        let shares = self.shares.read(index)?;
        Ok(shares.iter().fold(shared, |shared, share| share.published(shared)))
    }

    /// One set of the RP table, each flow read consistently.
    ///
    /// A flow that changes on every attempt is returned as last read.
    pub fn rp_set(&self, index: u32) -> Result<RpSet, Error> {
        let mut settling = Settling::new(self.rp.read(index)?, EQUAL_READS);
        for _ in 0..MAX_SET_READS {
            // See `EQUAL_READS`.
            fence(Ordering::Acquire);
            if settling.read(&self.rp.read(index)?) {
                break;
            }
        }
        Ok(settling.into_set())
    }

    /// One set of the NP table, read consistently: unlocked, and equal in successive reads.
    ///
    /// Every packet changes its set, if only a counter. A set that changes on every attempt is returned as last read.
    pub fn np_set(&self, index: u32) -> Result<NpSet, Error> {
        let (mut last, mut equal_reads) = (self.np.read(index)?, 0);
        for _ in 0..MAX_SET_READS {
            fence(Ordering::Acquire);
            let set = self.np.read(index)?;
            equal_reads = if set.is_at_rest() && set == last { equal_reads + 1 } else { 0 };
            if equal_reads == EQUAL_READS {
                break;
            }
            last = set;
        }
        Ok(last)
    }

    /// All sets of the RP table, see [`Self::rp_set`].
    pub fn rp_sets(&self) -> impl Iterator<Item = Result<RpSet, Error>> {
        self.rp.items(|rp| (0..rp.len()).map(|index| self.rp_set(index)))
    }

    /// All sets of the NP table, see [`Self::np_set`].
    pub fn np_sets(&self) -> impl Iterator<Item = Result<NpSet, Error>> {
        self.np.items(|np| (0..np.len()).map(|index| self.np_set(index)))
    }

    /// All flows of the RP table, with their set and way.
    pub fn rp_flows(&self) -> impl Iterator<Item = Result<(u32, usize, RpFlow), Error>> {
        (0..).zip(self.rp_sets()).flat_map(|(index, set)| match set {
            Ok(set) => set.flows().map(|(way, flow)| Ok((index, way, flow))).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        })
    }

    /// Timestamps shared by all CPUs, indexed by `Time`.
    pub fn times(&self) -> Result<[u64; TIMES], Error> {
        let mut times: [u64; TIMES] = read_all(|index| self.times.read(index))?;
        times[Time::PAIRS.index()] = self.pairs_ns.read(0)?;
        Ok(times)
    }

    /// Endpoints of connections being set up, with the QPN each announced.
    ///
    /// `qpn` of the key is the communication identifier.
    pub fn connections(&self) -> impl Iterator<Item = Result<(QpId, u32), Error>> {
        self.cm.entries()
    }

    pub fn np_flows(&self) -> impl Iterator<Item = Result<NpFlow, Error>> {
        self.np_sets().flat_map(|set| match set {
            Ok(set) => set.ways.into_iter().filter(|flow| flow.last_seen_ns != 0).map(Ok).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        })
    }

    /// All known pairs: first those configured by the daemon, then those learned.
    pub fn pairs(&self) -> impl Iterator<Item = Result<(QpId, Pair), Error>> {
        self.pairs.entries().chain(self.learned.entries())
    }

    /// Remote QP of `id`, if known.
    pub fn pair(&self, id: &QpId) -> Result<Option<Pair>, Error> {
        // Pairs configured by the daemon apply to every VLAN.
        match self.pairs.find(&QpId { vlan: 0, ..*id })? {
            None => self.learned.find(id),
            entered => Ok(entered),
        }
    }

    /// Stores a pair, as learned if its source is CM messages or datagrams.
    pub fn set_pair(&mut self, id: &QpId, pair: &Pair) -> Result<(), Error> {
        if !pair.is_entered() {
            return self.learned.insert(id, pair);
        }
        self.pairs.insert(id, pair)?;
        self.learned.remove(id)
    }

    /// Requesters followed by the tail-loss probe.
    pub fn requesters(&self) -> impl Iterator<Item = Result<(FlowId, Requester), Error>> {
        self.requesters.entries()
    }

    /// The requester of a flow, if it is followed; see [`recovery`](dcqcn_common::recovery) for equal reads.
    pub fn requester(&self, id: &FlowId) -> Result<Option<Requester>, Error> {
        let mut last = self.requesters.find(id)?;
        for _ in 0..MAX_REQUESTER_READS {
            fence(Ordering::Acquire);
            let now = self.requesters.find(id)?;
            if now == last {
                break;
            }
            last = now;
        }
        Ok(last)
    }

    pub fn remove_requester(&mut self, id: &FlowId) -> Result<(), Error> {
        self.requesters.remove(id)
    }

    /// Stores the measured backlog of queue `index`.
    pub fn set_backlog(&mut self, index: u32, backlog: &Backlog) -> Result<(), Error> {
        self.backlog.write(index, backlog)
    }

    /// Last stored backlogs, indexed like [`Self::queues`].
    pub fn backlogs(&self) -> Result<[Backlog; QUEUES as usize], Error> {
        read_all(|index| self.backlog.read(index))
    }

    pub fn remove_pair(&mut self, id: &QpId) -> Result<(), Error> {
        self.pairs.remove(id)?;
        self.learned.remove(id)
    }

    /// Clock, random source and results of programs under test.
    pub fn test(&self) -> Result<Test, Error> {
        self.test.read(0)
    }

    /// Sets clock and random source of programs under test.
    pub fn set_test(&mut self, test: &Test) -> Result<(), Error> {
        self.test.write(0, test)
    }

    /// Stores the priorities in a storm at `now_ns`; valid for
    /// [`STORM_AGE_NS`](dcqcn_common::pfc::STORM_AGE_NS).
    pub fn set_storms(&mut self, storms: Storms, now_ns: u64) -> Result<(), Error> {
        self.set_time(Time::STORMS, storms.word(now_ns))
    }

    /// Stores until when this host counts as congested; 0 = it does not.
    pub fn set_host_congested_until(&mut self, until_ns: u64) -> Result<(), Error> {
        self.set_time(Time::HOST_CONGESTED_UNTIL, until_ns)
    }

    fn set_time(&mut self, which: Time, value: u64) -> Result<(), Error> {
        self.times.write(which.index() as u32, value)
    }

    /// Preserves the bytes in each queue at `now_ns` (CLOCK_MONOTONIC), when `params` replaced `before`.
    ///
    /// A queue is stored as the time at which it is empty, which depends on the rate. Ordering: none; a packet that
    /// arrives between the reads and the writes is not counted.
    pub(crate) fn preserve_depths(
        &mut self,
        before: &Params,
        params: &Params,
        now_ns: u64,
    ) -> Result<(), Error> {
        for index in 0..QUEUES {
            let class = index as usize % CLASSES;
            let (Some(was), Some(is)) = (before.drain.get(class), params.drain.get(class)) else { continue };
            if was.ticks_per_byte_q16 == is.ticks_per_byte_q16 {
                continue;
            }
            let (mut queue, shares) = (self.queue.read(index)?, self.shares.read(index)?);
            queue.empty_at = is.carried_over(was, queue.empty_at, &shares, now_ns);
            self.queue.write(index, queue)?;
            self.shares.write(index, vec![Share::NONE; shares.len()])?;
        }
        Ok(())
    }

    /// Starts counting an ingress port separately, by its index; 0 stands for all other ports.
    pub(crate) fn count_separately(&mut self, ifindex: u32) -> Result<(), Error> {
        let zero = nr_cpus()
            .map_err(|(_, error)| error)
            .and_then(|cpus| PerCpuValues::try_from(vec![IngressBytes::default(); cpus]))
            .map_err(MapError::IoError)
            .map_err(at(INGRESS))?;
        match self.ingress_bytes.get_mut()?.insert(ifindex, zero, NO_REPLACE) {
            // Already counted: its counters are preserved.
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(())
            }
            result => result.map_err(at(INGRESS)),
        }
    }

    /// Ingress ports counted separately, and 0.
    pub fn ingress_ports(&self) -> Result<Vec<u32>, Error> {
        self.ingress_bytes.get()?.keys().collect::<Result<_, _>>().map_err(at(INGRESS))
    }

    /// Counts an ingress port among the others again. If it is counted separately later, it starts at zero.
    pub(crate) fn forget(&mut self, ifindex: u32) -> Result<(), Error> {
        match self.ingress_bytes.get_mut()?.remove(&ifindex) {
            Err(error) if is_missing(&error) => Ok(()),
            removed => removed.map_err(at(INGRESS)),
        }
    }

    /// Bytes received by an ingress port so far, by queue; `None` if it is not counted separately.
    pub(crate) fn ingress_bytes(&self, ifindex: u32) -> Result<Option<IngressBytes>, Error> {
        let mut sum = IngressBytes::default();
        match self.ingress_bytes.get()?.get(&ifindex, 0) {
            Ok(by_cpu) => {
                for of_cpu in by_cpu.iter() {
                    sum.iter_mut().zip(of_cpu).for_each(|(sum, bytes)| *sum += bytes);
                }
                Ok(Some(sum))
            }
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(at(INGRESS)(error)),
        }
    }
}

/// Minimum time before a slot of parameters is written again.
///
/// Programs run for microseconds with soft interrupts disabled, so none still reads it after that time.
const MIN_REUSE_NS: u64 = 1_000_000_000;

/// Waits until every program that may use the old parameters has ended.
///
/// `MEMBARRIER_CMD_GLOBAL` is a `synchronize_rcu` (kernel/sched/membarrier.c), and programs run inside RCU
/// read sections.
fn wait_for_programs() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: the system call takes three integers. If it is not available, the next change still comes
    // much later than any program's few microseconds.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
}

/// Reads after the first that must find a flow unlocked and unchanged, with a fence before each.
///
/// Suppose that the first read saw one of two stores made under a lock. The fence orders it before the second
/// read, which therefore found the lock taken, or released after both stores. On x86 the second read, in
/// ascending order from the lock on, then sees both. A CPU that reorders loads may have read the data before
/// the lock: the next fence orders the lock before the data of a third read, which sees both.
/// `common/tests/ordering.rs` checks this.
pub(super) const EQUAL_READS: u8 = if cfg!(target_arch = "x86_64") { 1 } else { 2 };

/// A set of the RP table, read until every flow was unlocked and equal in successive reads.
///
/// Every packet changes its flow, if only a counter.
pub(super) struct Settling {
    /// Settled flows as they were then, the others as last read.
    set: RpSet,
    equal_reads: [u8; WAYS],
    needed: u8,
}

impl Settling {
    /// Starts with a first read; `needed` is [`EQUAL_READS`].
    pub(super) const fn new(first: RpSet, needed: u8) -> Self {
        Self { set: first, equal_reads: [0; WAYS], needed }
    }

    /// Adds a read; returns true if all flows are settled.
    pub(super) fn read(&mut self, set: &RpSet) -> bool {
        let now = set.tags.iter().zip(&set.hot).zip(&set.cold);
        let before = self.set.tags.iter_mut().zip(&mut self.set.hot).zip(&mut self.set.cold);
        for ((((tag, hot), cold), ((old_tag, old_hot), old_cold)), equal_reads) in
            now.zip(before).zip(&mut self.equal_reads)
        {
            if *equal_reads < self.needed {
                let is_as_before = (tag, hot, cold) == (&*old_tag, &*old_hot, &*old_cold);
                *equal_reads = if is_as_before && !hot.is_held() { *equal_reads + 1 } else { 0 };
                (*old_tag, *old_hot, *old_cold) = (*tag, *hot, *cold);
            }
        }
        self.equal_reads == [self.needed; WAYS]
    }

    /// The set; its flows may be from different times.
    pub(super) const fn into_set(self) -> RpSet {
        RpSet { lock: 0, ..self.set }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(change: impl FnOnce(&mut RpSet)) -> RpSet {
        let mut set = RpSet::EMPTY;
        change(&mut set);
        set
    }

    #[test]
    fn unlocked_set_read_twice() {
        let unlocked = set(|set| set.hot[3].packets = 7);
        let mut settling = Settling::new(unlocked, 1);
        assert!(settling.read(&unlocked));
        assert_eq!(settling.into_set(), unlocked);
    }

    #[test]
    fn change_restarts_equal_reads() {
        let packets = |packets| set(|set| set.hot[0].packets = packets);
        let mut settling = Settling::new(packets(1), 2);
        for (read, is_settled) in [(1, false), (2, false), (2, false), (2, true)] {
            assert_eq!(settling.read(&packets(read)), is_settled);
        }
    }

    #[test]
    fn flow_read_while_unlocked() {
        let packets = |of: [u64; 2]| set(|set| (set.hot[0].packets, set.hot[1].packets) = of.into());
        let mut settling = Settling::new(packets([1, 1]), 1);
        assert!(!settling.read(&packets([1, 2])), "the second is busy");
        assert!(!settling.read(&packets([2, 3])), "both are busy, but the first was read before");
        assert!(settling.read(&packets([3, 3])));
        assert_eq!(settling.into_set(), packets([1, 3]));
    }

    #[test]
    fn locked_flow_is_not_settled() {
        let locked = set(|set| set.hot[7].lock = 5);
        let free = set(|set| set.hot[7].lock = 4);
        let mut settling = Settling::new(locked, 1);
        assert!(!settling.read(&locked));
        assert!(!settling.read(&free));
        assert!(settling.read(&free));
        assert_eq!(settling.into_set(), free);
    }

    #[test]
    fn cnp_fields_read_while_unlocked() {
        for changed in [set(|set| set.cold[2].cnps.handled = 1), set(|set| set.tags[2] = 9)] {
            let mut settling = Settling::new(RpSet::EMPTY, 1);
            assert!(!settling.read(&changed));
            assert!(settling.read(&changed));
            assert_eq!(settling.into_set(), changed);
        }
    }

    #[test]
    fn busy_flow_returns_last_read() {
        let mut settling = Settling::new(RpSet::EMPTY, 1);
        for packets in 1..100 {
            assert!(!settling.read(&set(|set| set.hot[4].packets = packets)));
        }
        assert_eq!(settling.into_set().hot[4].packets, 99);
    }
}
