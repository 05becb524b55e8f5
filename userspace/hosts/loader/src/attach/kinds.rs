//! Kinds of interfaces: which of them can be attached, and what the kernel does to their packets.

use std::collections::BTreeSet;

use dcqcn_common::params::Config;
use dcqcn_netlink::Link;
use dcqcn_params::XdpModeChoice;

use super::Error;

/// Rejects unsuitable interfaces.
pub(super) fn refuse_interfaces(link: &Link, peer: Option<&Link>) -> Result<(), Error> {
    refuse_kind(link)?;
    peer.map_or(Ok(()), refuse_kind)?;
    if peer.is_some_and(|peer| peer.index == link.index) {
        return Err(Error::InlineWithItself(link.name.clone()));
    }
    Ok(())
}

/// Rejects an interface whose frames are not Ethernet, or are counted again at the interface below.
fn refuse_kind(link: &Link) -> Result<(), Error> {
    let kind = link.kind.as_deref().unwrap_or(if link.is_loopback { "loopback" } else { "device" });
    let refused = |why: &str, instead| {
        Err(Error::Kind { iface: link.name.clone(), what: format!("it is a {kind}{why}"), instead })
    };
    match kind {
        "vrf" => refused(
            ", and its frames pass the interface below too",
            "attach that interface, a port of the VRF",
        ),
        _ if link.is_ethernet() => Ok(()),
        "loopback" => {
            refused(", and no RoCE traffic of other hosts passes it", "attach the interface to the network")
        }
        "tun" => refused(" without Ethernet frames, which RoCEv2 needs", "make it with `mode tap`"),
        "netkit" => refused(" without Ethernet frames, which RoCEv2 needs", "make it with `mode l2`"),
        "ipoib" => refused(", and InfiniBand has its own congestion control", "attach an Ethernet interface"),
        _ => refused(
            " without Ethernet frames, which RoCEv2 needs",
            "attach the Ethernet interface that its packets leave by",
        ),
    }
}

/// Rejects functions that the interface cannot have.
pub(super) fn refuse_functions(link: &Link, config: &Config) -> Result<(), Error> {
    let s = &config.scalars;
    if (s.np_enable | s.fast_cnp) != 0 && link.is_metadata_tunnel {
        return Err(Error::Kind {
            iface: link.name.clone(),
            what: "it is a tunnel without a remote of its own (`external`), and the kernel drops CNPs sent to it".into(),
            instead: "attach the interface that its outer packets leave by, or with --role switch",
        });
    }
    Ok(())
}

/// Why an interface receives packets of the namespace's other interfaces or of other hosts: a bridge's port carries
/// frames of other hosts, and frames of a macvlan, or of a VLAN device with its own address, have another MAC address.
///
/// The bridge may be above a bond or a VLAN device: hooks see a packet before those do.
pub(super) fn other_host(links: &[Link], link: &Link) -> Option<&'static str> {
    let (mut left, mut seen) = (vec![link], BTreeSet::new());
    while let Some(lower) = left.pop() {
        if !seen.insert(lower.index) {
            continue;
        }
        for upper in links {
            let is_master = Some(upper.index) == lower.master;
            match upper.kind.as_deref() {
                _ if is_master && is_bridge(upper) => {
                    return Some(if lower.index == link.index {
                        "is a bridge's port"
                    } else {
                        "is below a bridge"
                    });
                }
                Some("bond" | "team") if is_master => {}
                Some("vlan") if upper.peer == Some(lower.index) => {}
                Some("macvlan" | "macvtap") if upper.peer == Some(lower.index) => {
                    return Some("has a macvlan above it");
                }
                _ => continue,
            }
            if upper.mac.is_some() && upper.mac != link.mac {
                return Some("has an interface with another MAC address above it");
            }
            left.push(upper);
        }
    }
    None
}

/// Whether ports of this device carry frames of other hosts.
pub(super) fn is_bridge(master: &Link) -> bool {
    matches!(master.kind.as_deref(), Some("bridge" | "openvswitch"))
}

