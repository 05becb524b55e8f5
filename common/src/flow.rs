//! Flow identity and the flow tables.
//!
//! A data packet names the receiver's queue pair and where it comes from; so that is what a flow is called everywhere: both
//! addresses and the number of the QP that receives its data. The reaction point keeps rate and pacing under it, the
//! notification point its CNP interval. A packet from elsewhere that names the same QP is another flow's.
//!
//! The tables are set-associative, as a cache is: a hash picks a set of eight, within which the least recently used
//! goes first. One lookup in an array, one lock, no allocation, and the same result in every engine. (Whom the kernel's
//! LRU hash evicts depends on the CPU.)

mod entry;
mod set;
mod subprogram;
mod table;

pub use set::{Entry, Place, Set, set_index, tag};
pub use table::{Glance, NpFlow, NpSet, RpFlow, RpSet};

/// A queue pair: an IPv6 or IPv4-mapped address and a 24-bit number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpId {
    /// Address, in the byte order of the wire.
    pub addr: [u32; 4],
    /// Queue pair number.
    pub qpn: u32,
}

impl QpId {
    /// No queue pair: what a CNP limit for the whole port is kept under.
    pub const NONE: Self = Self { addr: [0; 4], qpn: 0 };

    /// Hash over all of it, which nobody can foresee without the seed.
    ///
    /// The state is twice as wide as the words, so that no difference in one word cancels that in the word before; in a
    /// state of their own width it can, whatever the seed (MurmurHash3: Aumasson and Bernstein, SipHash, 2012, §7).
    #[inline(always)]
    #[must_use]
    pub const fn hash(&self, seed: u32) -> u32 {
        let [a, b, c, d] = self.addr;
        let mut state = mix(seed as u64, a);
        state = mix(state, b);
        state = mix(state, c);
        state = mix(state, d);
        state = mix(state, self.qpn);
        // Every bit of the state has its part in the upper half of the product.
        (mix(state, 0) >> 32) as u32
    }
}

/// A flow: the packets from one address to a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// Address they come from, as in [`QpId`].
    pub src: [u32; 4],
    /// The queue pair they are for.
    pub receiver: QpId,
}

impl FlowId {
    /// No flow: what a CNP limit for the whole port is kept under.
    pub const NONE: Self = Self { src: [0; 4], receiver: QpId::NONE };

    /// Hash over all of it, as [`QpId::hash`] is; the two addresses go side by side, so that a processor need not wait for
    /// one to begin with the other.
    #[inline(always)]
    #[must_use]
    pub const fn hash(&self, seed: u32) -> u32 {
        let ([a, b, c, d], [e, f, g, h]) = (self.src, self.receiver.addr);
        // Each way round is a flow of its own.
        let src = mix(mix(mix(mix(!(seed as u64), a), b), c), d);
        let receiver = mix(mix(mix(mix(mix(seed as u64, e), f), g), h), self.receiver.qpn);
        (mix(src ^ receiver, 0) >> 32) as u32
    }
}

/// One step of [`QpId::hash`]: 2^64 / the golden ratio, as Fibonacci hashing has it.
#[inline(always)]
const fn mix(state: u64, word: u32) -> u64 {
    let product = (state ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

#[cfg(test)]
mod tests;
