//! Why attaching, detaching or changing fails.

use std::io;
use std::path::PathBuf;

use dcqcn_common::params::{Invalid, Quantity, Unit};
use dcqcn_netlink as net;

use crate::dataplane;

/// Why attaching, detaching or changing fails; each names the thing and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing to work on.
    #[error("{iface} is not attached; `dcqcn status` lists what is, `dcqcn attach {iface}` attaches it")]
    NotAttached {
        /// The interface.
        iface: String,
    },
    /// Somebody was faster.
    #[error(
        "{iface} is already attached as {role}; `dcqcn set {iface} KEY=VALUE` changes it, \
         `dcqcn detach {iface}` removes it"
    )]
    AlreadyAttached {
        /// The interface.
        iface: String,
        /// Its role.
        role: String,
    },
    /// One end of an inline pair was named, the other keeps the state.
    #[error("{iface} is attached inline with {first}: use `{first}`")]
    InlinePeer {
        /// The interface named.
        iface: String,
        /// The one that keeps the state.
        first: String,
    },
    /// Missing rights.
    #[error(
        "this needs {missing}: run it as root, or grant the capability (`setcap`, systemd AmbientCapabilities=)"
    )]
    Capability {
        /// Names of the capabilities that are missing.
        missing: String,
    },
    /// Kernel too old.
    #[error("kernel {found} is too old: {feature} came with Linux {since}; use a kernel from {since} on")]
    Kernel {
        /// The running kernel.
        found: String,
        /// What it lacks.
        feature: &'static str,
        /// Since when there is that.
        since: &'static str,
    },
    /// Not an Ethernet device.
    #[error("{iface} has no Ethernet address: RoCEv2 is looked for on Ethernet interfaces, veth included")]
    NotEthernet {
        /// The interface.
        iface: String,
    },
    /// Rates need a link rate.
    #[error("the link speed of {iface} is not known: give it, for example `--set link_rate=10gbit`")]
    LinkRate {
        /// The interface.
        iface: String,
    },
    /// A rate above what the link can do.
    #[error(
        "link_rate = {} is above the {} that {iface} has: lower it",
        Quantity(*asked_bps, Unit::BitsPerSecond),
        Quantity(*link_bps, Unit::BitsPerSecond)
    )]
    AboveLink {
        /// The interface.
        iface: String,
        /// What was asked for.
        asked_bps: u64,
        /// What the link has.
        link_bps: u64,
    },
    /// The kernel lacks the qdisc of the pacer.
    #[error("this kernel has no {qdisc} qdisc (CONFIG_NET_SCH_{}); use `--pacer auto`", qdisc.to_uppercase())]
    Pacer {
        /// The qdisc.
        qdisc: &'static str,
    },
    /// A switch needs a program that this attachment has not.
    #[error(
        "{key} = true needs the {program} program, which role {role} does not attach; detach and attach again with {remedy}"
    )]
    Role {
        /// The parameter.
        key: &'static str,
        /// The program.
        program: &'static str,
        /// The role.
        role: String,
        /// What to attach with.
        remedy: &'static str,
    },
    /// There is a daemon for it.
    #[error("{iface} is served by another `dcqcn run`: end that one first")]
    Served {
        /// The interface.
        iface: String,
    },
    /// Something an attachment keeps for as long as it lives.
    #[error(
        "{iface} is attached with {what} = {found}, which cannot become {asked} in place: `dcqcn detach {iface}`, \
         then attach again"
    )]
    Anew {
        /// The interface.
        iface: String,
        /// What is asked to be another.
        what: &'static str,
        /// What is asked.
        asked: String,
        /// What it is.
        found: String,
    },
    /// A combination that cannot work.
    #[error("{0}")]
    Unsupported(String),
    /// Parameters refused.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// The kernel refused a program on the interface.
    #[error("cannot attach {program} to {iface}: {source}{next}")]
    Attach {
        /// The program.
        program: &'static str,
        /// The interface.
        iface: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// What to do.
        next: &'static str,
    },
    /// Links or qdiscs.
    #[error(transparent)]
    Net(#[from] net::Error),
    /// Programs or maps.
    #[error(transparent)]
    Dataplane(#[from] dataplane::Error),
    /// A file of the attachment.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A description that cannot be read.
    #[error("{}: {source}; detach with the dcqcn that attached, or remove the file", path.display())]
    Info {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The BPF file system cannot be mounted.
    #[error("cannot mount a BPF file system on {}: {source}; it needs CAP_SYS_ADMIN", path.display())]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Mounted, but not to be seen from here.
    #[error("{} is no BPF file system; mount one there: `mount -t bpf bpf {}`", path.display(), path.display())]
    NoBpfFs {
        /// Where.
        path: PathBuf,
    },
}
