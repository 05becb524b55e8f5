//! A switch's shared buffer: admission and pausing.
//!
//! As in SONiC's model of a switch, a packet counts for its ingress port and class (a priority group). A lossless group
//! uses the shared buffer up to its threshold, then its headroom. A lossy packet counts for the shared buffer, and must
//! fit the queue of its egress port.

use dcqcn_common::layout::CLASSES;

use crate::network::scenario::{Class, Loss, Threshold};

/// A priority group: one class of one ingress port.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    shared: u64,
    headroom: u64,
    paused: bool,
}

/// A threshold in its precomputed form.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Bytes(u64),
    AlphaQ16(u64),
}

impl Limit {
    fn new(threshold: Threshold) -> Self {
        match threshold {
            Threshold::Bytes(bytes) => Self::Bytes(bytes),
            Threshold::Alpha(alpha) => Self::AlphaQ16((alpha * 65_536.0) as u64),
        }
    }

    #[inline]
    const fn bytes(self, free_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            // 4·10^9 bytes · 1000 · 2^16 = 2.7·10^17 fits.
            Self::AlphaQ16(alpha) => (free_bytes * alpha) >> 16,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    Lossy(Limit),
    Lossless { xoff: Limit, headroom: u64, xon_offset: u64 },
}

#[derive(Debug)]
pub(crate) struct Buffer {
    capacity: u64,
    used: u64,
    /// Peak use of the shared part, in bytes.
    pub(crate) max_used: u64,
    rules: [Rule; CLASSES],
    groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) admitted: bool,
    /// The ingress port must pause the class; also of a rejected packet, if it is larger than the headroom.
    pub(crate) pauses: bool,
}

impl Buffer {
    /// The buffer of a switch with `ports` ports; `Err` with the headroom of all ports if no shared part is left.
    pub(crate) fn new(bytes: u64, classes: &[Class; CLASSES], ports: usize) -> Result<Self, u64> {
        let rules = classes.map(|class| match class.loss {
            Loss::Lossy(threshold) => Rule::Lossy(Limit::new(threshold)),
            Loss::Lossless(pfc) => Rule::Lossless {
                xoff: Limit::new(pfc.xoff),
                headroom: pfc.headroom_bytes,
                xon_offset: pfc.xon_offset_bytes,
            },
        });
        let own =
            rules.iter().map(|rule| if let Rule::Lossless { headroom, .. } = rule { *headroom } else { 0 });
        let taken = own.sum::<u64>() * ports as u64;
        let capacity = bytes.checked_sub(taken).filter(|&capacity| capacity != 0).ok_or(taken)?;
        Ok(Self { capacity, used: 0, max_used: 0, rules, groups: vec![Group::default(); ports * CLASSES] })
    }

    #[inline]
    fn reserve(&mut self, bytes: u64) {
        self.used += bytes;
        self.max_used = self.max_used.max(self.used);
    }

    /// Admits a packet of `class` from port `ingress` behind `queue_bytes`.
    #[inline]
    pub(crate) fn admit(&mut self, ingress: u16, class: u8, bytes: u64, queue_bytes: u64) -> Verdict {
        let free = self.capacity - self.used;
        match self.rules[usize::from(class)] {
            Rule::Lossy(limit) => {
                let admitted = bytes <= free && queue_bytes + bytes <= limit.bytes(free);
                self.reserve(if admitted { bytes } else { 0 });
                Verdict { admitted, pauses: false }
            }
            Rule::Lossless { xoff, headroom, .. } => {
                let group = &mut self.groups[usize::from(ingress) * CLASSES + usize::from(class)];
                if bytes <= free && group.headroom == 0 && group.shared + bytes <= xoff.bytes(free) {
                    group.shared += bytes;
                    self.reserve(bytes);
                    return Verdict { admitted: true, pauses: false };
                }
                let admitted = group.headroom + bytes <= headroom;
                group.headroom += if admitted { bytes } else { 0 };
                // A group without packets would not resume: it resumes when a packet leaves.
                let is_empty = group.shared + group.headroom == 0;
                let pauses = !group.paused && !is_empty;
                group.paused |= pauses;
                Verdict { admitted, pauses }
            }
        }
    }

    /// Releases an admitted packet; returns whether its ingress port may resume the class.
    #[inline]
    pub(crate) fn release(&mut self, ingress: u16, class: u8, bytes: u64) -> bool {
        let Rule::Lossless { xoff, xon_offset, .. } = self.rules[usize::from(class)] else {
            self.used -= bytes;
            return false;
        };
        let group = &mut self.groups[usize::from(ingress) * CLASSES + usize::from(class)];
        let of_headroom = bytes.min(group.headroom);
        group.headroom -= of_headroom;
        let of_shared = bytes - of_headroom;
        group.shared -= of_shared;
        self.used -= of_shared;
        if !group.paused || group.headroom != 0 {
            return false;
        }
        let resumes = group.shared == 0 || group.shared + xon_offset <= xoff.bytes(self.capacity - self.used);
        group.paused = !resumes;
        resumes
    }

