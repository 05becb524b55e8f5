//! Registration of a running coordinator, as a key under a lease. Commands check for this key.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::{sleep, timeout};

use crate::store::Store;

/// Lease time of the key, in seconds: how long a killed coordinator remains registered.
const TTL_S: i64 = 5;
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The registration.
#[derive(Default)]
pub(super) struct Presence {
    /// ID of the lease, 0 if there is none.
    lease: AtomicI64,
}

impl Presence {
    /// Keeps the registration until it is dropped.
    pub(super) async fn hold(&self, mut store: Store) {
        loop {
            if let Err(error) = self.once(&mut store).await {
                tracing::debug!(error = format!("{error:#}"), "coordinator key lost; renewing");
            }
            sleep(RETRY_DELAY).await;
        }
    }

    async fn once(&self, store: &mut Store) -> Result<()> {
        let lease = store.client.lease_grant(TTL_S, None).await?.id();
        ensure!(lease != 0, "etcd granted no lease");
        self.lease.store(lease, Ordering::Relaxed);
        store.put_coordinator(&format!("process {}", std::process::id()), lease).await?;
        let (mut keeper, mut answers) = store.client.lease_keep_alive(lease).await?;
        loop {
            sleep(RETRY_DELAY).await;
            keeper.keep_alive().await?;
            let answer = timeout(RETRY_DELAY * 3, answers.message()).await??;
            ensure!(answer.is_some_and(|answer| answer.ttl() > 0), "the lease expired");
        }
    }

    /// Deletes the registration. If etcd does not respond, it expires with its lease.
    pub(super) async fn end(&self, mut store: Store) {
        let lease = self.lease.swap(0, Ordering::Relaxed);
        if lease != 0 {
            let _ = timeout(RETRY_DELAY, store.client.lease_revoke(lease)).await;
        }
    }
}
