//! Link rate of an interface: its source, and the notes on it.

use dcqcn_common::params::{Quantity, Spec, Unit, WredConfig};
use dcqcn_netlink::tc::{Qdisc, Shaping};
use dcqcn_netlink::{Link, Netlink, Stack, wire_overhead_bytes};
use dcqcn_params::{DetectedLink, Role};
use dcqcn_support::render;

use super::{Error, LinkRateFrom};

/// Link rate of an interface, at which queues drain and flows start.
pub(super) struct LinkRate {
    specified_bps: Option<u64>,
    detected: Detected,
    /// A shaper below the root, which is not taken for the link rate.
    ignored_shaper: Option<Qdisc>,
}

/// Limit of the rate, as detected.
enum Detected {
    Shaper(Shaping),
    Hardware {
        speed_bps: u64,
        /// Speed of the slowest link that a flow uses.
        path_bps: u64,
        /// Bytes that the wire adds to a frame.
        overhead_bytes: u64,
    },
    /// Speed that a driver without hardware reports, if any.
    Virtual(Option<u64>),
}

impl LinkRate {
    /// Detects the rate, unless specified. `path_bps`: see [`path_speed_bps`].
    ///
    /// # Errors
    /// The hardware is slower than the specified rate.
    pub(super) fn detect(
        netlink: &Netlink,
        links: &[Link],
        link: &Link,
        shaping: Option<Shaping>,
        path_bps: Option<u64>,
        specified_bps: Option<u64>,
    ) -> Result<Self, Error> {
        // Stacked devices such as VLANs report the speed of their hardware.
        let hardware = link.speed_bps.zip(wire_overhead_bytes(links, link));
        let detected = match (shaping, hardware) {
            (Some(shaping), _) => Detected::Shaper(shaping),
            (None, Some((speed_bps, overhead_bytes))) => {
                if let Some(requested_bps) = specified_bps.filter(|bps| *bps > speed_bps) {
                    let (iface, link_bps) = (link.name.clone(), speed_bps);
                    return Err(Error::AboveLink { iface, requested_bps, link_bps });
                }
                Detected::Hardware { speed_bps, path_bps: path_bps.unwrap_or(speed_bps), overhead_bytes }
            }
            (None, None) => Detected::Virtual(path_bps),
        };
        let ignored_shaper = if shaping.is_none() && specified_bps.is_none() {
            netlink.qdiscs(link.index)?.into_iter().find(|qdisc| qdisc.kind == "tbf")
        } else {
            None
        };
        Ok(Self { specified_bps, detected, ignored_shaper })
    }

    /// The rate, and the bytes that the wire adds to a frame.
    pub(super) fn detected(&self) -> DetectedLink {
        let (link_rate_bps, wire_overhead_bytes) = match self.detected {
            Detected::Shaper(Shaping { rate_bps, .. }) => (Some(rate_bps), 0),
            Detected::Hardware { path_bps, overhead_bytes, .. } => {
                (self.specified_bps.or(Some(path_bps)), overhead_bytes)
            }
            Detected::Virtual(bps) => (self.specified_bps.or(bps), 0),
        };
        DetectedLink { link_rate_bps, wire_overhead_bytes, ..DetectedLink::default() }
    }

    pub(super) const fn source(&self) -> LinkRateFrom {
        match (self.specified_bps, &self.detected) {
            (Some(_), _) => LinkRateFrom::Given,
            (None, Detected::Shaper(_)) => LinkRateFrom::Shaper,
            (None, Detected::Hardware { .. }) => LinkRateFrom::Speed,
            (None, Detected::Virtual(_)) => LinkRateFrom::Virtual,
        }
    }

