//! BMv2 section of a configuration file: ports, routes, packet size.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use dcqcn_common::flow::QpId;
use dcqcn_common::layout::{Pair, PairSource};
use dcqcn_params::file::read;
use dcqcn_params::qp::qp_id;
use dcqcn_params::quantity::{parse_bytes, parse_rate_bps};
use dcqcn_params::{FileErrors, Settings};
use serde::{Deserialize, Serialize};

/// Highest number of a real port.
pub(crate) const MAX_PORT: u16 = 508;
/// Default packet size: an RDMA payload of 1024 bytes and 58 bytes of headers.
pub const DEFAULT_PACKET_BYTES: u32 = 1_082;

/// Queue depth used by the congestion point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Depth {
    /// On departure: packets behind this one.
    #[default]
    Dequeue,
    /// On arrival: packets before this one.
    Enqueue,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Switch {
    /// Bytes of a packet, layer 2: converts thresholds and rates to packets, which BMv2 counts.
    pub packet: Bytes,
    /// Queue depth used by the congestion point.
    pub depth: Depth,
    pub port: Vec<Port>,
    pub route: Vec<Route>,
    /// Routes by Ethernet address, which precede the others.
    pub mac: Vec<MacRoute>,
    pub pair: Vec<QpPair>,
}

impl Default for Switch {
    fn default() -> Self {
        Self {
            packet: Bytes(DEFAULT_PACKET_BYTES.into()),
            depth: Depth::Dequeue,
            port: Vec::new(),
            route: Vec::new(),
            mac: Vec::new(),
            pair: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Number, as in `simple_switch -i NUMBER@IFACE`.
    pub number: u16,
    /// Whether a host is on it, whose notification and reaction point are here (with `np_enable` and `rp_enable`).
    #[serde(default)]
    pub host: bool,
    /// Rate of its queues [default: `link_rate`, or the class's `drain_rate`].
    #[serde(default)]
    pub rate: Option<Rate>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The prefix, as in `10.0.1.0/24`.
    pub to: Prefix,
    pub port: u16,
    pub src_mac: Mac,
    /// Ethernet address of the next hop.
    pub dst_mac: Mac,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MacRoute {
    pub address: Mac,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QpPair {
    pub address: IpAddr,
    /// QPN of the near end, 24 bits.
    pub qpn: u32,
    pub peer_qpn: u32,
}

impl QpPair {
    /// The pair in the other commands' format.
    pub fn known(&self) -> (QpId, Pair) {
        (qp_id(self.address, self.qpn), Pair::new(self.peer_qpn, PairSource::Static))
    }
}

/// A size in bytes, written with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bytes(pub u64);

impl TryFrom<String> for Bytes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes = parse_bytes(&text).map_err(|error| format!("packet = {error}"))?;
        let allowed = 64..=9_216;
        if allowed.contains(&bytes) {
            return Ok(Self(bytes));
        }
        Err(format!("packet = {bytes}B is out of range: {}B to {}B", allowed.start(), allowed.end()))
    }
}

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> Self {
        format!("{}B", bytes.0)
    }
}

/// A rate in bit/s, written with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(pub u64);

impl TryFrom<String> for Rate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match parse_rate_bps(&text) {
            Ok(0) => Err("rate = 0 is invalid; omit it for `link_rate`".to_owned()),
            Ok(bps) => Ok(Self(bps)),
            Err(error) => Err(format!("rate = {error}")),
        }
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        format!("{}bit", rate.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix {
    /// The address; bits beyond the prefix are zero.
    pub address: IpAddr,
    pub len: u32,
}

impl Prefix {
    pub const fn host(address: IpAddr) -> Self {
        let len = if address.is_ipv4() { 32 } else { 128 };
        Self { address, len }
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("`{text}` is not a prefix, as in `10.0.1.0/24` or `fd00::/64`");
        let (address, len) = text.split_once('/').unwrap_or((text, ""));
        let address: IpAddr = address.parse().map_err(|_| refused())?;
        let host = Self::host(address);
        let len = if len.is_empty() { host.len } else { len.parse().map_err(|_| refused())? };
        if len > host.len {
            return Err(refused());
        }
        let beyond = |bits: u128, width: u32| bits & u128::MAX.checked_shr(128 - width + len).unwrap_or(0);
        let rest = match address {
            IpAddr::V4(address) => beyond(u32::from(address).into(), 32),
            IpAddr::V6(address) => beyond(address.into(), 128),
        };
        if rest != 0 {
            return Err(format!("`{text}` has bits beyond its prefix of {len}"));
        }
        Ok(Self { address, len })
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(Prefix { address, len }: Prefix) -> Self {
        format!("{address}/{len}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16));
        let octets: Result<Vec<u8>, _> = octets.collect();
        let mac = octets.ok().and_then(|octets| <[u8; 6]>::try_from(octets).ok()).map(Self);
        mac.ok_or_else(|| format!("`{text}` is not an Ethernet address, as in `02:00:00:00:00:01`"))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

/// The section that this module reads; [`read`] handles the rest.
#[derive(Deserialize)]
struct SwitchFile {
    bmv2: Switch,
}

/// Reads a configuration file with an optional `[bmv2]`.
///
/// # Errors
/// All errors, each with its line.
pub fn parse(name: &str, text: &str) -> Result<(Settings, Switch), FileErrors> {
    read(name, text, |reader, table| {
        let mut switch = Switch::default();
        for (key, value) in table {
            if key.get_ref() != "bmv2" {
                reader.setting(key, value, &["bmv2"]);
                continue;
            }
            match toml::from_str::<SwitchFile>(text) {
                Ok(SwitchFile { bmv2 }) => match bmv2.problem() {
                    None => switch = bmv2,
                    Some(problem) => reader.refuse(key.span(), problem),
                },
                Err(error) => reader.refuse(error.span().unwrap_or_else(|| value.span()), error.message()),
            }
        }
        (std::mem::take(&mut reader.settings), switch)
    })
}

impl Switch {
    pub fn packets(&self, bytes: u64) -> u64 {
        let packet = self.packet.0.max(1);
        bytes.saturating_add(packet / 2) / packet
    }

    /// An error that concerns several fields.
    fn problem(&self) -> Option<String> {
        let mut numbers: Vec<u16> = self.port.iter().map(|port| port.number).collect();
        if let Some(number) = numbers.iter().find(|number| **number > MAX_PORT) {
            return Some(format!("bmv2.port: number = {number} is out of range: 0 to {MAX_PORT}"));
        }
        numbers.sort_unstable();
        if let Some([number, _]) = numbers.array_windows().find(|[a, b]| a == b) {
            return Some(format!("bmv2.port: number = {number} is given twice"));
        }
        let of_routes = self.route.iter().map(|route| ("bmv2.route", route.port));
        let of_macs = self.mac.iter().map(|mac| ("bmv2.mac", mac.port));
        if let Some((what, port)) = of_routes.chain(of_macs).find(|(_, port)| !numbers.contains(port)) {
            return Some(format!("{what}: no [[bmv2.port]] with number = {port}"));
        }
        let routes = self.route.iter().map(|route| String::from(route.to));
        let macs = self.mac.iter().map(|mac| String::from(mac.address));
        let pairs = self.pair.iter().map(|pair| format!("{}, qpn = {}", pair.address, pair.qpn));
        let of_keys = [
            ("bmv2.route: to", repeated(routes)),
            ("bmv2.mac: address", repeated(macs)),
            ("bmv2.pair: address", repeated(pairs)),
        ];
        if let Some((what, key)) = of_keys.into_iter().find_map(|(what, key)| Some((what, key?))) {
            return Some(format!("{what} = {key} is given twice"));
        }
        let qpns = self.pair.iter().flat_map(|pair| [pair.qpn, pair.peer_qpn]);
        let mut too_large = qpns.filter(|qpn| *qpn >= 1 << 24);
        too_large.next().map(|qpn| format!("bmv2.pair: {qpn} is not a QPN: 0 to 16777215"))
    }
}

fn repeated(mut keys: impl Iterator<Item = String>) -> Option<String> {
    let mut known = BTreeSet::new();
    keys.find(|key| !known.insert(key.clone()))
}

#[cfg(test)]
mod tests {
    use dcqcn_params::Role;

    use super::*;

    const FILE: &str = "\
role = 'switch'
[parameters]
link_rate = '10mbit'
[bmv2]
packet = '1082B'
depth = 'enqueue'
[[bmv2.port]]
number = 1
host = true
[[bmv2.port]]
number = 2
rate = '5mbit'
[[bmv2.route]]
to = '10.0.1.0/24'
port = 1
src_mac = '02:00:00:00:00:01'
dst_mac = '02:00:00:00:00:02'
[[bmv2.mac]]
address = '02:00:00:00:00:03'
port = 2
[[bmv2.pair]]
address = '10.0.1.2'
qpn = 0x11
peer_qpn = 0x211
";

    #[test]
    fn file_has_parameters_and_switch() {
        let (settings, switch) = parse("a.toml", FILE).unwrap();
        assert_eq!((settings.role, settings.link_rate_bps()), (Some(Role::Switch), Some(10_000_000)));
        assert_eq!((switch.packet, switch.depth), (Bytes(1_082), Depth::Enqueue));
        assert_eq!((switch.port[0].host, switch.port[1].rate), (true, Some(Rate(5_000_000))));
        assert_eq!((switch.route[0].to.len, switch.mac[0].port, switch.pair[0].peer_qpn), (24, 2, 0x211));
        // The stored form of a switch is read back unchanged.
        let stored = serde_json::to_string(&switch).unwrap();
        assert_eq!(serde_json::from_str::<Switch>(&stored).unwrap(), switch);
        assert_eq!(parse("b.toml", "").unwrap().1, Switch::default());
    }

    #[test]
    fn errors_have_line_numbers() {
        for (from, to, expected) in [
            ("'1082B'", "'1082X'", "a.toml:5: packet ="),
            ("'1082B'", "'10B'", "a.toml:5: packet = 10B is out of range: 64B to 9216B"),
            ("'enqueue'", "'never'", "a.toml:6: unknown variant `never`"),
            ("number = 2", "number = 1", "number = 1 is given twice"),
            ("number = 2", "number = 600", "number = 600 is out of range: 0 to 508"),
            ("10.0.1.0/24", "10.0.1.1/24", "`10.0.1.1/24` has bits beyond its prefix of 24"),
            ("10.0.1.0/24", "10.0.1.0/33", "is not a prefix"),
            ("02:00:00:00:00:03", "02:00", "`02:00` is not an Ethernet address"),
            (
                "[[bmv2.mac]]",
                "[[bmv2.mac]]\naddress = '02:00:00:00:00:03'\nport = 1\n[[bmv2.mac]]",
                "bmv2.mac: address = 02:00:00:00:00:03 is given twice",
            ),
            (
                "[[bmv2.pair]]",
                "[[bmv2.pair]]\naddress = '10.0.1.2'\nqpn = 17\npeer_qpn = 1\n[[bmv2.pair]]",
                "bmv2.pair: address = 10.0.1.2, qpn = 17 is given twice",
            ),
            ("port = 2", "port = 3", "bmv2.mac: no [[bmv2.port]] with number = 3"),
            ("qpn = 0x11", "qpn = 0x1000000", "bmv2.pair: 16777216 is not a QPN"),
            ("host = true", "hots = true", "a.toml:9: unknown field `hots`"),
            ("link_rate = '10mbit'", "link_rat = '10mbit'", "a.toml:3: unknown parameter `link_rat`"),
        ] {
            let refused = parse("a.toml", &FILE.replace(from, to)).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}\n{expected}");
        }
    }
}
