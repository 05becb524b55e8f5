//! Errors of the lab's configuration, and of its network, hosts and traffic.

use std::borrow::Cow;
use std::io;
use std::net::IpAddr;
use std::num::TryFromIntError;

use dcqcn_loader::{attach, dataplane};
use dcqcn_params::quantity::OutOfRange;
use dcqcn_params::{SetError, SettingsError};
use dcqcn_support::{interrupt, plot, render};
use indicatif::style::TemplateError;
use nix::errno::Errno;
use nix::unistd::Uid;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// An option that is out of range, or contradicts others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error(transparent)]
    Range(#[from] OutOfRange),
    #[error("mtu = {0} is not an InfiniBand MTU: 256, 512, 1024, 2048 or 4096")]
    Mtu(u32),
    #[error("mtu = {0} is too large for BMv2's links: 256, 512 or 1024")]
    Bmv2Mtu(u32),
    #[error("tcp = {0} is not supported with BMv2, whose queues count packets; set it to 0")]
    Bmv2Tcp(u16),
    #[error("--against needs at least two ports, the last of which receives, as in `--against eth1,eth2`")]
    OnePort,
    #[error("--against lists {0} twice")]
    PortTwice(String),
}

/// Reason why a lab cannot be built or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot {step}")]
    Step { step: Cow<'static, str>, source: Box<Self> },
    #[error("{iface} in {netns}")]
    Attach { iface: String, netns: String, source: Box<attach::Error> },
    #[error(transparent)]
    DataPlane(#[from] attach::Error),
    #[error(transparent)]
    Maps(#[from] dataplane::Error),
    #[error(transparent)]
    Network(#[from] dcqcn_netlink::Error),
    #[error(transparent)]
    Filter(#[from] rtnetlink::Error),
    #[error(transparent)]
    Bmv2(#[from] dcqcn_p4::Error),
    #[error(transparent)]
    Set(#[from] SetError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Plot(#[from] plot::Error),
    #[error(transparent)]
    Progress(#[from] TemplateError),
    #[error(transparent)]
    Interrupt(#[from] interrupt::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    System(#[from] Errno),
    #[error(transparent)]
    Number(#[from] TryFromIntError),
    #[error(
        "cannot qualify as user {0}: it creates network namespaces and sends frames (CAP_SYS_ADMIN, CAP_NET_ADMIN, \
         CAP_NET_RAW, CAP_BPF); run it as root"
    )]
    NotRoot(Uid),
    #[error("another lab is running (process {0}); wait for it or stop it")]
    Locked(String),
    #[error("{0} is not an Ethernet port")]
    NotEthernet(String),
    #[error("{port} has an MTU of {mtu}, which is too small for RoCE; run `ip link set {port} mtu 1500`")]
    PortMtu { port: String, mtu: u32 },
    #[error("too few ports: {}", .0.join(", "))]
    TooFewPorts(Vec<String>),
    #[error("pnet opened a channel that is not Ethernet")]
    Channel,
    #[error("no CPU is available")]
    NoCpu,
    #[error("no sender")]
    NoSender,
    #[error("no sender has {0}")]
    NotSender(IpAddr),
    #[error("the switch is not Linux")]
    NotLinux,
    #[error("a Linux switch cannot run the hosts' reaction points; use `--switch bmv2` or `--rp host`")]
    RpInLinux,
    #[error(
        "Kmax = {} is out of range: at most {}, as a round would have too many packets",
        render::bytes(*kmax_bytes),
        render::bytes(*most_bytes)
    )]
    Kmax { kmax_bytes: u64, most_bytes: u64 },
    #[error("a background thread of the testbed panicked")]
    Panicked,
    #[error("interrupted")]
    Interrupted,
}

/// Adds the step that failed: "cannot STEP".
pub(crate) fn failed<E: Into<Error>>(step: impl Into<Cow<'static, str>>) -> impl FnOnce(E) -> Error {
    move |error| Error::Step { step: step.into(), source: Box::new(error.into()) }
}