    /// Notes for the operator on the rate of `iface`.
    pub(super) fn notes(&self, iface: &str) -> Vec<String> {
        let show = |bps: u64| Quantity(bps, Unit::BitsPerSecond);
        let mut notes = Vec::new();
        if let Some(Qdisc { handle, parent, .. }) = &self.ignored_shaper {
            notes.push(format!(
                "the shaper tbf {handle} at {parent} is not taken for the link rate, as it is below the root: set link_rate \
                 if it is slower"
            ));
        }
        notes.extend(match (self.specified_bps, &self.detected) {
            (Some(bps), Detected::Shaper(Shaping { shaper, rate_bps, .. })) if bps > *rate_bps => {
                Some(format!(
                    "link rate {} as specified, above the {} of the {shaper} shaper on {iface}, which still applies: flows \
                     start faster than it sends",
                    show(bps),
                    show(*rate_bps)
                ))
            }
            (Some(bps), _) => Some(format!("link rate {} as specified", show(bps))),
            (None, Detected::Shaper(Shaping { shaper, rate_bps, .. })) => {
                Some(format!("link rate {} from the {shaper} shaper on {iface}", show(*rate_bps)))
            }
            (None, Detected::Hardware { speed_bps, path_bps, .. }) => {
                let is_path = path_bps < speed_bps;
                let of = if is_path { "the slowest link that a flow uses through" } else { "the speed of" };
                Some(format!("link rate {} from {of} {iface}", show(*path_bps)))
            }
            (None, Detected::Virtual(Some(bps))) => Some(format!(
                "link rate {} as reported by {iface}, which is virtual; set link_rate if its path is slower",
                show(*bps)
            )),
            (None, Detected::Virtual(None)) => None,
        });
        if let Detected::Shaper(Shaping { burst_ns, .. }) = self.detected
            && burst_ns < Shaping::MIN_BURST_NS
        {
            notes.push(format!(
                "its burst is {} at that rate: a later timer makes the shaper slower and its queue longer than marking \
                 assumes; see `dcqcn doctor`",
                render::ns(burst_ns)
            ));
        }
        notes
    }
}

/// Bytes that a shaper queues; `None` if unknown or beyond the range of `queue_limit`.
pub(super) fn queue_limit_bytes(shaping: &Shaping) -> Option<u64> {
    let limit = Spec::find(WredConfig::SPECS, "queue_limit")?;
    shaping.limit_bytes.map(u64::from).filter(|bytes| (1..=limit.allowed.max).contains(bytes))
}

/// Speed of the slowest link that a flow through `link` uses; `None` if no driver reports one.
///
/// Inline, the parameters apply to both ports: the speed of the slower one. A bond or team reports the sum of
/// its members (`bond_ethtool_get_link_ksettings`), and a host's flow uses one of them: that of the fastest.
pub(super) fn path_speed_bps(
    netlink: &Netlink,
    links: &[Link],
    link: &Link,
    peer: Option<&Link>,
    role: Role,
) -> Option<u64> {
    let speed_of = |ifindex| netlink.link_by_index(ifindex).ok()?.speed_bps;
    let member = || members(links, link).into_iter().filter_map(speed_of).max();
    let of_member = if role == Role::Host { member() } else { None };
    [link.speed_bps, peer.and_then(|peer| peer.speed_bps), of_member].into_iter().flatten().min()
}

/// Members of the bonds and teams at or below `link`.
fn members(links: &[Link], link: &Link) -> Vec<u32> {
    let shares = |link: &Link| matches!(link.kind.as_deref(), Some("bond" | "team"));
    if !links.iter().any(shares) {
        return Vec::new();
    }
    let below = Stack::of(links).with_those_below([link.index]);
    let found = links.iter().filter(|above| below.contains(&above.index) && shares(above));
    let found: Vec<_> = found.map(|above| Some(above.index)).collect();
    links.iter().filter(|link| found.contains(&link.master)).map(|link| link.index).collect()
}

