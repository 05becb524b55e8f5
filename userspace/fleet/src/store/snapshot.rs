//! The fleet at one etcd revision: read page by page, then updated by a watch.

use etcd_client::{EventType, GetOptions, KeyValue, WatchOptions, WatchStream};
use tokio::time::timeout_at;

use super::{MAX_MESSAGE_BYTES, PAGE, below, read};
use crate::prelude::*;
use crate::record::MAX_HOST_BYTES;

/// Maximum silence of the watch before the fleet is read again; agents report more often.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// The fleet at one etcd revision. An unreadable record of a host affects only that host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) revision: i64,
    /// The current or last rollout without its steps, and the revision of its record.
    head: Option<(Result<Rollout, Arc<Error>>, i64)>,
    /// Steps by `ID/HOST`.
    steps: BTreeMap<String, Step>,
    pub(crate) names: BTreeSet<String>,
    /// Hosts whose labels are known.
    pub(crate) members: BTreeMap<String, Member>,
    pub(crate) desired_configs: BTreeMap<String, DesiredConfig>,
    /// Revisions of all orders, readable or not.
    pub(crate) ordered: BTreeMap<String, i64>,
    pub(crate) hosts: Hosts,
    /// Errors of unreadable records, by host and record.
    pub(crate) unreadable: BTreeMap<String, BTreeMap<&'static str, String>>,
    pub(crate) coordinators: BTreeSet<String>,
}

impl Snapshot {
    /// The current or last rollout with its steps, and its revision. An unreadable record is an error.
    pub(crate) fn rollout(&self) -> Result<Option<(Rollout, i64)>> {
        let Some((head, revision)) = &self.head else { return Ok(None) };
        let mut rollout = head.clone()?;
        let prefix = format!("{}/", rollout.id);
        let own = self.steps.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
        rollout.steps = own.map(|(_, step)| step.clone()).collect();
        rollout.steps.sort_by(|a, b| (a.wave, &a.host).cmp(&(b.wave, &b.host)));
        let (found, expected) = (rollout.steps.len(), rollout.hosts);
        if found != expected {
            return Err(Error::StepsMissing { version: rollout.version, found, expected });
        }
        Ok(Some((rollout, *revision)))
    }

    /// The revision of the current or last rollout; 0 if there was none.
    pub(crate) fn rollout_revision(&self) -> i64 {
        self.head.as_ref().map_or(0, |(_, revision)| *revision)
    }

    pub(crate) fn in_progress(&self) -> Option<&Rollout> {
        let (head, _) = self.head.as_ref()?;
        head.as_ref().ok().filter(|rollout| !rollout.is_over())
    }

    /// Updates the snapshot with the record at key `rest` below the prefix; `None`: it was deleted.
    fn update(&mut self, rest: &str, kv: Option<&KeyValue>) {
        if rest == "rollout" {
            self.head = kv.map(|kv| (read(kv).map_err(Arc::new), kv.mod_revision()));
        } else if let Some(key) = rest.strip_prefix("steps/") {
            // `rollout` detects missing steps by their number.
            match kv.map(read).transpose() {
                Ok(Some(step)) => _ = self.steps.insert(key.to_owned(), step),
                Ok(None) => _ = self.steps.remove(key),
                Err(error) => tracing::warn!(error = one_line(&error), "step cannot be read"),
            }
        } else if let Some(key) = rest.strip_prefix("coordinators/") {
            match kv {
                Some(_) => _ = self.coordinators.insert(key.to_owned()),
                None => _ = self.coordinators.remove(key),
            }
        } else if let Some((host, what)) = rest.strip_prefix("hosts/").and_then(|rest| rest.split_once('/')) {
            match kv {
                Some(kv) => self.put_host(host, what, kv),
                None => self.delete_host(host, what),
            }
        }
    }

    fn put_host(&mut self, host: &str, what: &str, kv: &KeyValue) {
        let name = host.to_owned();
        let (what, result) = match what {
            "member" => ("member", bounded(kv).map(|member| _ = self.members.insert(name, member))),
            "want" => {
                self.ordered.insert(name.clone(), kv.mod_revision());
                ("want", bounded(kv).map(|desired| _ = self.desired_configs.insert(name, desired)))
            }
            "report" => {
                let revision = kv.mod_revision();
                let report = bounded(kv).map(Report::bounded);
                let insert = |report| _ = self.hosts.insert(name, ReceivedReport { report, revision });
                ("report", report.map(insert))
            }
            _ => return,
        };
        if result.is_err() {
            // Treat an unreadable record as absent.
            self.remove(host, what);
        }
        self.note(host, what, result.err());
        self.names.insert(host.to_owned());
    }

    fn note(&mut self, host: &str, what: &'static str, error: Option<Error>) {
        if let Some(error) = error {
            self.unreadable.entry(host.to_owned()).or_default().insert(what, one_line(&error));
        } else if let Some(bad) = self.unreadable.get_mut(host) {
            bad.remove(what);
            if bad.is_empty() {
                self.unreadable.remove(host);
            }
        }
    }

