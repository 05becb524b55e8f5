//! Description of a host: its interface, offloads and attachment, without addresses.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail, ensure};
use dcqcn_loader::attach::{self, Id, Options, Request};
use dcqcn_netlink::Netlink;
use dcqcn_params::{Role, Settings};
use dcqcn_support::causes::one_line;
use dcqcn_support::interrupt::Interrupt;
use nix::ifaddrs::getifaddrs;
use serde::{Deserialize, Serialize};

use super::messages::{Answer, Request as Message};
use super::roce::{CNP_TIME, Path, Receiver};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Side {
    pub version: String,
    pub kernel: String,
    pub iface: String,
    /// Driver; `null` if the interface does not report it.
    pub driver: Option<String>,
    pub speed_bps: Option<u64>,
    pub mtu_bytes: u32,
    /// Enabled features, as `ethtool -k` names them.
    pub offloads: Vec<String>,
    pub attached: Option<Attached>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attached {
    pub np: bool,
    pub rp: bool,
    pub pacer: String,
    pub min_time_between_cnps_ns: u64,
}

impl Attached {
    /// Interval between CE-marked packets that are all answered: twice that of CNPs.
    pub(super) fn cnp_interval_ns(&self) -> u64 {
        self.min_time_between_cnps_ns.saturating_mul(2)
    }
}

impl Side {
    /// Describes this host and its interface with `address`.
    pub(super) fn of(address: IpAddr) -> Result<Self> {
        let netlink = Netlink::connect()?;
        let link = netlink.link(&iface_of(address)?)?;
        let mut offloads = netlink.features(link.index)?;
        offloads.sort_unstable();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let attached = match attach::open(&link.name) {
            Ok(attachment) => {
                let scalars = attachment.maps.params()?.config.scalars;
                Some(Attached {
                    np: scalars.np_enable != 0,
                    rp: scalars.rp_enable != 0,
                    pacer: attachment.info.pacer,
                    min_time_between_cnps_ns: scalars.min_time_between_cnps_ns,
                })
            }
            Err(attach::Error::NotAttached { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: kernel.trim().to_owned(),
            driver: netlink.driver(&link.name).map(|driver| driver.name),
            speed_bps: netlink.speed_bps(link.index)?,
            mtu_bytes: link.mtu,
            offloads,
            attached,
            iface: link.name,
        })
    }

    /// Checks a description that the other host has sent.
    pub(super) fn check(self) -> Result<Self> {
        ensure!(self.is_printable(), "the other host sends invalid names");
        Ok(self)
    }

    /// Whether all names are short and have no control characters.
    fn is_printable(&self) -> bool {
        const MAX_CHARS: usize = 64;
        const MAX_OFFLOADS: usize = 256;
        let Self { version, kernel, iface, driver, offloads, attached, .. } = self;
        let words = [version, kernel, iface].into_iter().chain(driver).chain(offloads);
        let mut words = words.chain(attached.as_ref().map(|attached| &attached.pacer));
        let is_plain = |word: &String| word.len() <= MAX_CHARS && !word.contains(|c: char| c.is_control());
        words.all(is_plain) && offloads.len() <= MAX_OFFLOADS
    }

    /// Whether the host answers each CE-marked packet of a measurement, which sends one per interval, at most
    /// [`CNP_TIME`].
    pub(super) fn answers_measurement(&self) -> bool {
        let answers = |of: &Attached| of.np && of.cnp_interval_ns() <= CNP_TIME.as_nanos() as u64;
        self.attached.as_ref().is_some_and(answers)
    }
}

/// The interface that has `address`.
pub(super) fn iface_of(address: IpAddr) -> Result<String> {
    let is_it = |found: &nix::ifaddrs::InterfaceAddress| {
        let Some(found) = found.address else { return false };
        let v4 = found.as_sockaddr_in().map(|found| IpAddr::V4(found.ip()));
        v4.or_else(|| found.as_sockaddr_in6().map(|found| IpAddr::V6(found.ip()))) == Some(address)
    };
    let found = getifaddrs().context("cannot list addresses")?.find(is_it);
    let found = found.with_context(|| format!("no interface of this host has the address {address}"))?;
    // The name of an IPv4 address may have a label.
    Ok(found.interface_name.split(':').next().unwrap_or_default().to_owned())
}

/// An attachment made for the check; dropping it detaches.
pub(super) struct Trial(Option<Id>);

impl Trial {
    /// Attaches the interface with `address` as a host, with the defaults of `dcqcn attach`.
    pub(super) fn attach(address: IpAddr) -> Result<Self> {
        let iface = iface_of(address)?;
        let settings = Settings { role: Some(Role::Host), ..Settings::default() };
        let info = attach::attach_with(&Request { iface, settings }, Options::default())?;
        Ok(Self(Some(info.id())))
    }

    /// Detaches, unless another process has done so.
    pub(super) fn end(mut self) -> Result<()> {
        self.detach()
    }

    fn detach(&mut self) -> Result<()> {
        match self.0.take().map(attach::detach_id) {
            None | Some(Ok(_) | Err(attach::Error::NotAttached { .. })) => Ok(()),
            Some(Err(error)) => {
                Err(error).context("cannot detach after the check; retry with `dcqcn detach IFACE`")
            }
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            tracing::error!("{}", one_line(error.as_ref()));
        }
    }
}

/// This host's part of a check: the listener executes the client's requests, and the client the same ones on its side.
pub(super) struct Local<'a> {
    path: Path,
    may_attach: bool,
    interrupt: &'a Interrupt,
    trial: Option<Trial>,
    receiver: Option<Receiver>,
}

impl<'a> Local<'a> {
    pub(super) fn new(path: Path, may_attach: bool, interrupt: &'a Interrupt) -> Self {
        Self { path, may_attach, interrupt, trial: None, receiver: None }
    }

    /// Executes a request that does not concern the connection.
    pub(super) fn ask(&mut self, request: Message) -> Result<Answer> {
        Ok(match request {
            Message::Attach { on } => {
                if !on {
                    self.trial.take().map_or(Ok(()), Trial::end)?;
                } else if self.may_attach && self.trial.is_none() {
                    self.trial = Some(Trial::attach(self.path.local.ip())?);
                }
                Answer::Side { side: Side::of(self.path.local.ip())? }
            }
            Message::Receive => {
                self.receiver = Some(Receiver::open(self.path)?);
                Answer::Ready
            }
            Message::Count => {
                let receiver = self.receiver.take().context("unexpected request")?;
                Answer::Arrived { series: receiver.count()? }
            }
            Message::Send { pace } => {
                Answer::Sent { series: self.path.send(pace.limited(), self.interrupt)? }
            }
            Message::Cnps { pace } => {
                Answer::Cnps { cnps: self.path.measure_cnps(pace.limited(), self.interrupt)? }
            }
            Message::Hello { .. } | Message::Bulk { .. } | Message::End => bail!("unexpected request"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_host_are_checked() {
        assert!(Side::default().check().is_ok());
        let long = "x".repeat(65);
        for iface in ["eth0\u{1b}[2J", long.as_str()] {
            assert!(Side { iface: iface.to_owned(), ..Side::default() }.check().is_err());
        }
        assert!(Side { offloads: vec![String::new(); 257], ..Side::default() }.check().is_err());
    }

    #[test]
    fn rare_cnps_are_not_measured() {
        let side = |min_time_between_cnps_ns| Side {
            attached: Some(Attached { np: true, min_time_between_cnps_ns, ..Attached::default() }),
            ..Side::default()
        };
        assert!(side(50_000).answers_measurement() && side(25_000_000).answers_measurement());
        assert!(!side(25_000_001).answers_measurement() && !side(u64::MAX).answers_measurement());
    }

    #[test]
    fn interface_found_by_address() {
        assert_eq!(iface_of([127, 0, 0, 1].into()).unwrap(), "lo");
        assert!(iface_of([192, 0, 2, 1].into()).unwrap_err().to_string().contains("192.0.2.1"));
    }
}
