//! The programs of `main.rs` with the packet trace.
//!
//! A separate object, because tracing costs time per packet and verifier instructions.
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

#[path = "trace/packets.rs"]
mod trace;
