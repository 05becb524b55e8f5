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
        let [start, key @ ..] = &keys.0;
        let sum = start
            .wrapping_add(product([key[0], key[1]], [a, b]))
            .wrapping_add(product([key[2], key[3]], [c, d]))
            .wrapping_add(product([key[4], key[5]], [e, f]))
            .wrapping_add(product([key[6], key[7]], [g, h]))
            .wrapping_add(product([key[8], key[9]], [self.receiver.qpn, 0]));
        // What is linear has regular flows lie in rows; a finalizer of SplitMix64 ends that.
        let mixed = (sum ^ (sum >> 32)).wrapping_mul(MIX);
        (mixed >> 32) as u32
    }
}

/// What [`FlowId::hash`] depends on.
///
/// The hash is Lemire and Kaser's Multilinear-HM ("Strongly universal string hashing is fast", 2013): its products are independent
/// of each other, so a processor has them all at once, and two flows have the same hash with a chance of about 2^-32 whoever chose
/// them, if the keys are random.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKeys(pub [u64; 11]);

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
        Self(keys)
    }
}

/// A multiplier of SplitMix64.
const MIX: u64 = 0xbf58_476d_1ce4_e5b9;

#[inline(always)]
const fn product(keys: [u64; 2], words: [u32; 2]) -> u64 {
    keys[0].wrapping_add(words[0] as u64).wrapping_mul(keys[1].wrapping_add(words[1] as u64))
}
