//! XDP and TC entry points.
//!
//! All that is decided about a packet is decided in `dcqcn_common::hooks`; this crate says where packets, maps, time and
//! randomness come from in the kernel. Every program passes what it does not understand.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch, core_intrinsics)]
#![expect(internal_features, reason = "the BPF target has atomics only as intrinsics")]

mod env;
mod lock;
mod maps;
mod object;
mod packet;
mod programs;
mod skb;
mod xdp;

#[path = "trace/nothing.rs"]
mod trace;
