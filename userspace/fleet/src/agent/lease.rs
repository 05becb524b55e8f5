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

/// Whether another agent writes what this one does.
///
/// Reports of another lease than its own stand where this one writes only if somebody else wrote since it did: an agent that has just
/// begun finds those of the one before it.
#[derive(Debug, Default)]
struct Rival {
    own: Option<i64>,
    seen: Option<Instant>,
}

impl Rival {
    /// A report was written under the lease `own`, where one of the lease `before` was. Says whether there is news of another.
    fn wrote(&mut self, own: i64, before: Option<i64>) -> bool {
        let last = self.own.replace(own);
        let is_others = |before: i64| before != 0 && before != own && last.is_some_and(|last| last != before);
        let is_new = before.is_some_and(is_others);
        let was_seen = self.seen.is_some();
        if is_new {
            self.seen = Some(Instant::now());
        }
        is_new && !was_seen
    }

    /// What is said of it, until it has not written for `patience`.
    fn complaint(&mut self, host: &str, patience: Duration) -> Option<String> {
        self.seen = self.seen.filter(|seen| seen.elapsed() < patience);
        self.seen.map(|_| {
            format!("another agent reports as {host} too: give each host a name of its own with --name")
        })
    }
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
    let mut rival = Rival::default();
    loop {
        if reports.changed().await.is_err() {
            return;
        }
        let Some(mut report) = reports.borrow_and_update().clone() else { continue };
        // The other one writes as often, and when it ends this one is not to be blamed for long.
        report.failing.extend(rival.complaint(&lease.host, 3 * every));
        let is_due = is_news(said.as_ref(), &report) || said_at.elapsed() >= every;
        let done = async {
            let before = lease.id;
            let id = lease.keep(&member).await?;
            if is_due || before != Some(id) {
                match lease.store.say(&lease.host, "report", &report, Some(id)).await {
                    Ok(before) if rival.wrote(id, before) => {
                        tracing::warn!(host = lease.host, "another agent reports under this name");
                    }
                    Ok(_) => {}
                    // Perhaps for the lease is gone.
                    Err(error) => {
                        lease.id = None;
                        return Err(error);
                    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_agent_is_told_from_the_one_before_and_from_leases_of_its_own() {
        let mut rival = Rival::default();
        let says = |rival: &mut Rival| rival.complaint("h1", Duration::from_secs(60)).is_some();
        // The one before it, then its own, a lease that was lost, and nothing.
        for (own, before) in [(5, Some(3)), (5, Some(5)), (7, Some(5)), (7, None), (7, Some(0)), (7, Some(7))]
        {
            assert!(!rival.wrote(own, before) && !says(&mut rival), "{own} {before:?}");
        }
        assert!(rival.wrote(7, Some(9)) && says(&mut rival));
        assert!(!rival.wrote(7, Some(9)) && says(&mut rival), "told once");
        assert_eq!(rival.complaint("h1", Duration::ZERO), None, "it has gone");
        assert!(!rival.wrote(7, Some(7)) && !says(&mut rival));
        assert!(rival.wrote(7, Some(11)), "and comes again");
    }
}
