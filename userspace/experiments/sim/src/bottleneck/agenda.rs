//! Future events, ordered by time and then by insertion: an agenda, and lanes for constant delays.

use std::collections::VecDeque;

/// An event with its own time. Events after a constant delay are in a [`Lanes`] instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A flow starts.
    Start(u32),
    /// A flow stops sending new data.
    Stop(u32),
    /// A message of an open-loop flow is posted.
    Post(u32),
    /// A RoCE flow's next packet may depart.
    Due(u32),
    /// The CNP window of a flow ends in which it was marked.
    Window(u32),
    /// A sender's link has finished its packet.
    LinkFree(u32),
    /// A flow's retransmission timer, which may fire early instead of being reset by every packet.
    Timer(u32),
    /// Pause or resume reaches the senders with one delay.
    Pfc(PfcFrame),
    /// Statistics start.
    StatsFrom,
    /// A sample of the time series is due.
    Sample,
    /// A fairness window ends.
    FairWindow,
    /// The simulation ends.
    End,
}

/// Pause or resume of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PfcFrame {
    /// Index of the senders' delay.
    pub(super) delay: u8,
    /// Class.
    pub(super) class: u8,
    /// Pause, else resume.
    pub(super) pause: bool,
}

/// Slots per wheel.
const PLACES: usize = 1 << 10;
/// Lowest bit of a time that selects the slot of each wheel: 1 ns, 1 us, 1 ms and 4.3 s.
const SHIFTS: [u32; 4] = [0, 10, 20, 32];
/// Slots of all wheels.
const ALL_PLACES: usize = SHIFTS.len() * PLACES;
/// The last time with a slot: more than an hour.
const LAST_NS: u64 = ((PLACES as u64) << SHIFTS[3]) - 1;
/// No entry.
const NONE: u32 = u32::MAX;

/// Future events, in timing wheels of 1024 slots.
///
/// Times that differ from the current one in the last ten bits only are in the first wheel, with a slot per nanosecond;
/// those that differ in the next ten bits in the second, then the third; all others in the last. Time never decreases.
/// When the first wheel is empty, time advances to the earliest event of the next wheel, whose slot is distributed over
/// the earlier wheels, mostly once per event. Simultaneous events are always in one slot, in order of insertion, so no
/// sequence number is needed.
#[derive(Debug)]
pub(super) struct Agenda {
    now_ns: u64,
    until_ns: u64,
    /// Time of the next event; `u64::MAX` if empty.
    next_ns: u64,
    /// The last entry of each slot, or [`NONE`]; the first wheel's slots first.
    last: Box<[u32; ALL_PLACES]>,
    /// The time of the earliest event of each slot, or `u64::MAX`.
    least_ns: Box<[u64; ALL_PLACES]>,
    /// Bit per non-empty slot.
    filled: [u64; ALL_PLACES / 64],
    /// Bit per non-zero word of `filled`.
    words: u64,
    entries: Vec<Entry>,
    /// The first free entry.
    free: u32,
}

/// An event in the list of its slot.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at_ns: u64,
    event: Event,
    /// The next entry in a circular list; for a free entry, the next free one, or [`NONE`].
    next: u32,
}

impl Agenda {
    /// An empty agenda; events after `until_ns`, or after [`LAST_NS`], are dropped.
    pub(super) fn new(until_ns: u64) -> Self {
        Self {
            now_ns: 0,
            until_ns: until_ns.min(LAST_NS),
            next_ns: u64::MAX,
            last: Box::new([NONE; ALL_PLACES]),
            least_ns: Box::new([u64::MAX; ALL_PLACES]),
            filled: [0; ALL_PLACES / 64],
            words: 0,
            entries: Vec::new(),
            free: NONE,
        }
    }

