//! Errors of attaching, detaching and changing parameters.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use dcqcn_common::params::{Invalid, Quantity, Unit};
use dcqcn_netlink as net;
use dcqcn_netlink::tc::Handle;
use dcqcn_params::SettingsError;

use crate::dataplane;
use crate::unsupported::Unsupported;

/// Error of attaching, detaching or changing parameters. Each names the object and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The interface is not attached.
    #[error(
        "{iface} is not attached; `dcqcn status` lists attached interfaces, `dcqcn attach {iface}` attaches this one"
    )]
    NotAttached {
        /// Interface.
        iface: String,
    },
    /// The journal is shared with a process that uses another BPF file system.
    #[error(
        "cannot manage {iface} from here: its programs are pinned in a container, or in another mount of the BPF file system; \
         run `dcqcn` in that container, or `dcqcn detach {iface} --force` here"
    )]
    KeptElsewhere {
        /// Interface.
        iface: String,
    },
    /// The interface is already attached.
    #[error(
        "{iface} is already attached as {role}; `dcqcn set {iface} KEY=VALUE` changes it, \
         `dcqcn detach {iface}` removes it"
    )]
    AlreadyAttached {
        /// Interface.
        iface: String,
        /// Role.
        role: String,
    },
    /// The second interface of an inline pair was given; the first identifies the attachment.
    #[error("{iface} is attached inline with {first}: use `{first}`")]
    InlinePeer {
        /// Interface given.
        iface: String,
        /// First interface of the pair.
        first: String,
    },
    /// An attach or detach was killed.
    #[error(
        "{iface} is {state}: an earlier command was interrupted; `dcqcn attach {iface}` starts over, `dcqcn detach {iface}` \
         rolls it back"
    )]
    Unfinished {
        /// Interface.
        iface: String,
        /// State, as text.
        state: &'static str,
    },
    /// A change is pending confirmation.
    #[error(
        "{iface} has a change that is reverted in {} s unless it is confirmed: `dcqcn confirm {iface}` keeps it, \
         `dcqcn confirm {iface} --revert` reverts it now; or change it further with `--confirm`",
        left.as_secs()
    )]
    Pending {
        /// Interface.
        iface: String,
        /// Time left to confirm.
        left: Duration,
    },
    /// No change is pending confirmation.
    #[error("no change is pending{iface}; `dcqcn log` lists confirmed and reverted changes")]
    NothingPending {
        /// " on " and the interface, if one was given.
        iface: String,
    },
    /// Some steps could not be undone.
    #[error(
        "{iface}: {first}; not yet restored: {left}; `dcqcn detach {iface}` retries, `--force` abandons it"
    )]
    Left {
        /// Interface.
        iface: String,
        /// Steps left, as text.
        left: String,
        /// First error.
        first: Box<Self>,
    },
    /// Attached by an earlier version with another journal format.
    #[error(
        "{iface} was attached by an earlier dcqcn ({}): `dcqcn detach {iface}` rolls it back; then attach again",
        path.display()
    )]
    Earlier {
        /// Interface.
        iface: String,
        /// Journal.
        path: PathBuf,
    },
    /// The journal was written by a later version.
    #[error(
        "{} has format {found}, this dcqcn supports 1; use the dcqcn that attached it",
        path.display()
    )]
    Format {
        /// File.
        path: PathBuf,
        /// Format number.
        found: u64,
    },
    /// Another process holds the lock.
    #[error(
        "{holder} has held the lock on {what} ({}) for {} s; wait for it or stop it",
        path.display(),
        waited.as_secs()
    )]
    Locked {
        /// Protected state.
        what: &'static str,
        /// File.
        path: PathBuf,
        /// Process that holds it.
        holder: String,
        /// Time waited.
        waited: Duration,
    },
    /// Replacing a root qdisc would kill soft-RoCE QPs.
    #[error(
        "{iface} has {queue_pairs} active QPs on {device}; {what} drops queued packets, which kills soft-RoCE QPs on Linux \
         6.12+: stop the RDMA traffic first{next}; or pass `--interrupt`"
    )]
    Interrupts {
        /// Interface.
        iface: String,
        /// Operation that would drop packets.
        what: &'static str,
        /// Number of connected QPs.
        queue_pairs: usize,
        /// RDMA device.
        device: Box<str>,
        /// Alternative, as text.
        next: Box<str>,
    },
    /// The pacer can neither be placed below a shaper nor replace it.
    #[error(
        "cannot pace {iface} below its shaper ({kind} {handle}); put an fq below each of its classes (`tc qdisc replace dev \
         {iface} parent {class} fq`), or attach with `--pacer none`"
    )]
    Shaper {
        /// Interface.
        iface: String,
        /// Kind of the root qdisc.
        kind: String,
        /// Handle of the root qdisc.
        handle: Handle,
        /// One of its classes.
        class: Handle,
    },
    /// Capabilities are missing.
    #[error(
        "this needs {missing}: run it as root, or grant the capability (`setcap`, systemd AmbientCapabilities=)"
    )]
    Capability {
        /// Names of the missing capabilities.
        missing: String,
    },
    /// The kernel is too old.
    #[error("kernel {found} is too old: {feature} needs Linux {since} or later")]
    Kernel {
        /// Running kernel.
        found: String,
        /// Missing feature.
        feature: &'static str,
        /// First version with the feature.
        since: &'static str,
    },
    /// The kind of the interface is unsuitable.
    #[error("cannot attach to {iface}: {what}; {instead}")]
    Kind {
        /// Interface.
        iface: String,
        /// Kind of the interface, and why it is unsuitable.
        what: String,
        /// Suitable interface.
        instead: &'static str,
    },
    /// The link rate is unknown.
    #[error("the link rate of {iface} is unknown; set it, for example `--set link_rate=10gbit`")]
    LinkRate {
        /// Interface.
        iface: String,
    },
    /// The requested rate exceeds the link's.
    #[error(
        "link_rate = {} exceeds the {} link of {iface}; lower it",
        Quantity(*requested_bps, Unit::BitsPerSecond),
        Quantity(*link_bps, Unit::BitsPerSecond)
    )]
    AboveLink {
        /// Interface.
        iface: String,
        /// Requested rate, bit/s.
        requested_bps: u64,
        /// Link rate, bit/s.
        link_bps: u64,
    },
    /// The kernel lacks the qdisc of the pacer.
    #[error("this kernel has no {qdisc} qdisc (CONFIG_NET_SCH_{}); use `--pacer auto`", qdisc.to_uppercase())]
    Pacer {
        /// Qdisc.
        qdisc: &'static str,
    },
    /// The kernel lacks the qdisc that `prepare` installs.
    #[error(
        "cannot prepare {iface}: this kernel has no fq qdisc (CONFIG_NET_SCH_FQ); install and load its module sch_fq, \
         or skip this step: `dcqcn attach {iface}` selects a pacer that the kernel has"
    )]
    NoFq {
        /// Interface.
        iface: String,
    },
    /// The kernel lacks the qdisc of the queues.
    #[error("this kernel has no {qdisc} qdisc (CONFIG_NET_SCH_{}); use `--queues auto`", qdisc.to_uppercase())]
    Queues {
        /// Qdisc.
        qdisc: &'static str,
    },
    /// A parameter needs a program that the role does not attach.
    #[error(
        "{key} = true needs the {program} program, which role {role} does not attach; detach and attach again with {remedy}"
    )]
    Role {
        /// Parameter.
        key: &'static str,
        /// Program.
        program: &'static str,
        /// Role.
        role: String,
        /// Option to attach with.
        remedy: &'static str,
    },
    /// Another daemon manages the interface.
    #[error("{iface} is managed by another `dcqcn run`; stop it first")]
    Served {
        /// Interface.
        iface: String,
    },
    /// A property that cannot be changed without attaching again.
    #[error(
        "{iface} is attached with {what} = {found}, which cannot become {requested} in place: `dcqcn detach {iface}`, \
         then attach again"
    )]
    Anew {
        /// Interface.
        iface: String,
        /// Property.
        what: &'static str,
        /// Requested value.
        requested: String,
        /// Current value.
        found: String,
    },
    /// A change is reverted, but its journal could not be written.
    #[error(
        "the previous values are active again, but the change is still in the journal, and is reverted again: {source}"
    )]
    StillPending {
        /// Cause.
        source: Box<Self>,
    },
    /// A request that cannot be fulfilled.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// Settings that are invalid on this link.
    #[error(transparent)]
    Settings(Box<SettingsError>),
    /// Invalid parameters.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// The kernel rejected attaching a program.
    #[error("cannot attach {program} to {iface}: {source}{next}")]
    Attach {
        /// Program.
        program: &'static str,
        /// Interface.
        iface: String,
        /// Cause.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Next step.
        next: &'static str,
    },
    /// An XDP mode was given for an attachment that is not inline.
    #[error(
        "xdp_mode = {mode} is for inline attachments only: {iface} gets no XDP program; remove it, or attach with `--inline`"
    )]
    XdpUnused {
        /// Interface.
        iface: String,
        /// Requested mode.
        mode: String,
    },
    /// Another XDP program is attached.
    #[error(
        "cannot attach xdp to {iface}: it already has the XDP program {name} (program {id}, {mode}); remove that one \
         (`ip link set dev {iface} xdp off`, `xdp-loader unload {iface} --all`)"
    )]
    XdpTaken {
        /// Interface.
        iface: String,
        /// Name of the program, empty if unknown; that of libxdp's dispatcher is `xdp_dispatcher`.
        name: String,
        /// Program ID.
        id: u32,
        /// XDP mode.
        mode: &'static str,
    },
    /// Netlink error.
    #[error(transparent)]
    Net(#[from] net::Error),
    /// Error of programs or maps.
    #[error(transparent)]
    Dataplane(#[from] dataplane::Error),
    /// The kernel rejected an HTB class without which there is no pacing.
    #[error("cannot set HTB class {handle} of {iface}: {refusal}")]
    PortClass {
        /// Interface.
        iface: String,
        /// Class.
        handle: Handle,
        /// Cause.
        refusal: net::Refusal,
    },
    /// Waiting for cut flows failed.
    #[error("cannot wait for the data plane: {0}")]
    Wait(io::Error),
    /// File error.
    #[error("{}: {source}", path.display())]
    File {
        /// File.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A journal that cannot be read.
    #[error(
        "{}: {source}; `dcqcn detach IFACE --force` removes the attachment, except for a root qdisc",
        path.display()
    )]
    Info {
        /// File.
        path: PathBuf,
        /// Cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The BPF file system cannot be mounted.
    #[error("cannot mount a BPF file system on {}: {source}; it needs CAP_SYS_ADMIN", path.display())]
    Mount {
        /// Mount point.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Mounted, but not visible to this process.
    #[error("{} is not a BPF file system; mount one there: `mount -t bpf bpf {}`", path.display(), path.display())]
    NoBpfFs {
        /// Mount point.
        path: PathBuf,
    },
}

impl From<SettingsError> for Error {
    fn from(error: SettingsError) -> Self {
        Self::Settings(Box::new(error))
    }
}
