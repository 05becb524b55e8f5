//! Notice of interfaces that come, go or change (rtnetlink, group `RTNLGRP_LINK`).

use std::sync::Arc;

use anyhow::{Context as _, Result};
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::sync::Notify;

use super::Changed;

/// Notice of a change. What it says is not looked into: what there is now is listed again, so that a lost message does no
/// harm, and many are one.
pub(super) fn watch() -> Result<Changed> {
    let (connection, _, mut messages) =
        new_multicast_connection(&[MulticastGroup::Link]).context("cannot watch the network interfaces")?;
    let changed = Arc::new(Notify::new());
    let notice = Arc::clone(&changed);
    tokio::spawn(connection);
    tokio::spawn(async move {
        while messages.recv().await.is_ok() {
            notice.notify_one();
        }
        tracing::error!("link notifications from the kernel ended; restart the daemon");
    });
    Ok(changed)
}
