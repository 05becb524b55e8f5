//! Access to etcd: consistent reads of the fleet, and compare-and-swap changes of the rollout.

mod snapshot;

use std::error::Error as _;
use std::io;
use std::iter;

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, GetOptions, GetResponse, KeyValue, KvClient, PutOptions, Txn,
    TxnOp, TxnResponse,
};

use crate::prelude::*;
use crate::rollout::next;
pub(crate) use snapshot::{Mirror, Snapshot};

/// Time limit for a response, and keep-alive period of connections.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(3);
/// Attempts of a request; each may go to another member.
const ATTEMPTS: usize = 4;
const RETRY_DELAY: Duration = Duration::from_millis(100);
pub(crate) const EDITS: usize = 20;
/// Records per page. Those of hosts are the longest: at most 64 KiB, usually a few hundred bytes.
const PAGE: i64 = 500;
/// Maximum size of a received message, in bytes: a page of the longest records.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Maximum operations per transaction; etcd's limit is 128.
const MAX_OPERATIONS: usize = 120;
/// Maximum size of a written record, in bytes; etcd's limit is 1.5 MiB per request.
pub(crate) const MAX_RECORD_BYTES: usize = 1 << 20;
/// Maximum hosts of a rollout; tested with 10,000.
pub(crate) const MAX_HOSTS: usize = 20_000;

/// By version.
type Outcomes = BTreeMap<u64, Outcome>;

#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) client: Client,
    prefix: String,
    address: String,
}

impl Store {
    pub(crate) const fn new(client: Client, prefix: String, address: String) -> Self {
        Self { client, prefix, address }
    }

    /// Classifies an error of etcd by its fix.
    fn explain(&self, error: etcd_client::Error) -> Error {
        let source = EtcdError(error);
        let address = || self.address.clone();
        match code(&source.0) {
            Some(PERMISSION_DENIED | UNAUTHENTICATED) => Error::Permission(source),
            _ if source.is_unauthenticated() => Error::Unauthenticated(source),
            Some(RESOURCE_EXHAUSTED) => Error::Full(source),
            _ if source.is_tls() => Error::Tls { address: address(), source },
            _ if is_passing(&source.0) => Error::Unreachable { address: address(), source },
            _ => Error::Rejected(source),
        }
    }

