//! Typed access to the maps of the data plane.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use aya::maps::{
    Array, HashMap, IterableMap as _, Map, MapData, MapError, PerCpuArray, PerCpuHashMap, PerCpuValues,
    RingBuf,
};
use aya::util::nr_cpus;
use aya::{Ebpf, Pod};
use dcqcn_common::events::{Event, EventKind, EventLog};
use dcqcn_common::flow::{FlowId, NpFlow, NpSet, QpId, RpFlow, RpSet};
use dcqcn_common::layout::{
    Active, Backlog, CLASSES, Counters, Cut, IngressBytes, LAYOUT_VERSION, PARAMS_SLOTS, Pair, QUEUES, Queue,
    TIMES, Test, Time,
};
use dcqcn_common::params::Params;
use dcqcn_common::pfc::Storms;
use dcqcn_common::recovery::Requester;
use dcqcn_common::vqueue::Share;
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::sync::lock;

use super::error::at;
use super::lazy::{Lazy, Source};
use super::settle::{EQUAL_READS, Settling};
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

/// Maps of one attachment.
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

/// Reads a pinned `ACTIVE` map.
pub(super) fn active(pin: &Path) -> Result<Active, Error> {
    const NAME: &str = "ACTIVE";
    let map = MapData::from_pin(pin).and_then(Map::from_map_data).map_err(at(NAME))?;
    let active: Array<MapData, Active> = map.try_into().map_err(at(NAME))?;
    active.get(&0, 0).map_err(at(NAME))
}

impl Maps {
    /// Takes the maps of a loaded object.
    ///
    /// # Errors
    /// A map is missing.
    pub fn take(ebpf: &mut Ebpf) -> Result<Self, Error> {
        Self::open(|name| Ok(Source::Open(ebpf.take_map(in_object(name)).ok_or(Error::Missing(name))?)))
    }

    /// The maps pinned in `pins`, opened when they are used.
    ///
    /// # Errors
    /// The parameters are missing or another version's.
    pub(crate) fn pinned(pins: &Path) -> Result<Self, Error> {
        let maps = Self::open(|name| Ok(Source::Pin(pins.join(name))))?;
        let found = maps.params()?.port.layout_version;
        if found == LAYOUT_VERSION { Ok(maps) } else { Err(Error::Layout { found }) }
    }

