//! What flows and queue pairs are called, and how a name is hashed.

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

    /// Hash over all of it, which nobody can foresee without the keys.
    #[inline(always)]
    #[must_use]
    pub const fn hash(&self, keys: &HashKeys) -> u32 {
        let ([a, b, c, d], [e, f, g, h]) = (self.src, self.receiver.addr);
        let sum = keys
            .start
            .wrapping_add(product(keys.of(0), [a, b]))
            .wrapping_add(product(keys.of(2), [c, d]))
            .wrapping_add(product(keys.of(4), [e, f]))
            .wrapping_add(product(keys.of(6), [g, h]));
        keys.finish(sum, self.receiver.qpn)
    }

    /// The same name, in the words that packets' and flows' are compared by.
    #[inline(always)]
    pub(crate) const fn name(&self) -> FlowName {
        let ([a, b, c, d], [e, f, g, h]) = (self.src, self.receiver.addr);
        FlowName { addresses: [pair(a, b), pair(c, d), pair(e, f), pair(g, h)], qpn: self.receiver.qpn }
    }
}

/// A [`FlowId`] as the way of every packet has it: the same bytes in half as many words.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowName {
    /// Addresses of the sender and of the receiver, in the byte order of the wire.
    pub(crate) addresses: [u64; 4],
    /// The queue pair they are for.
    pub(crate) qpn: u32,
}

impl FlowName {
    /// A flow between IPv4 addresses, in the byte order of the wire.
    #[inline(always)]
    pub(crate) const fn v4(src: u32, dst: u32, qpn: u32) -> Self {
        Self { addresses: [0, pair(V4_MAPPED, src), 0, pair(V4_MAPPED, dst)], qpn }
    }

    /// A flow between IPv6 addresses, in the byte order of the wire.
    #[inline(always)]
    pub(crate) const fn v6([a, b]: [u64; 2], [c, d]: [u64; 2], qpn: u32) -> Self {
        Self { addresses: [a, b, c, d], qpn }
    }

    /// The same name, as it is called everywhere else.
    #[inline(always)]
    pub(crate) const fn id(&self) -> FlowId {
        let [ab, cd, ef, gh] = self.addresses;
        let ([a, b], [c, d], [e, f], [g, h]) = (words(ab), words(cd), words(ef), words(gh));
        FlowId { src: [a, b, c, d], receiver: QpId { addr: [e, f, g, h], qpn: self.qpn } }
    }
}

/// The third word of an IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2), in the byte order of the wire.
pub(crate) const V4_MAPPED: u32 = 0xffff_u32.to_be();

/// Two words as one, as they lie in memory.
#[inline(always)]
const fn pair(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") {
        (second as u64) << 32 | first as u64
    } else {
        (first as u64) << 32 | second as u64
    }
}

/// One word as two, as they lie in memory.
#[inline(always)]
const fn words(both: u64) -> [u32; 2] {
    let (high, low) = ((both >> 32) as u32, both as u32);
    if cfg!(target_endian = "little") { [low, high] } else { [high, low] }
}

/// What [`FlowId::hash`] depends on.
///
/// The hash is Lemire and Kaser's Multilinear-HM ("Strongly universal string hashing is fast", 2013): its products are independent
/// of each other, so a processor has them all at once, and two flows have the same hash with a chance of about 2^-32 whoever chose
/// them, if the keys are random.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKeys {
    /// A sum to begin with.
    start: u64,
    /// The same, of a flow between IPv4 addresses: with the products of the words that all those have in common.
    start_v4: u64,
    /// Of those flows' two other products, the factors that they have in common.
    factors_v4: [u64; 2],
    /// Two for each product.
    keys: [u64; 10],
}

impl HashKeys {
    /// Keys from a random number, by SplitMix64 (Steele, Lea and Flood, 2014).
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        let (mut keys, mut state, mut index) = ([0; 11], seed, 0);
        while index < keys.len() {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut key = state;
            key = (key ^ (key >> 30)).wrapping_mul(MIX);
            key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            keys[index] = key ^ (key >> 31);
            index += 1;
        }
        let [start, a, b, c, d, e, f, g, h, i, j] = keys;
        let start_v4 = start.wrapping_add(product([a, b], [0, 0])).wrapping_add(product([e, f], [0, 0]));
        let factors_v4 = [c.wrapping_add(V4_MAPPED as u64), g.wrapping_add(V4_MAPPED as u64)];
        Self { start, start_v4, factors_v4, keys: [a, b, c, d, e, f, g, h, i, j] }
    }

    /// As [`FlowId::hash`], of a flow between IPv4 addresses, in the byte order of the wire.
    #[inline(always)]
    pub(crate) const fn hash_v4(&self, src: u32, dst: u32, qpn: u32) -> u32 {
        let [of_src, of_dst] = self.factors_v4;
        let sum = self
            .start_v4
            .wrapping_add(of_src.wrapping_mul(self.keys[3].wrapping_add(src as u64)))
            .wrapping_add(of_dst.wrapping_mul(self.keys[7].wrapping_add(dst as u64)));
        self.finish(sum, qpn)
    }

    /// The two keys from `at` on.
    #[inline(always)]
    const fn of(&self, at: usize) -> [u64; 2] {
        [self.keys[at], self.keys[at + 1]]
    }

    /// Adds the queue pair.
    #[inline(always)]
    const fn finish(&self, sum: u64, qpn: u32) -> u32 {
        let sum = sum.wrapping_add(product(self.of(8), [qpn, 0]));
        // What is linear has regular flows lie in rows; a finalizer of SplitMix64 ends that.
        let mixed = (sum ^ (sum >> 32)).wrapping_mul(MIX);
        (mixed >> 32) as u32
    }
}

/// A multiplier of SplitMix64.
const MIX: u64 = 0xbf58_476d_1ce4_e5b9;

#[inline(always)]
const fn product(keys: [u64; 2], words: [u32; 2]) -> u64 {
    keys[0].wrapping_add(words[0] as u64).wrapping_mul(keys[1].wrapping_add(words[1] as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_is_the_same_in_other_words(src: [u32; 4], addr: [u32; 4], qpn: u32) {
            let id = FlowId { src, receiver: QpId { addr, qpn } };
            prop_assert_eq!(id.name().id(), id);
            let lie = |first: u32, second: u32| {
                u64::from_ne_bytes(*[first, second].map(u32::to_ne_bytes).as_flattened().first_chunk().unwrap())
            };
            let ([a, b, c, d], [e, f, g, h]) = (src, addr);
            prop_assert_eq!(id.name().addresses, [lie(a, b), lie(c, d), lie(e, f), lie(g, h)]);
        }

        #[test]
        fn the_short_way_of_ipv4_has_the_same_hash(src: u32, dst: u32, qpn: u32, seed: u64) {
            let mapped = |addr| [0, 0, V4_MAPPED, addr];
            let id = FlowId { src: mapped(src), receiver: QpId { addr: mapped(dst), qpn } };
            let keys = HashKeys::new(seed);
            prop_assert_eq!(keys.hash_v4(src, dst, qpn), id.hash(&keys));
            prop_assert_eq!(FlowName::v4(src, dst, qpn), id.name());
        }
    }
}