    fn kv(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    fn key(&self, rest: &str) -> String {
        format!("{}/{rest}", self.prefix)
    }

    pub(crate) fn host_key(&self, host: &str, what: &str) -> String {
        self.key(&format!("hosts/{host}/{what}"))
    }

    fn steps_key(&self, id: &str) -> String {
        self.key(&format!("steps/{id}/"))
    }

    fn version_key(&self, version: u64) -> String {
        self.key(&format!("versions/{version:010}"))
    }

    fn outcome_key(&self, version: u64) -> String {
        self.key(&format!("outcomes/{version:010}"))
    }

    /// Reads all versions, oldest first, and skips unreadable ones.
    pub(crate) async fn versions(&mut self) -> Result<Vec<Version>> {
        // Versions are long: use small pages.
        let kvs = self.range(&self.key("versions/"), 8, 0).await?;
        let read = |kv: &KeyValue| {
            read(kv).inspect_err(|error| tracing::warn!(error = one_line(error), "version skipped")).ok()
        };
        Ok(kvs.iter().filter_map(read).collect())
    }

    /// Numbers of all versions with a record, readable or not.
    pub(crate) async fn version_numbers(&mut self) -> Result<BTreeSet<u64>> {
        let prefix = self.key("versions/");
        let options = GetOptions::new().with_prefix().with_keys_only();
        let answer = self.get(prefix.clone(), Some(options)).await?;
        Ok(answer.kvs().iter().filter_map(|kv| number(kv, &prefix)).collect())
    }

    /// Reads a version; version 0 is [`Version::default`].
    pub(crate) async fn version(&mut self, version: u64) -> Result<Version> {
        if version == 0 {
            return Ok(Version::default());
        }
        self.find_version(version).await?.ok_or(Error::NoVersion(version))?
    }

    /// Reads a version, if it exists. The inner error: it is unreadable.
    pub(crate) async fn find_version(&mut self, version: u64) -> Result<Option<Result<Version>>> {
        Ok(self.get(self.version_key(version), None).await?.kvs().first().map(read))
    }

    /// Reads the active version: the last one whose rollout succeeded, if it still exists.
    pub(crate) async fn active_version(&mut self, outcomes: &Outcomes) -> Result<Option<Version>> {
        let Some(version) = last_done(outcomes) else { return Ok(None) };
        self.find_version(version).await?.transpose()
    }

    pub(crate) async fn outcomes(&mut self) -> Result<Outcomes> {
        let prefix = self.key("outcomes/");
        let kvs = self.range(&prefix, PAGE, 0).await?;
        let unreadable = || Outcome { is_done: false, reason: "its record cannot be read".into() };
        let entry = |kv: &KeyValue| Some((number(kv, &prefix)?, read(kv).unwrap_or_else(|_| unreadable())));
        Ok(kvs.iter().filter_map(entry).collect())
    }

    /// Begins a rollout, unless another began since revision `seen` (0: there was none) or its version exists.
    ///
    /// The steps are written first, below a separate key. They take effect when the rollout record refers to it.
    pub(crate) async fn begin(
        &mut self,
        version: &Version,
        rollout: &mut Rollout,
        seen: i64,
    ) -> Result<bool> {
        let hosts = rollout.steps.len();
        if hosts > MAX_HOSTS {
            return Err(Error::TooManyHosts(hosts));
        }
        rollout.id = format!("{}-{:016x}", rollout.version, fastrand::u64(..));
        let prefix = self.steps_key(&rollout.id);
        let mut puts =
            vec![put(self.key("rollout"), &*rollout)?, put(self.version_key(version.version), version)?];
        puts.extend(self.outcome(rollout)?);
        let swept = self.get(self.key("swept"), None).await?.kvs().first().map_or(0, KeyValue::mod_revision);
        for chunk in rollout.steps.chunks(MAX_OPERATIONS) {
            let put = |step: &Step| put(format!("{prefix}{}", step.host), step);
            self.txn(Txn::new().and_then(chunk.iter().map(put).collect::<Result<Vec<_>>>()?)).await?;
        }
        let is_new = Compare::version(self.version_key(version.version), CompareOp::Equal, 0);
        let is_whole = Compare::mod_revision(self.key("swept"), CompareOp::Equal, swept);
        let txn = Txn::new().when([self.unchanged(seen), is_new, is_whole]).and_then(puts);
        // A retry after a lost response fails the comparison, but finds its own rollout. Another operator's
        // version may be equal to this one, in all fields.
        let has_started = self.txn(txn).await?.succeeded() || self.is_current(&rollout.id).await?;
        let cleaned = match has_started {
            true => self.delete_other_steps(&rollout.id).await,
            false => self.delete(&prefix).await,
        };
        // The rollout exists, or not, whatever this returned; the next one deletes what remains.
        if let Err(error) = cleaned {
            tracing::warn!(error = one_line(&error), "cannot delete the steps of a rollout");
        }
        Ok(has_started)
    }

    async fn is_current(&mut self, id: &str) -> Result<bool> {
        let head = self.get(self.key("rollout"), None).await?;
        Ok(head.kvs().first().is_some_and(|kv| read::<Rollout>(kv).is_ok_and(|rollout| rollout.id == id)))
    }

    /// Deletes all steps except those of rollout `current`. A concurrent [`Self::begin`] then fails its comparison.
    async fn delete_other_steps(&mut self, current: &str) -> Result<()> {
        let (all, current) = (self.key("steps/"), self.steps_key(current));
        let delete =
            |from: Vec<u8>, to: Vec<u8>| TxnOp::delete(from, Some(DeleteOptions::new().with_range(to)));
        let operations = [
            delete(all.clone().into(), current.clone().into()),
            delete(end_of(&current), end_of(&all)),
            put(self.key("swept"), &current)?,
        ];
        self.txn(Txn::new().and_then(operations)).await.map(drop)
    }

    /// Writes the next state of a rollout and its orders. Returns the new revision, or `None` if it changed
    /// since `seen`.
    ///
    /// The rollout, the orders and their steps are written in one transaction. Other changed steps are
    /// written before it: they are observations, and valid even if the transaction fails.
    pub(crate) async fn write_state(
        &mut self,
        rollout: &Rollout,
        changed: &[&Step],
        desired_configs: &[(String, DesiredConfig)],
        seen: i64,
    ) -> Result<Option<i64>> {
        let prefix = self.steps_key(&rollout.id);
        let ordered: BTreeSet<&str> = desired_configs.iter().map(|(host, _)| host.as_str()).collect();
        let mut puts = vec![put(self.key("rollout"), rollout)?];
        for (host, desired) in desired_configs {
            puts.push(put(self.host_key(host, "want"), desired)?);
        }
        puts.extend(self.outcome(rollout)?);
        let (decided, observed): (Vec<&Step>, Vec<&Step>) =
            changed.iter().copied().partition(|step| ordered.contains(step.host.as_str()));
        let step = |step: &&Step| put(format!("{prefix}{}", step.host), *step);
        puts.extend(decided.iter().map(step).collect::<Result<Vec<_>>>()?);
        for chunk in observed.chunks(MAX_OPERATIONS) {
            let txn = Txn::new().when([self.unchanged(seen)]);
            let txn = txn.and_then(chunk.iter().map(step).collect::<Result<Vec<_>>>()?);
            if !self.txn(txn).await?.succeeded() {
                return Ok(None);
            }
        }
        let answer = self.txn(Txn::new().when([self.unchanged(seen)]).and_then(puts)).await?;
        Ok(answer.succeeded().then(|| answer.header().map_or(0, |header| header.revision())))
    }

    /// Applies an operator's event to the current rollout, and returns the new state.
    pub(crate) async fn edit(&mut self, event: Event<'_>) -> Result<(Rollout, Vec<String>)> {
        for _ in 0..EDITS {
            let (rollout, revision) = self.rollout().await?.ok_or(Error::NoRollout)?;
            let (version, status) = (rollout.version, rollout.status());
            if rollout.is_over() {
                return Err(Error::RolloutOver { version, status });
            }
            if matches!(rollout.phase, Phase::Back { .. }) && !matches!(event, Event::Abort { .. }) {
                return Err(Error::RollingBack { version, status });
            }
            let before = rollout.steps.clone();
            let (edited, effects) = next(rollout, event);
            if self.write_state(&edited, &differing(&before, &edited.steps), &[], revision).await?.is_some() {
                return Ok((edited, messages(&effects).map(str::to_owned).collect()));
            }
        }
        Err(Error::Raced)
    }

    /// Writes an order outside a rollout, unless the order changed since revision `known`, or the rollout since `seen`.
    pub(crate) async fn order(
        &mut self,
        host: &str,
        desired: &DesiredConfig,
        known: i64,
        seen: i64,
    ) -> Result<bool> {
        let key = self.host_key(host, "want");
        let is_same = Compare::mod_revision(key.clone(), CompareOp::Equal, known);
        let txn = Txn::new().when([self.unchanged(seen), is_same]).and_then([put(key, desired)?]);
        Ok(self.txn(txn).await?.succeeded())
    }

    /// Writes a record of a host, optionally under a lease. Returns the lease of the replaced record, 0 if it had none.
    pub(crate) async fn put_record(
        &mut self,
        host: &str,
        what: &str,
        value: &impl Serialize,
        lease: Option<i64>,
    ) -> Result<Option<i64>> {
        let answer = self.put_leased(self.host_key(host, what), value, lease).await?;
        Ok(answer.map(|kv| kv.lease()))
    }

    pub(crate) async fn put_coordinator(&mut self, name: &str, lease: i64) -> Result<()> {
        let key = self.key(&format!("coordinators/{lease:016x}"));
        self.put_leased(key, &name, Some(lease)).await.map(drop)
    }

    pub(crate) async fn put_period(&mut self, period_ms: u64) -> Result<()> {
        self.put_leased(self.key("period"), &period_ms, None).await.map(drop)
    }

    async fn put_leased(
        &self,
        key: String,
        value: &impl Serialize,
        lease: Option<i64>,
    ) -> Result<Option<KeyValue>> {
        let options = PutOptions::new().with_prev_key().with_lease(lease.unwrap_or_default());
        let value = text(value)?;
        let request = |mut client: KvClient| {
            let (key, value, options) = (key.clone(), value.clone(), options.clone());
            async move { client.put(key, value, Some(options)).await }
        };
        Ok(self.with_retries(request).await?.take_prev_key())
    }

    /// Reads the order of a host, and the etcd revision of the read. The inner error: the order is unreadable.
    pub(crate) async fn desired(&mut self, host: &str) -> Result<(Result<Option<DesiredConfig>>, i64)> {
        let answer = self.get(self.host_key(host, "want"), None).await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok((answer.kvs().first().map(read).transpose(), revision))
    }

    /// Reads the reporting period of agents, in milliseconds; `None` if no coordinator has written it.
    pub(crate) async fn period(&mut self) -> Result<Option<u64>> {
        let answer = self.get(self.key("period"), None).await?;
        Ok(answer.kvs().first().and_then(|kv| read(kv).ok()))
    }

    /// Deletes all records of a host, unless its agent reported since revision `seen`.
    pub(crate) async fn forget(&mut self, host: &str, seen: i64) -> Result<()> {
        let is_silent = Compare::mod_revision(self.host_key(host, "report"), CompareOp::Less, seen + 1);
        let all = DeleteOptions::new().with_prefix();
        let txn = Txn::new().when([is_silent]).and_then([TxnOp::delete(self.host_key(host, ""), Some(all))]);
        let is_deleted = self.txn(txn).await?.succeeded();
        if is_deleted { Ok(()) } else { Err(Error::HostReports(host.to_owned())) }
    }

    /// Deletes versions and their outcomes, unless a rollout began since revision `seen`. Each begins with a
    /// new version; the rollout's own record changes every second.
    pub(crate) async fn prune(&mut self, versions: &[u64], seen: i64) -> Result<()> {
        for chunk in versions.chunks(MAX_OPERATIONS / 2) {
            let keys =
                chunk.iter().flat_map(|version| [self.version_key(*version), self.outcome_key(*version)]);
            let deletes: Vec<TxnOp> = keys.map(|key| TxnOp::delete(key, None)).collect();
            let versions = Compare::create_revision(self.key("versions/"), CompareOp::Less, seen + 1);
            let txn = Txn::new().when([versions.with_prefix()]).and_then(deletes);
            if !self.txn(txn).await?.succeeded() {
                return Err(Error::RolloutBegan);
            }
        }
        Ok(())
    }

    async fn delete(&self, prefix: &str) -> Result<()> {
        let request = |mut client: KvClient| {
            let prefix = prefix.to_owned();
            async move { client.delete(prefix, Some(DeleteOptions::new().with_prefix())).await }
        };
        self.with_retries(request).await.map(drop)
    }

    /// Reads all records below a prefix at one revision (0: the current one), page by page.
    async fn range(&self, prefix: &str, page: i64, mut revision: i64) -> Result<Vec<KeyValue>> {
        let (mut kvs, mut from) = (Vec::new(), prefix.as_bytes().to_vec());
        loop {
            let options =
                GetOptions::new().with_range(end_of(prefix)).with_limit(page).with_revision(revision);
            let mut answer = self.get(from, Some(options)).await?;
            if revision == 0 {
                revision = answer.header().map_or(0, |header| header.revision());
            }
            let more = answer.more();
            kvs.append(&mut answer.take_kvs());
            let Some(last) = kvs.last().filter(|_| more) else { return Ok(kvs) };
            // The key after the last one.
            from = [last.key(), &[0]].concat();
        }
    }

    async fn get(&self, key: impl Into<Vec<u8>>, options: Option<GetOptions>) -> Result<GetResponse> {
        let key = key.into();
        let request = |mut client: KvClient| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.get(key, options).await }
        };
        self.with_retries(request).await
    }

    /// Runs a transaction. A retry after a lost response fails its comparison.
    async fn txn(&self, txn: Txn) -> Result<TxnResponse> {
        let request = |mut client: KvClient| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        };
        self.with_retries(request).await
    }

    pub(crate) async fn grant_lease(&mut self, ttl_s: i64) -> Result<i64> {
        let id = self.client.lease_grant(ttl_s, None).await.map_err(EtcdError)?.id();
        if id == 0 { Err(Error::NoLease) } else { Ok(id) }
    }

    /// Keeps a lease alive, with a request per `period`, until etcd does not respond within `limit`.
    pub(crate) async fn keep_lease(&mut self, id: i64, period: Duration, limit: Duration) -> Result<()> {
        let (mut keeper, mut answers) = self.client.lease_keep_alive(id).await.map_err(EtcdError)?;
        loop {
            sleep(period).await;
            keeper.keep_alive().await.map_err(EtcdError)?;
            let answer = timeout(limit, answers.message()).await?.map_err(EtcdError)?;
            if answer.is_none_or(|answer| answer.ttl() <= 0) {
                return Err(Error::LeaseExpired);
            }
        }
    }

    async fn with_retries<T, F>(&self, request: impl Fn(KvClient) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        for _ in 1..ATTEMPTS {
            match request(self.kv()).await {
                Err(error) if is_passing(&error) => sleep(RETRY_DELAY).await,
                result => return result.map_err(|error| self.explain(error)),
            }
        }
        request(self.kv()).await.map_err(|error| self.explain(error))
    }

    fn outcome(&self, rollout: &Rollout) -> Result<Option<TxnOp>> {
        let outcome = rollout.outcome();
        outcome.map(|outcome| put(self.outcome_key(rollout.version), &outcome)).transpose()
    }

    fn unchanged(&self, seen: i64) -> Compare {
        Compare::mod_revision(self.key("rollout"), CompareOp::Equal, seen)
    }
}

