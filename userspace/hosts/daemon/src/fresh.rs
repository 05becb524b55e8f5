//! A shared cache for values that are expensive to read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

/// Maximum age of a value.
const MAX_AGE: Duration = Duration::from_secs(1);

/// A value at most a second old, read once at a time. Concurrent requests wait for the same read.
#[derive(Debug)]
pub(crate) struct Fresh<T>(Arc<Mutex<Option<(Instant, T)>>>);

impl<T> Default for Fresh<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Send + 'static> Fresh<T> {
    /// The value; if it is stale, `read` runs on a separate thread.
    ///
    /// # Errors
    /// `read` panicked.
    pub(crate) async fn get(&self, read: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
        let mut cached = Arc::clone(&self.0).lock_owned().await;
        if let Some((_, value)) = cached.as_ref().filter(|(at, _)| at.elapsed() < MAX_AGE) {
            return Ok(value.clone());
        }
        // The thread holds the lock, not the request: a request may be dropped long before the read ends, and the next
        // one would start another read.
        spawn_blocking(move || {
            let value = read();
            *cached = Some((Instant::now(), value.clone()));
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
            assert!(
                timeout(Duration::from_millis(1), fresh.get(read)).await.is_err(),
                "the request is dropped"
            );
        }
        assert_eq!(most.load(Ordering::SeqCst), 1);
        // The next request gets the value that was read for the dropped one.
        sleep(Duration::from_millis(300)).await;
        assert_eq!(fresh.get(|| 8).await.unwrap(), 7);
        sleep(MAX_AGE).await;
        assert_eq!(fresh.get(|| 8).await.unwrap(), 8);
    }
}
