//! The order for this host in etcd.

use etcd_client::WatchOptions;
use tokio::sync::watch::Sender;

use crate::prelude::*;
use crate::record::hash;

/// Maximum silence of a watch before the order is read again.
const MAX_SILENCE: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// An order with the text of its configuration; `None` if only the host's own file applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) desired: DesiredConfig,
    pub(super) text: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LatestOrder {
    pub(super) order: Option<Order>,
    pub(super) problem: Option<String>,
}

/// Publishes the order whenever it changes, and the fleet's reporting period.
///
/// After the end of a watch, the current order is read again. History is not needed, so compaction has no effect.
pub(super) async fn follow(
    mut store: Store,
    host: String,
    sender: Sender<LatestOrder>,
    period: Sender<Option<Duration>>,
) {
    let mut logged = String::new();
    loop {
        match once(&mut store, &host, &sender, &period).await {
            Ok(()) => logged.clear(),
            Err(error) => {
                let error = one_line(&error);
                if error != logged {
                    tracing::warn!(error, "cannot read the order of this host; keeping its configuration");
                    logged = error;
                }
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

async fn once(
    store: &mut Store,
    host: &str,
    sender: &Sender<LatestOrder>,
    period: &Sender<Option<Duration>>,
) -> Result<()> {
    let (desired, revision) = store.desired(host).await?;
    // An unreadable order is a complaint of this host; an etcd error is only retried.
    let known = sender.borrow().order.clone();
    let order = match desired {
        Ok(Some(desired)) => match known.clone().filter(|order| order.desired.target == desired.target) {
            Some(order) => Ok(Some(Order { desired, ..order })),
            None => text(store, &desired.target).await?.map(|text| Some(Order { desired, text })),
        },
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    let latest = match order {
        Ok(order) => LatestOrder { order, problem: None },
        Err(error) => LatestOrder { order: known, problem: Some(one_line(&error)) },
    };
    sender.send_if_modified(|before| {
        let is_new = *before != latest;
        *before = latest;
        is_new
    });
    period.send_replace(store.period().await?.map(Duration::from_millis));
    let options = WatchOptions::new().with_start_revision(revision + 1);
    let mut events =
        store.client.watch(store.host_key(host, "want"), Some(options)).await.map_err(EtcdError)?;
    while let Ok(response) = timeout(MAX_SILENCE, events.message()).await {
        let Some(response) = response.map_err(EtcdError)? else { break };
        if response.canceled() || !response.events().is_empty() {
            // Read the current order again; intermediate changes are irrelevant.
            break;
        }
    }
    Ok(())
}

/// Reads the text of a configuration. The inner error: the version is unreadable, or differs from the ordered content.
async fn text(store: &mut Store, target: &Target) -> Result<Result<Option<String>>> {
    if target.group.is_none() {
        return Ok(Ok(None));
    }
    let number = target.version;
    let Some(version) = store.find_version(number).await? else {
        return Ok(Err(Error::VersionDeleted(number)));
    };
    Ok(version.and_then(|version| {
        let text = version.text_of(target.group.as_deref()).map(str::to_owned);
        let text = text.ok_or(Error::NoGroup(number))?;
        let is_same = target.hash.as_ref() == Some(&hash(&text));
        if is_same { Ok(Some(text)) } else { Err(Error::OtherContent(number)) }
    }))
}
