//! What is to happen when: a heap of four children per node, in order of time and then of entry.

/// Something to happen at a time of its own. What only waits for the end of a constant delay is in a
/// [`Lane`](super::lane::Lane) instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A flow begins.
    Start(u32),
    /// A flow sends nothing new from now on.
    Stop(u32),
    /// A message of an open-loop flow is posted.
    Post(u32),
    /// A RoCE flow's next packet may leave.
    Due(u32),
    /// The window of a flow's CNP is over, in which it was marked.
    Window(u32),
    /// A sender's link has sent its packet.
    LinkFree(u32),
    /// A flow's retransmission timer, set too early rather than anew at every packet.
    Timer(u32),
    /// Pause or resume reaches the senders of one delay.
    Pfc(PfcFrame),
    /// Statistics begin.
    StatsFrom,
    /// A sample of the time series is due.
    Sample,
    /// A window over which fairness is looked at ends.
    FairWindow,
    /// Time is up.
    End,
}

/// Pause or resume of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PfcFrame {
    /// The senders' delay, as an index.
    pub(super) delay: u8,
    /// Class.
    pub(super) class: u8,
    /// Pause, or resume.
    pub(super) pause: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at_ns: u64,
    order: u64,
    event: Event,
}

impl Entry {
    const fn key(&self) -> u128 {
        (self.at_ns as u128) << 64 | self.order as u128
    }
}

/// Events to come.
///
/// Taking an event leaves a hole at the root which the next entry falls into: most events set exactly one other, and so
/// cost one way down instead of a way down and a way up.
#[derive(Debug)]
pub(super) struct Agenda {
    heap: Vec<Entry>,
    hole: bool,
    order: u64,
    until_ns: u64,
}

const CHILDREN: usize = 4;

impl Agenda {
    /// Nothing yet; what is to happen after `until_ns` will be forgotten.
    pub(super) const fn new(until_ns: u64) -> Self {
        Self { heap: Vec::new(), hole: false, order: 0, until_ns }
    }

    /// Enters `event`. Of events at one time the first entered comes first.
    pub(super) fn at(&mut self, at_ns: u64, event: Event) {
        if at_ns > self.until_ns {
            return;
        }
        self.order += 1;
        let entry = Entry { at_ns, order: self.order, event };
        if self.hole {
            self.hole = false;
            self.sift_down(entry);
        } else {
            self.heap.push(entry);
            self.sift_up(entry);
        }
    }

    /// Time of the next event; `u64::MAX` if there is none.
    #[inline]
    pub(super) fn next_ns(&mut self) -> u64 {
        self.fill_hole();
        self.heap.first().map_or(u64::MAX, |entry| entry.at_ns)
    }

    /// Takes the next event.
    pub(super) fn take(&mut self) -> Option<Event> {
        self.fill_hole();
        let event = self.heap.first()?.event;
        self.hole = true;
        Some(event)
    }

    fn fill_hole(&mut self) {
        if !self.hole {
            return;
        }
        self.hole = false;
        if let Some(last) = self.heap.pop()
            && !self.heap.is_empty()
        {
            self.sift_down(last);
        }
    }

    /// Puts `entry` in the place of the root.
    fn sift_down(&mut self, entry: Entry) {
        let key = entry.key();
        let len = self.heap.len();
        let mut at = 0;
        loop {
            let first = at * CHILDREN + 1;
            if first >= len {
                break;
            }
            let mut least = first;
            let mut least_key = self.heap[first].key();
            for child in first + 1..(first + CHILDREN).min(len) {
                let child_key = self.heap[child].key();
                if child_key < least_key {
                    least = child;
                    least_key = child_key;
                }
            }
            if least_key >= key {
                break;
            }
            self.heap[at] = self.heap[least];
            at = least;
        }
        self.heap[at] = entry;
    }

    /// Lets `entry`, which is at the end, rise.
    fn sift_up(&mut self, entry: Entry) {
        let key = entry.key();
        let mut at = self.heap.len() - 1;
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            if self.heap[parent].key() <= key {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = entry;
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::rng;

    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_then_of_entry() {
        let mut agenda = Agenda::new(1_000);
        let mut expected = Vec::new();
        let mut random = 1;
        let mut taken = Vec::new();
        for i in 0..10_000 {
            random = rng::next(random);
            // Entries after the last event taken, as time does not go back; some of them together.
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
        assert!(taken.is_sorted_by_key(|&(at_ns, _)| at_ns));
        expected.sort_unstable();
        let expected: Vec<_> = expected.into_iter().map(|(at_ns, i)| (at_ns, Some(Event::Due(i)))).collect();
        assert_eq!(taken.len(), expected.len());
        assert!(taken.iter().all(|entry| expected.binary_search_by_key(&key(entry), key).is_ok()));
    }

    fn key(&(at_ns, event): &(u64, Option<Event>)) -> (u64, u32) {
        match event {
            Some(Event::Due(i)) => (at_ns, i),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_comes_after_the_end_is_forgotten() {
        let mut agenda = Agenda::new(10);
        agenda.at(11, Event::Sample);
        assert_eq!(agenda.next_ns(), u64::MAX);
        agenda.at(10, Event::End);
        assert_eq!((agenda.next_ns(), agenda.take(), agenda.take()), (10, Some(Event::End), None));
    }
}
