//! Typed access to the maps of the data plane.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use aya::Ebpf;
use aya::maps::{
    Array, HashMap, IterableMap as _, Map, MapData, MapError, PerCpuArray, PerCpuHashMap, RingBuf,
};
use dcqcn_common::events::EventLog;
use dcqcn_common::flow::{FlowId, NpFlow, NpSet, QpId, RpFlow, RpSet};
use dcqcn_common::layout::{
    Active, Backlog, Counters, Cut, IngressBytes, LAYOUT_VERSION, PARAMS_SLOTS, Pair, PairSource, QUEUES,
    Queue, TIMES, Test,
};
use dcqcn_common::params::Params;
use dcqcn_common::vqueue::Share;
use dcqcn_support::clock::monotonic_ns;

use super::settle::Settling;
use super::{Error, in_object};
use crate::events::Log;

/// Maximum reads of a set that programs are changing, about 20 ms.
///
/// At a million packets per second in one set, every second attempt succeeds. Even a CPU that does nothing
/// but change the set pauses between two batches of packets.
const SET_READS: u32 = 10_000;

/// Maps of one attachment.
pub struct Maps {
    params: Array<MapData, Params>,
    active: Array<MapData, Active>,
    counters: PerCpuArray<MapData, Counters>,
    pub(super) queue: Array<MapData, Queue>,
    pub(super) shares: PerCpuArray<MapData, Share>,
    pairs: HashMap<MapData, QpId, Pair>,
    learned: HashMap<MapData, QpId, Pair>,
    rp: Array<MapData, RpSet>,
    pub(super) np: Array<MapData, NpSet>,
    cm: HashMap<MapData, QpId, u32>,
    pub(super) times: Array<MapData, u64>,
    backlog: Array<MapData, Backlog>,
    pub(super) came: PerCpuHashMap<MapData, u32, IngressBytes>,
    cuts: RingBuf<MapData>,
    events: Array<MapData, EventLog>,
    test: Array<MapData, Test>,
}

