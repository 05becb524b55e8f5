//! What etcd says this host is to have.

use std::time::Duration;

use anyhow::Result;
use etcd_client::WatchOptions;
use tokio::sync::watch::Sender;
use tokio::time::{sleep, timeout};

use crate::record::Want;
use crate::store::Store;

/// How long nothing may be heard before etcd is asked anew.
const SILENCE: Duration = Duration::from_secs(30);
/// How long etcd is left alone when it does not answer.
const REST: Duration = Duration::from_secs(1);

/// Tells what is wanted, whenever that changes. A watch that ends, for whatever reason, is begun anew from what there is: nothing
/// in between is needed, so that compaction does no harm.
pub(super) async fn follow(mut store: Store, host: String, say: Sender<Option<Want>>) {
    let mut told = String::new();
    loop {
        match once(&mut store, &host, &say).await {
            Ok(()) => told.clear(),
            Err(error) => {
                let error = format!("{error:#}");
                if error != told {
                    tracing::warn!(error, "etcd does not answer: all stays as it is");
                    told = error;
                }
                sleep(REST).await;
            }
        }
    }
}

async fn once(store: &mut Store, host: &str, say: &Sender<Option<Want>>) -> Result<()> {
    let (want, revision) = store.want(host).await?;
    tell(say, want);
    let options = WatchOptions::new().with_start_revision(revision + 1);
    let mut events = store.client.watch(store.host_key(host, "want"), Some(options)).await?;
    while let Ok(response) = timeout(SILENCE, events.message()).await {
        let Some(response) = response? else { break };
        if response.canceled() || !response.events().is_empty() {
            // What there is, and not what there was: of several changes the last one counts.
            break;
        }
    }
    Ok(())
}

fn tell(say: &Sender<Option<Want>>, want: Option<Want>) {
    say.send_if_modified(|known| {
        let is_new = *known != want;
        *known = want;
        is_new
    });
}