pub(crate) fn differing<'a>(before: &[Step], after: &'a [Step]) -> Vec<&'a Step> {
    after.iter().zip(before).filter(|(after, before)| after != before).map(|(after, _)| after).collect()
}

pub(crate) fn messages(effects: &[Effect]) -> impl Iterator<Item = &str> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Print(line) => Some(line.as_str()),
        Effect::Send { .. } => None,
    })
}

/// End of the range of keys with this prefix, whose last character must be ASCII.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn below<'a>(kv: &'a KeyValue, prefix: &str) -> Option<&'a str> {
    std::str::from_utf8(kv.key()).ok()?.strip_prefix(prefix)
}

fn number(kv: &KeyValue, prefix: &str) -> Option<u64> {
    below(kv, prefix)?.parse().ok()
}

pub(crate) fn last_done(outcomes: &Outcomes) -> Option<u64> {
    outcomes.iter().rev().find(|(_, outcome)| outcome.is_done).map(|(version, _)| *version)
}

pub(crate) fn read<T: DeserializeOwned>(kv: &KeyValue) -> Result<T> {
    serde_json::from_slice(kv.value()).map_err(|source| {
        let key = String::from_utf8_lossy(kv.key()).into_owned();
        Error::Unreadable { key, source }
    })
}

fn text(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(value)?;
    if text.len() > MAX_RECORD_BYTES { Err(Error::Record(text.len())) } else { Ok(text) }
}

