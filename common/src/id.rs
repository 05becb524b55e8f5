//! What flows and queue pairs are called, and how a name is hashed.

/// A queue pair: an IPv6 or IPv4-mapped address and a 24-bit number, in a VLAN. Tenants in different VLANs may have equal addresses
/// and numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpId {
    /// Address, in the byte order of the wire.
    pub addr: [u32; 4],
    /// Queue pair number.
    pub qpn: u32,
    /// VLAN IDs of the packets that name it, 12 bits each, that of the inner tag in the lowest; 0 = no tag. A pair that the
    /// controller entered has 0, and is of every VLAN.
    pub vlan: u32,
}

/// The VLANs `vlan` with the ID of the next tag in, 12 bits. ID 0 only carries a priority (802.1Q), and counts as no tag. Of more than
/// two the last two count.
#[inline(always)]
#[must_use]
pub(crate) const fn tagged(vlan: u32, vid: u32) -> u32 {
    let vid = vid & 0xfff;
    if vid == 0 { vlan } else { ((vlan << 12) | vid) & VLANS }
}

/// The bits of two VLAN IDs.
const VLANS: u32 = 0xff_ffff;

impl QpId {
    /// No queue pair: what a CNP limit for the whole port is kept under.
    pub const NONE: Self = Self { addr: [0; 4], qpn: 0, vlan: 0 };
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

    /// A number over all of it, which nobody can foresee without the keys; see [`HashKeys`].
    #[inline(always)]
    #[must_use]
    pub const fn fingerprint(&self, keys: &HashKeys) -> u64 {
        keys.in_vlan(self.untagged_fingerprint(keys), self.receiver.vlan)
    }

    /// The fingerprint of the flow without a tag that is called the same otherwise.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn untagged_fingerprint(&self, keys: &HashKeys) -> u64 {
        let ([a, b, c, d], [e, f, g, h]) = (self.src, self.receiver.addr);
        let sum = keys
            .start
            .wrapping_add(product(keys.of(0), [a, b]))
            .wrapping_add(product(keys.of(2), [c, d]))
            .wrapping_add(product(keys.of(4), [e, f]))
            .wrapping_add(product(keys.of(6), [g, h]));
        keys.with(sum, self.receiver.qpn)
    }

    /// The set of the RP table that it is in. Flows that differ in their VLANs only share one, so that a CNP with another tag finds the
    /// flow there.
    #[inline(always)]
    #[must_use]
    pub const fn rp_set_index(&self, keys: &HashKeys, mask: u32) -> u32 {
        set_index(hash(self.untagged_fingerprint(keys)), mask)
    }

    /// Hash over all of it: [`hash`] of its fingerprint.
    #[inline(always)]
    #[must_use]
    pub const fn hash(&self, keys: &HashKeys) -> u32 {
        hash(self.fingerprint(keys))
    }
}

/// The third word of an IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2), in the byte order of the wire.
pub(crate) const V4_MAPPED: u32 = 0xffff_u32.to_be();

/// What the fingerprints of flows depend on.
///
/// A fingerprint is the sum of Lemire and Kaser's Multilinear-HM ("Strongly universal string hashing is fast", 2013): its products are
/// independent of each other, so a processor has them all at once. Its upper half alone is the same for two flows with a chance of
/// 2^-32 if the keys are random, whoever chose the flows. All of it is only if, for one word in which they differ, the difference
/// times a number that is as good as random is one certain number modulo 2^64: a chance of 2^-64, times the largest power of two that
/// divides the difference, so 2^-33 at worst. (Addresses are in the byte order of the wire, where neighbours differ by 2^24.) A million
/// queue pairs of one peer with numbers in a row come to 2^-21; of peers that differ in an IPv4 address alone all have one factor in
/// common, so that any two of them share a fingerprint is 2^-33 at worst too. Two flows that do are paced as one.
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
    /// The factor of the VLANs, odd: flows that differ in them only never share a fingerprint.
    vlan: u64,
}

