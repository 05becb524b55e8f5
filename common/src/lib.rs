//! RoCEv2 on the wire and DCQCN as an algorithm, written once and pure.
//!
//! Nothing here reads a clock, a random source or a queue: they are arguments. The eBPF programs, the reference
//! engine, the simulator and the tests all call these functions.
#![no_std]
#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch, core_intrinsics))]
#![cfg_attr(
    target_arch = "bpf",
    expect(internal_features, reason = "the BPF target has atomics only as intrinsics")
)]

#[cfg(any(test, feature = "memory"))]
extern crate std;

pub mod classify;
pub mod events;
pub mod flow;
pub mod hooks;
pub mod host_congestion;
mod id;
pub mod layout;
pub mod limit;
pub mod pacing;
pub mod params;
pub mod pfc;
#[cfg(feature = "user")]
mod pod;
pub mod rate;
pub mod rc;
pub mod recovery;
pub mod rng;
pub mod stats;
mod verifier;
pub mod vqueue;
pub mod wire;
pub mod wred;