    fn remove(&mut self, host: &str, what: &str) {
        match what {
            "member" => _ = self.members.remove(host),
            "want" => _ = self.desired_configs.remove(host),
            _ => _ = self.hosts.remove(host),
        }
    }

    fn delete_host(&mut self, host: &str, what: &str) {
        self.remove(host, what);
        if what == "want" {
            self.ordered.remove(host);
        }
        if let Some(what) = ["member", "want", "report"].into_iter().find(|known| *known == what) {
            self.note(host, what, None);
        }
        let is_known = self.members.contains_key(host)
            || self.hosts.contains_key(host)
            || self.ordered.contains_key(host)
            || self.unreadable.contains_key(host);
        if !is_known {
            self.names.remove(host);
        }
    }
}

/// Parses a record of a host, unless it is too long.
fn bounded<T: DeserializeOwned>(kv: &KeyValue) -> Result<T> {
    let length = kv.value().len();
    if length > MAX_HOST_BYTES { Err(Error::HostRecord(length)) } else { read(kv) }
}

impl Store {
    pub(crate) async fn snapshot(&mut self) -> Result<Snapshot> {
        self.read_snapshot(&["coordinators/", "hosts/"]).await
    }

    /// Reads the current or last rollout with its steps, and its revision.
    pub(crate) async fn rollout(&mut self) -> Result<Option<(Rollout, i64)>> {
        self.read_snapshot(&[]).await?.rollout()
    }

    /// Reads the rollout, its steps, and the records below `prefixes`.
    async fn read_snapshot(&mut self, prefixes: &[&str]) -> Result<Snapshot> {
        let head = self.get(self.key("rollout"), None).await?;
        let revision = head.header().ok_or(Error::NoHeader)?.revision();
        let mut snapshot = Snapshot { revision, ..Snapshot::default() };
        snapshot.update("rollout", head.kvs().first());
        let mut ranges: Vec<String> = prefixes.iter().map(|prefix| self.key(prefix)).collect();
        if let Some((Ok(rollout), _)) = &snapshot.head {
            ranges.push(self.steps_key(&rollout.id));
        }
        let prefix = self.key("");
        for range in ranges {
            for kv in &self.range(&range, PAGE, revision).await? {
                if let Some(rest) = below(kv, &prefix) {
                    snapshot.update(rest, Some(kv));
                }
            }
        }
        Ok(snapshot)
    }

    pub(crate) async fn is_coordinated(&mut self) -> Result<bool> {
        let options = GetOptions::new().with_prefix().with_count_only();
        Ok(self.get(self.key("coordinators/"), Some(options)).await?.count() > 0)
    }
}

pub(crate) struct Mirror {
    store: Store,
    snapshot: Arc<Snapshot>,
    watch: Option<WatchStream>,
    received_at: Instant,
    pub(crate) reads: u64,
}

impl Mirror {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, snapshot: Arc::default(), watch: None, received_at: Instant::now(), reads: 0 }
    }

    /// Returns the fleet after `tick`. The first call, and one after an error, read it completely without waiting.
    pub(crate) async fn next(&mut self, tick: Duration) -> Result<Arc<Snapshot>> {
        let until = Instant::now() + tick;
        if self.received_at.elapsed() >= MAX_SILENCE {
            self.watch = None;
        }
        let Some(mut watch) = self.watch.take() else { return self.read().await };
        loop {
            let Ok(response) = timeout_at(until, watch.message()).await else { break };
            let Some(response) = response.map_err(|error| self.store.explain(error))? else {
                return Err(Error::WatchEnded);
            };
            if response.canceled() {
                return Err(Error::WatchCanceled(response.cancel_reason().to_owned()));
            }
            self.received_at = Instant::now();
            let prefix = self.store.key("");
            // Copies only if the caller still holds the previous snapshot.
            let snapshot = Arc::make_mut(&mut self.snapshot);
            for event in response.events() {
                let Some(kv) = event.kv() else { continue };
                let Some(rest) = below(kv, &prefix) else { continue };
                snapshot.update(rest, (event.event_type() == EventType::Put).then_some(kv));
            }
            if let Some(header) = response.header() {
                snapshot.revision = snapshot.revision.max(header.revision());
            }
        }
        self.watch = Some(watch);
        Ok(Arc::clone(&self.snapshot))
    }

    async fn read(&mut self) -> Result<Arc<Snapshot>> {
        self.snapshot = Arc::new(self.store.snapshot().await?);
        self.reads += 1;
        let options = WatchOptions::new().with_prefix().with_start_revision(self.snapshot.revision + 1);
        let mut client = self.store.client.watch_client().max_decoding_message_size(MAX_MESSAGE_BYTES);
        let watch = client.watch(self.store.key(""), Some(options)).await;
        let watch = watch.map_err(|error| self.store.explain(error))?;
        (self.watch, self.received_at) = (Some(watch), Instant::now());
        Ok(Arc::clone(&self.snapshot))
    }
}
