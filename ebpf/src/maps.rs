//! The maps, laid out in `dcqcn_common::layout`. The controller sizes and pins them.

use aya_ebpf::Global;
use aya_ebpf::bindings::BPF_F_MMAPABLE;
use aya_ebpf::btf_maps::Array as BtfArray;
use aya_ebpf::macros::{btf_map, map};
use aya_ebpf::maps::{Array, HashMap, PerCpuArray, RingBuf};
use dcqcn_common::events::EventLog;
use dcqcn_common::flow::QpId;
use dcqcn_common::layout::{
    Active, Backlog, CM_SETS, CUTS_BYTES, CmSet, Counters, DEFAULT_FLOWS, NpSet, PARAMS_SLOTS, Pair, QUEUES,
    Queue, RpSet, Test, WAYS,
};
use dcqcn_common::params::Params;

/// Parameter slots.
#[map]
pub static PARAMS: Array<Params> = Array::with_max_entries(PARAMS_SLOTS, 0);

/// Which slot is in use.
#[map]
pub static ACTIVE: Array<Active> = Array::with_max_entries(1, 0);

/// Counters per hook.
#[map]
pub static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(3, 0);

/// Virtual queues: eight for each port.
#[map]
pub static QUEUE: Array<Queue> = Array::with_max_entries(QUEUES, 0);

/// What really waits, by the numbers of [`QUEUE`].
#[map]
pub static BACKLOG: Array<Backlog> = Array::with_max_entries(QUEUES, 0);

/// QP to the QPN at its other end.
#[map]
pub static PAIRS: HashMap<QpId, Pair> = HashMap::with_max_entries(DEFAULT_FLOWS, 0);

/// Flow tables. Their locks need BTF.
#[btf_map]
pub static RP: BtfArray<RpSet, { DEFAULT_FLOWS as usize / WAYS }> = BtfArray::new();

/// See [`RP`].
#[btf_map]
pub static NP: BtfArray<NpSet, { DEFAULT_FLOWS as usize / WAYS }> = BtfArray::new();

/// Connections in the making.
#[btf_map]
pub static CM: BtfArray<CmSet, { CM_SETS as usize }> = BtfArray::new();

/// Cuts, for the HTB pacer.
#[map]
pub static CUTS: RingBuf = RingBuf::with_byte_size(CUTS_BYTES, 0);

/// The event log, which the controller maps into its memory.
#[map]
pub static EVENTS: Array<EventLog> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Clock and random source of a program under test.
#[map]
pub static TEST: Array<Test> = Array::with_max_entries(1, 0);

/// 1 = clock and random source are [`TEST`]'s. Read-only after loading, so the verifier removes the branch.
#[unsafe(no_mangle)]
static TEST_MODE: Global<u32> = Global::new(0);

/// The test map, in a program under test.
#[inline(always)]
pub fn test() -> Option<*mut Test> {
    if TEST_MODE.load() == 0 { None } else { TEST.get_ptr_mut(0) }
}
