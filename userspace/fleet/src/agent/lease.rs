//! Saying in etcd how a host does, under a lease: what an agent that is gone said is gone soon after.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep, timeout};

use crate::record::{Member, Report};
use crate::store::Store;

/// How long etcd is left alone when it does not answer.
const REST: Duration = Duration::from_secs(1);

/// A lease of etcd's, got anew when it is lost.
pub(super) struct Lease {
    store: Store,
    host: String,
    ttl_s: i64,
    id: Option<i64>,
    kept_at: Instant,
}

impl Lease {
    pub(super) fn new(store: Store, host: String, ttl_s: i64) -> Self {
        Self { store, host, ttl_s, id: None, kept_at: Instant::now() }
    }

    /// Keeps it, or gets another.
    async fn keep(&mut self, member: &Member) -> Result<i64> {
        if let Some(id) = self.id {
            if self.kept_at.elapsed() < self.third() {
                return Ok(id);
            }
            self.id = None;
            let (mut keeper, mut answers) = self.store.client.lease_keep_alive(id).await?;
            keeper.keep_alive().await?;
            let answer = timeout(self.third(), answers.message()).await??;
            if answer.is_some_and(|answer| answer.ttl() > 0) {
                (self.id, self.kept_at) = (Some(id), Instant::now());
                return Ok(id);
            }
        }
        let id = self.store.client.lease_grant(self.ttl_s, None).await?.id();
        ensure!(id != 0, "etcd gives no lease");
        self.store.say(&self.host, "member", member, None).await?;
        (self.id, self.kept_at) = (Some(id), Instant::now());
        Ok(id)
    }

    fn third(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.ttl_s).unwrap_or(1)) / 3
    }
}

/// Whether etcd is to hear of it at once.
fn is_news(old: Option<&Report>, new: &Report) -> bool {
    old.is_none_or(|old| {
        (&old.tried, &old.failing, &old.interfaces) != (&new.tried, &new.failing, &new.interfaces)
    })
}

/// Reports whatever is new at once, and figures once in `every`.
pub(super) async fn report(
    mut lease: Lease,
    member: Member,
    mut reports: Receiver<Option<Report>>,
    every: Duration,
) {
    let (mut said, mut said_at): (Option<Report>, _) = (None, Instant::now());
    let mut told = String::new();
    loop {
        if reports.changed().await.is_err() {
            return;
        }
        let Some(report) = reports.borrow_and_update().clone() else { continue };
        let is_due = is_news(said.as_ref(), &report) || said_at.elapsed() >= every;
        let done = async {
            let before = lease.id;
            let id = lease.keep(&member).await?;
            if is_due || before != Some(id) {
                if let Err(error) = lease.store.say(&lease.host, "report", &report, Some(id)).await {
                    // Perhaps for the lease is gone.
                    lease.id = None;
                    return Err(error);
                }
                (said, said_at) = (Some(report), Instant::now());
            }
            anyhow::Ok(())
        };
        match done.await {
            Ok(()) => told.clear(),
            Err(error) => {
                let error = format!("{error:#}");
                if error != told {
                    tracing::warn!(error, "etcd does not hear how this host does");
                    told = error;
                }
                sleep(REST).await;
            }
        }
    }
}
