//! The speed of a link that changes after attaching.

use dcqcn_common::params::Config;
use dcqcn_netlink::Netlink;

use super::change::{Change, Refused, Transaction};
use super::find::open_at;
use super::place::Place;
use super::{Error, LinkRateFrom};

/// Brings `link_rate` of an attachment up to date with what it was taken from: the speed of the hardware, or the rate of the
/// shaper. A rate that somebody gave stays, and so does one while the link is down, or while a change waits to be confirmed.
/// Returns the change, if there is one.
///
/// # Errors
/// It is not attached; or its other parameters are out of range at the new rate, and nothing is changed.
pub fn follow_link_rate(iface: &str) -> Result<Option<Change>, Error> {
    let attachment = open_at(&Place::here()?, iface)?;
    let info = &attachment.info;
    if info.link_rate_from == LinkRateFrom::Given {
        return Ok(None);
    }
    let netlink = Netlink::connect()?;
    let found = match info.link_rate_from {
        LinkRateFrom::Given => None,
        LinkRateFrom::Speed | LinkRateFrom::Virtual => netlink.speed_bps(info.ifindex)?,
        LinkRateFrom::Shaper => netlink.shaping(info.ifindex)?.map(|shaping| shaping.rate_bps),
    };
    let Some(link_bps) = found else {
        return Ok(None);
    };
    if attachment.maps.params()?.config.scalars.link_rate_bps == link_bps {
        return Ok(None);
    }
    let edit = |_: &_, config: &mut Config| -> Result<(), Error> {
        config.scalars.link_rate_bps = link_bps;
        Ok(())
    };
    let transaction = match Transaction::prepare(&[iface], None, edit) {
        Err(Refused { error: Error::Pending { .. }, .. }) => return Ok(None),
        transaction => transaction.map_err(|refused| refused.error)?,
    };
    Ok(transaction.commit().map_err(|refused| refused.error)?.pop())
}
