//! etcd: reading a fleet at one moment, and changing it only if nobody else has meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use etcd_client::{
    Client, Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::record::{Member, Outcome, Report, Version, Want};
use crate::rollout::Rollout;

/// How long a member of etcd may take to answer, and how often a connection is looked at.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// How often a question is asked again that got no answer: each time another member may get it.
const TRIES: usize = 4;
/// How long between two of them.
const PAUSE: Duration = Duration::from_millis(100);

/// How often a change is tried that a coordinator is faster than.
const EDITS: usize = 20;

/// A fleet in etcd.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) client: Client,
    prefix: String,
}

/// A fleet at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// The rollout under way, or the last one, and etcd's revision of it.
    pub(crate) rollout: Option<(Rollout, i64)>,
    /// Hosts there are.
    pub(crate) members: BTreeMap<String, Member>,
    /// What they are to have.
    pub(crate) wants: BTreeMap<String, Want>,
    /// What those say that are there.
    pub(crate) reports: BTreeMap<String, Report>,
}

impl Snapshot {
    /// The rollout under way.
    pub(crate) fn under_way(&self) -> Option<&Rollout> {
        self.rollout.as_ref().map(|(rollout, _)| rollout).filter(|rollout| !rollout.is_over())
    }
}

impl Store {
    /// The fleet whose keys begin with `prefix`.
    pub(crate) const fn new(client: Client, prefix: String) -> Self {
        Self { client, prefix }
    }

    /// The key of a host's `what`.
    pub(crate) fn host_key(&self, host: &str, what: &str) -> String {
        format!("{}/hosts/{host}/{what}", self.prefix)
    }

    fn rollout_key(&self) -> String {
        format!("{}/rollout", self.prefix)
    }

    fn version_key(&self, version: u64) -> String {
        format!("{}/versions/{version:010}", self.prefix)
    }

    fn outcome_key(&self, version: u64) -> String {
        format!("{}/outcomes/{version:010}", self.prefix)
    }

    /// The fleet, all at one revision.
    ///
    /// # Errors
    /// etcd does not answer, or has what is not understood.
    pub(crate) async fn snapshot(&mut self) -> Result<Snapshot> {
        let hosts = format!("{}/hosts/", self.prefix);
        let gets = [
            TxnOp::get(self.rollout_key(), None),
            TxnOp::get(hosts.clone(), Some(GetOptions::new().with_prefix())),
        ];
        let answer = self.txn(Txn::new().and_then(gets)).await?;
        let mut snapshot = Snapshot::default();
        for response in answer.op_responses() {
            let TxnOpResponse::Get(response) = response else { continue };
            for kv in response.kvs() {
                let key = String::from_utf8_lossy(kv.key()).into_owned();
                let Some((host, what)) = key.strip_prefix(&hosts).and_then(|rest| rest.rsplit_once('/'))
                else {
                    snapshot.rollout = Some((read(kv)?, kv.mod_revision()));
                    continue;
                };
                let host = host.to_owned();
                match what {
                    "member" => _ = snapshot.members.insert(host, read(kv)?),
                    "want" => _ = snapshot.wants.insert(host, read(kv)?),
                    "report" => _ = snapshot.reports.insert(host, read(kv)?),
                    _ => {}
                }
            }
        }
        Ok(snapshot)
    }

    /// All versions, oldest first.
    ///
    /// # Errors
    /// As [`Self::snapshot`].
    pub(crate) async fn versions(&mut self) -> Result<Vec<Version>> {
        let options = GetOptions::new().with_prefix();
        let answer =
            self.client.get(format!("{}/versions/", self.prefix), Some(options)).await.map_err(asked)?;
        answer.kvs().iter().map(read).collect()
    }

    /// A version; version 0 is that there is no fleet.
    ///
    /// # Errors
    /// There is none, or as [`Self::snapshot`].
    pub(crate) async fn version(&mut self, version: u64) -> Result<Version> {
        if version == 0 {
            return Ok(Version::none());
        }
        let answer = self.get(self.version_key(version), None).await?;
        let kv = answer.kvs().first().with_context(|| {
            format!("there is no version {version}: `dcqcn-fleet history` lists those there are")
        })?;
        read(kv)
    }

