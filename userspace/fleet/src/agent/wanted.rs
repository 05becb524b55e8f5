//! The configuration that etcd has for this host.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use etcd_client::WatchOptions;
use tokio::sync::watch::Sender;
use tokio::time::{sleep, timeout};

use crate::record::{Target, Want, hash};
use crate::store::Store;

/// Longest silence of a watch before the order is read again.
const SILENCE: Duration = Duration::from_secs(60);
/// Pause after a failure.
const REST: Duration = Duration::from_secs(1);

/// An order with the text of its version; none if the host's own file applies alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) want: Want,
    pub(super) text: Option<String>,
}

/// What is known of the order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The last one that could be read.
    pub(super) order: Option<Order>,
    /// Why a newer one cannot be read.
    pub(super) problem: Option<String>,
}

/// Publishes the order whenever it changes. A watch that ends, for whatever reason, is begun again from the current order: nothing in
/// between is needed, so that compaction does no harm. Publishes how often to report, too.
pub(super) async fn follow(
    mut store: Store,
    host: String,
    say: Sender<Wanted>,
    period: Sender<Option<Duration>>,
) {
    let mut logged = String::new();
    loop {
        match once(&mut store, &host, &say, &period).await {
            Ok(()) => logged.clear(),
            Err(error) => {
                let error = format!("{error:#}");
                if error != logged {
                    tracing::warn!(error, "cannot read the order of this host; its configuration stays");
                    logged = error;
                }
                sleep(REST).await;
            }
        }
    }
}

async fn once(
    store: &mut Store,
    host: &str,
    say: &Sender<Wanted>,
    period: &Sender<Option<Duration>>,
) -> Result<()> {
    let (want, revision) = store.want(host).await?;
    // Unreadable is this host's own trouble; without an answer of etcd nothing is known.
    let known = say.borrow().order.clone();
    let order = match want {
        Ok(Some(want)) => match known.clone().filter(|order| order.want.target == want.target) {
            Some(order) => Ok(Some(Order { want, ..order })),
            None => text(store, &want.target).await?.map(|text| Some(Order { want, text })),
        },
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    let wanted = match order {
        Ok(order) => Wanted { order, problem: None },
        Err(error) => Wanted { order: known, problem: Some(format!("{error:#}")) },
    };
    say.send_if_modified(|before| {
        let is_new = *before != wanted;
        *before = wanted;
        is_new
    });
    period.send_replace(store.period().await?.map(Duration::from_millis));
    let options = WatchOptions::new().with_start_revision(revision + 1);
    let mut events = store.client.watch(store.host_key(host, "want"), Some(options)).await?;
    while let Ok(response) = timeout(SILENCE, events.message()).await {
        let Some(response) = response? else { break };
        if response.canceled() || !response.events().is_empty() {
            // The current one is read: of several changes the last one counts.
            break;
        }
    }
    Ok(())
}

/// The text of a configuration.
///
/// # Errors
/// etcd does not answer. The inner error: its version cannot be read, or has other content.
async fn text(store: &mut Store, target: &Target) -> Result<Result<Option<String>>> {
    if target.group.is_none() {
        return Ok(Ok(None));
    }
    let Some(version) = store.find_version(target.version).await? else {
        return Ok(Err(anyhow::anyhow!("version {} does not exist in etcd", target.version)));
    };
    Ok(version.and_then(|version| {
        let text = version.text_of(target.group.as_deref()).map(str::to_owned);
        let text = text.with_context(|| format!("version {} has no such group", target.version))?;
        ensure!(
            target.hash.as_ref() == Some(&hash(&text)),
            "version {} has another content than was ordered: its number was used twice",
            target.version
        );
        Ok(Some(text))
    }))
}
