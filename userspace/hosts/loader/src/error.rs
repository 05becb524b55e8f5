//! Errors of attaching, detaching and changing parameters.

use std::error::Error as _;
use std::io::{self, ErrorKind};
use std::iter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dcqcn_common::layout::LAYOUT_VERSION;
use dcqcn_common::params::{Invalid, Quantity, Unit};
use dcqcn_netlink as net;
use dcqcn_netlink::tc::{Handle, SavedQdisc};
use dcqcn_params::SettingsError;

use crate::attach::{FORMAT, missing_for_access};
use crate::dataplane;

/// Error of attaching, detaching or changing parameters. Each names the object and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "{iface} is not attached; `dcqcn status` lists attached interfaces, `dcqcn attach {iface}` attaches this one"
    )]
    NotAttached { iface: String },
    /// The journal is shared with a process that uses another BPF file system.
    #[error(
        "cannot manage {iface} from here: its programs are pinned in a container, or in another mount of the BPF file system; \
         run `dcqcn` in that container, restart the daemon if /run/dcqcn/bpf was unmounted, or run \
         `dcqcn detach {iface} --force` here"
    )]
    KeptElsewhere { iface: String },
    #[error(
        "{iface} is already attached as {role}; `dcqcn set {iface} KEY=VALUE` changes it, \
         `dcqcn detach {iface}` removes it"
    )]
    AlreadyAttached { iface: String, role: String },
    /// The second interface of an inline pair was given; the first identifies the attachment.
    #[error("{iface} is attached inline with {first}: use `{first}`")]
    InlinePeer { iface: String, first: String },
    #[error(
        "{iface} is {state}: an earlier command was interrupted; `dcqcn attach {iface}` starts over, `dcqcn detach {iface}` \
         rolls it back"
    )]
    Unfinished { iface: String, state: &'static str },
    #[error(
        "{iface} has a change that is reverted in {} s unless it is confirmed: `dcqcn confirm {iface}` keeps it, \
         `dcqcn confirm {iface} --revert` reverts it now; or change it further with `--confirm`",
        left.as_secs()
    )]
    Pending { iface: String, left: Duration },
    #[error("no change is pending{iface}; `dcqcn log` lists confirmed and reverted changes")]
    NothingPending {
        /// " on " and the interface, if one was given.
        iface: String,
    },
    #[error(
        "{iface}: {first}; not yet restored: {left}; `dcqcn detach {iface}` retries, `--force` abandons it"
    )]
    Left { iface: String, left: String, first: Box<Self> },
    #[error(
        "cannot read the journal {}: it has format {found}, this dcqcn supports {FORMAT}; use the dcqcn that attached it",
        path.display()
    )]
    Format { path: PathBuf, found: u64 },
    #[error(
        "{holder} has held the lock on {what} ({}) for {} s; wait for it or stop it",
        path.display(),
        waited.as_secs()
    )]
    Locked { what: &'static str, path: PathBuf, holder: String, waited: Duration },
    #[error(
        "{iface} has {queue_pairs} active QPs on {device}; {what} drops queued packets, which kills soft-RoCE QPs on Linux \
         6.12+: stop the RDMA traffic first{next}; or pass `--interrupt`"
    )]
    Interrupts {
        iface: String,
        /// Operation that would drop packets.
        what: &'static str,
        queue_pairs: usize,
        device: Box<str>,
        next: Box<str>,
    },
    /// The pacer can neither be placed below a shaper nor replace it.
    #[error(
        "cannot pace {iface} below its shaper ({kind} {handle}); put an fq below each of its classes (`tc qdisc replace dev \
         {iface} parent {class} fq`), or attach with `--pacer none`"
    )]
    Shaper { iface: String, kind: String, handle: Handle, class: Handle },
    #[error(
        "this needs {missing}: run it as root, or grant the capability (`setcap`, systemd AmbientCapabilities=)"
    )]
    Capability { missing: String },
    #[error("kernel {found} lacks {feature}, which {purpose} needs; Linux has it since {since}")]
    Kernel { found: String, feature: &'static str, purpose: &'static str, since: &'static str },
    #[error("cannot attach to {iface}: {what}; {instead}")]
    Kind {
        iface: String,
        /// Kind of the interface, and why it is unsuitable.
        what: String,
        instead: &'static str,
    },
    #[error("the link rate of {iface} is unknown; set it, for example `--set link_rate=10gbit`")]
    LinkRate { iface: String },
    #[error(
        "link_rate = {} exceeds the {} link of {iface}; lower it",
        Quantity(*requested_bps, Unit::BitsPerSecond),
        Quantity(*link_bps, Unit::BitsPerSecond)
    )]
    AboveLink { iface: String, requested_bps: u64, link_bps: u64 },
    #[error("this kernel has no {qdisc} qdisc (CONFIG_NET_SCH_{}); use `--pacer auto`", qdisc.to_uppercase())]
    Pacer { qdisc: &'static str },
    /// The kernel lacks the qdisc that `prepare` installs.
    #[error(
        "cannot prepare {iface}: this kernel has no fq qdisc (CONFIG_NET_SCH_FQ); install and load its module sch_fq, \
         or skip this step: `dcqcn attach {iface}` selects a pacer that the kernel has"
    )]
    NoFq { iface: String },
    #[error("this kernel has no {qdisc} qdisc (CONFIG_NET_SCH_{}); use `--queues=auto`", qdisc.to_uppercase())]
    Queues { qdisc: &'static str },
    #[error("{iface} is managed by another `dcqcn run`; stop it first")]
    Served { iface: String },
    /// A property that cannot be changed without attaching again.
    #[error(
        "{iface} is attached with {what} = {found}, which cannot become {requested} in place: `dcqcn detach {iface}`, \
         then attach again"
    )]
    NotInPlace { iface: String, what: &'static str, requested: String, found: String },
    #[error(
        "the previous values are active again, but the change is still in the journal, and is reverted again: {source}"
    )]
    StillPending { source: Box<Self> },
    #[error("{0} is named twice: an interface has one attachment")]
    NamedTwice(String),
    #[error("--inline needs two interfaces, not {0} twice")]
    InlineWithItself(String),
    #[error(
        "XDP in the driver of {0}, a bond, runs on its ports, and packets would go back where they came from; use `--xdp-mode skb`"
    )]
    DriverModeOnBond(String),
    #[error(
        "{iface} already has classes ({kind} {handle}); remove them (`tc qdisc del dev {iface} root`), or attach without \
         --queues and select them with priority_major"
    )]
    HasClasses { iface: String, kind: String, handle: Handle },
    #[error(
        "{iface} has the qdisc {kind}, which has no egress hook: replace it by clsact, whose ingress takes the same filters \
         (`tc qdisc del dev {iface} {kind}`, `tc qdisc add dev {iface} clsact`), then attach"
    )]
    IngressQdisc { iface: String, kind: String },
    #[error(
        "the clsact qdisc of {iface} shares filter block {block} with other interfaces, and takes no filter of its own: replace \
         it (`tc qdisc del dev {iface} clsact`, `tc qdisc add dev {iface} clsact`) and add its other filters to {iface} again, \
         or boot Linux 6.6 or later, then attach"
    )]
    SharedBlock { iface: String, block: u32 },
    #[error(
        "{iface} has the shaper {shaper} at {parent}, which attaching would replace: remove it and set link_rate, or attach with \
         --pacer none and without --queues"
    )]
    ShaperInTheWay { iface: String, parent: Handle, shaper: String },
    #[error(
        "cannot attach on a PREEMPT_RT kernel from 6.18 on: programs preempt each other on a CPU there; boot a kernel \
         without PREEMPT_RT, or pass --realtime"
    )]
    Preemptible,
    #[error(
        "{features} of interface {ifindex} cannot be turned off: XDP in the driver would lose VLAN tags; try `--xdp-mode skb`"
    )]
    TagsLost { ifindex: u32, features: String },
    #[error(
        "another program changed the qdisc of {iface} while attaching: {saved} became {found}, or has other options; \
         attach again"
    )]
    QdiscReplaced { iface: String, saved: Box<SavedQdisc>, found: Box<SavedQdisc> },
    /// `prepare` would replace an attachment's own qdisc.
    #[error("cannot prepare {iface}: it is attached with {what}; `dcqcn detach {iface}` first")]
    OwnQdisc { iface: String, what: &'static str },
    #[error("programs are attached, but their journal is missing; `dcqcn gc` removes them")]
    JournalMissing,
    #[error(
        "the maps of {iface} were removed, and with them its parameters and rates; `dcqcn attach {iface}` replaces it"
    )]
    MapsMissing { iface: String },
    #[error(
        "no BPF file system is mounted at {}, and without it the maps of {iface} were removed; `dcqcn attach {iface}` mounts \
         it and attaches again",
        path.display()
    )]
    Unmounted { iface: String, path: PathBuf },
    #[error(
        "cannot use the maps of {iface}: dcqcn {version} attached it, with layout version {found} instead of \
         {LAYOUT_VERSION}; use the dcqcn that attached it, or `dcqcn detach {iface}`, then attach again"
    )]
    Layout { iface: String, version: String, found: u32 },
    #[error("cannot repair {iface}: its programs are another version's; `dcqcn upgrade {iface}` first")]
    OtherVersion { iface: String },
    #[error(
        "cannot restore the qdisc of {iface}: it was at {was_at}, and another program's qdisc is there now; \
         `dcqcn detach {iface}`, then attach it again"
    )]
    QdiscMoved { iface: String, was_at: Handle },
    #[error(
        "cannot write a drop-in for {iface}: systemd-networkd does not manage it; run `dcqcn prepare {iface}` at boot, \
         before RDMA traffic"
    )]
    NotOfNetworkd { iface: String },
    #[error(
        "{iface}: packet logging is off; run `dcqcn detach {iface}`, and attach it again with `--log-packets`"
    )]
    NoPacketLog { iface: String },
    #[error("{iface}: none of its programs is attached")]
    NoPrograms { iface: String },
    #[error("{iface}: cannot read its packet log: {source}")]
    PacketLog { iface: String, source: Box<aya_log::Error> },
    /// Settings that are invalid on this link.
    #[error(transparent)]
    Settings(Box<SettingsError>),
    /// Parameters that need a program that the attachment does not have.
    #[error("{missing}; `dcqcn detach {iface}` first")]
    ProgramMissing { iface: String, missing: Box<SettingsError> },
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("cannot attach {program} to {iface}: {source}{next}")]
    Attach {
        program: &'static str,
        iface: String,
        source: Box<dyn std::error::Error + Send + Sync>,
        next: &'static str,
    },
    #[error(
        "cannot attach xdp to {iface}: it already has the XDP program {name} (program {id}, {mode}); remove that one \
         (`ip link set dev {iface} {} off`, `xdp-loader unload {iface} --all`, or end the process that has its BPF link)",
        ip_link_keyword(mode)
    )]
    XdpTaken {
        iface: String,
        /// Name of the program, empty if unknown; that of libxdp's dispatcher is `xdp_dispatcher`.
        name: String,
        id: u32,
        mode: &'static str,
    },
    #[error(transparent)]
    Net(#[from] net::Error),
    #[error(transparent)]
    Dataplane(#[from] dataplane::Error),
    /// An HTB class without which there is no pacing.
    #[error("cannot set HTB class {handle} of {iface}: {refusal}")]
    PortClass { iface: String, handle: Handle, refusal: net::Refusal },
    #[error("cannot access {}: {source}{}", .path.display(), fix(.path, .source))]
    File { path: PathBuf, source: io::Error },
    #[error(
        "cannot read the journal {}: {source}; `dcqcn detach {iface} --force` removes the attachment, except for a root qdisc",
        path.display()
    )]
    Info { iface: String, path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    /// A journal of an interface that does not exist in this network namespace.
    #[error(
        "cannot read the journal {}: {source}; its interface does not exist here: remove the file",
        path.display()
    )]
    Orphan { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{} is a directory instead of a journal; remove it (`rm -r`), and repeat the command", path.display())]
    JournalDirectory { path: PathBuf },
    #[error(
        "{} is not a BPF file system, and none can be mounted there: {source}; as root outside of containers, \
         run `systemctl start run-dcqcn-bpf.mount` or `mount -t bpf bpf {}`, and share it with a container",
        path.display(), path.display()
    )]
    Mount { path: PathBuf, source: io::Error },
    /// Mounted, but not visible to this process.
    #[error("{} is not a BPF file system; mount one there: `mount -t bpf bpf {}`", path.display(), path.display())]
    NoBpfFs { path: PathBuf },
}