impl HashKeys {
    /// Keys from a random number, by SplitMix64 (Steele, Lea and Flood, 2014).
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        let (mut keys, mut state, mut index) = ([0; 12], seed, 0);
        while index < keys.len() {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut key = state;
            key = (key ^ (key >> 30)).wrapping_mul(MIX);
            key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            keys[index] = key ^ (key >> 31);
            index += 1;
        }
        let [start, a, b, c, d, e, f, g, h, i, j, k] = keys;
        let start_v4 = start.wrapping_add(product([a, b], [0, 0])).wrapping_add(product([e, f], [0, 0]));
        let factors_v4 = [c.wrapping_add(V4_MAPPED as u64), g.wrapping_add(V4_MAPPED as u64)];
        Self { start, start_v4, factors_v4, keys: [a, b, c, d, e, f, g, h, i, j], vlan: k | 1 }
    }

    /// The fingerprint of the flow in these VLANs, from that of the one without a tag.
    #[inline(always)]
    pub(crate) const fn in_vlan(&self, untagged: u64, vlan: u32) -> u64 {
        untagged.wrapping_add(self.vlan.wrapping_mul(vlan as u64))
    }

    /// [`FlowId::untagged_fingerprint`] of a flow between IPv4 addresses, in the byte order of the wire.
    #[inline(always)]
    pub(crate) const fn fingerprint_v4(&self, src: u32, dst: u32, qpn: u32) -> u64 {
        let [of_src, of_dst] = self.factors_v4;
        let sum = self
            .start_v4
            .wrapping_add(of_src.wrapping_mul(self.keys[3].wrapping_add(src as u64)))
            .wrapping_add(of_dst.wrapping_mul(self.keys[7].wrapping_add(dst as u64)));
        self.with(sum, qpn)
    }

    /// The two keys from `at` on.
    #[inline(always)]
    const fn of(&self, at: usize) -> [u64; 2] {
        [self.keys[at], self.keys[at + 1]]
    }

    /// Adds the queue pair.
    #[inline(always)]
    const fn with(&self, sum: u64, qpn: u32) -> u64 {
        sum.wrapping_add(product(self.of(8), [qpn, 0]))
    }
}

/// Hash of the flow that has this fingerprint: two flows have the same with a chance of about 2^-32.
#[inline(always)]
#[must_use]
pub const fn hash(fingerprint: u64) -> u32 {
    // What is linear has regular flows lie in rows; a finalizer of SplitMix64 ends that.
    let mixed = (fingerprint ^ (fingerprint >> 32)).wrapping_mul(MIX);
    (mixed >> 32) as u32
}

/// A multiplier of SplitMix64.
const MIX: u64 = 0xbf58_476d_1ce4_e5b9;

#[inline(always)]
const fn product(keys: [u64; 2], words: [u32; 2]) -> u64 {
    keys[0].wrapping_add(words[0] as u64).wrapping_mul(keys[1].wrapping_add(words[1] as u64))
}

/// The set a hash belongs to.
#[inline(always)]
#[must_use]
pub const fn set_index(hash: u32, mask: u32) -> u32 {
    (hash >> 1) & mask
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ipv4_fast_path_fingerprint_matches(src: u32, dst: u32, qpn: u32, seed: u64) {
            let mapped = |addr| [0, 0, V4_MAPPED, addr];
            let id = FlowId { src: mapped(src), receiver: QpId { addr: mapped(dst), qpn, vlan: 0 } };
            let keys = HashKeys::new(seed);
            prop_assert_eq!(keys.fingerprint_v4(src, dst, qpn), id.fingerprint(&keys));
        }

        /// What differs in one bit only, the highest of a word, is the worst case: the keys' lowest bits decide alone.
        #[test]
        fn distinct_flows_have_distinct_fingerprints(src: [u32; 4], addr: [u32; 4], qpn: u32, vlan in 0..=VLANS, seed: u64, bit in 0usize..312) {
            let id = FlowId { src, receiver: QpId { addr, qpn, vlan } };
            let mut other = id;
            let word = match bit / 32 {
                at @ 0..4 => &mut other.src[at],
                at @ 4..8 => &mut other.receiver.addr[at - 4],
                8 => &mut other.receiver.qpn,
                _ => &mut other.receiver.vlan,
            };
            *word ^= 1 << (bit % 32);
            let keys = HashKeys::new(seed);
            prop_assert_ne!(id.fingerprint(&keys), other.fingerprint(&keys));
        }
    }

    #[test]
    fn vlan_is_both_ids_without_priority_tags() {
        assert_eq!([tagged(0, 0), tagged(0, 10), tagged(10, 0)], [0, 10, 10]);
        assert_eq!(tagged(tagged(0, 100), 0x1_00a), 100 << 12 | 10);
        assert_eq!(tagged(tagged(tagged(0, 1), 2), 3), 2 << 12 | 3);
    }
}
