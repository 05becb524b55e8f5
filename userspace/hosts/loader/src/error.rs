//! Why attaching, detaching or changing fails.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use dcqcn_common::params::{Invalid, Quantity, Unit};
use dcqcn_netlink as net;
use dcqcn_netlink::tc::Handle;

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
    /// The journal is shared with a process whose BPF file system is another one.
    #[error(
        "cannot manage {iface} from here: its programs are kept by a container, or by another mount of the BPF file system; \
         run `dcqcn` in that container, or `dcqcn detach {iface} --force` here"
    )]
    KeptElsewhere {
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
    /// Somebody was killed attaching or detaching.
    #[error(
        "{iface} is {state}, and nobody is at it any more: `dcqcn attach {iface}` starts over, `dcqcn detach {iface}` puts \
         back what there was"
    )]
    Unfinished {
        /// The interface.
        iface: String,
        /// How far it is.
        state: &'static str,
    },
    /// A change waits for somebody to confirm it.
    #[error(
        "{iface} has a change that is reverted in {} s unless it is confirmed: `dcqcn confirm {iface}` keeps it, \
         `dcqcn confirm {iface} --revert` reverts it now; or change it further with `--confirm`",
        left.as_secs()
    )]
    Pending {
        /// The interface.
        iface: String,
        /// How long there is.
        left: Duration,
    },
    /// Nothing is there to be confirmed.
    #[error("no change is pending{iface}; `dcqcn log` lists confirmed and reverted changes")]
    NothingPending {
        /// " on " and the interface, if one was named.
        iface: String,
    },
    /// Not everything could be restored.
    #[error(
        "{iface}: {first}; not yet restored: {left}; `dcqcn detach {iface}` retries, `--force` abandons it"
    )]
    Left {
        /// The interface.
        iface: String,
        /// What is left, as text.
        left: String,
        /// The first reason.
        first: Box<Self>,
    },
    /// Attached by an earlier version, whose journal has another form.
    #[error(
        "{iface} was attached by an earlier dcqcn ({}): `dcqcn detach {iface}` puts everything back, then attach again",
        path.display()
    )]
    Earlier {
        /// The interface.
        iface: String,
        /// Its description.
        path: PathBuf,
    },
    /// A later version has written it.
    #[error(
        "{} has format {found}, this dcqcn knows 1: use the dcqcn that attached it",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// The format.
        found: u64,
    },
    /// Somebody keeps the lock.
    #[error(
        "{holder} has held the lock on {what} ({}) for {} s; wait for it or end it",
        path.display(),
        waited.as_secs()
    )]
    Locked {
        /// What it is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Who has it.
        holder: String,
        /// How long was waited.
        waited: Duration,
    },
    /// Replacing a root qdisc ends soft-RoCE's queue pairs.
    #[error(
        "{iface} carries {queue_pairs} queue pairs of {device}. From Linux 6.12 on soft-RoCE ends those whose packet a \
         qdisc drops, and {what} drops what waits: end the RDMA traffic first{next}; or say `--interrupt`"
    )]
    Interrupts {
        /// The interface.
        iface: String,
        /// What would drop packets.
        what: &'static str,
        /// How many are connected.
        queue_pairs: usize,
        /// Their device.
        device: Box<str>,
        /// Another way out.
        next: Box<str>,
    },
    /// A shaper that the pacer can neither go below nor replace.
    #[error(
        "{iface} is shaped by {kind} {handle}: for the pacer to go below it, put an fq below each of its classes \
         (`tc qdisc replace dev {iface} parent {class} fq`), which is then kept; or attach with `--pacer none`"
    )]
    Shaper {
        /// The interface.
        iface: String,
        /// Kind of its root qdisc.
        kind: String,
        /// Its handle.
        handle: Handle,
        /// A class of it.
        class: Handle,
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
    #[error("kernel {found} is too old: {feature} needs Linux {since} or later")]
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
        /// What was requested.
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
    /// The kernel lacks the qdisc of the queues.
    #[error("this kernel has no {qdisc} qdisc (CONFIG_NET_SCH_{}); use `--queues auto`", qdisc.to_uppercase())]
    Queues {
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
    /// A mode for XDP, which only inline attachments have.
    #[error(
        "xdp_mode = {mode} is for inline attachments only: {iface} gets no XDP program; remove it, or attach with `--inline`"
    )]
    XdpUnused {
        /// The interface.
        iface: String,
        /// The mode requested.
        mode: String,
    },
    /// Another XDP program is there.
    #[error(
        "cannot attach xdp to {iface}: the XDP program {name} (program {id}, {mode}) is there, and an interface has one: take \
         it off (`ip link set dev {iface} xdp off`, `xdp-loader unload {iface} --all`)"
    )]
    XdpTaken {
        /// The interface.
        iface: String,
        /// Name of the program, empty if it is not told; that of libxdp's dispatcher is `xdp_dispatcher`.
        name: String,
        /// Its number.
        id: u32,
        /// Where it runs.
        mode: &'static str,
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
    /// A journal that cannot be read.
    #[error(
        "{}: {source}; `dcqcn detach IFACE --force` removes what it stands for, but for a root qdisc",
        path.display()
    )]
    Info {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
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
    #[error("{} is not a BPF file system; mount one there: `mount -t bpf bpf {}`", path.display(), path.display())]
    NoBpfFs {
        /// Where.
        path: PathBuf,
    },
}
