//! Identities of flows and queue pairs (QPs), and their hash.

/// A QP: an IPv6 or IPv4-mapped address and a 24-bit number, in a VLAN. Tenants in different VLANs may have equal
/// addresses and numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QpId {
    /// Address, in wire order.
    pub addr: [u32; 4],
    /// QP number, 24 bits.
    pub qpn: u32,
    /// VLAN IDs of the packets that name the QP, 12 bits each, the inner tag's lowest; 0 = no tag. A pair that the
    /// daemon entered has 0, which matches every VLAN.
    pub vlan: u32,
}

/// Appends the 12-bit ID of the next inner tag to `vlan`. ID 0 carries only a priority (802.1Q) and is ignored. The
/// last two IDs are retained.
#[inline(always)]
pub(crate) const fn tagged(vlan: u32, vid: u32) -> u32 {
    let vid = vid & 0xfff;
    if vid == 0 { vlan } else { ((vlan << 12) | vid) & VLANS }
}

/// The bits of two VLAN IDs.
const VLANS: u32 = 0xff_ffff;

impl QpId {
    /// No QP: the key of a CNP limit for the whole port.
    pub const NONE: Self = Self { addr: [0; 4], qpn: 0, vlan: 0 };
}

/// A flow: the packets from one address to a QP.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// Source address, as in [`QpId`].
    pub src: [u32; 4],
    pub receiver: QpId,
}

impl FlowId {
    /// No flow: the key of a CNP limit for the whole port.
    pub const NONE: Self = Self { src: [0; 4], receiver: QpId::NONE };

    /// Keyed fingerprint of the identity, unpredictable without the keys; see [`HashKeys`].
    #[inline(always)]
    pub const fn fingerprint(&self, keys: &HashKeys) -> u64 {
        keys.in_vlan(self.untagged_fingerprint(keys), self.receiver.vlan)
    }

    /// Fingerprint of the flow with the same addresses and QPN but without VLAN tags.
    #[inline(always)]
    pub(crate) const fn untagged_fingerprint(&self, keys: &HashKeys) -> u64 {
        let sum = keys.start.wrapping_add(keys.of(0, self.src)).wrapping_add(keys.of(1, self.receiver.addr));
        keys.with(sum, self.receiver.qpn)
    }

    /// Index of the flow's set in the RP table. Flows that differ only in their VLANs share a set, so that a CNP with
    /// another tag finds the flow there.
    #[inline(always)]
    pub const fn rp_set_index(&self, keys: &HashKeys, mask: u32) -> u32 {
        set_index(hash(self.untagged_fingerprint(keys)), mask)
    }

    /// Hash of the identity: [`hash`] of its fingerprint.
    #[inline(always)]
    pub const fn hash(&self, keys: &HashKeys) -> u32 {
        hash(self.fingerprint(keys))
    }
}

/// The third word of an IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2), in the byte order of the wire.
pub(crate) const V4_MAPPED: u32 = 0xffff_u32.to_be();

/// Keys of the flow fingerprint.
///
/// A fingerprint is the sum of Lemire and Kaser's Multilinear-HM ("Strongly universal string hashing is fast", 2013),
/// whose products are independent, so a processor computes them in parallel. With random keys, two flows have the same
/// upper half with probability 2^-32, even if an attacker chose them. The full 64 bits are equal only if the difference
/// in one word, times a random number, has one certain value modulo 2^64. Its probability is 2^-64 times the largest
/// power of two that divides the difference, so at most 2^-33. (Addresses are in wire order, where neighbours differ by
/// 2^24.) For a million QPs of one peer with consecutive numbers, the probability of any collision is 2^-21. For peers
/// that differ only in an IPv4 address it is 2^-33 in total, because they share a factor. Flows that collide are paced
/// as one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKeys {
    // 64 bytes for IPv4: with cold caches, each line costs a packet a miss.
    /// Initial value for IPv4: includes the products of the words that all IPv4-mapped addresses share.
    start_v4: u64,
    /// For IPv4, the constant factors of the products of the last words.
    factors_v4: [u64; 2],
    /// Keys of the last words of source and destination.
    last: [u64; 2],
    /// Keys of the QPN's product.
    qpn: [u64; 2],
    /// Odd factor of the VLANs: flows that differ only in VLANs never share a fingerprint.
    vlan: u64,
    /// Initial value of the sum.
    start: u64,
    /// Keys of the first three words of source and destination.
    first: [[u64; 3]; 2],
}

