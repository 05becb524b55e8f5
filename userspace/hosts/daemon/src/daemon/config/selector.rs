//! Interfaces that an `[[interface]]` matches: by name, MAC address, driver, PCI address or RDMA device.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use dcqcn_netlink::{Link, Netlink, Result};
use dcqcn_params::file::SELECTORS;
use glob::Pattern;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Property {
    /// Name or altname.
    Name,
    /// Permanent Ethernet address, or the current one of an interface without hardware.
    Mac,
    Driver,
    /// Bus address of the device, as in `ethtool -i`.
    Pci,
    /// RDMA device, as in `rdma link`.
    Rdma,
}

impl Property {
    /// All properties, in the order of [`SELECTORS`].
    const ALL: [Self; SELECTORS.len()] = [Self::Name, Self::Mac, Self::Driver, Self::Pci, Self::Rdma];

    pub(super) fn of(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|property| property.key() == key)
    }

    const fn key(self) -> &'static str {
        SELECTORS[self as usize]
    }
}

/// Patterns of properties, all of which an interface must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(BTreeMap<Property, Pattern>);

impl Selector {
    pub(super) fn add(&mut self, property: Property, pattern: Pattern) {
        self.0.insert(property, pattern);
    }

    pub(super) fn uses(&self, property: Property) -> bool {
        self.0.contains_key(&property)
    }

    /// Whether an interface of the host should match now, as the selector is more than a pattern of names.
    pub(super) fn is_specific(&self) -> bool {
        self.literal().is_some() || self.0.keys().any(|property| *property != Property::Name)
    }

    pub(super) fn name(&self) -> Option<&Pattern> {
        self.0.get(&Property::Name)
    }

    pub(crate) fn literal(&self) -> Option<&str> {
        self.name().filter(|name| is_literal(name)).map(Pattern::as_str)
    }

    /// Whether an interface may match both.
    pub(crate) fn may_overlap(&self, other: &Self) -> bool {
        match (self.name(), other.name()) {
            (Some(a), Some(b)) => a == b || a.matches(b.as_str()) || b.matches(a.as_str()),
            _ => true,
        }
    }

    /// Whether the selector certainly matches all that `other` does.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.0.iter().all(|(property, own)| {
            other.0.get(property).is_some_and(|pattern| {
                own == pattern || own.as_str() == "*" || is_literal(pattern) && own.matches(pattern.as_str())
            })
        })
    }

    pub(super) fn matches(&self, iface: &str, links: &Links) -> bool {
        let known = links.0.get(iface);
        self.0.iter().all(|(property, pattern)| {
            let values = known.and_then(|known| known.get(property)).map_or(&[][..], Vec::as_slice);
            *property == Property::Name && pattern.matches(iface)
                || values.iter().any(|value| pattern.matches(value))
        })
    }
}

fn is_literal(pattern: &Pattern) -> bool {
    !pattern.as_str().contains(['*', '?', '['])
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(name), 1) = (self.name(), self.0.len()) {
            return f.write_str(name.as_str());
        }
        for (n, (property, pattern)) in self.0.iter().enumerate() {
            write!(f, "{}{} = {pattern}", if n == 0 { "" } else { ", " }, property.key())?;
        }
        Ok(())
    }
}

/// Properties of the host's interfaces, by name.
#[derive(Clone, Debug, Default)]
pub(in crate::daemon) struct Links(Arc<BTreeMap<String, BTreeMap<Property, Vec<String>>>>);

/// Always equal: links belong to the host, and files with equal text must be equal.
impl PartialEq for Links {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Links {}

impl Links {
    /// Reads the properties that `selectors` need.
    pub(super) fn read<'a>(
        netlink: &Netlink,
        links: &[Link],
        selectors: impl Iterator<Item = &'a Selector> + Clone,
    ) -> Result<Self> {
        let needs = |property| selectors.clone().any(|selector| selector.uses(property));
        let needs_driver = needs(Property::Driver) || needs(Property::Pci);
        let devices = if needs(Property::Rdma) { netlink.rdma_devices()? } else { Vec::new() };
        let one = |text: String| Some(text).filter(|text| !text.is_empty()).into_iter().collect();
        let properties = |link: &Link| {
            let mac =
                link.permanent_mac.or(link.mac).map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
            let driver = if needs_driver { netlink.driver(&link.name) } else { None }.unwrap_or_default();
            let rdma = devices.iter().filter(|device| device.is_on(link.index));
            BTreeMap::from([
                (Property::Name, link.altnames.clone()),
                (Property::Mac, mac.into_iter().collect()),
                (Property::Driver, one(driver.name)),
                (Property::Pci, one(driver.bus)),
                (Property::Rdma, rdma.map(|device| device.name.clone()).collect()),
            ])
        };
        Ok(Self(Arc::new(links.iter().map(|link| (link.name.clone(), properties(link))).collect())))
    }

