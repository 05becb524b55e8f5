//! Errors of etcd, by their gRPC codes.

use anyhow::anyhow;
use etcd_client::Error;

/// gRPC status codes. The client's own timeout is reported as `CANCELLED`.
const CANCELLED: i32 = 1;
const DEADLINE_EXCEEDED: i32 = 4;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const UNAVAILABLE: i32 = 14;
const UNAUTHENTICATED: i32 = 16;

fn code(error: &Error) -> Option<i32> {
    match error {
        Error::GRpcStatus(status) => Some(status.code() as i32),
        _ => None,
    }
}

/// Returns whether a retry may succeed, on another member or later.
pub(super) fn is_passing(error: &Error) -> bool {
    matches!(error, Error::TransportError(_))
        || matches!(code(error), Some(CANCELLED | DEADLINE_EXCEEDED | UNAVAILABLE))
}

/// Adds a fix to an error of etcd at `address`.
pub(super) fn explain(error: Error, address: &str) -> anyhow::Error {
    let (code, is_passing) = (code(&error), is_passing(&error));
    let error = match error {
        // `Display` would print the complete structure.
        Error::GRpcStatus(status) => anyhow!("{}", status.message()),
        other => other.into(),
    };
    match code {
        Some(PERMISSION_DENIED | UNAUTHENTICATED) => {
            error.context("etcd rejects the request: this user lacks the permission (docs/how-to/secure-a-fleet.md has the roles)")
        }
        Some(RESOURCE_EXHAUSTED) => {
            error.context("etcd is full: `etcdctl compact`, `etcdctl defrag`, then `etcdctl alarm disarm`")
        }
        _ if is_passing => error.context(format!(
            "cannot reach etcd at {address}: no member responds; check that they run, and `--etcd`"
        )),
        _ => error.context("etcd rejects the request"),
    }
}