    fn open(mut of: impl FnMut(&'static str) -> Result<Source, Error>) -> Result<Self, Error> {
        Ok(Self {
            known: Mutex::default(),
            params: Lazy::new("PARAMS", of("PARAMS")?)?,
            active: Lazy::new("ACTIVE", of("ACTIVE")?)?,
            counters: Lazy::new("COUNTERS", of("COUNTERS")?)?,
            queue: Lazy::new("QUEUE", of("QUEUE")?)?,
            shares: Lazy::new("SHARES", of("SHARES")?)?,
            pairs: Lazy::new("PAIRS", of("PAIRS")?)?,
            learned: Lazy::new("LEARNED", of("LEARNED")?)?,
            pairs_ns: Lazy::new("PAIRS_NS", of("PAIRS_NS")?)?,
            rp: Lazy::new("RP", of("RP")?)?,
            np: Lazy::new("NP", of("NP")?)?,
            cm: Lazy::new("CM", of("CM")?)?,
            times: Lazy::new("TIMES_NS", of("TIMES_NS")?)?,
            backlog: Lazy::new("BACKLOG", of("BACKLOG")?)?,
            ingress_bytes: Lazy::new("INGRESS_BYTES", of("INGRESS_BYTES")?)?,
            cuts: Lazy::new("CUTS", of("CUTS")?)?,
            events: Lazy::new("EVENTS", of("EVENTS")?)?,
            log: OnceLock::new(),
            requesters: Lazy::new("REQUESTERS", of("REQUESTERS")?)?,
            test: Lazy::new("TEST", of("TEST")?)?,
        })
    }

    /// Active parameters, copied from the kernel only after a change: a daemon reads them every second for each port.
    ///
    /// Every change moves the index and the time at which a slot became inactive, so `ACTIVE` identifies them. Ordering:
    /// the index is part of the address of the parameters, hence read before them.
    pub fn params(&self) -> Result<Arc<Params>, Error> {
        let active = self.active()?;
        let mut known = lock(&self.known);
        if let Some((of, params)) = known.as_ref()
            && *of == active
        {
            return Ok(Arc::clone(params));
        }
        let params = self.params.get()?.get(&(active.slot % PARAMS_SLOTS), 0).map_err(at("PARAMS"))?;
        let params = Arc::new(params);
        // Unless the slot may have been reused in between.
        *known = (self.active()? == active).then(|| (active, Arc::clone(&params)));
        Ok(params)
    }

    fn active(&self) -> Result<Active, Error> {
        self.active.get()?.get(&0, 0).map_err(at("ACTIVE"))
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
        self.params.get_mut()?.set(new, params, 0).map_err(at("PARAMS"))?;
        active.slot = new;
        active.classifies_all = params.classifies_all().into();
        if let Some(left_ns) = active.left_ns.get_mut(old as usize) {
            *left_ns = monotonic_ns();
        }
        // The parameters before their index. A program's loads are ordered by the address, which contains the index.
        fence(Ordering::Release);
        self.active.get_mut()?.set(0, active, 0).map_err(at("ACTIVE"))
    }

    /// Activates parameters while no program runs, as under test: writes the slot in use, without waiting.
    pub fn set_params_at_rest(&mut self, params: &Params) -> Result<(), Error> {
        let mut active = self.active()?;
        *self.known.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        self.params.get_mut()?.set(active.slot % PARAMS_SLOTS, params, 0).map_err(at("PARAMS"))?;
        active.classifies_all = params.classifies_all().into();
        self.active.get_mut()?.set(0, active, 0).map_err(at("ACTIVE"))
    }

    /// Counters of the three hooks (XDP, ingress, egress), summed over all CPUs.
    pub fn counters(&self) -> Result<[Counters; 3], Error> {
        let mut sums = [Counters::ZERO; 3];
        for (hook, sum) in (0..).zip(&mut sums) {
            for cpu in self.counters.get()?.get(&hook, 0).map_err(at("COUNTERS"))?.iter() {
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
        let mut queues = [0; QUEUES as usize];
        for (index, empty_at) in (0..).zip(&mut queues) {
            *empty_at = self.queue(index)?;
        }
        Ok(queues)
    }

    /// One flow of the RP table, read consistently; `None` if the slot is empty.
    ///
    /// # Errors
    /// The set does not exist.
    pub(crate) fn rp_flow(&self, set: u32, way: usize) -> Result<Option<RpFlow>, Error> {
        Ok(self.rp_set(set)?.flow(way))
    }

    /// Flow `id` of the RP table.
    pub fn rp_find(&self, params: &Params, id: &FlowId) -> Result<Option<RpFlow>, Error> {
        let index = id.rp_set_index(&params.port.hash_keys, params.port.rp_set_mask);
        Ok(self.rp_set(index)?.find(id))
    }

    /// Rate cuts announced by the RP since the last call. There is one ring: two readers would share it.
    ///
    /// # Errors
    /// The ring is missing.
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
    ///
    /// # Errors
    /// As [`Self::cuts`].
    pub fn cuts_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.cuts.get()?.as_fd())
    }

    /// Event log, mapped into this process.
    pub fn event_log(&self) -> Result<Log, Error> {
        let fd = self.events.get()?.map().fd().as_fd();
        Log::of_map(fd).map_err(|source| Error::EventLog { source })
    }

    /// Adds an event to the event log, if events are enabled. Omitted events are counted in the log.
    ///
    /// # Errors
    /// The parameters cannot be read, or the log cannot be mapped.
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
    ///
    /// # Errors
    /// The queue does not exist.
    pub fn queue(&self, index: u32) -> Result<u64, Error> {
        let shared = self.queue.get()?.get(&index, 0).map_err(at("QUEUE"))?.empty_at;
        let shares = self.shares.get()?.get(&index, 0).map_err(at("SHARES"))?;
        Ok(shares.iter().fold(shared, |shared, share| share.published(shared)))
    }

    /// One set of the RP table, each flow read consistently.
    ///
    /// A flow that changes on every attempt is returned as last read.
    ///
    /// # Errors
    /// The set does not exist.
    pub fn rp_set(&self, index: u32) -> Result<RpSet, Error> {
        let rp = self.rp.get()?;
        let mut settling = Settling::new(rp.get(&index, 0).map_err(at("RP"))?, EQUAL_READS);
        for _ in 0..MAX_SET_READS {
            // See `EQUAL_READS`.
            fence(Ordering::Acquire);
            if settling.read(&rp.get(&index, 0).map_err(at("RP"))?) {
                break;
            }
        }
        Ok(settling.into_set())
    }

    /// One set of the NP table, read consistently.
    ///
    /// # Errors
    /// The set does not exist.
    pub fn np_set(&self, index: u32) -> Result<NpSet, Error> {
        read_consistent(self.np.get()?, index).map_err(at("NP"))
    }

    /// All sets of the RP table, see [`Self::rp_set`].
    pub fn rp_sets(&self) -> impl Iterator<Item = Result<RpSet, Error>> {
        self.rp.items(|rp| (0..rp.len()).map(|index| self.rp_set(index)))
    }

    /// All sets of the NP table, see [`Self::np_set`].
    pub fn np_sets(&self) -> impl Iterator<Item = Result<NpSet, Error>> {
        self.np.items(|np| (0..np.len()).map(|index| read_consistent(np, index).map_err(at("NP"))))
    }

    /// All flows of the RP table, with their set and way.
    pub fn rp_flows(&self) -> impl Iterator<Item = Result<(u32, usize, RpFlow), Error>> {
        (0..).zip(self.rp_sets()).flat_map(|(index, set)| match set {
            Ok(set) => set.flows().map(|(way, flow)| Ok((index, way, flow))).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        })
    }

    /// Timestamps shared by all CPUs, indexed by `Time`.
    pub fn times(&self) -> Result<[u64; TIMES as usize], Error> {
        let mut times = [0; TIMES as usize];
        for (index, time) in (0..).zip(&mut times) {
            *time = self.times.get()?.get(&index, 0).map_err(at("TIMES_NS"))?;
        }
        times[Time::Pairs as usize] = self.pairs_ns.get()?.get(&0, 0).map_err(at("PAIRS_NS"))?;
        Ok(times)
    }

    /// Endpoints of connections being set up, with the QPN each announced.
    ///
    /// `qpn` of the key is the communication identifier.
    pub fn connections(&self) -> impl Iterator<Item = Result<(QpId, u32), Error>> {
        self.cm.items(|cm| cm.iter().map(|end| end.map_err(at("CM"))))
    }

    /// All flows of the NP table.
    pub fn np_flows(&self) -> impl Iterator<Item = Result<NpFlow, Error>> {
        self.np_sets().flat_map(|set| match set {
            Ok(set) => set.ways.into_iter().filter(|flow| flow.last_seen_ns != 0).map(Ok).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        })
    }

    /// All known pairs: first those configured by the daemon, then those learned.
    pub fn pairs(&self) -> impl Iterator<Item = Result<(QpId, Pair), Error>> {
        let entered = self.pairs.items(|pairs| pairs.iter().map(|pair| pair.map_err(at("PAIRS"))));
        entered.chain(self.learned.items(|pairs| pairs.iter().map(|pair| pair.map_err(at("LEARNED")))))
    }

    /// Remote QP of `id`, if known.
    pub fn pair(&self, id: &QpId) -> Result<Option<Pair>, Error> {
        // Pairs configured by the daemon apply to every VLAN.
        let entered = QpId { vlan: 0, ..*id };
        for (name, map, id) in [("PAIRS", &self.pairs, &entered), ("LEARNED", &self.learned, id)] {
            match map.get()?.get(id, 0) {
                Ok(pair) => return Ok(Some(pair)),
                Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(at(name)(error)),
            }
        }
        Ok(None)
    }

    /// Stores a pair, as learned if its source is CM messages or datagrams.
    ///
    /// # Errors
    /// The table is full.
    pub fn set_pair(&mut self, id: &QpId, pair: &Pair) -> Result<(), Error> {
        if !pair.is_entered() {
            return self.learned.get_mut()?.insert(id, pair, 0).map_err(at("LEARNED"));
        }
        self.pairs.get_mut()?.insert(id, pair, 0).map_err(at("PAIRS"))?;
        forget(self.learned.get_mut()?, id).map_err(at("LEARNED"))
    }

    /// Requesters followed by the tail-loss probe.
    pub fn requesters(&self) -> impl Iterator<Item = Result<(FlowId, Requester), Error>> {
        self.requesters.items(|requesters| requesters.iter().map(|entry| entry.map_err(at("REQUESTERS"))))
    }

    /// The requester of a flow, if it is followed; see [`recovery`](dcqcn_common::recovery) for equal reads.
    pub fn requester(&self, id: &FlowId) -> Result<Option<Requester>, Error> {
        let read = || match self.requesters.get()?.get(id, 0) {
            Ok(requester) => Ok(Some(requester)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(at("REQUESTERS")(error)),
        };
        let mut last = read()?;
        for _ in 0..MAX_REQUESTER_READS {
            fence(Ordering::Acquire);
            let now = read()?;
            if now == last {
                break;
            }
            last = now;
        }
        Ok(last)
    }

    /// Removes a requester, if it is followed.
    pub fn remove_requester(&mut self, id: &FlowId) -> Result<(), Error> {
        forget(self.requesters.get_mut()?, id).map_err(at("REQUESTERS"))
    }

    /// Stores the measured backlog of queue `index`.
    ///
    /// # Errors
    /// The queue does not exist.
    pub fn set_backlog(&mut self, index: u32, backlog: &Backlog) -> Result<(), Error> {
        self.backlog.get_mut()?.set(index, backlog, 0).map_err(at("BACKLOG"))
    }

    /// Last stored backlogs, indexed like [`Self::queues`].
    pub fn backlogs(&self) -> Result<[Backlog; QUEUES as usize], Error> {
        let mut backlogs = [Backlog::default(); QUEUES as usize];
        for (index, backlog) in (0..).zip(&mut backlogs) {
            *backlog = self.backlog.get()?.get(&index, 0).map_err(at("BACKLOG"))?;
        }
        Ok(backlogs)
    }

    /// Removes a pair, if it exists.
    pub fn remove_pair(&mut self, id: &QpId) -> Result<(), Error> {
        forget(self.pairs.get_mut()?, id).map_err(at("PAIRS"))?;
        forget(self.learned.get_mut()?, id).map_err(at("LEARNED"))
    }

    /// Clock, random source and results of programs under test.
    pub fn test(&self) -> Result<Test, Error> {
        self.test.get()?.get(&0, 0).map_err(at("TEST"))
    }

    /// Sets clock and random source of programs under test.
    pub fn set_test(&mut self, test: &Test) -> Result<(), Error> {
        self.test.get_mut()?.set(0, test, 0).map_err(at("TEST"))
    }

    /// Stores the priorities in a storm at `now_ns`; valid for
    /// [`STORM_AGE_NS`](dcqcn_common::pfc::STORM_AGE_NS).
    pub fn set_storms(&mut self, storms: Storms, now_ns: u64) -> Result<(), Error> {
        self.set_time(Time::Storms, storms.word(now_ns))
    }

    /// Stores until when this host counts as congested; 0 = it does not.
    pub fn set_host_congested_until(&mut self, until_ns: u64) -> Result<(), Error> {
        self.set_time(Time::HostCongestedUntil, until_ns)
    }

    fn set_time(&mut self, which: Time, value: u64) -> Result<(), Error> {
        self.times.get_mut()?.set(which as u32, value, 0).map_err(at("TIMES_NS"))
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
            let mut queue = self.queue.get()?.get(&index, 0).map_err(at("QUEUE"))?;
            let shares = self.shares.get()?.get(&index, 0).map_err(at("SHARES"))?;
            queue.empty_at = is.carried_over(was, queue.empty_at, &shares, now_ns);
            let none = vec![Share::NONE; shares.len()];
            let none = PerCpuValues::try_from(none).map_err(MapError::IoError).map_err(at("SHARES"))?;
            self.queue.get_mut()?.set(index, queue, 0).map_err(at("QUEUE"))?;
            self.shares.get_mut()?.set(index, none, 0).map_err(at("SHARES"))?;
        }
        Ok(())
    }

    /// Starts counting an ingress port separately, by its index; 0 stands for all other ports.
    ///
    /// # Errors
    /// The map is full.
    pub(crate) fn count_separately(&mut self, ifindex: u32) -> Result<(), Error> {
        let failed = |source| Error::Map { name: INGRESS, source };
        let cpus = nr_cpus().map_err(|(_, source)| failed(MapError::IoError(source)))?;
        let zero = PerCpuValues::try_from(vec![IngressBytes::default(); cpus])
            .map_err(MapError::IoError)
            .map_err(failed)?;
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
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(at(INGRESS)),
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
            Err(source) => Err(Error::Map { name: INGRESS, source }),
        }
    }
}

/// Reads a set of the NP table consistently: unlocked, and equal in successive reads; see [`EQUAL_READS`].
///
/// Every packet changes its set, if only a counter. A set that changes on every attempt is returned as last
/// read.
fn read_consistent(array: &Array<MapData, NpSet>, index: u32) -> Result<NpSet, MapError> {
    let (mut last, mut equal_reads) = (array.get(&index, 0)?, 0);
    for _ in 0..MAX_SET_READS {
        fence(Ordering::Acquire);
        let set = array.get(&index, 0)?;
        equal_reads = if set.is_at_rest() && set == last { equal_reads + 1 } else { 0 };
        if equal_reads == EQUAL_READS {
            break;
        }
        last = set;
    }
    Ok(last)
}

/// Removes an entry, if it exists.
fn forget<K: Pod, V: Pod>(map: &mut HashMap<MapData, K, V>, id: &K) -> Result<(), MapError> {
    match map.remove(id) {
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
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
