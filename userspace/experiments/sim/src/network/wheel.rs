//! A queue of future items, whose cost per item depends on neither their number nor their times.

/// Slots per wheel.
const SLOTS: usize = 1 << 10;
/// Lowest bit of a time that selects the slot of each wheel: 1 ns, 1 us, 1 ms and 4.3 s.
const SHIFTS: [u32; 4] = [0, 10, 20, 32];
/// Slots of all wheels.
const ALL_SLOTS: usize = SHIFTS.len() * SLOTS;
/// The last time with a slot: more than an hour.
const LAST_NS: u64 = ((SLOTS as u64) << SHIFTS[3]) - 1;
/// No entry.
const NONE: u32 = u32::MAX;

/// Future items, in timing wheels of 1024 slots.
///
/// Times that differ from the current one in the last ten bits only are in the first wheel, with a slot per nanosecond;
/// those that differ in the next ten bits in the second, then the third; all others in the last. Time never decreases.
/// When the first wheel is empty, time advances to the earliest item of the next wheel, whose slot is distributed over
/// the earlier wheels, mostly once per item. Simultaneous items are always in one slot, in order of insertion, so no
/// sequence number is needed.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    now_ns: u64,
    until_ns: u64,
    /// Time of the next item; `u64::MAX` if empty.
    next_ns: u64,
    /// The last entry of each slot, or [`NONE`]; the first wheel's slots first.
    last: Box<[u32; ALL_SLOTS]>,
    /// The time of the earliest item of each slot, or `u64::MAX`.
    first_ns: Box<[u64; ALL_SLOTS]>,
    /// Bit per non-empty slot.
    filled: [u64; ALL_SLOTS / 64],
    /// Bit per non-zero word of `filled`.
    words: u64,
    entries: Vec<Entry<T>>,
    /// The first free entry.
    free: u32,
}

/// An item in the list of its slot.
#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    at_ns: u64,
    item: T,
    /// The next entry in a circular list; for a free entry, the next free one, or [`NONE`].
    next: u32,
}

impl<T: Copy> Wheel<T> {
    /// An empty wheel; items after `until_ns`, or after [`LAST_NS`], are dropped.
    pub(crate) fn new(until_ns: u64) -> Self {
        Self {
            now_ns: 0,
            until_ns: until_ns.min(LAST_NS),
            next_ns: u64::MAX,
            last: Box::new([NONE; ALL_SLOTS]),
            first_ns: Box::new([u64::MAX; ALL_SLOTS]),
            filled: [0; ALL_SLOTS / 64],
            words: 0,
            entries: Vec::new(),
            free: NONE,
        }
    }