impl Error {
    /// An error of a map pinned in `pins`; that of the directory if access was denied, which names the fix.
    pub(crate) fn of_map(error: dataplane::Error, pins: &Path) -> Self {
        let mut causes = iter::successors(error.source(), |&cause| cause.source());
        let cause = causes.find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
        match cause {
            Some(errno @ (libc::EACCES | libc::EPERM | libc::EROFS)) => {
                Self::File { path: pins.to_owned(), source: io::Error::from_raw_os_error(errno) }
            }
            _ => error.into(),
        }
    }
}

/// Fix of an error of a file, starting with a semicolon; empty if unknown.
fn fix(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            let missing = missing_for_access();
            if missing.is_empty() {
                return String::new();
            }
            let missing = missing.join(", ");
            format!(
                "; this needs {missing}: run it as root, or grant them (`setcap`, systemd AmbientCapabilities=)"
            )
        }
        ErrorKind::ReadOnlyFilesystem => {
            let Some(bpf) = path.ancestors().find(|dir| dir.ends_with(MOUNT_POINT)) else {
                return String::new();
            };
            format!(
                "; {} is mounted read-only: `mount -o remount,rw {0}`; in a container, mount it writable",
                bpf.display()
            )
        }
        _ => String::new(),
    }
}

/// Mount point of the BPF file system, in any root directory.
const MOUNT_POINT: &str = "run/dcqcn/bpf";