    /// Inserts `event`, not before the last one taken. Simultaneous events are in order of insertion.
    #[inline]
    pub(super) fn at(&mut self, at_ns: u64, event: Event) {
        if at_ns > self.until_ns {
            return;
        }
        let at_ns = at_ns.max(self.now_ns);
        let entry = Entry { at_ns, event, next: NONE };
        let number = self.free;
        let number = match self.entries.get_mut(number as usize) {
            Some(place) => {
                self.free = place.next;
                *place = entry;
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
    fn place(&self, at_ns: u64) -> usize {
        let differs = self.now_ns ^ at_ns;
        let wheel = match differs >> SHIFTS[1] {
            0 => 0,
            1..0x400 => 1,
            0x400..0x10_0000 => 2,
            _ => 3,
        };
        wheel * PLACES + (at_ns >> SHIFTS[wheel]) as usize % PLACES
    }

    /// Appends an entry to its slot.
    #[inline]
    fn enter(&mut self, number: u32, at_ns: u64) {
        let place = self.place(at_ns);
        self.least_ns[place] = self.least_ns[place].min(at_ns);
        self.filled[place / 64] |= 1 << (place % 64);
        self.words |= 1 << (place / 64);
        let last = std::mem::replace(&mut self.last[place], number);
        let first = match self.entries.get_mut(last as usize) {
            Some(last) => std::mem::replace(&mut last.next, number),
            None => number,
        };
        self.entries[number as usize].next = first;
    }

    /// Empties a slot and returns its last entry.
    #[inline]
    fn empty(&mut self, place: usize) -> u32 {
        let word = &mut self.filled[place / 64];
        *word &= !(1 << (place % 64));
        if *word == 0 {
            self.words &= !(1 << (place / 64));
        }
        self.least_ns[place] = u64::MAX;
        std::mem::replace(&mut self.last[place], NONE)
    }

    /// Time of the next event; `u64::MAX` if empty.
    #[inline]
    pub(super) const fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Removes and returns the next event.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Event> {
        if self.next_ns == u64::MAX {
            return None;
        }
        let place = self.place(self.next_ns);
        self.now_ns = self.next_ns;
        if place >= PLACES {
            self.come_near(place);
        }
        let place = self.now_ns as usize % PLACES;
        let last = self.last[place];
        let first = self.entries[last as usize].next;
        let entry = &mut self.entries[first as usize];
        let event = entry.event;
        let second = std::mem::replace(&mut entry.next, self.free);
        self.free = first;
        if first == last {
            self.empty(place);
            self.next_ns = self.least_ns();
        } else {
            self.entries[last as usize].next = second;
        }
        Some(event)
    }

    /// The time of the first event: that of the first non-empty slot, because no slot precedes the current time, and
    /// the first wheel's slots come first.
    #[inline]
    fn least_ns(&self) -> u64 {
        let Some(filled) = self.filled.get(self.words.trailing_zeros() as usize) else { return u64::MAX };
        self.least_ns[(self.words.trailing_zeros() * 64 + filled.trailing_zeros()) as usize]
    }

    /// Advances time to the first event of this slot, which is not in the first wheel, and distributes its events.
    fn come_near(&mut self, place: usize) {
        let last = self.empty(place);
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

/// Constant delays: first in, first out, so no heap is needed.
#[derive(Debug)]
pub(super) struct Lanes<T> {
    lanes: Vec<Lane<T>>,
    /// When the next item arrives, and in which lane; `u64::MAX` if none. The engine queries it at every event.
    next: (u64, usize),
}

#[derive(Debug)]
struct Lane<T> {
    delay_ns: u64,
    under_way: VecDeque<(u64, T)>,
}

impl<T> Lanes<T> {
    /// An empty lane for each of these delays.
    pub(super) fn new(delays_ns: impl IntoIterator<Item = u64>) -> Self {
        let lane = |delay_ns| Lane { delay_ns, under_way: VecDeque::new() };
        Self { lanes: delays_ns.into_iter().map(lane).collect(), next: (u64::MAX, 0) }
    }

    /// The delay of each lane.
    pub(super) fn delays_ns(&self) -> impl Iterator<Item = u64> {
        self.lanes.iter().map(|lane| lane.delay_ns)
    }

    /// Adds `item` to lane `number`.
    #[inline]
    pub(super) fn enter(&mut self, now_ns: u64, number: usize, item: T) {
        let lane = &mut self.lanes[number];
        let at_ns = now_ns + lane.delay_ns;
        lane.under_way.push_back((at_ns, item));
        // Items already in this lane arrive no later.
        if (at_ns, number) < self.next {
            self.next = (at_ns, number);
        }
    }

    /// When the next item arrives; `u64::MAX` if none.
    #[inline]
    pub(super) const fn next_ns(&self) -> u64 {
        self.next.0
    }

    /// Removes the next item; of simultaneous ones, that of the first lane.
    #[inline]
    pub(super) fn take(&mut self) -> Option<T> {
        let (_, item) = self.lanes.get_mut(self.next.1)?.under_way.pop_front()?;
        self.next = (u64::MAX, 0);
        for (number, lane) in self.lanes.iter().enumerate() {
            if let Some(&(at_ns, _)) = lane.under_way.front()
                && at_ns < self.next.0
            {
                self.next = (at_ns, number);
            }
        }
        Some(item)
    }

    /// Number of items in transit.
    pub(super) fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.under_way.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::rng;

    use super::*;

    #[test]
    fn events_ordered_by_time_then_entry() {
        let mut agenda = Agenda::new(1_000);
        let mut expected = Vec::new();
        let mut random = 1;
        let mut taken = Vec::new();
        for i in 0..10_000 {
            random = rng::next(random);
            // Insertions after the last event taken, some of them simultaneous.
            let at_ns = u64::from(i) / 20 + u64::from(rng::value(random) % 8);
            agenda.at(at_ns, Event::Due(i));
            if at_ns <= 1_000 {
                expected.push((at_ns, i));
            }
            if i % 3 == 0 {
                while agenda.next_ns() <= u64::from(i) / 20 {
                    taken.push((agenda.next_ns(), agenda.take()));
                }
            }
        }
        while agenda.next_ns() != u64::MAX {
            taken.push((agenda.next_ns(), agenda.take()));
        }
        assert_eq!(agenda.take(), None);
        expected.sort_unstable();
        let expected: Vec<_> = expected.into_iter().map(|(at_ns, i)| (at_ns, Some(Event::Due(i)))).collect();
        // Numbers increase with insertion.
        assert_eq!(taken, expected);
    }

    #[test]
    fn distant_events_stay_in_order() {
        for bits in [4, 9, 10, 11, 19, 20, 21, 29, 30, 31, 33, 36] {
            let mut agenda = Agenda::new(u64::MAX - 1);
            let (mut now_ns, mut entered, mut taken) = (0, 0, 0);
            // Reference: a sorted list.
            let mut expected = std::collections::BTreeSet::new();
            let mut random = bits;
            while taken < 20_000 {
                random = rng::next(random);
                if entered < 20_000 && (agenda.next_ns() == u64::MAX || rng::value(random) % 100 < 55) {
                    // Few different times, so that some are equal; of all lengths up to this many bits.
                    let length = rng::value(random) % (bits as u32 + 1);
                    let at_ns =
                        now_ns + ((u64::from(rng::value(rng::next(random))) % 7) << length) % (1 << bits);
                    agenda.at(at_ns, Event::Due(entered));
                    expected.insert((at_ns, entered));
                    entered += 1;
                } else {
                    let first = expected.pop_first();
                    let next_ns = agenda.next_ns();
                    let Some(Event::Due(number)) = agenda.take() else { panic!("nothing, for {first:?}") };
                    assert_eq!(Some((next_ns, number)), first, "{bits} bits");
                    now_ns = next_ns;
                    taken += 1;
                }
            }
            assert_eq!((agenda.next_ns(), agenda.take()), (u64::MAX, None));
        }
    }

    #[test]
    fn event_after_end_is_dropped() {
        let mut agenda = Agenda::new(10);
        agenda.at(11, Event::Sample);
        assert_eq!(agenda.next_ns(), u64::MAX);
        agenda.at(10, Event::End);
        assert_eq!((agenda.next_ns(), agenda.take(), agenda.take()), (10, Some(Event::End), None));
    }

    #[test]
    fn lane_keeps_order_and_delay() {
        let mut lane = Lanes::new([700]);
        lane.enter(1, 0, 'a');
        lane.enter(1, 0, 'b');
        lane.enter(9, 0, 'c');
        assert_eq!((lane.next_ns(), lane.take(), lane.take()), (701, Some('a'), Some('b')));
        assert_eq!(
            (lane.next_ns(), lane.take(), lane.next_ns(), lane.take()),
            (709, Some('c'), u64::MAX, None)
        );
    }

    #[test]
    fn earliest_lane_first_ties_by_index() {
        let mut lanes = Lanes::new([700, 200, 300]);
        for (number, item) in [(0, 'a'), (2, 'b'), (1, 'c'), (1, 'd')] {
            lanes.enter(0, number, item);
        }
        // At 700 there are three, in the order of their lanes.
        lanes.enter(400, 2, 'g');
        lanes.enter(500, 1, 'f');
        assert_eq!((lanes.len(), lanes.delays_ns().collect::<Vec<_>>()), (6, vec![700, 200, 300]));
        let order = std::iter::from_fn(|| Some((lanes.next_ns(), lanes.take()?))).collect::<Vec<_>>();
        assert_eq!(order, [(200, 'c'), (200, 'd'), (300, 'b'), (700, 'a'), (700, 'f'), (700, 'g')]);
        assert_eq!((lanes.next_ns(), lanes.len()), (u64::MAX, 0));
    }
}
