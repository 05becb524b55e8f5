//! Notifications of added, removed and changed interfaces (rtnetlink, group `RTNLGRP_LINK`).

use std::sync::Arc;

use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::sync::Notify;

use super::Changed;
use crate::error::{Context as _, Result};

/// A link notification. Its content is ignored: interfaces are listed again, so lost messages do no harm, and bursts
/// are merged.
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
