//! The maps of the data plane, by type.

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

/// How often a set that programs are changing is read again: for some 20 ms. At a million packets per second of one set every
/// other attempt succeeds; a CPU that does nothing but change it leaves it alone between two batches of packets.
const SET_READS: u32 = 10_000;

/// The maps, by type.
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

/// What the map pinned here says of the parameters active.
pub(super) fn active(pin: &Path) -> Result<Active, Error> {
    const NAME: &str = "ACTIVE";
    let map = MapData::from_pin(pin).and_then(Map::from_map_data).map_err(at(NAME))?;
    let active: Array<MapData, Active> = map.try_into().map_err(at(NAME))?;
    active.get(&0, 0).map_err(at(NAME))
}

impl Maps {
    /// Takes the maps out of a loaded object.
    ///
    /// # Errors
    /// The object lacks one.
    pub fn take(ebpf: &mut Ebpf) -> Result<Self, Error> {
        Self::open(|name| ebpf.take_map(in_object(name)).ok_or(Error::Missing(name)))
    }

    /// Opens the maps pinned in `pins`.
    ///
    /// # Errors
    /// One is not there, or belongs to another version.
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

    /// The parameters active.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn params(&self) -> Result<Params, Error> {
        let Active { slot, .. } = self.active.get(&0, 0).map_err(at("ACTIVE"))?;
        self.params.get(&(slot % PARAMS_SLOTS), 0).map_err(at("PARAMS"))
    }

    /// Puts other parameters active: written to the next slot, then switched by one index, so that no packet sees half
    /// a change. Slots are used in turn, so that none is written while a program may read it: only where the next one was
    /// left less than a second ago, because all have been used within that time, this waits until no program does.
    ///
    /// # Errors
    /// What the kernel says; the old parameters stay active.
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

    /// Puts other parameters active where no program runs in the meantime, as under test: in the slot that is in use, so that there is
    /// nothing to wait for.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_params_at_rest(&mut self, params: &Params) -> Result<(), Error> {
        let mut active = self.active.get(&0, 0).map_err(at("ACTIVE"))?;
        self.params.set(active.slot % PARAMS_SLOTS, params, 0).map_err(at("PARAMS"))?;
        active.sorts_all = params.sorts_all().into();
        self.active.set(0, active, 0).map_err(at("ACTIVE"))
    }

    /// The counters of the three hooks (XDP, ingress, egress), summed over the CPUs.
    ///
    /// # Errors
    /// What the kernel says.
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

    /// "Empty at" of every virtual queue, eight for each of two ports; see [`Self::queue`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn queues(&self) -> Result<[u64; QUEUES as usize], Error> {
        let mut queues = [0; QUEUES as usize];
        for (index, empty_at) in (0..).zip(&mut queues) {
            *empty_at = self.queue(index)?;
        }
        Ok(queues)
    }

    /// One flow of the RP table, as between two packets; `None` if its place is empty.
    ///
    /// # Errors
    /// There is no such set, or what the kernel says.
    pub(crate) fn rp_flow(&self, set: u32, way: usize) -> Result<Option<RpFlow>, Error> {
        Ok(self.rp_set(set)?.flow(way))
    }

    /// The flow `id` of the RP table.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn rp_find(&self, params: &Params, id: &FlowId) -> Result<Option<RpFlow>, Error> {
        let index = id.rp_set_index(&params.port.hash_keys, params.port.rp_set_mask);
        Ok(self.rp_set(index)?.find(id))
    }

    /// What the reaction point has told since the last call. There is one ring: two pacers would share it.
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

    /// The event log, in this process's memory.
    ///
    /// # Errors
    /// The kernel refuses to map it.
    pub fn event_log(&self) -> Result<Log, Error> {
        let fd = self.events.map().fd().as_fd();
        Log::of_map(fd).map_err(|source| Error::EventLog { source })
    }

    /// "Empty at" of one virtual queue, with what each CPU has not told the others yet.
    ///
    /// # Errors
    /// There is no such queue, or what the kernel says.
    pub fn queue(&self, index: u32) -> Result<u64, Error> {
        let shared = self.queue.get(&index, 0).map_err(at("QUEUE"))?.empty_at;
        let shares = self.shares.get(&index, 0).map_err(at("SHARES"))?;
        Ok(shares.iter().fold(shared, |shared, share| share.published(shared)))
    }

    /// One set of the RP table, each of its flows as between two packets; one that packets change each time it is looked at is given
    /// as read last.
    ///
    /// # Errors
    /// There is no such set, or what the kernel says.
    pub fn rp_set(&self, index: u32) -> Result<RpSet, Error> {
        let mut settling = Settling::new(self.rp.get(&index, 0).map_err(at("RP"))?);
        for _ in 0..SET_READS {
            if settling.read(&self.rp.get(&index, 0).map_err(at("RP"))?) {
                break;
            }
        }
        Ok(settling.into_set())
    }

    /// One set of the NP table, as between two packets.
    ///
    /// # Errors
    /// There is no such set, or what the kernel says.
    pub fn np_set(&self, index: u32) -> Result<NpSet, Error> {
        settled(&self.np, index).map_err(at("NP"))
    }

    /// Every set of the RP table, as [`Self::rp_set`] has it.
    pub fn rp_sets(&self) -> impl Iterator<Item = Result<RpSet, Error>> {
        (0..self.rp.len()).map(|index| self.rp_set(index))
    }

    /// Every set of the NP table, each as between two packets.
    pub fn np_sets(&self) -> impl Iterator<Item = Result<NpSet, Error>> {
        (0..self.np.len()).map(|index| settled(&self.np, index).map_err(at("NP")))
    }

    /// Every flow of the RP table, with the index of its set and its way.
    pub fn rp_flows(&self) -> impl Iterator<Item = Result<(u32, usize, RpFlow), Error>> {
        (0..).zip(self.rp_sets()).flat_map(|(index, set)| match set {
            Ok(set) => set.flows().map(|(way, flow)| Ok((index, way, flow))).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        })
    }

    /// The times that all CPUs share, by `Time`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn times(&self) -> Result<[u64; TIMES as usize], Error> {
        let mut times = [0; TIMES as usize];
        for (index, time) in (0..).zip(&mut times) {
            *time = self.times.get(&index, 0).map_err(at("TIMES_NS"))?;
        }
        Ok(times)
    }

    /// Ends of connections in the making, each with the QPN it named for itself; its name for the connection stands for a QPN.
    pub fn connections(&self) -> impl Iterator<Item = Result<(QpId, u32), Error>> {
        self.cm.iter().map(|end| end.map_err(at("CM")))
    }

    /// Every flow of the NP table.
    pub fn np_flows(&self) -> impl Iterator<Item = Result<NpFlow, Error>> {
        self.np_sets().flat_map(|set| match set {
            Ok(set) => set.ways.into_iter().filter(|flow| flow.last_seen_ns != 0).map(Ok).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        })
    }

    /// Every pair that is known: those that the controller entered, then those that were learned.
    pub fn pairs(&self) -> impl Iterator<Item = Result<(QpId, Pair), Error>> {
        let entered = self.pairs.iter().map(|pair| pair.map_err(at("PAIRS")));
        entered.chain(self.learned.iter().map(|pair| pair.map_err(at("LEARNED"))))
    }

    /// The QPN at the other end of `id`, where it is known.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pair(&self, id: &QpId) -> Result<Option<Pair>, Error> {
        // Those that the controller entered are of every VLAN.
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

    /// Enters a pair, among those learned if its source is messages or datagrams.
    ///
    /// # Errors
    /// The table is full, or what the kernel says.
    pub fn set_pair(&mut self, id: &QpId, pair: &Pair) -> Result<(), Error> {
        if pair.source >= PairSource::Cm as u32 {
            return self.learned.insert(id, pair, 0).map_err(at("LEARNED"));
        }
        self.pairs.insert(id, pair, 0).map_err(at("PAIRS"))?;
        forget(&mut self.learned, id).map_err(at("LEARNED"))
    }

    /// Tells what really waits in the queue `index`.
    ///
    /// # Errors
    /// There is no such queue, or what the kernel says.
    pub fn set_backlog(&mut self, index: u32, backlog: &Backlog) -> Result<(), Error> {
        self.backlog.set(index, backlog, 0).map_err(at("BACKLOG"))
    }

    /// What was told last to wait in each queue, numbered as [`Self::queues`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn backlogs(&self) -> Result<[Backlog; QUEUES as usize], Error> {
        let mut backlogs = [Backlog::default(); QUEUES as usize];
        for (index, backlog) in (0..).zip(&mut backlogs) {
            *backlog = self.backlog.get(&index, 0).map_err(at("BACKLOG"))?;
        }
        Ok(backlogs)
    }

    /// Forgets a pair.
    ///
    /// # Errors
    /// What the kernel says; that it was not there is none.
    pub fn remove_pair(&mut self, id: &QpId) -> Result<(), Error> {
        forget(&mut self.pairs, id).map_err(at("PAIRS"))?;
        forget(&mut self.learned, id).map_err(at("LEARNED"))
    }

    /// Clock, random source and outbox of programs under test.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn test(&self) -> Result<Test, Error> {
        self.test.get(&0, 0).map_err(at("TEST"))
    }

    /// Sets clock and random source of programs under test.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_test(&mut self, test: &Test) -> Result<(), Error> {
        self.test.set(0, test, 0).map_err(at("TEST"))
    }
}

/// A set of the NP table as it is between two packets: nobody held it, and it was the same twice. Every packet changes its set, if
/// only a counter. One that changes each time it is looked at is given as read last.
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

/// Removes an entry, if it is there.
fn forget(map: &mut HashMap<MapData, QpId, Pair>, id: &QpId) -> Result<(), MapError> {
    match map.remove(id) {
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// How long a slot of parameters rests before it is written again: no program, which runs for microseconds and with soft
/// interrupts off, reads one for that long.
const REST_NS: u64 = 1_000_000_000;

/// Waits until every program that may still use the old parameters has ended: `MEMBARRIER_CMD_GLOBAL` is a
/// `synchronize_rcu` (kernel/sched/membarrier.c), and programs run inside RCU read sections.
fn wait_for_programs() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: the system call takes three numbers. Where it is not there, the next change comes much later than any
    // program's few microseconds anyway.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
}