impl HashKeys {
    /// Derives keys from a random seed, by SplitMix64 (Steele, Lea and Flood, 2014).
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
        let [start, a, b, c, d, e, f, g, h, i, j, vlan] = keys;
        let start_v4 = start.wrapping_add(product([a, b], [0, 0])).wrapping_add(product([e, f], [0, 0]));
        let factors_v4 = [c.wrapping_add(V4_MAPPED as u64), g.wrapping_add(V4_MAPPED as u64)];
        Self {
            start_v4,
            factors_v4,
            last: [d, h],
            qpn: [i, j],
            vlan: vlan | 1,
            start,
            first: [[a, b, c], [e, f, g]],
        }
    }

    /// Fingerprint of the flow in these VLANs, from its untagged fingerprint.
    #[inline(always)]
    pub(crate) const fn in_vlan(&self, untagged: u64, vlan: u32) -> u64 {
        untagged.wrapping_add(self.vlan.wrapping_mul(vlan as u64))
    }

    /// [`FlowId::untagged_fingerprint`] of a flow between IPv4 addresses, in wire order.
    #[inline(always)]
    pub(crate) const fn fingerprint_v4(&self, src: u32, dst: u32, qpn: u32) -> u64 {
        let [of_src, of_dst] = self.factors_v4;
        let sum = self
            .start_v4
            .wrapping_add(of_src.wrapping_mul(self.last[0].wrapping_add(src as u64)))
            .wrapping_add(of_dst.wrapping_mul(self.last[1].wrapping_add(dst as u64)));
        self.with(sum, qpn)
    }

    /// The two products of an address: of the source (0) or the destination (1).
    #[inline(always)]
    const fn of(&self, side: usize, [a, b, c, d]: [u32; 4]) -> u64 {
        let [of_a, of_b, of_c] = self.first[side];
        product([of_a, of_b], [a, b]).wrapping_add(product([of_c, self.last[side]], [c, d]))
    }

    /// Adds the product of the QPN.
    #[inline(always)]
    const fn with(&self, sum: u64, qpn: u32) -> u64 {
        sum.wrapping_add(product(self.qpn, [qpn, 0]))
    }
}

/// Hash of a fingerprint; two flows have the same with probability 2^-32.
#[inline(always)]
pub const fn hash(fingerprint: u64) -> u32 {
    // The sum is linear, so regular flows would fall into regular sets; SplitMix64's finalizer prevents that.
    let mixed = (fingerprint ^ (fingerprint >> 32)).wrapping_mul(MIX);
    (mixed >> 32) as u32
}

/// A multiplier of SplitMix64.
const MIX: u64 = 0xbf58_476d_1ce4_e5b9;

#[inline(always)]
const fn product(keys: [u64; 2], words: [u32; 2]) -> u64 {
    keys[0].wrapping_add(words[0] as u64).wrapping_mul(keys[1].wrapping_add(words[1] as u64))
}

#[inline(always)]
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

        /// Worst case: identities that differ only in the highest bit of a word depend on the keys' lowest bits alone.
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
    fn vlan_combines_both_ids_ignores_priority() {
        assert_eq!([tagged(0, 0), tagged(0, 10), tagged(10, 0)], [0, 10, 10]);
        assert_eq!(tagged(tagged(0, 100), 0x1_00a), 100 << 12 | 10);
        assert_eq!(tagged(tagged(tagged(0, 1), 2), 3), 2 << 12 | 3);
    }
}