impl From<SettingsError> for Error {
    fn from(error: SettingsError) -> Self {
        Self::Settings(Box::new(error))
    }
}

/// Keyword of `ip link set` for the XDP program of a mode. `xdp off` leaves one on socket buffers attached where the
/// driver has XDP too.
fn ip_link_keyword(mode: &str) -> &'static str {
    match mode {
        "skb" => "xdpgeneric",
        "offload" => "xdpoffload",
        _ => "xdpdrv",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_packet_log_has_runnable_fix() {
        let text = Error::NoPacketLog { iface: "eth0".into() }.to_string();
        assert!(text.contains("`dcqcn detach eth0`") && text.contains("`--log-packets`"), "{text}");
    }

    #[test]
    fn read_only_file_system_named_with_fix() {
        let text = |path: &str, errno| {
            Error::File { path: path.into(), source: io::Error::from_raw_os_error(errno) }.to_string()
        };
        let refused = text("/run/dcqcn/bpf/ns-1/3/egress", libc::EROFS);
        assert!(refused.contains("`mount -o remount,rw /run/dcqcn/bpf`"), "{refused}");
        for (path, errno) in [("/run/dcqcn/ns-1/3.json", libc::EROFS), ("/run/dcqcn/bpf", libc::EIO)] {
            assert!(!text(path, errno).contains("remount"), "{}", text(path, errno));
        }
    }

    #[test]
    fn inaccessible_map_named_by_directory() {
        let of = |errno| {
            let io_error = io::Error::from_raw_os_error(errno);
            let source = aya::sys::SyscallError { call: "BPF_OBJ_GET", io_error }.into();
            Error::of_map(
                dataplane::Error::Map { name: "ACTIVE", source },
                Path::new("/run/dcqcn/bpf/ns-1/3"),
            )
        };
        for errno in [libc::EACCES, libc::EPERM, libc::EROFS] {
            assert!(matches!(of(errno), Error::File { .. }), "{}", of(errno));
        }
        assert!(of(libc::EROFS).to_string().contains("`mount -o remount,rw /run/dcqcn/bpf`"));
        assert!(matches!(of(libc::EIO), Error::Dataplane(_)));
    }

    #[test]
    fn missing_qdisc_names_option_with_its_value() {
        let text = Error::Queues { qdisc: "ets" }.to_string();
        assert!(text.contains("`--queues=auto`"), "the next word would be an interface: {text}");
    }

    #[test]
    fn xdp_fix_is_for_mode_of_program() {
        for (mode, fix) in [
            ("driver", "`ip link set dev eth0 xdpdrv off`"),
            ("skb", "`ip link set dev eth0 xdpgeneric off`"),
            ("offload", "`ip link set dev eth0 xdpoffload off`"),
        ] {
            let taken = Error::XdpTaken { iface: "eth0".into(), name: "other".into(), id: 7, mode };
            assert!(taken.to_string().contains(fix), "{taken}");
        }
    }
}