    pub(super) fn matching<'a>(&'a self, selector: &'a Selector) -> impl Iterator<Item = &'a str> {
        self.0.keys().map(String::as_str).filter(|iface| selector.matches(iface, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(patterns: &[(Property, &str)]) -> Selector {
        let mut selector = Selector::default();
        for (property, pattern) in patterns {
            selector.add(*property, Pattern::new(pattern).unwrap());
        }
        selector
    }

    fn links() -> Links {
        let link = |altname: &str, mac: &str, driver: &str, pci: &str, rdma: &[&str]| {
            let rdma = rdma.iter().map(|name| (*name).to_owned()).collect();
            let texts = [altname, mac, driver, pci].map(|text| vec![text.to_owned()]);
            let [altname, mac, driver, pci] = texts;
            BTreeMap::from([
                (Property::Name, altname),
                (Property::Mac, mac),
                (Property::Driver, driver),
                (Property::Pci, pci),
                (Property::Rdma, rdma),
            ])
        };
        Links(Arc::new(BTreeMap::from([
            ("eth0".into(), link("enp59s0f0", "0c:42:a1:00:00:01", "mlx5_core", "0000:3b:00.0", &["mlx5_0"])),
            ("eth1".into(), link("enp59s0f1", "0c:42:a1:00:00:02", "mlx5_core", "0000:3b:00.1", &["mlx5_1"])),
            ("veth0".into(), link("x", "02:00:00:00:00:01", "veth", "", &[])),
        ])))
    }

    #[test]
    fn each_property_matches() {
        for (patterns, expected) in [
            (&[(Property::Name, "eth0")][..], &["eth0"][..]),
            (&[(Property::Name, "enp59s0f1")], &["eth1"]),
            (&[(Property::Name, "enp*")], &["eth0", "eth1"]),
            (&[(Property::Mac, "0c:42:a1:*")], &["eth0", "eth1"]),
            (&[(Property::Driver, "veth")], &["veth0"]),
            (&[(Property::Pci, "0000:3b:00.1")], &["eth1"]),
            (&[(Property::Rdma, "mlx5_*")], &["eth0", "eth1"]),
            (&[(Property::Driver, "mlx5_core"), (Property::Pci, "*.0")], &["eth0"]),
            (&[(Property::Name, "veth*"), (Property::Rdma, "*")], &[]),
        ] {
            let (selector, links) = (selector(patterns), links());
            assert_eq!(links.matching(&selector).collect::<Vec<_>>(), expected, "{selector}");
        }
    }

    #[test]
    fn unknown_interface_matches_by_name_only() {
        let none = Links::default();
        assert!(selector(&[(Property::Name, "eth*")]).matches("eth9", &none));
        assert!(!selector(&[(Property::Name, "eth*"), (Property::Driver, "*")]).matches("eth9", &none));
    }

    #[test]
    fn covering_needs_each_property() {
        let (name, driver) = (Property::Name, Property::Driver);
        for (own, other, is_covered) in [
            (&[(name, "eth*")][..], &[(name, "eth0")][..], true),
            (&[(name, "eth*")], &[(name, "eth*")], true),
            (&[(name, "*")], &[(name, "eth*"), (driver, "veth")], true),
            (&[(name, "eth0")], &[(name, "eth*")], false),
            (&[(name, "eth*")], &[(name, "e*0")], false),
            (&[(name, "eth*")], &[(driver, "veth")], false),
            (&[(name, "eth*"), (driver, "veth")], &[(name, "eth0")], false),
        ] {
            assert_eq!(selector(own).covers(&selector(other)), is_covered, "{own:?} {other:?}");
        }
    }

    #[test]
    fn selector_shown_as_in_the_file() {
        assert_eq!(selector(&[(Property::Name, "eth*")]).to_string(), "eth*");
        let two = selector(&[(Property::Pci, "0000:3b:*"), (Property::Driver, "mlx5_core")]);
        assert_eq!(two.to_string(), "driver = mlx5_core, pci = 0000:3b:*");
    }
}
