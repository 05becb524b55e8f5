//! What takes a while to read, for many who ask.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

/// How old an answer may be.
const FRESH: Duration = Duration::from_secs(1);

/// An answer that is no older than a second, read by one at a time. Who asks in the meantime waits for the same.
#[derive(Debug)]
pub(crate) struct Fresh<T>(Arc<Mutex<Option<(Instant, T)>>>);

impl<T> Default for Fresh<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Send + 'static> Fresh<T> {
    /// The answer, which `read` makes on a thread of its own if there is none that is fresh.
    ///
    /// # Errors
    /// `read` panicked.
    pub(crate) async fn get(&self, read: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
        let mut kept = Arc::clone(&self.0).lock_owned().await;
        if let Some((_, value)) = kept.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(value.clone());
        }
        // The thread has the lock, and not the one who asks: who asks may be gone long before it is done, and the next one would begin
        // another.
        spawn_blocking(move || {
            let value = read();
            *kept = Some((Instant::now(), value.clone()));
            value
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test]
    async fn concurrent_requests_share_one_read() {
        let (fresh, reading, most) =
            (Fresh::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..50 {
            let (reading, most) = (Arc::clone(&reading), Arc::clone(&most));
            let read = move || {
                most.fetch_max(reading.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(200));
                reading.fetch_sub(1, Ordering::SeqCst);
                7
            };
            assert!(timeout(Duration::from_millis(1), fresh.get(read)).await.is_err(), "nobody waits for it");
        }
        assert_eq!(most.load(Ordering::SeqCst), 1);
        // What was read for somebody who is gone is what the next one gets.
        sleep(Duration::from_millis(300)).await;
        assert_eq!(fresh.get(|| 8).await.unwrap(), 7);
        sleep(FRESH).await;
        assert_eq!(fresh.get(|| 8).await.unwrap(), 8);
    }
}
