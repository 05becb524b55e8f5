//! The same programs as in `main.rs`, which tell of packets through aya-log: what each was taken for, and what was done with
//! it. An object of its own, since what it has next to them would cost every packet something, and the verifier much.
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
