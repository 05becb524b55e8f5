//! A key under a lease for as long as a coordinator runs, so that commands know whether one does.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::{sleep, timeout};

use crate::store::Store;

/// How long etcd keeps the key of a coordinator that was killed, in seconds.
const TTL_S: i64 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// The key.
#[derive(Default)]
pub(super) struct Presence {
    /// Its lease, 0 without one.
    lease: AtomicI64,
}

impl Presence {
    /// Holds it until it is dropped.
    pub(super) async fn hold(&self, mut store: Store) {
        loop {
            if let Err(error) = self.once(&mut store).await {
                tracing::debug!(error = format!("{error:#}"), "coordinator key lost; renewing");
            }
            sleep(PAUSE).await;
        }
    }

    async fn once(&self, store: &mut Store) -> Result<()> {
        let lease = store.client.lease_grant(TTL_S, None).await?.id();
        ensure!(lease != 0, "etcd gives no lease");
        self.lease.store(lease, Ordering::Relaxed);
        store.say_coordinator(&format!("process {}", std::process::id()), lease).await?;
        let (mut keeper, mut answers) = store.client.lease_keep_alive(lease).await?;
        loop {
            sleep(PAUSE).await;
            keeper.keep_alive().await?;
            let answer = timeout(PAUSE * 3, answers.message()).await??;
            ensure!(answer.is_some_and(|answer| answer.ttl() > 0), "the lease has ended");
        }
    }

    /// Deletes it. Without an answer of etcd it ends with its lease.
    pub(super) async fn end(&self, mut store: Store) {
        let lease = self.lease.swap(0, Ordering::Relaxed);
        if lease != 0 {
            let _ = timeout(PAUSE, store.client.lease_revoke(lease)).await;
        }
    }
}
