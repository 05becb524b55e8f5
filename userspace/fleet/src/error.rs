//! Errors of etcd and its records, rollouts, the agent, and the page.

use std::io;

use tokio::time::error::Elapsed;

use crate::prelude::*;
use crate::reach::problem;
use crate::record::MAX_HOST_BYTES;
use crate::store::{EDITS, MAX_HOSTS, MAX_RECORD_BYTES};

/// Error of a request to etcd, a rollout, the agent, or the page. `file::Error` is that of `fleet.toml`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "etcd rejects the request: this user lacks the permission (docs/how-to/secure-a-fleet.md has the roles)"
    )]
    Permission(#[source] EtcdError),
    #[error(
        "etcd rejects the request: it requires authentication; give this client's certificate with `--etcd-cert`"
    )]
    Unauthenticated(#[source] EtcdError),
    #[error("etcd is full: `etcdctl compact`, `etcdctl defrag`, then `etcdctl alarm disarm`")]
    Full(#[source] EtcdError),
    #[error(
        "cannot reach etcd at {address}: TLS failed; check `--etcd-ca`, `--etcd-cert` and the members' certificates"
    )]
    Tls { address: String, source: EtcdError },
    #[error("cannot reach etcd at {address}: {}", silence(.address))]
    Unreachable { address: String, source: EtcdError },
    #[error("etcd rejects the request")]
    Rejected(#[source] EtcdError),
    /// An error that the caller logs and retries.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error(transparent)]
    Timeout(#[from] Elapsed),
    #[error("etcd granted no lease")]
    NoLease,
    #[error("the lease expired")]
    LeaseExpired,
    #[error("etcd responds without a header")]
    NoHeader,
    #[error("etcd ended the watch")]
    WatchEnded,
    #[error("etcd ended the watch: {0}")]
    WatchCanceled(String),
    #[error(
        "cannot read {key} in etcd: written by another version of dcqcn-fleet or another program{}",
        remedy(.key)
    )]
    Unreadable { key: String, source: serde_json::Error },
    /// The record of a rollout, which every reader of a snapshot reports.
    #[error(transparent)]
    UnreadableRollout(#[from] Arc<Self>),
    #[error("its record has {0} bytes; the limit is {MAX_HOST_BYTES}")]
    HostRecord(usize),
    #[error("cannot write a record of {0} bytes: the limit is {MAX_RECORD_BYTES}")]
    Record(usize),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("version {0} does not exist; `dcqcn-fleet history` lists the versions")]
    NoVersion(u64),
    /// The version of an order.
    #[error("version {0} does not exist in etcd")]
    VersionDeleted(u64),
    #[error("version {0} has no such group")]
    NoGroup(u64),
    #[error("version {0} differs from the ordered content: its number was used twice")]
    OtherContent(u64),
    #[error(
        "cannot roll out to {0} hosts: the limit is {MAX_HOSTS}; divide them into several fleets (--prefix)"
    )]
    TooManyHosts(usize),
    #[error("cannot change a rollout: there is none yet; start one with `dcqcn-fleet apply`")]
    NoRollout,
    #[error("no rollout is in progress; version {version} is {status}")]
    RolloutOver { version: u64, status: String },
    #[error("cannot pause or resume version {version}: it is {status}; wait for its end")]
    RollingBack { version: u64, status: String },
    #[error("cannot change the rollout: {EDITS} attempts lost the race with coordinators; try again")]
    Raced,
    #[error(
        "cannot continue the rollout of version {version}: only {found} of its {expected} steps are readable in etcd; delete \
         the key `rollout` and apply again"
    )]
    StepsMissing { version: u64, found: usize, expected: usize },
    #[error("the rollout of version {0} was deleted from etcd: hosts keep their versions and orders")]
    RolloutDeleted(u64),
    #[error("cannot forget {0}: its agent reports; stop it first")]
    HostReports(String),
    #[error("cannot prune: a rollout began in the meantime; try again")]
    RolloutBegan,
    #[error("cannot use certificates with {0}, which is not encrypted; write https://HOST:2379")]
    NotEncrypted(String),
    #[error("cannot use {what}")]
    Client { what: String, source: EtcdError },
    #[error("the certificates for etcd were replaced; exiting, to be restarted with the new ones")]
    CertificatesReplaced,
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "cannot use {}: mode {mode:o} gives other users access to a secret; run `chmod 600 {}`",
        .path.display(), .path.display()
    )]
    SecretMode { path: PathBuf, mode: u32 },
    #[error("cannot use {}: it has no certificate in PEM", .0.display())]
    NoCertificate(PathBuf),
    #[error("cannot use {}: {}", .path.display(), problem(.error))]
    Certificate { path: PathBuf, error: webpki::Error },
    #[error("cannot open {}: {source}", .path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error(
        "another agent controls the daemon at {}; stop one of the two agents (`fuser {}` shows the other's process)",
        .socket.display(), .lock.display()
    )]
    OtherAgent { socket: PathBuf, lock: PathBuf },
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(
        "cannot use --allow-write on {0}: the token would cross the network in the clear; listen on a loopback address behind \
         a proxy with TLS or an ssh tunnel (`ssh -L`)"
    )]
    TokenInClear(SocketAddr),
    #[error("cannot use {}: a token is read for each change, from a regular file", .0.display())]
    TokenFile(PathBuf),
    #[error(
        "cannot use {}: the token has {length} characters, at least {least} are required; `openssl rand -hex 16` creates one",
        .path.display()
    )]
    ShortToken { path: PathBuf, length: usize, least: usize },
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Cause and fix if no member of etcd responds.
fn silence(address: &str) -> &'static str {
    // A member may close the connection without an alert.
    match address.contains("https://") {
        true => {
            "no member responds, or it rejects this client; check that they run, `--etcd`, and `--etcd-cert`"
        }
        false => "no member responds; check that they run, and `--etcd`",
    }
}

/// Fix of an unreadable record, starting with a semicolon; empty if none.
fn remedy(key: &str) -> String {
    match key.ends_with("/rollout") {
        true => format!(
            "; unless another version runs, `etcdctl del {key}` forgets that rollout: hosts keep their versions and orders, \
             and it is neither continued nor rolled back"
        ),
        false => String::new(),
    }
}