    /// How rollouts ended, by version.
    ///
    /// # Errors
    /// As [`Self::snapshot`].
    pub(crate) async fn outcomes(&mut self) -> Result<BTreeMap<u64, Outcome>> {
        let prefix = format!("{}/outcomes/", self.prefix);
        let answer = self.get(prefix.clone(), Some(GetOptions::new().with_prefix())).await?;
        let entry = |kv: &KeyValue| -> Result<(u64, Outcome)> {
            let key = String::from_utf8_lossy(kv.key()).into_owned();
            Ok((key.trim_start_matches(&prefix).parse()?, read(kv)?))
        };
        answer.kvs().iter().map(entry).collect()
    }

    /// Begins a rollout, if none began since `seen` (the revision of the last one; 0 if there was none) and nobody has made this
    /// version; a version that is there already is rolled out again.
    ///
    /// # Errors
    /// As [`Self::snapshot`].
    pub(crate) async fn begin(
        &mut self,
        version: Option<&Version>,
        rollout: &Rollout,
        seen: i64,
    ) -> Result<bool> {
        let mut compares = vec![self.unchanged(seen)];
        let mut puts = vec![put(self.rollout_key(), rollout)?];
        if let Some(version) = version {
            let key = self.version_key(version.version);
            compares.push(Compare::version(key.clone(), CompareOp::Equal, 0));
            puts.push(put(key, version)?);
        }
        puts.extend(self.outcome(rollout)?);
        let txn = Txn::new().when(compares).and_then(puts);
        if self.txn(txn).await?.succeeded() {
            return Ok(true);
        }
        // It may be this one's own: an answer was lost, and it was asked again.
        let is_own = version.is_some_and(|version| version.version != 0);
        Ok(is_own && self.version(rollout.version).await.is_ok_and(|kept| Some(&kept) == version))
    }

    /// Keeps a rollout and tells hosts, all or nothing, if nobody has changed it since `seen`. Returns its revision then.
    ///
    /// # Errors
    /// As [`Self::snapshot`].
    pub(crate) async fn keep(
        &mut self,
        rollout: &Rollout,
        wants: &[(String, Want)],
        seen: i64,
    ) -> Result<Option<i64>> {
        let mut puts = vec![put(self.rollout_key(), rollout)?];
        for (host, want) in wants {
            puts.push(put(self.host_key(host, "want"), want)?);
        }
        puts.extend(self.outcome(rollout)?);
        let txn = Txn::new().when([self.unchanged(seen)]).and_then(puts);
        let answer = self.txn(txn).await?;
        Ok(answer.succeeded().then(|| answer.header().map_or(0, |header| header.revision())))
    }

    /// Changes the rollout under way, and returns what it is since.
    ///
    /// # Errors
    /// None is under way, or as [`Self::snapshot`].
    pub(crate) async fn edit(&mut self, edit: impl Fn(&mut Rollout)) -> Result<Rollout> {
        for _ in 0..EDITS {
            let (rollout, revision) =
                self.snapshot().await?.rollout.context("there has been no rollout yet")?;
            if rollout.is_over() {
                bail!("no rollout is under way; version {} is {}", rollout.version, rollout.status());
            }
            let mut edited = rollout;
            edit(&mut edited);
            if self.keep(&edited, &[], revision).await?.is_some() {
                return Ok(edited);
            }
        }
        bail!("coordinators are faster, {EDITS} times in a row: try again")
    }

    /// Writes what a host says; under a lease it is gone when that ends. Returns the lease of what stood there before, 0 without one.
    ///
    /// # Errors
    /// As [`Self::snapshot`].
    pub(crate) async fn say(
        &mut self,
        host: &str,
        what: &str,
        value: &impl Serialize,
        lease: Option<i64>,
    ) -> Result<Option<i64>> {
        let options = PutOptions::new().with_prev_key().with_lease(lease.unwrap_or_default());
        let (key, value) = (self.host_key(host, what), text(value)?);
        let ask = |mut client: Client| {
            let (key, value, options) = (key.clone(), value.clone(), options.clone());
            async move { client.put(key, value, Some(options)).await }
        };
        Ok(self.tried(ask).await?.prev_key().map(KeyValue::lease))
    }