/// `speed_bps` and `wire_bps` of the [`Port`](dcqcn_common::params::Port); `None` while the hardware reports no speed.
pub(super) fn hardware_speeds(link: &Link, link_rate_from: LinkRateFrom) -> Option<(u64, u64)> {
    match link_rate_from {
        LinkRateFrom::Virtual => Some((0, 0)),
        LinkRateFrom::Given | LinkRateFrom::Shaper if link.is_virtual() => Some((0, 0)),
        LinkRateFrom::Given | LinkRateFrom::Speed => link.speed_bps.map(|bps| (bps, bps)),
        // Packets wait in the shaper's queue, not on the wire.
        LinkRateFrom::Shaper => link.speed_bps.map(|bps| (bps, 0)),
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_netlink::tc::{Handle, Shaper};

    use super::super::kinds::tests::{MAC, link};
    use super::*;

    const G: u64 = 1_000_000_000;

    #[test]
    fn notes_name_the_source_of_the_rate() {
        let shaper = |burst_ns| {
            let shaper = Shaper::Tbf;
            Detected::Shaper(Shaping { shaper, rate_bps: G, burst_ns, limit_bytes: None })
        };
        let hardware = |path_bps| Detected::Hardware { speed_bps: 25 * G, path_bps, overhead_bytes: 24 };
        for (specified_bps, detected, from, bps, notes) in [
            (None, shaper(5_000_000), LinkRateFrom::Shaper, G, "link rate 1gbit from the tbf shaper on x0"),
            (Some(G / 2), shaper(5_000_000), LinkRateFrom::Given, G, "link rate 500mbit as specified"),
            (None, hardware(25 * G), LinkRateFrom::Speed, 25 * G, "link rate 25gbit from the speed of x0"),
            (Some(10 * G), hardware(25 * G), LinkRateFrom::Given, 10 * G, "link rate 10gbit as specified"),
            (
                None,
                hardware(10 * G),
                LinkRateFrom::Speed,
                10 * G,
                "link rate 10gbit from the slowest link that a flow uses through x0",
            ),
            (
                None,
                Detected::Virtual(Some(10 * G)),
                LinkRateFrom::Virtual,
                10 * G,
                "link rate 10gbit as reported by x0, which is virtual; set link_rate if its path is slower",
            ),
        ] {
            let rate = LinkRate { specified_bps, detected, ignored_shaper: None };
            assert_eq!((rate.source(), rate.detected().link_rate_bps), (from, Some(bps)), "{notes}");
            assert_eq!(rate.notes("x0"), [notes]);
        }
        let rate = LinkRate { specified_bps: None, detected: Detected::Virtual(None), ignored_shaper: None };
        assert_eq!((rate.notes("x0"), rate.detected()), (Vec::new(), DetectedLink::default()));
    }

    #[test]
    fn problems_of_shapers_noted() {
        let detected = Detected::Shaper(Shaping {
            shaper: Shaper::Tbf,
            rate_bps: G,
            burst_ns: Shaping::MIN_BURST_NS - 1,
            limit_bytes: None,
        });
        let rate = LinkRate { specified_bps: Some(2 * G), detected, ignored_shaper: None };
        let notes = rate.notes("x0");
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].starts_with("link rate 2gbit as specified, above the 1gbit of the tbf shaper"));
        assert!(notes[1].starts_with("its burst is "), "{notes:?}");
        let below = Qdisc { handle: Handle::new(7, 0), parent: Handle::new(1, 1), ..Qdisc::default() };
        let rate =
            LinkRate { specified_bps: None, detected: Detected::Virtual(None), ignored_shaper: Some(below) };
        assert!(rate.notes("x0").concat().starts_with("the shaper tbf 7: at 1:1 is not taken"));
    }

    #[test]
    fn members_of_bond_below_vlan_found() {
        let at = |index, kind, peer, master| Link { index, peer, master, ..link(kind, MAC) };
        let links = [
            at(2, None, None, Some(4)),
            at(3, None, None, Some(4)),
            at(4, Some("bond"), None, Some(5)),
            at(5, Some("bridge"), None, None),
            at(6, Some("vlan"), Some(4), None),
            at(7, None, None, None),
        ];
        let found = [0, 2, 3, 4, 5].map(|n| members(&links, &links[n]));
        assert_eq!(found, [vec![], vec![2, 3], vec![2, 3], vec![2, 3], vec![]]);
    }

    #[test]
    fn hardware_speed_is_independent_of_link_rate() {
        const BPS: u64 = 25_000_000_000;
        let speeds = |kind, speed_bps, from| hardware_speeds(&Link { speed_bps, ..link(kind, MAC) }, from);
        for (from, expected) in [
            (LinkRateFrom::Given, (BPS, BPS)),
            // A link_rate that is set later may be lower.
            (LinkRateFrom::Speed, (BPS, BPS)),
            (LinkRateFrom::Shaper, (BPS, 0)),
        ] {
            assert_eq!(speeds(None, Some(BPS), from), Some(expected), "{from:?}");
            assert_eq!(speeds(None, None, from), None, "{from:?}: down");
        }
        // A VLAN reports the speed of its hardware, a veth any speed.
        assert_eq!(speeds(Some("vlan"), Some(BPS), LinkRateFrom::Speed), Some((BPS, BPS)));
        for from in [LinkRateFrom::Given, LinkRateFrom::Shaper, LinkRateFrom::Virtual] {
            assert_eq!(speeds(Some("veth"), Some(BPS), from), Some((0, 0)), "{from:?}");
        }
    }
}