pub(super) fn at(name: &'static str) -> impl FnOnce(MapError) -> Error {
    move |source| Error::Map { name, source }
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
        Self::open(|name| ebpf.take_map(in_object(name)).ok_or(Error::Missing(name)))
    }

    /// Opens the maps pinned in `pins`.
    ///
    /// # Errors
    /// A map is missing or another version's.
    pub(crate) fn pinned(pins: &Path) -> Result<Self, Error> {
        let maps = Self::open(|name| {
            let data = MapData::from_pin(pins.join(name)).map_err(at(name))?;
            Map::from_map_data(data).map_err(at(name))
        })?;
        let found = maps.params()?.port.layout_version;
        if found == LAYOUT_VERSION { Ok(maps) } else { Err(Error::Layout { found }) }
    }

    fn open(mut map: impl FnMut(&'static str) -> Result<Map, Error>) -> Result<Self, Error> {
        Ok(Self {
            params: map("PARAMS")?.try_into().map_err(at("PARAMS"))?,
            active: map("ACTIVE")?.try_into().map_err(at("ACTIVE"))?,
            counters: map("COUNTERS")?.try_into().map_err(at("COUNTERS"))?,
            queue: map("QUEUE")?.try_into().map_err(at("QUEUE"))?,
            shares: map("SHARES")?.try_into().map_err(at("SHARES"))?,
            pairs: map("PAIRS")?.try_into().map_err(at("PAIRS"))?,
            learned: map("LEARNED")?.try_into().map_err(at("LEARNED"))?,
            rp: map("RP")?.try_into().map_err(at("RP"))?,
            np: map("NP")?.try_into().map_err(at("NP"))?,
            cm: map("CM")?.try_into().map_err(at("CM"))?,
            times: map("TIMES_NS")?.try_into().map_err(at("TIMES_NS"))?,
            backlog: map("BACKLOG")?.try_into().map_err(at("BACKLOG"))?,
            came: map("INGRESS_BYTES")?.try_into().map_err(at("INGRESS_BYTES"))?,
            cuts: map("CUTS")?.try_into().map_err(at("CUTS"))?,
            events: map("EVENTS")?.try_into().map_err(at("EVENTS"))?,
            test: map("TEST")?.try_into().map_err(at("TEST"))?,
        })
    }

    /// Active parameters.
    pub fn params(&self) -> Result<Params, Error> {
        let Active { slot, .. } = self.active.get(&0, 0).map_err(at("ACTIVE"))?;
        self.params.get(&(slot % PARAMS_SLOTS), 0).map_err(at("PARAMS"))
    }

    /// Activates parameters, so that no packet sees a partial change.
    ///
    /// Parameters are written to the next slot, which then becomes the active one. Slots are used in turn, so
    /// that none is written while a program may be reading it. If the next slot was left less than a second
    /// ago, this waits for running programs.
    ///
    /// # Errors
    /// A map write fails; the old parameters remain active.
    pub fn set_params(&mut self, params: &Params) -> Result<(), Error> {
        let mut active = self.active.get(&0, 0).map_err(at("ACTIVE"))?;
        let next = |slot| (slot + 1) % PARAMS_SLOTS;
        let (old, new) = (active.slot % PARAMS_SLOTS, next(active.slot));
        self.params.set(new, params, 0).map_err(at("PARAMS"))?;
        let now_ns = monotonic_ns();
        active.slot = new;
        active.sorts_all = params.sorts_all().into();
        if let Some(left_ns) = active.left_ns.get_mut(old as usize) {
            *left_ns = now_ns;
        }
        self.active.set(0, active, 0).map_err(at("ACTIVE"))?;
        let next_left_ns = active.left_ns.get(next(new) as usize).copied().unwrap_or(0);
        if next_left_ns != 0 && now_ns.saturating_sub(next_left_ns) < REST_NS {
            wait_for_programs();
        }
        Ok(())
    }

    /// Activates parameters while no program runs, as under test: writes the slot in use, without waiting.
    pub fn set_params_at_rest(&mut self, params: &Params) -> Result<(), Error> {
        let mut active = self.active.get(&0, 0).map_err(at("ACTIVE"))?;
        self.params.set(active.slot % PARAMS_SLOTS, params, 0).map_err(at("PARAMS"))?;
        active.sorts_all = params.sorts_all().into();
        self.active.set(0, active, 0).map_err(at("ACTIVE"))
    }

    /// Counters of the three hooks (XDP, ingress, egress), summed over all CPUs.
    pub fn counters(&self) -> Result<[Counters; 3], Error> {
        let mut sums = [Counters::ZERO; 3];
        for (hook, sum) in (0..).zip(&mut sums) {
            for cpu in self.counters.get(&hook, 0).map_err(at("COUNTERS"))?.iter() {
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
    pub fn cuts(&mut self) -> Vec<Cut> {
        let mut cuts = Vec::new();
        while let Some(item) = self.cuts.next() {
            if let Some((set, way)) = item.split_first_chunk::<4>()
                && let Ok(way) = <[u8; 4]>::try_from(way)
            {
                cuts.push(Cut { set: u32::from_ne_bytes(*set), way: u32::from_ne_bytes(way) });
            }
        }
        cuts
    }

    /// A descriptor that polls readable while there are cuts.
    #[must_use]
    pub fn cuts_fd(&self) -> BorrowedFd<'_> {
        self.cuts.as_fd()
    }

    /// Event log, mapped into this process.
    pub fn event_log(&self) -> Result<Log, Error> {
        let fd = self.events.map().fd().as_fd();
        Log::of_map(fd).map_err(|source| Error::EventLog { source })
    }

    /// "Empty at" of one virtual queue, including the unpublished shares of each CPU.
    ///
    /// # Errors
    /// The queue does not exist.
    pub fn queue(&self, index: u32) -> Result<u64, Error> {
        let shared = self.queue.get(&index, 0).map_err(at("QUEUE"))?.empty_at;
        let shares = self.shares.get(&index, 0).map_err(at("SHARES"))?;
        Ok(shares.iter().fold(shared, |shared, share| share.published(shared)))
    }

    /// One set of the RP table, each flow read consistently.
    ///
    /// A flow that changes on every attempt is returned as last read.
    ///
    /// # Errors
    /// The set does not exist.
    pub fn rp_set(&self, index: u32) -> Result<RpSet, Error> {
        let mut settling = Settling::new(self.rp.get(&index, 0).map_err(at("RP"))?);
        for _ in 0..SET_READS {
            if settling.read(&self.rp.get(&index, 0).map_err(at("RP"))?) {
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
        settled(&self.np, index).map_err(at("NP"))
    }

    /// All sets of the RP table, see [`Self::rp_set`].
    pub fn rp_sets(&self) -> impl Iterator<Item = Result<RpSet, Error>> {
        (0..self.rp.len()).map(|index| self.rp_set(index))
    }

    /// All sets of the NP table, see [`Self::np_set`].
    pub fn np_sets(&self) -> impl Iterator<Item = Result<NpSet, Error>> {
        (0..self.np.len()).map(|index| settled(&self.np, index).map_err(at("NP")))
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
            *time = self.times.get(&index, 0).map_err(at("TIMES_NS"))?;
        }
        Ok(times)
    }

    /// Endpoints of connections being set up, with the QPN each announced.
    ///
    /// `qpn` of the key is the communication identifier.
    pub fn connections(&self) -> impl Iterator<Item = Result<(QpId, u32), Error>> {
        self.cm.iter().map(|end| end.map_err(at("CM")))
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
        let entered = self.pairs.iter().map(|pair| pair.map_err(at("PAIRS")));
        entered.chain(self.learned.iter().map(|pair| pair.map_err(at("LEARNED"))))
    }

    /// Remote QP of `id`, if known.
    pub fn pair(&self, id: &QpId) -> Result<Option<Pair>, Error> {
        // Pairs configured by the daemon apply to every VLAN.
        let entered = QpId { vlan: 0, ..*id };
        for (name, map, id) in [("PAIRS", &self.pairs, &entered), ("LEARNED", &self.learned, id)] {
            match map.get(id, 0) {
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
        if pair.source >= PairSource::Cm as u32 {
            return self.learned.insert(id, pair, 0).map_err(at("LEARNED"));
        }
        self.pairs.insert(id, pair, 0).map_err(at("PAIRS"))?;
        forget(&mut self.learned, id).map_err(at("LEARNED"))
    }

    /// Stores the measured backlog of queue `index`.
    ///
    /// # Errors
    /// The queue does not exist.
    pub fn set_backlog(&mut self, index: u32, backlog: &Backlog) -> Result<(), Error> {
        self.backlog.set(index, backlog, 0).map_err(at("BACKLOG"))
    }

    /// Last stored backlogs, indexed like [`Self::queues`].
    pub fn backlogs(&self) -> Result<[Backlog; QUEUES as usize], Error> {
        let mut backlogs = [Backlog::default(); QUEUES as usize];
        for (index, backlog) in (0..).zip(&mut backlogs) {
            *backlog = self.backlog.get(&index, 0).map_err(at("BACKLOG"))?;
        }
        Ok(backlogs)
    }

    /// Removes a pair, if it exists.
    pub fn remove_pair(&mut self, id: &QpId) -> Result<(), Error> {
        forget(&mut self.pairs, id).map_err(at("PAIRS"))?;
        forget(&mut self.learned, id).map_err(at("LEARNED"))
    }

    /// Clock, random source and results of programs under test.
    pub fn test(&self) -> Result<Test, Error> {
        self.test.get(&0, 0).map_err(at("TEST"))
    }

    /// Sets clock and random source of programs under test.
    pub fn set_test(&mut self, test: &Test) -> Result<(), Error> {
        self.test.set(0, test, 0).map_err(at("TEST"))
    }
}

/// Reads a set of the NP table consistently: unlocked, and equal in two successive reads.
///
/// Every packet changes its set, if only a counter. A set that changes on every attempt is returned as last
/// read.
fn settled(array: &Array<MapData, NpSet>, index: u32) -> Result<NpSet, MapError> {
    let mut last = array.get(&index, 0)?;
    for _ in 0..SET_READS {
        let set = array.get(&index, 0)?;
        if set.is_at_rest() && set == last {
            break;
        }
        last = set;
    }
    Ok(last)
}

/// Removes an entry, if it exists.
fn forget(map: &mut HashMap<MapData, QpId, Pair>, id: &QpId) -> Result<(), MapError> {
    match map.remove(id) {
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Minimum time before a slot of parameters is written again.
///
/// Programs run for microseconds with soft interrupts disabled, so none still reads it after that time.
const REST_NS: u64 = 1_000_000_000;

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
