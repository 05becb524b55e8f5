//! The eBPF objects, embedded: the `dcqcn` binary is all there is to copy to another host.

/// The same programs, which tell of packets: for [`crate::attach::Info::log_packets`].
pub(crate) static TRACE_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/dcqcn-trace"));

/// The ELF file of the `dcqcn-ebpf` crate, aligned for aya's parser.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/dcqcn-ebpf"));
