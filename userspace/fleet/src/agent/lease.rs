//! Reports under an etcd lease, which expire soon after their agent has exited.
//!
//! A separate task keeps the lease alive, so a slow change on the daemon does not let it expire.

use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::time::sleep_until;

use super::Options;
use crate::prelude::*;

const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Keeps a lease and publishes its ID, or `None` while there is none.
async fn maintain(mut store: Store, ttl_s: i64, sender: Sender<Option<i64>>) {
    let mut logged = String::new();
    loop {
        let error = match hold(&mut store, ttl_s, &sender, &mut logged).await {
            Ok(()) => continue,
            Err(error) => one_line(&error),
        };
        sender.send_replace(None);
        if error != logged {
            tracing::warn!(error, "no lease in etcd; retrying");
            logged = error;
        }
        sleep(RETRY_DELAY).await;
    }
}

async fn hold(
    store: &mut Store,
    ttl_s: i64,
    sender: &Sender<Option<i64>>,
    logged: &mut String,
) -> Result<()> {
    let third = Duration::from_secs(u64::try_from(ttl_s).unwrap_or(1)) / 3;
    let id = store.grant_lease(ttl_s).await?;
    sender.send_replace(Some(id));
    logged.clear();
    store.keep_lease(id, third, third).await
}

fn differs_in_state(old: Option<&Report>, new: &Report) -> bool {
    old.is_none_or(|old| {
        (&old.tried, &old.applying, &old.failing, &old.interfaces)
            != (&new.tried, &new.applying, &new.failing, &new.interfaces)
    })
}

/// Detects another agent that writes the records of the same host.
///
/// A report that this agent replaces normally has its own current or previous lease. Any other lease belongs to another
/// agent, except at this agent's first report, which replaces that of its predecessor.
#[derive(Debug, Default)]
struct Rival {
    own: Option<i64>,
    seen: Option<Instant>,
}

impl Rival {
    /// Records that a report under lease `own` replaced one under lease `before`. Returns whether this
    /// reveals another agent.
    fn wrote(&mut self, own: i64, before: Option<i64>) -> bool {
        let last = self.own.replace(own);
        let is_foreign =
            |before: i64| before != 0 && before != own && last.is_some_and(|last| last != before);
        let is_new = before.is_some_and(is_foreign);
        let had_lease = self.seen.is_some();
        if is_new {
            self.seen = Some(Instant::now());
        }
        is_new && !had_lease
    }

    /// The complaint about another agent; cleared once that has not written for `patience`.
    fn complaint(&mut self, host: &str, patience: Duration) -> Option<String> {
        self.seen = self.seen.filter(|seen| seen.elapsed() < patience);
        self.seen
            .map(|_| format!("another agent reports as {host} too; give each host a unique name with --name"))
    }
}

/// Reports changes immediately, and metrics once per period; that of the fleet takes precedence if it is longer.
pub(super) async fn report(
    store: Store,
    options: Options,
    fleet: Receiver<Option<Duration>>,
    reports: Receiver<Option<Report>>,
) {
    let (sender, lease) = channel(None);
    tokio::select! {
        () = maintain(store.clone(), options.ttl_s, sender) => {}
        () = write(store, options, fleet, lease, reports) => {}
    }
}

async fn write(
    mut store: Store,
    options: Options,
    fleet: Receiver<Option<Duration>>,
    mut lease: Receiver<Option<i64>>,
    mut reports: Receiver<Option<Report>>,
) {
    let Options { host, labels, every: own, .. } = options;
    let member = Member { labels };
    let (mut reported, mut reported_at, mut used): (Option<Report>, _, _) = (None, Instant::now(), None);
    let mut logged = String::new();
    let mut rival = Rival::default();
    loop {
        let every = fleet.borrow().map_or(own, |period| period.max(own));
        tokio::select! {
            changed = reports.changed() => if changed.is_err() { return },
            changed = lease.changed() => if changed.is_err() { return },
            // Also while the daemon is busy.
            () = sleep_until(reported_at + every) => {}
        }
        let current = *lease.borrow_and_update();
        let (Some(id), Some(mut report)) = (current, reports.borrow_and_update().clone()) else {
            // Wait for the missing lease or report.
            reported_at = Instant::now();
            continue;
        };
        // The other agent has the same period: after three periods without a report it has exited.
        report.failing.extend(rival.complaint(&host, 3 * every));
        if used == Some(id) && !differs_in_state(reported.as_ref(), &report) && reported_at.elapsed() < every
        {
            continue;
        }
        let done = async {
            if used != Some(id) {
                store.put_record(&host, "member", &member, None).await?;
            }
            store.put_record(&host, "report", &report, Some(id)).await
        };
        match done.await {
            Ok(before) => {
                if rival.wrote(id, before) {
                    tracing::warn!(host, "another agent reports under this name");
                }
                logged.clear();
                (reported, reported_at, used) = (Some(report), Instant::now(), Some(id));
            }
            Err(error) => {
                let error = one_line(&error);
                if error != logged {
                    tracing::warn!(error, "cannot report to etcd; retrying");
                    logged = error;
                }
                used = None;
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rival_differs_from_predecessor_and_own_lease() {
        let mut rival = Rival::default();
        let complains = |rival: &mut Rival| rival.complaint("h1", Duration::from_secs(60)).is_some();
        // Predecessor, own lease, own lost lease, no previous report.
        for (own, before) in [(5, Some(3)), (5, Some(5)), (7, Some(5)), (7, None), (7, Some(0)), (7, Some(7))]
        {
            assert!(!rival.wrote(own, before) && !complains(&mut rival), "{own} {before:?}");
        }
        assert!(rival.wrote(7, Some(9)) && complains(&mut rival));
        assert!(!rival.wrote(7, Some(9)) && complains(&mut rival), "news once");
        assert_eq!(rival.complaint("h1", Duration::ZERO), None, "the rival has exited");
        assert!(!rival.wrote(7, Some(7)) && !complains(&mut rival));
        assert!(rival.wrote(7, Some(11)), "the rival is back");
    }
}
