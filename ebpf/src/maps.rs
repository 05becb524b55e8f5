//! BPF maps, with the layout of `dcqcn_common::layout`. User space sizes and pins them.

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, PerCpuHashMap, ProgramArray, RingBuf};
use dcqcn_common::events::EventLog;
use dcqcn_common::flow::{FlowId, NpSet, QpId, RpSet};
use dcqcn_common::hooks::MAX_REBUILT;
use dcqcn_common::layout::{
    Active, Backlog, CONNECTIONS, CUTS_BYTES, Counters, DEFAULT_FLOWS, INGRESS_PORTS, IngressBytes, Mode,
    PARAMS_SLOTS, Pair, QUEUES, Queue, REQUESTS_BYTES, SIBLINGS as MOST_SIBLINGS, TIMES, Test, WAYS,
};
use dcqcn_common::params::Params;
use dcqcn_common::recovery::Requester;
use dcqcn_common::vqueue::Share;

/// Parameter slots.
#[map]
pub static PARAMS: Array<Params> = Array::with_max_entries(PARAMS_SLOTS, 0);

/// Parameter slot in use.
///
/// Programs access it as a variable, without a lookup; for the daemon it is a map, named after its
/// section.
#[unsafe(link_section = ".bss.active")]
#[unsafe(no_mangle)]
static ACTIVE: Global<Active> =
    Global::new(Active { slot: 0, classifies_all: 0, left_ns: [0; PARAMS_SLOTS as usize] });

/// Index of the parameter slot in use.
#[inline(always)]
pub fn active_slot() -> u32 {
    let active = (&raw const ACTIVE).cast::<Active>();
    // SAFETY: a variable of this type. The daemon changes it concurrently: the field is read by a
    // single load. It is part of the address of the parameters, which orders their loads after this one.
    unsafe { (&raw const (*active).slot).read_volatile() }
}

/// [`Active::classifies_all`].
#[inline(always)]
pub fn classifies_all() -> bool {
    let active = (&raw const ACTIVE).cast::<Active>();
    // SAFETY: as above. Not ordered with the index: during a change one packet may be sorted by the old parameters.
    unsafe { (&raw const (*active).classifies_all).read_volatile() != 0 }
}

/// Counters per hook.
#[map]
pub static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(3, 0);

/// Virtual queues, eight per port.
#[map]
pub static QUEUE: Array<Queue> = Array::with_max_entries(QUEUES, ALIGNED);

/// Each CPU's shares of the virtual queues.
#[map]
pub static SHARES: PerCpuArray<Share> = PerCpuArray::with_max_entries(QUEUES, 0);

/// Measured backlogs, indexed like [`QUEUE`].
#[map]
pub static BACKLOG: Array<Backlog> = Array::with_max_entries(QUEUES, 0);

/// Bytes received for each queue by ingress port; the daemon adds the ports to distinguish.
#[map]
pub static INGRESS_BYTES: PerCpuHashMap<u32, IngressBytes> =
    PerCpuHashMap::with_max_entries(INGRESS_PORTS, BPF_F_NO_PREALLOC);

/// QP to remote QPN, as configured by the daemon. Not preallocated, because most hosts have few.
#[map]
pub static PAIRS: HashMap<QpId, Pair> = HashMap::with_max_entries(DEFAULT_FLOWS, BPF_F_NO_PREALLOC);

/// QP to remote QPN, as learned; evicts the least recently used.
#[map]
pub static LEARNED: LruHashMap<QpId, Pair> = LruHashMap::with_max_entries(DEFAULT_FLOWS, 0);

/// Aligns an array's values to a page, so that sets and flows start on a cache line.
const ALIGNED: u32 = BPF_F_MMAPABLE;

/// RP flow table.
#[map]
pub static RP: Array<RpSet> = Array::with_max_entries(DEFAULT_FLOWS / WAYS as u32, ALIGNED);

/// NP flow table.
#[map]
pub static NP: Array<NpSet> = Array::with_max_entries(DEFAULT_FLOWS / WAYS as u32, ALIGNED);

/// Timestamps shared by all CPUs, indexed by `Time`.
#[map]
pub static TIMES_NS: Array<u64> = Array::with_max_entries(TIMES as u32, 0);

/// [`Time::PAIRS`](dcqcn_common::layout::Time::PAIRS) of all attachments that share [`LEARNED`].
#[map]
pub static PAIRS_NS: Array<u64> = Array::with_max_entries(1, 0);

/// Connections being set up: endpoint and its communication identifier to the QPN it announced for itself.
#[map]
pub static CM: LruHashMap<QpId, u32> = LruHashMap::with_max_entries(CONNECTIONS, 0);

/// TC ingress programs of the interfaces with an RP, for CNPs that arrive by another interface.
#[map]
pub static SIBLINGS: ProgramArray = ProgramArray::with_max_entries(MOST_SIBLINGS, 0);

/// Index in [`SIBLINGS`] after that of the tail-called program; 0 if none.
///
/// The only state a tail call passes.
#[map]
pub static HANDED: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);

/// Rate cuts, for the HTB pacer.
#[map]
pub static CUTS: RingBuf = RingBuf::with_byte_size(CUTS_BYTES, 0);

/// Requesters and responders of this host's reliable connections, for loss recovery. Not preallocated: empty while that
/// is off.
#[map]
pub static REQUESTERS: HashMap<FlowId, Requester> =
    HashMap::with_max_entries(DEFAULT_FLOWS, BPF_F_NO_PREALLOC);

/// QPs that send, or have a gap, announced to the daemon.
#[map]
pub static REQUESTS: RingBuf = RingBuf::with_byte_size(REQUESTS_BYTES, 0);

/// Event log, mapped by the daemon.
#[map]
pub static EVENTS: Array<EventLog> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Scratch space for building a CNP.
#[map]
pub static SCRATCH: PerCpuArray<[u8; MAX_REBUILT]> = PerCpuArray::with_max_entries(1, 0);

/// Scratch space for an entry of [`LEARNED`].
#[map]
pub static ENTRY: PerCpuArray<(QpId, Pair)> = PerCpuArray::with_max_entries(1, 0);

/// State of a program under test: clock, random source and results.
#[map]
pub static TEST: Array<Test> = Array::with_max_entries(1, 0);

/// A [`Mode`]. Read-only after loading, so the verifier removes the code of the other modes.
#[unsafe(no_mangle)]
static MODE: Global<u32> = Global::new(Mode::Host as u32);

/// Mode the object was loaded in.
#[inline(always)]
pub fn mode() -> u32 {
    MODE.load()
}

/// 1 = drop stale ACKs. Read-only too: Linux 6.1, which needs no such drops, would explore too many paths.
#[unsafe(no_mangle)]
pub static STALE_ACKS: Global<u32> = Global::new(0);

/// 1 = soft-RoCE processes NAKs between the responses of a READ. Read-only too, and 0 on Linux 6.1.
#[unsafe(no_mangle)]
pub static NAKS_IN_READS: Global<u32> = Global::new(0);

/// The test map, if the program is under test.
#[inline(always)]
pub fn test() -> Option<*mut Test> {
    if mode() == Mode::Test as u32 { TEST.get_ptr_mut(0) } else { None }
}