/// Note for a pacer or queues whose classes `skb->priority` selects, on an interface above others that read it too.
pub(super) fn priority_note(link: &Link) -> Option<String> {
    let effect = match link.kind.as_deref()? {
        "vlan" => "its egress-qos-map does not contain those, so frames leave with PCP 0",
        "bond" | "team" | "macvlan" => {
            "a pfifo_fast or prio at the interfaces below sorts by its lowest bits"
        }
        _ => return None,
    };
    Some(format!(
        "classes on {} are selected by skb->priority, and {effect}: attach the interfaces below instead",
        link.name
    ))
}

/// XDP mode of an inline attachment.
///
/// Native XDP redirects only the packet's bytes. Some software interfaces deliver VLAN tags outside the
/// packet, whatever their own features, because those of the sender decide.
///
/// # Errors
/// XDP in the driver of a bond: its ports run the program, whose packets then have the port's index.
pub(super) fn inline_mode(
    requested: XdpModeChoice,
    ports: [&Link; 2],
    notes: &mut Vec<String>,
) -> Result<XdpModeChoice, Error> {
    if requested == XdpModeChoice::Driver
        && let Some(bond) = ports.iter().find(|link| link.kind.as_deref() == Some("bond"))
    {
        return Err(Error::DriverModeOnBond(bond.name.clone()));
    }
    if ports[0].mtu != ports[1].mtu {
        let [a, b] = ports.map(|link| format!("{} has MTU {}", link.name, link.mtu));
        notes.push(format!("{a}, {b}: the kernel drops larger frames, after they are counted as forwarded"));
    }
    const TAG_IN_METADATA: [&str; 4] = ["veth", "netkit", "bond", "team"];
    let kind_of = |link: &&Link| link.kind.clone().filter(|kind| TAG_IN_METADATA.contains(&kind.as_str()));
    let Some((name, kind)) = ports.iter().find_map(|link| Some((&link.name, kind_of(link)?))) else {
        return Ok(requested);
    };
    let mode = match requested {
        XdpModeChoice::Skb => requested,
        XdpModeChoice::Auto => {
            notes.push(format!(
                "XDP on socket buffers: {name} is a {kind}, whose VLAN tags XDP in the driver would lose (`--xdp-mode driver` \
                 where no tags pass)"
            ));
            XdpModeChoice::Skb
        }
        XdpModeChoice::Driver => {
            notes.push(format!(
                "VLAN tags that {name} ({kind}) delivers outside the packet are lost; if there are tags, `ethtool -K IFACE \
                 tx-vlan-offload off` at its senders, or `--xdp-mode skb`"
            ));
            requested
        }
    };
    Ok(mode)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::attach) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    pub(in crate::attach) fn link(kind: Option<&str>, mac: [u8; 6]) -> Link {
        Link {
            index: 2,
            name: "x0".into(),
            mac: Some(mac),
            kind: kind.map(Into::into),
            is_loopback: kind.is_none() && mac == [0; 6],
            ..Link::default()
        }
    }

    #[test]
    fn unsuitable_kind_names_the_alternative() {
        let accepted = "veth netkit ipvlan team bridge macvtap vxlan geneve gretap openvswitch";
        for kind in accepted.split(' ') {
            assert!(refuse_kind(&link(Some(kind), MAC)).is_ok(), "{kind}");
        }
        assert!(refuse_kind(&link(None, MAC)).is_ok(), "hardware");
        for (kind, mac, expected) in [
            (
                Some("vrf"),
                MAC,
                "it is a vrf, and its frames pass the interface below too; attach that interface",
            ),
            (Some("netkit"), [0; 6], "without Ethernet frames, which RoCEv2 needs; make it with `mode l2`"),
            (Some("wireguard"), [0; 6], "attach the Ethernet interface that its packets leave by"),
            (None, [0; 6], "cannot attach to x0: it is a loopback"),
        ] {
            let refused = refuse_kind(&link(kind, mac)).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn tunnel_without_remote_only_marks() {
        let tunnel = Link { is_metadata_tunnel: true, ..link(Some("geneve"), MAC) };
        let config = |np_enable| {
            let mut config = Config::DEFAULT;
            (config.scalars.np_enable, config.scalars.fast_cnp) = (np_enable, 0);
            config
        };
        let refused = refuse_functions(&tunnel, &config(1)).unwrap_err().to_string();
        assert!(refused.contains("cannot attach to x0: it is a tunnel without a remote"), "{refused}");
        assert!(refused.contains("--role switch"), "{refused}");
        assert!(refuse_functions(&tunnel, &config(0)).is_ok());
        assert!(refuse_functions(&link(Some("geneve"), MAC), &config(1)).is_ok());
    }

    #[test]
    fn other_hosts_found_above_bonds_and_vlans() {
        const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
        let at = |index, kind, peer, master| Link { index, peer, master, ..link(kind, MAC) };
        let port = at(2, None, None, Some(4));
        let bond = at(4, Some("bond"), None, None);
        let vlan = at(5, Some("vlan"), Some(4), None);
        let (bridge, vrf) = (at(6, Some("bridge"), None, None), at(6, Some("vrf"), None, None));
        let in_6 = |link: &Link| Link { master: Some(6), ..link.clone() };
        let other = |link: &Link| Link { mac: Some(OTHER), ..link.clone() };
        for (uppers, expected) in [
            (vec![bond.clone()], None),
            (vec![bond.clone(), vlan.clone()], None),
            (vec![bond.clone(), in_6(&vlan), other(&vrf)], None),
            (vec![in_6(&bond), bridge.clone()], Some("is below a bridge")),
            (vec![bond.clone(), in_6(&vlan), bridge.clone()], Some("is below a bridge")),
            (vec![bond.clone(), other(&vlan)], Some("has an interface with another MAC address above it")),
            (vec![bond.clone(), at(7, Some("macvtap"), Some(4), None)], Some("has a macvlan above it")),
            (vec![bond.clone(), at(7, Some("macvlan"), Some(3), None)], None),
            // Its frames are in packets for this interface.
            (vec![bond, other(&in_6(&at(7, Some("vxlan"), Some(2), None))), bridge.clone()], None),
        ] {
            let links = [vec![port.clone()], uppers].concat();
            assert_eq!(other_host(&links, &port), expected, "{links:?}");
        }
        assert_eq!(other_host(&[bridge], &in_6(&port)), Some("is a bridge's port"));
        // A system port's master is `ovs-system`.
        assert_eq!(
            other_host(&[at(6, Some("openvswitch"), None, None)], &in_6(&port)),
            Some("is a bridge's port")
        );
    }

    #[test]
    fn classes_above_other_interfaces_noted() {
        for (kind, expected) in [
            (None, None),
            (Some("veth"), None),
            (Some("vlan"), Some("PCP 0: attach the interfaces below")),
            (Some("bond"), Some("sorts by its lowest bits: attach")),
        ] {
            let note = priority_note(&link(kind, MAC));
            assert_eq!(note.is_some(), expected.is_some(), "{kind:?}");
            assert!(note.unwrap_or_default().contains(expected.unwrap_or_default()), "{kind:?}");
        }
    }

    #[test]
    fn different_mtus_inline_noted() {
        let notes = |mtu| {
            let ports = [Link { mtu: 9_000, ..link(None, MAC) }, Link { mtu, ..link(None, MAC) }];
            let mut notes = Vec::new();
            inline_mode(XdpModeChoice::Auto, [&ports[0], &ports[1]], &mut notes).unwrap();
            notes
        };
        assert!(notes(9_000).is_empty());
        assert!(notes(1_500)[0].starts_with("x0 has MTU 9000, x0 has MTU 1500: "));
    }

    #[test]
    fn native_xdp_of_a_bond_refused() {
        let (bond, nic, veth) = (link(Some("bond"), MAC), link(None, MAC), link(Some("veth"), MAC));
        for (mode, is_refused) in
            [(XdpModeChoice::Auto, false), (XdpModeChoice::Skb, false), (XdpModeChoice::Driver, true)]
        {
            for other in [&nic, &veth] {
                assert_eq!(
                    inline_mode(mode, [other, &bond], &mut Vec::new()).is_err(),
                    is_refused,
                    "{mode:?}"
                );
            }
        }
    }
}
