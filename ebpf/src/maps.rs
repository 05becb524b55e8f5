//! The maps, laid out in `dcqcn_common::layout`. The controller sizes and pins them.

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, PerCpuHashMap, ProgramArray, RingBuf};
use dcqcn_common::events::EventLog;
use dcqcn_common::flow::{NpSet, QpId, RpSet};
use dcqcn_common::hooks::MAX_REBUILT;
use dcqcn_common::layout::{
    Active, Backlog, CONNECTIONS, CUTS_BYTES, Counters, DEFAULT_FLOWS, INGRESS_PORTS, IngressBytes, Mode,
    PARAMS_SLOTS, Pair, QUEUES, Queue, SIBLINGS as MOST_SIBLINGS, TIMES, Test, WAYS,
};
use dcqcn_common::params::Params;
use dcqcn_common::vqueue::Share;

/// Parameter slots.
#[map]
pub static PARAMS: Array<Params> = Array::with_max_entries(PARAMS_SLOTS, 0);

/// Which slot is in use. A variable to the programs, which need no look-up for it; to the controller it is a map like the others,
/// called by its section.
#[unsafe(link_section = ".bss.active")]
#[unsafe(no_mangle)]
static ACTIVE: Global<Active> =
    Global::new(Active { slot: 0, sorts_all: 0, left_ns: [0; PARAMS_SLOTS as usize] });

/// The slot in use.
#[inline(always)]
pub fn active_slot() -> u32 {
    let active = (&raw const ACTIVE).cast::<Active>();
    // SAFETY: a variable of this type. The controller changes it under us: the field is read at once.
    unsafe { (&raw const (*active).slot).read_volatile() }
}

/// [`Active::sorts_all`].
#[inline(always)]
pub fn sorts_all() -> bool {
    let active = (&raw const ACTIVE).cast::<Active>();
    // SAFETY: as above.
    unsafe { (&raw const (*active).sorts_all).read_volatile() != 0 }
}

/// Counters per hook.
#[map]
pub static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(3, 0);

/// Virtual queues: eight for each port.
#[map]
pub static QUEUE: Array<Queue> = Array::with_max_entries(QUEUES, ALIGNED);

/// Each CPU's shares of them.
#[map]
pub static SHARES: PerCpuArray<Share> = PerCpuArray::with_max_entries(QUEUES, 0);

/// What really waits, by the numbers of [`QUEUE`].
#[map]
pub static BACKLOG: Array<Backlog> = Array::with_max_entries(QUEUES, 0);

/// What came into each queue, by ingress port; the controller enters those that are distinguished.
#[map]
pub static INGRESS_BYTES: PerCpuHashMap<u32, IngressBytes> =
    PerCpuHashMap::with_max_entries(INGRESS_PORTS, BPF_F_NO_PREALLOC);

/// QP to the QPN at its other end, as the controller says; most hosts have few, so memory is taken as it is needed.
#[map]
pub static PAIRS: HashMap<QpId, Pair> = HashMap::with_max_entries(DEFAULT_FLOWS, BPF_F_NO_PREALLOC);

/// The same, as learned: what nobody requested goes first when it is full.
#[map]
pub static LEARNED: LruHashMap<QpId, Pair> = LruHashMap::with_max_entries(DEFAULT_FLOWS, 0);

/// Values of such an array begin at a page: a set's first line is one of the cache's, and so are its flows'.
const ALIGNED: u32 = BPF_F_MMAPABLE;

/// Flow tables.
#[map]
pub static RP: Array<RpSet> = Array::with_max_entries(DEFAULT_FLOWS / WAYS as u32, ALIGNED);

/// See [`RP`].
#[map]
pub static NP: Array<NpSet> = Array::with_max_entries(DEFAULT_FLOWS / WAYS as u32, ALIGNED);

/// Times that all CPUs share, by `Time`.
#[map]
pub static TIMES_NS: Array<u64> = Array::with_max_entries(TIMES, 0);

/// Connections in the making: an end, by its own name for the connection, to the QPN it named for itself.
#[map]
pub static CM: LruHashMap<QpId, u32> = LruHashMap::with_max_entries(CONNECTIONS, 0);

/// The TC ingress programs of the interfaces that have reaction points, for CNPs that come in by another one.
#[map]
pub static SIBLINGS: ProgramArray = ProgramArray::with_max_entries(MOST_SIBLINGS, 0);

/// The place in [`SIBLINGS`] after that of the program a CNP is handed on to; 0 while none is. A program that is called so has
/// nothing else from its caller.
#[map]
pub static HANDED: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);

/// Cuts, for the HTB pacer.
#[map]
pub static CUTS: RingBuf = RingBuf::with_byte_size(CUTS_BYTES, 0);

/// The event log, which the controller maps into its memory.
#[map]
pub static EVENTS: Array<EventLog> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Where a CNP is built.
#[map]
pub static SCRATCH: PerCpuArray<[u8; MAX_REBUILT]> = PerCpuArray::with_max_entries(1, 0);

/// Where an entry of [`LEARNED`] is put together.
#[map]
pub static ENTRY: PerCpuArray<(QpId, Pair)> = PerCpuArray::with_max_entries(1, 0);

/// Clock and random source of a program under test.
#[map]
pub static TEST: Array<Test> = Array::with_max_entries(1, 0);

/// A [`Mode`]. Read-only after loading, so the verifier removes what the others are for.
#[unsafe(no_mangle)]
static MODE: Global<u32> = Global::new(Mode::Host as u32);

/// What the object was loaded for.
#[inline(always)]
pub fn mode() -> u32 {
    MODE.load()
}

/// The test map, in a program under test.
#[inline(always)]
pub fn test() -> Option<*mut Test> {
    if mode() == Mode::Test as u32 { TEST.get_ptr_mut(0) } else { None }
}