    /// Inserts `item`, not before the last one taken. Simultaneous items are in order of insertion.
    #[inline]
    pub(crate) fn at(&mut self, at_ns: u64, item: T) {
        if at_ns > self.until_ns {
            return;
        }
        let at_ns = at_ns.max(self.now_ns);
        let entry = Entry { at_ns, item, next: NONE };
        let number = self.free;
        let number = match self.entries.get_mut(number as usize) {
            Some(slot) => {
                self.free = slot.next;
                *slot = entry;
                number
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.next_ns = self.next_ns.min(at_ns);
        self.enter(number, at_ns);
    }

    /// The slot of a time from the current one to the last.
    #[inline]
    fn slot(&self, at_ns: u64) -> usize {
        let differs = self.now_ns ^ at_ns;
        let wheel = match differs >> SHIFTS[1] {
            0 => 0,
            1..0x400 => 1,
            0x400..0x10_0000 => 2,
            _ => 3,
        };
        wheel * SLOTS + (at_ns >> SHIFTS[wheel]) as usize % SLOTS
    }

    /// Appends an entry to its slot.
    #[inline]
    fn enter(&mut self, number: u32, at_ns: u64) {
        let slot = self.slot(at_ns);
        self.first_ns[slot] = self.first_ns[slot].min(at_ns);
        self.filled[slot / 64] |= 1 << (slot % 64);
        self.words |= 1 << (slot / 64);
        let last = std::mem::replace(&mut self.last[slot], number);
        let first = match self.entries.get_mut(last as usize) {
            Some(last) => std::mem::replace(&mut last.next, number),
            None => number,
        };
        self.entries[number as usize].next = first;
    }

    /// Empties a slot and returns its last entry.
    #[inline]
    fn empty(&mut self, slot: usize) -> u32 {
        let word = &mut self.filled[slot / 64];
        *word &= !(1 << (slot % 64));
        if *word == 0 {
            self.words &= !(1 << (slot / 64));
        }
        self.first_ns[slot] = u64::MAX;
        std::mem::replace(&mut self.last[slot], NONE)
    }

    /// Time of the next item; `u64::MAX` if empty.
    #[inline]
    pub(crate) const fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Removes and returns the next item.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.next_ns == u64::MAX {
            return None;
        }
        let slot = self.slot(self.next_ns);
        self.now_ns = self.next_ns;
        if slot >= SLOTS {
            self.cascade(slot);
        }
        let slot = self.now_ns as usize % SLOTS;
        let last = self.last[slot];
        let first = self.entries[last as usize].next;
        let entry = &mut self.entries[first as usize];
        let item = entry.item;
        let second = std::mem::replace(&mut entry.next, self.free);
        self.free = first;
        if first == last {
            self.empty(slot);
            self.next_ns = self.first_ns();
        } else {
            self.entries[last as usize].next = second;
        }
        Some(item)
    }

    /// The time of the first item: that of the first non-empty slot, because no slot precedes the current time, and
    /// the first wheel's slots come first.
    #[inline]
    fn first_ns(&self) -> u64 {
        let Some(filled) = self.filled.get(self.words.trailing_zeros() as usize) else { return u64::MAX };
        self.first_ns[(self.words.trailing_zeros() * 64 + filled.trailing_zeros()) as usize]
    }

    /// Advances time to the first item of this slot, which is not in the first wheel, and distributes its items.
    fn cascade(&mut self, slot: usize) {
        let last = self.empty(slot);
        let mut number = self.entries[last as usize].next;
        loop {
            let Entry { at_ns, next, .. } = self.entries[number as usize];
            self.enter(number, at_ns);
            if number == last {
                return;
            }
            number = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::rng;

    use super::*;

    #[test]
    fn events_ordered_by_time_then_entry() {
        let mut wheel = Wheel::new(1_000);
        let mut expected = Vec::new();
        let mut random = 1;
        let mut taken = Vec::new();
        for i in 0..10_000_u32 {
            random = rng::next(random);
            // Insertions after the last event taken, some of them simultaneous.
            let at_ns = u64::from(i) / 20 + u64::from(rng::value(random) % 8);
            wheel.at(at_ns, i);
            if at_ns <= 1_000 {
                expected.push((at_ns, i));
            }
            if i % 3 == 0 {
                while wheel.next_ns() <= u64::from(i) / 20 {
                    taken.push((wheel.next_ns(), wheel.take()));
                }
            }
        }
        while wheel.next_ns() != u64::MAX {
            taken.push((wheel.next_ns(), wheel.take()));
        }
        assert_eq!(wheel.take(), None);
        expected.sort_unstable();
        let expected: Vec<_> = expected.into_iter().map(|(at_ns, i)| (at_ns, Some(i))).collect();
        // Numbers increase with insertion.
        assert_eq!(taken, expected);
    }

    #[test]
    fn distant_events_stay_in_order() {
        for bits in [4, 9, 10, 11, 19, 20, 21, 29, 30, 31, 33, 36] {
            let mut wheel = Wheel::new(u64::MAX - 1);
            let (mut now_ns, mut entered, mut taken) = (0, 0, 0);
            // Reference: a sorted list.
            let mut expected = std::collections::BTreeSet::new();
            let mut random = bits;
            while taken < 20_000 {
                random = rng::next(random);
                if entered < 20_000 && (wheel.next_ns() == u64::MAX || rng::value(random) % 100 < 55) {
                    // Few different times, so that some are equal; of all lengths up to this many bits.
                    let length = rng::value(random) % (bits as u32 + 1);
                    let at_ns =
                        now_ns + ((u64::from(rng::value(rng::next(random))) % 7) << length) % (1 << bits);
                    wheel.at(at_ns, entered);
                    expected.insert((at_ns, entered));
                    entered += 1;
                } else {
                    let first = expected.pop_first();
                    let next_ns = wheel.next_ns();
                    let Some(number) = wheel.take() else { panic!("nothing, for {first:?}") };
                    assert_eq!(Some((next_ns, number)), first, "{bits} bits");
                    now_ns = next_ns;
                    taken += 1;
                }
            }
            assert_eq!((wheel.next_ns(), wheel.take()), (u64::MAX, None));
        }
    }

    #[test]
    fn event_after_end_is_dropped() {
        let mut wheel = Wheel::new(10);
        wheel.at(11, 1);
        assert_eq!(wheel.next_ns(), u64::MAX);
        wheel.at(10, 2);
        assert_eq!((wheel.next_ns(), wheel.take(), wheel.take()), (10, Some(2), None));
    }
}
