//! XDP and TC entry points.
//!
//! All decisions about a packet are made in `dcqcn_common::hooks`; this crate provides packets, maps, time
//! and randomness in the kernel. Every program passes packets it does not understand.
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
