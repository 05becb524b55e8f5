//! What is to happen when: in order of time and then of entry.

use std::collections::VecDeque;

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

/// An event and its time.
type Entry = (u64, Event);

/// Buckets: one for the current time, and one for each bit in which a time may differ from it.
const BUCKETS: usize = 65;

/// Events to come, in a radix heap.
///
/// Time never goes back, so what is to come can lie in buckets by the highest bit in which its time differs from the current
/// one. When the current time's bucket is empty, time moves to the earliest of the next bucket, whose events fall into
/// lower ones. All events of one time are always in one bucket and keep their order there: so of events at one time the first
/// entered comes first, with no number to compare.
#[derive(Debug)]
pub(super) struct Agenda {
    now_ns: u64,
    until_ns: u64,
    /// Events of the current time.
    now: VecDeque<Event>,
    later: Vec<Bucket>,
    /// Bit per bucket of `later` that is not empty.
    filled: u64,
}

#[derive(Debug)]
struct Bucket {
    entries: Vec<Entry>,
    /// The earliest of their times.
    least_ns: u64,
}

impl Agenda {
    /// Nothing yet; what is to happen after `until_ns` will be forgotten.
    pub(super) fn new(until_ns: u64) -> Self {
        let bucket = || Bucket { entries: Vec::new(), least_ns: u64::MAX };
        Self {
            now_ns: 0,
            until_ns,
            now: VecDeque::new(),
            later: (1..BUCKETS).map(|_| bucket()).collect(),
            filled: 0,
        }
    }

    /// Enters `event`, not before the last one that was taken. Of events at one time the first entered comes first.
    #[inline]
    pub(super) fn at(&mut self, at_ns: u64, event: Event) {
        if at_ns <= self.until_ns {
            self.enter(at_ns.max(self.now_ns), event);
        }
    }

    #[inline]
    fn enter(&mut self, at_ns: u64, event: Event) {
        let Some(bit) = (at_ns ^ self.now_ns).checked_ilog2() else {
            self.now.push_back(event);
            return;
        };
        self.filled |= 1 << bit;
        let bucket = &mut self.later[bit as usize];
        bucket.least_ns = bucket.least_ns.min(at_ns);
        bucket.entries.push((at_ns, event));
    }

    /// Time of the next event; `u64::MAX` if there is none.
    #[inline]
    pub(super) fn next_ns(&self) -> u64 {
        if !self.now.is_empty() {
            self.now_ns
        } else if self.filled == 0 {
            u64::MAX
        } else {
            self.later[self.filled.trailing_zeros() as usize].least_ns
        }
    }

    /// Takes the next event.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Event> {
        if let Some(event) = self.now.pop_front() {
            return Some(event);
        }
        if self.filled == 0 {
            return None;
        }
        let bit = self.filled.trailing_zeros();
        self.filled &= !(1 << bit);
        let bucket = &mut self.later[bit as usize];
        self.now_ns = std::mem::replace(&mut bucket.least_ns, u64::MAX);
        if let [_] = bucket.entries.as_slice() {
            return bucket.entries.pop().map(|(_, event)| event);
        }
        let mut entries = std::mem::take(&mut bucket.entries);
        for (at_ns, event) in entries.drain(..) {
            self.enter(at_ns, event);
        }
        // Its room is used again.
        self.later[bit as usize].entries = entries;
        self.now.pop_front()
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
        expected.sort_unstable();
        let expected: Vec<_> = expected.into_iter().map(|(at_ns, i)| (at_ns, Some(Event::Due(i)))).collect();
        // Numbers rise with entry.
        assert_eq!(taken, expected);
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
