//! The connection matrices that both simulators read, in htsim's format.

use std::fmt::Write as _;

/// Senders, and bytes of each flow, of the incasts.
pub(super) fn incasts() -> impl Iterator<Item = (u32, u64)> {
    let short = [2, 4, 8, 16, 32, 64, 128].map(|senders| (senders, 2_000_000));
    short.into_iter().chain([2, 8, 32, 64].map(|senders| (senders, 20_000_000)))
}

/// Matrices of one incast: the starts differ.
pub(super) const STARTS: u64 = 8;
pub(super) const PERMUTATIONS: u64 = 60;
const HOSTS: u32 = 128;
/// Hosts of htsim's topology with a single switch.
const INCAST_HOSTS: u32 = 258;

pub(super) fn incast_file(senders: u32, bytes: u64, start: u64) -> String {
    format!("incast-{senders}-{bytes}-{start}.cm")
}

pub(super) fn permutation_file(seed: u64) -> String {
    format!("permutation-{HOSTS}-{seed}.cm")
}

/// All of them: name and text.
pub(super) fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for (senders, bytes) in incasts() {
        let file = |start| (incast_file(senders, bytes, start), incast(senders, bytes, start));
        files.extend((1..=STARTS).map(file));
    }
    files.extend((1..=PERMUTATIONS).map(|seed| (permutation_file(seed), permutation(seed))));
    files
}

/// Hosts 1 and on send to host 0 and begin within a microsecond of each other.
fn incast(senders: u32, bytes: u64, seed: u64) -> String {
    let mut random = Random::new(seed);
    let mut text = format!("Nodes {INCAST_HOSTS}\nConnections {senders}\n");
    for src in 1..=senders {
        let start_ps = random.below(1_001) * 1_000;
        let _ = writeln!(text, "{src}->0 id {src} start {start_ps} size {bytes}");
    }
    text
}

/// Every host sends 2 MB to one other and receives from one other.
fn permutation(seed: u64) -> String {
    let mut random = Random::new(seed);
    // Sattolo's shuffle: one cycle over all hosts.
    let mut order: Vec<u32> = (0..HOSTS).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64) as usize);
    }
    let mut text = format!("Nodes {HOSTS}\nConnections {HOSTS}\n");
    for (src, dst) in order.iter().enumerate() {
        let _ = writeln!(text, "{src}->{dst} id {} start 0 size 2000000", src + 1);
    }
    text
}

/// SplitMix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_sends_and_receives_once() {
        let text = permutation(3);
        let ends = text.lines().filter_map(|line| line.split_once(' ')?.0.split_once("->"));
        let (mut from, mut to): (Vec<u32>, Vec<u32>) =
            ends.map(|(src, dst)| (src.parse::<u32>().unwrap(), dst.parse::<u32>().unwrap())).unzip();
        assert!(from.iter().zip(&to).all(|(src, dst)| src != dst));
        from.sort_unstable();
        to.sort_unstable();
        assert_eq!((&from, from.len()), (&to, HOSTS as usize));
        assert_ne!(permutation(4), text);
    }

    #[test]
    fn incast_has_its_senders() {
        let text = incast(8, 77, 2);
        assert_eq!(text.lines().count(), 10);
        assert!(text.lines().skip(2).all(|line| line.ends_with("size 77") && line.contains("->0 id ")));
    }
}