fn put(key: String, value: &impl Serialize) -> Result<TxnOp> {
    Ok(TxnOp::put(key, text(value)?, None))
}

/// gRPC status codes. The client's own timeout is reported as `CANCELLED`.
const CANCELLED: i32 = 1;
const DEADLINE_EXCEEDED: i32 = 4;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const UNAVAILABLE: i32 = 14;
const UNAUTHENTICATED: i32 = 16;

fn code(error: &etcd_client::Error) -> Option<i32> {
    match error {
        etcd_client::Error::GRpcStatus(status) => Some(status.code() as i32),
        _ => None,
    }
}

fn is_passing(error: &etcd_client::Error) -> bool {
    // A broken connection; a status that etcd sent has no source.
    let is_local = matches!(error, etcd_client::Error::GRpcStatus(status) if status.source().is_some());
    is_local
        || matches!(error, etcd_client::Error::TransportError(_))
        || matches!(code(error), Some(CANCELLED | DEADLINE_EXCEEDED | UNAVAILABLE))
}

/// An error of etcd's client with its causes, which [`etcd_client::Error`] does not return.
#[derive(Debug)]
pub(crate) struct EtcdError(pub(crate) etcd_client::Error);

impl EtcdError {
    /// Returns whether etcd requires authentication. It identifies this error only by its message; the code is
    /// InvalidArgument or Unknown, by service.
    fn is_unauthenticated(&self) -> bool {
        matches!(&self.0, etcd_client::Error::GRpcStatus(status) if status.message().contains("user name is empty"))
    }

