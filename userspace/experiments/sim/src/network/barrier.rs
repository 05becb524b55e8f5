//! Barrier for threads at the end of a window.

use std::hint;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use dcqcn_support::sync::lock;

/// Spins before a thread sleeps: some 20 us, about the cost of sleeping and waking up.
const SPINS: u32 = 2_000;

/// A barrier like the standard library's, whose waiters spin before they sleep.
///
/// A window of a small fabric is some ten microseconds of work, and sleeping at each end of it costs more than that. A
/// waiter that spins in vain sleeps: with more threads than cores, the threads it waits for need its core.
#[derive(Debug)]
pub(crate) struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    completed: AtomicU64,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Barrier {
    pub(crate) const fn new(threads: usize) -> Self {
        Self {
            threads,
            arrived: AtomicUsize::new(0),
            completed: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// Waits for all threads. Writes before the barrier are visible after it.
    pub(crate) fn wait(&self) {
        let number = self.completed.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            // No thread can return here before this barrier is counted.
            self.arrived.store(0, Ordering::Relaxed);
            // Sequentially consistent with the sleepers' count, so that no sleeper misses the new number.
            self.completed.store(number + 1, Ordering::SeqCst);
            if self.sleepers.load(Ordering::SeqCst) != 0 {
                // A counted sleeper holds the lock until it sleeps.
                drop(lock(&self.lock));
                self.woken.notify_all();
            }
            return;
        }
        for _ in 0..SPINS {
            if self.completed.load(Ordering::Acquire) != number {
                return;
            }
            hint::spin_loop();
        }
        let mut guard = lock(&self.lock);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.completed.load(Ordering::SeqCst) == number {
            guard = self.woken.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn barrier_holds_until_all_arrive() {
        for threads in [1, 2, 5] {
            let barrier = Barrier::new(threads);
            let arrived = AtomicUsize::new(0);
            thread::scope(|scope| {
                for number in 0..threads {
                    let (barrier, arrived) = (&barrier, &arrived);
                    scope.spawn(move || {
                        for round in 0..300 {
                            // Sometimes one is so late that the others sleep.
                            if round % 100 == number {
                                thread::sleep(Duration::from_millis(3));
                            }
                            arrived.fetch_add(1, Ordering::Relaxed);
                            barrier.wait();
                            assert_eq!(arrived.load(Ordering::Relaxed), threads * (round + 1));
                            barrier.wait();
                        }
                    });
                }
            });
            assert_eq!(barrier.sleepers.into_inner(), 0);
        }
    }
}