    /// What a host is to have, and etcd's revision at that moment.
    ///
    /// # Errors
    /// As [`Self::snapshot`].
    pub(crate) async fn want(&mut self, host: &str) -> Result<(Option<Want>, i64)> {
        let answer = self.get(self.host_key(host, "want"), None).await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok((answer.kvs().first().map(read).transpose()?, revision))
    }

    async fn get(&self, key: String, options: Option<GetOptions>) -> Result<GetResponse> {
        let ask = |mut client: Client| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.get(key, options).await }
        };
        self.tried(ask).await
    }

    /// One that was done, and whose answer was lost, is asked again: it compares, and finds that it is too late.
    async fn txn(&self, txn: Txn) -> Result<TxnResponse> {
        let ask = |mut client: Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        };
        self.tried(ask).await
    }

    /// Asks until somebody answers, a few times: a member that is away is asked like the others.
    async fn tried<T, F>(&self, ask: impl Fn(Client) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        for _ in 1..TRIES {
            match ask(self.client.clone()).await {
                Err(error) if is_passing(&error) => sleep(PAUSE).await,
                result => return result.map_err(asked),
            }
        }
        ask(self.client.clone()).await.map_err(asked)
    }

    /// How a rollout ended; that hosts which came later have a version or not says nothing of the version.
    fn outcome(&self, rollout: &Rollout) -> Result<Option<TxnOp>> {
        let outcome = rollout.outcome().filter(|_| !rollout.is_for_newcomers);
        outcome.map(|outcome| put(self.outcome_key(rollout.version), &outcome)).transpose()
    }

    fn unchanged(&self, seen: i64) -> Compare {
        Compare::mod_revision(self.rollout_key(), CompareOp::Equal, seen)
    }
}

/// Whether another member may answer, or the same one later.
fn is_passing(error: &etcd_client::Error) -> bool {
    let text = error.to_string();
    let words =
        ["Unavailable", "unavailable", "Timeout", "timed out", "transport", "no leader", "leader changed"];
    matches!(error, etcd_client::Error::TransportError(_)) || words.iter().any(|word| text.contains(word))
}

/// Says what to look at when etcd does not do what it is asked for.
fn asked(error: etcd_client::Error) -> anyhow::Error {
    let (text, is_passing) = (error.to_string(), is_passing(&error));
    let error = match error {
        // Its own words are the whole structure.
        etcd_client::Error::GRpcStatus(status) => anyhow!("{}", status.message()),
        other => other.into(),
    };
    if text.contains("permission denied") {
        error.context("etcd refuses: this user has no right to that (docs/how-to/fleet.md has the roles)")
    } else if text.contains("space exceeded") {
        error.context("etcd is full: `etcdctl compact`, `etcdctl defrag`, then `etcdctl alarm disarm`")
    } else if is_passing {
        error.context("no member of etcd answers: are they running, and is `--etcd` right?")
    } else {
        error.context("etcd does not do it")
    }
}

/// A record.
///
/// # Errors
/// It was written by something else.
pub(crate) fn read<T: DeserializeOwned>(kv: &KeyValue) -> Result<T> {
    serde_json::from_slice(kv.value()).with_context(|| {
        let key = String::from_utf8_lossy(kv.key()).into_owned();
        format!("{key} in etcd is not understood: was it written by another version of dcqcn-fleet?")
    })
}

fn text(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(value)?;
    // etcd takes 1.5 MiB as a whole.
    ensure!(text.len() <= 1 << 20, "a record of {} bytes: etcd takes no more than 1 MiB", text.len());
    Ok(text)
}

fn put(key: String, value: &impl Serialize) -> Result<TxnOp> {
    Ok(TxnOp::put(key, text(value)?, None))
}
