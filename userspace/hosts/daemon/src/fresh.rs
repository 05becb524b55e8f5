//! A shared cache for values that are expensive to read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

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
    use std::sync::mpsc;

    use dcqcn_support::sync::lock;
    use tokio::time::timeout;

    use super::*;

    /// Changes the time of the last read, once it has ended.
    async fn set_read_at(fresh: &Fresh<u32>, at: Instant) {
        if let Some((read_at, _)) = fresh.0.lock().await.as_mut() {
            *read_at = at;
        }
    }

    #[tokio::test]
    async fn dropped_requests_share_one_read() {
        let (fresh, reads) = (Fresh::default(), Arc::new(AtomicUsize::new(0)));
        let (finish, finished) = mpsc::channel::<()>();
        let finished = Arc::new(std::sync::Mutex::new(finished));
        for _ in 0..50 {
            let (reads, finished) = (Arc::clone(&reads), Arc::clone(&finished));
            let read = move || {
                reads.fetch_add(1, Ordering::SeqCst);
                // An error if the test has failed.
                let _ = lock(&finished).recv();
                7
            };
            let request = timeout(Duration::from_millis(1), fresh.get(read));
            assert!(request.await.is_err(), "the request is dropped");
        }
        drop(finish);
        // Ages that do not depend on the machine's load.
        set_read_at(&fresh, Instant::now() + Duration::from_secs(3_600)).await;
        assert_eq!((fresh.get(|| 8).await.unwrap(), reads.load(Ordering::SeqCst)), (7, 1));
        set_read_at(&fresh, Instant::now().checked_sub(MAX_AGE).unwrap()).await;
        assert_eq!(fresh.get(|| 8).await.unwrap(), 8);
    }
}
