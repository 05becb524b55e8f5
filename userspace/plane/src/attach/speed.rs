//! The speed of a link that changes after attaching.

use dcqcn_common::params::Config;
use dcqcn_netlink::Netlink;

use super::change::{Change, Transaction};
use super::find::find;
use super::place::Place;
use super::{Error, LinkRateFrom};

/// Brings `link_rate` of an attachment up to date with what it was taken from: the speed of the hardware, or the rate of the
/// shaper. A rate that somebody gave stays, and so does one while the link is down. Returns the change, if there is one.
///
/// # Errors
/// It is not attached; or its other parameters are out of range at the new rate, and nothing is changed.
pub fn follow_link_rate(iface: &str) -> Result<Option<Change>, Error> {
    let info = find(&Place::here()?, iface)?.info;
    let netlink = Netlink::connect()?;
    let found = match info.link_rate_from {
        LinkRateFrom::Given => None,
        LinkRateFrom::Speed | LinkRateFrom::Virtual => netlink.speed_bps(info.ifindex)?,
        LinkRateFrom::Shaper => netlink.shaping(info.ifindex)?.map(|shaping| shaping.rate_bps),
    };
    let Some(link_bps) = found else {
        return Ok(None);
    };
    let edit = |_: &_, config: &mut Config| -> Result<(), Error> {
        config.scalars.link_rate_bps = link_bps;
        Ok(())
    };
    let transaction = Transaction::prepare(&[iface], edit).map_err(|refused| refused.error)?;
    if transaction.changes().iter().all(|change| change.old == change.new) {
        return Ok(None);
    }
    Ok(transaction.commit().map_err(|refused| refused.error)?.pop())
}