    /// The link of a port failed: it has no peer to pause.
    pub(crate) fn forget_pauses(&mut self, ingress: u16) {
        let first = usize::from(ingress) * CLASSES;
        self.groups[first..first + CLASSES].iter_mut().for_each(|group| group.paused = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::scenario::{Pfc, Switching};
    use proptest::prelude::*;

    fn classes(pfc: Pfc, lossy: Threshold) -> [Class; CLASSES] {
        let mut classes = Switching::new(0).classes;
        classes[3].loss = Loss::Lossless(pfc);
        classes[4].loss = Loss::Lossy(lossy);
        classes[0].loss = Loss::Lossy(lossy);
        classes
    }

    const ADMITTED: Verdict = Verdict { admitted: true, pauses: false };
    const REJECTED: Verdict = Verdict { admitted: false, pauses: false };
    const PFC: Pfc = Pfc { xoff: Threshold::Bytes(4_000), headroom_bytes: 2_000, xon_offset_bytes: 1_000 };

    #[test]
    fn lossless_group_pauses_and_resumes() {
        let mut buffer = Buffer::new(100_000, &classes(PFC, Threshold::Bytes(5_000)), 2).unwrap();
        let taken: Vec<_> = (0..7).map(|_| buffer.admit(1, 3, 1_000, 0)).collect();
        let mut expected = vec![ADMITTED; 4];
        expected.extend([Verdict { pauses: true, ..ADMITTED }, ADMITTED, REJECTED]);
        assert_eq!(taken, expected);
        // Headroom empties first; then the group must fall below XOFF by the offset.
        let goes_on: Vec<_> = (0..6).map(|_| buffer.release(1, 3, 1_000)).collect();
        assert_eq!(goes_on, [false, false, true, false, false, false]);
        assert_eq!((buffer.used, buffer.max_used), (0, 4_000));
        assert_eq!(buffer.admit(0, 4, 5_001, 0), REJECTED);
    }

    #[test]
    fn alpha_grants_share_of_free_buffer() {
        let pfc = Pfc { xoff: Threshold::Alpha(0.5), headroom_bytes: 4_000, ..PFC };
        let mut buffer = Buffer::new(46_000, &classes(pfc, Threshold::Alpha(1.0)), 4).unwrap();
        // 30000 shared: with 9000 used, half of 21000 is 10500.
        let before_pause = (0..).take_while(|_| buffer.admit(0, 3, 1_000, 0) == ADMITTED).count();
        assert_eq!(before_pause, 10);
        // Other groups get half of the rest.
        let before_pause = (0..).take_while(|_| buffer.admit(1, 3, 1_000, 0) == ADMITTED).count();
        assert_eq!(before_pause, 7);
        assert_eq!(Buffer::new(16_000, &classes(pfc, Threshold::Alpha(1.0)), 4).unwrap_err(), 16_000);
    }

    proptest! {
        #[test]
        fn threshold_exceeded_pauses(
            frames in proptest::collection::vec(64u64..=9_216, 1..20), xoff in 9_216u64..50_000, headroom in 0u64..20_000,
        ) {
            let pfc = Pfc { xoff: Threshold::Bytes(xoff), headroom_bytes: headroom, xon_offset_bytes: 0 };
            let mut buffer = Buffer::new(1_000_000, &classes(pfc, Threshold::Bytes(5_000)), 2).unwrap();
            let verdicts: Vec<_> = frames.iter().map(|&bytes| (bytes, buffer.admit(1, 3, bytes, 0))).collect();
            let pauses = verdicts.iter().filter(|(_, verdict)| verdict.pauses).count();
            prop_assert_eq!(pauses, usize::from(frames.iter().sum::<u64>() > xoff));
            // It resumes when all have left.
            let admitted = verdicts.iter().filter(|(_, verdict)| verdict.admitted);
            admitted.for_each(|&(bytes, _)| { buffer.release(1, 3, bytes); });
            prop_assert!(buffer.groups.iter().all(|group| !group.paused));
        }

        #[test]
        fn buffer_releases_all_admitted_bytes(
            steps in proptest::collection::vec((any::<bool>(), 0u16..3, prop_oneof![Just(0u8), Just(3u8)], 64u64..3_000), 1..300),
        ) {
            let pfc = Pfc { xoff: Threshold::Alpha(0.25), ..PFC };
            let mut buffer = Buffer::new(40_000, &classes(pfc, Threshold::Alpha(2.0)), 3).unwrap();
            let mut inside = Vec::new();
            for (arrives, ingress, class, bytes) in steps {
                if arrives {
                    if buffer.admit(ingress, class, bytes, 0).admitted {
                        inside.push((ingress, class, bytes));
                    }
                } else if let Some((ingress, class, bytes)) = inside.pop() {
                    buffer.release(ingress, class, bytes);
                }
                let stored: u64 = inside.iter().map(|packet| packet.2).sum();
                prop_assert!(stored <= 40_000 && buffer.used <= buffer.capacity);
            }
            for (ingress, class, bytes) in inside.drain(..) {
                buffer.release(ingress, class, bytes);
            }
            prop_assert_eq!(buffer.used, 0);
            prop_assert!(buffer.groups.iter().all(|g| g.shared + g.headroom == 0 && !g.paused));
        }
    }
}