    /// Returns whether TLS failed, which is reported as invalid data; a lost connection has another kind.
    fn is_tls(&self) -> bool {
        let causes = iter::successors(self.source(), |&cause| cause.source());
        let mut causes = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
        causes.any(|cause| cause.kind() == io::ErrorKind::InvalidData)
    }
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            // `Display` would print the complete structure.
            etcd_client::Error::GRpcStatus(status) => f.write_str(status.message()),
            etcd_client::Error::TransportError(error) => error.fmt(f),
            other => other.fmt(f),
        }
    }
}

impl std::error::Error for EtcdError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            etcd_client::Error::GRpcStatus(status) => status.source(),
            etcd_client::Error::TransportError(error) => error.source(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn broken_connection_is_not_a_rejection() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    // SETTINGS; then, after the request, a data frame of no stream, which HTTP/2 forbids.
                    let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
                    let mut received = Vec::new();
                    // The complete headers of stream 1.
                    while !received.windows(6).any(|bytes| bytes == [1, 4, 0, 0, 0, 1])
                        && stream.read_buf(&mut received).await.is_ok_and(|length| length > 0)
                    {
                    }
                    let _ = stream.write_all(&[0; 9]).await;
                }
            });
            let client = Client::connect([&address], None).await.unwrap();
            client.kv_client().get("x", None).await.unwrap_err()
        });
        assert!(is_passing(&error), "{error:?}");
    }
}
