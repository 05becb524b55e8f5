//! Attaching, detaching and finding what is attached.
//!
//! What is attached lives in the kernel: programs, maps and links are pinned, and outlive this process. A journal says what was
//! chosen ([`Info`]) and what is to be restored. Each change is written there before it is made, so that whoever comes after a
//! process that was killed can undo what it did.

mod bound;
mod change;
mod detach;
mod execute;
mod find;
mod foreign;
mod gc;
mod hook_names;
mod hooks;
mod identity;
mod interrupt;
mod journal;
mod legacy;
mod lock;
mod parallel;
mod pending;
mod pending_revert;
mod plan;
mod prepare;
mod probe;
mod repair;
mod siblings;
mod speed;
mod state_dir;
mod takeover;
mod undo;
mod verify;

use std::fs;
use std::path::Path;

use aya::Ebpf;
use dcqcn_common::layout::{LAYOUT_VERSION, Mode};
use dcqcn_common::params::Config;
use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::{Profile, QueuesChoice, Role, Settings, word};
use serde::{Deserialize, Serialize};

use crate::dataplane::{self, EXPIRE, Maps, PROGRAMS, Programs, classifier};
pub use crate::error::Error;
pub use change::{Change, Refused, Transaction, change};
pub use detach::{check_detach, detach, detach_all, detach_id, detach_with};
use find::Journals;
pub use find::{Alive, Broken, Survey, alive, is_alive, labels, list, list_alive, open, open_expire, survey};
pub use foreign::{Other, others};
pub use gc::{Freed, gc};
pub use identity::Id;
pub use journal::State;
use journal::UndoStep;
pub use pending::{Reverted, Which, confirm, pending, revert};
pub use pending_revert::Pending;
use plan::Plan;
pub use prepare::{prepare, write_networkd};
pub use repair::repair;
pub use speed::follow_link_rate;
use state_dir::StateDir;
pub use takeover::{Claim, claim, is_claimed, is_upgradable, revise, upgrade};
pub use verify::{Part, Sweep, verify};

/// What to attach, and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// The interface.
    pub iface: String,
    /// Role, the other end of an attachment in line, profile, parameters, pacer, XDP mode, table sizes.
    pub settings: Settings,
}

/// What may be done, and whether it is done at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A qdisc may be replaced though RDMA queue pairs may end by that.
    pub interrupt: bool,
    /// What cannot be restored is abandoned.
    pub force: bool,
    /// Programs may run on a PREEMPT_RT kernel that does not serialise them on a CPU.
    pub realtime: bool,
}

/// What was chosen when attaching.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Info {
    /// The interface's name, as it was when it was last looked at.
    pub iface: String,
    /// Its index, by which it is known.
    pub ifindex: u32,
    /// Its network namespace (`SO_NETNS_COOKIE`).
    #[serde(default)]
    pub netns_cookie: u64,
    /// The other interface of an inline attachment.
    pub inline_peer: Option<String>,
    /// The index of that one.
    #[serde(default)]
    pub peer_ifindex: Option<u32>,
    /// Its role.
    pub role: Role,
    /// The profile that it was attached with, never `auto`; `None` from versions that did not record it.
    #[serde(default)]
    pub profile: Option<Profile>,
    /// `none`, `fq` or `htb`.
    pub pacer: String,
    /// The qdisc of the port's queues: `none`, `ets` or `htb`.
    #[serde(default = "no_queues")]
    pub queues: String,
    /// `driver` or `skb`; `none` unless it is inline.
    pub xdp_mode: String,
    /// `tcx` (Linux 6.6) or `clsact`; `none` where the role needs no TC.
    pub tc_mode: String,
    /// The programs attached: `xdp`, or `ingress` and `egress`.
    pub programs: Vec<String>,
    /// Table sizes.
    pub rp_flows: u32,
    /// Table sizes.
    pub np_flows: u32,
    /// Version of dcqcn that attached.
    pub version: String,
    /// Which object the programs come from; empty from versions that did not say.
    #[serde(default)]
    pub object: String,
    /// One packet in so many is told of (`dcqcn events --packets`); none if it is not set.
    #[serde(default)]
    pub log_packets: Option<u32>,
    /// Version of the layout of its maps; 0 from versions that did not say.
    #[serde(default)]
    pub layout_version: u32,
    /// CLOCK_BOOTTIME when it was attached.
    pub attached_at_ns: u64,
    /// What was chosen, and why.
    pub notes: Vec<String>,
    /// Where `link_rate` is from.
    #[serde(default)]
    pub link_rate_from: LinkRateFrom,
    /// The rate that was found there last, bit/s. If another one is active somebody has set it, and it stays.
    #[serde(default)]
    pub link_rate_found_bps: Option<u64>,
    /// What settings that say nothing of it have; `None` from versions that did not say.
    #[serde(default)]
    pub unsaid: Option<Unsaid>,
}

/// Parameters that an interface has by what it is, as far as nothing else is said, as they were when attaching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsaid {
    /// Rate of the link in bit/s, found or given; 0 = not known. If it was found, what is found later counts.
    pub link_rate_bps: u64,
    /// Bytes that the wire adds to a frame.
    pub wire_overhead_bytes: u64,
    /// `np_other_host`.
    pub other_host: bool,
    /// The profile by the link's speed. A later speed does not change it.
    #[serde(default)]
    pub profile: Profile,
}

/// What versions without queues have.
fn no_queues() -> String {
    word(&QueuesChoice::None)
}

/// Where the rate of a link is from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkRateFrom {
    /// From whoever attached.
    #[default]
    Given,
    /// The speed of hardware.
    Speed,
    /// A shaper on the interface.
    Shaper,
    /// What a virtual interface says.
    Virtual,
}

/// Something attached.
pub struct Attachment {
    /// What was chosen.
    pub info: Info,
    /// Its maps.
    pub maps: Maps,
}

/// Attaches, and says what was chosen.
///
/// # Errors
/// Nothing is left behind when it fails.
pub fn attach(request: &Request) -> Result<Info, Error> {
    attach_with(request, Options::default())
}

/// As [`attach`], with what may be done.
///
/// # Errors
/// As [`attach`].
pub fn attach_with(request: &Request, options: Options) -> Result<Info, Error> {
    let none = || Err(Error::NotAttached { iface: request.iface.clone() });
    attach_all(std::slice::from_ref(request), options)?.pop().unwrap_or_else(none)
}

/// Attaches several interfaces, as many at a time as there are CPUs: the kernel's verifier takes most of the time, of one CPU
/// each. Their results are in the order of the requests.
///
/// # Errors
/// Nothing was tried: rights are missing, or somebody else keeps the lock.
pub fn attach_all(requests: &[Request], options: Options) -> Result<Vec<Result<Info, Error>>, Error> {
    probe::check(options.realtime)?;
    let place = StateDir::here()?;
    place.mount()?;
    gc::elsewhere(&place);
    let _lock = place.lock()?;
    let netlink = Netlink::connect()?;
    // One after the other: what is half attached now was left by somebody, and not by a thread of these.
    let (mut taken, links, mut journals) = (Vec::new(), netlink.links()?, Journals::read(&place)?);
    let mut make_way = |request| make_way(&place, &netlink, request, &links, &mut journals, &mut taken);
    let ways: Vec<_> = requests.iter().map(&mut make_way).collect();
    gc::sweep(&place)?;
    let mut free = siblings::free(&place)?;
    let ways: Vec<_> = ways.into_iter().map(|way| (way, free.next())).collect();
    let mut jobs: Vec<Option<_>> = requests.iter().zip(ways).map(Some).collect();
    let ifaces: Vec<&str> = requests.iter().map(|request| request.iface.as_str()).collect();
    let mut results = Vec::new();
    for round in parallel::rounds(&ifaces, &links) {
        let round = round.into_iter().filter_map(|at| Some((at, jobs.get_mut(at)?.take()?))).collect();
        results.extend(parallel::run(round, |(at, (request, (way, sibling)))| {
            (at, way.and_then(|inherited| attach_locked(&place, request, options, sibling, inherited)))
        }));
    }
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Attaches one interface whose way is clear, with the lock held; `sibling` is its place among those that hand CNPs on to each other,
/// `inherited` what an earlier attachment of it still owes.
fn attach_locked(
    place: &StateDir,
    request: &Request,
    options: Options,
    sibling: Option<u32>,
    inherited: Vec<UndoStep>,
) -> Result<Info, Error> {
    let netlink = Netlink::connect()?;
    let plan = Plan::make(place, &netlink, request, options.interrupt, sibling)?;
    execute::out(plan, &netlink, place, inherited)
}

/// Clears the way of a request, with the lock held; `taken` are the interfaces of those before it. Returns what an earlier
/// attachment still owes.
fn make_way(
    place: &StateDir,
    netlink: &Netlink,
    request: &Request,
    links: &[Link],
    journals: &mut Journals,
    taken: &mut Vec<u32>,
) -> Result<Vec<UndoStep>, Error> {
    let mut inherited = Vec::new();
    for iface in [Some(&request.iface), request.settings.inline.as_ref()].into_iter().flatten() {
        let link = netlink.link(iface)?;
        if taken.contains(&link.index) {
            return Err(Error::Unsupported(format!(
                "{iface} is named twice: an interface has one attachment"
            )));
        }
        taken.push(link.index);
        find::refuse_taken(place, netlink, &link, links, journals)?;
        inherited.extend(gc::reclaim(place, netlink, &link, links, journals)?);
    }
    Ok(inherited)
}

/// Says what attaching would choose and do, and changes nothing.
///
/// # Errors
/// As [`attach`].
pub fn rehearse(request: &Request, options: Options) -> Result<(Info, Vec<String>), Error> {
    probe::check(options.realtime)?;
    let place = StateDir::here()?;
    let netlink = Netlink::connect()?;
    let (links, journals) = (netlink.links()?, Journals::read(&place)?);
    for iface in [Some(&request.iface), request.settings.inline.as_ref()].into_iter().flatten() {
        find::refuse_taken(&place, &netlink, &netlink.link(iface)?, &links, &journals)?;
    }
    let sibling = siblings::free(&place)?.next();
    let plan = Plan::make(&place, &netlink, request, options.interrupt, sibling)?;
    let steps = plan.steps.iter().map(UndoStep::intention).collect();
    Ok((plan.info, steps))
}

impl Info {
    /// What its programs are loaded for.
    fn mode(&self) -> Mode {
        if self.inline_peer.is_some() { Mode::Inline } else { Mode::Host }
    }

    /// Which programs it has.
    fn which(&self) -> Programs {
        self.log_packets.map_or(Programs::Plain, |one_in| Programs::PacketTrace { one_in })
    }

    /// The names its programs have in the object.
    fn program_names(&self) -> Vec<&'static str> {
        let is_wanted = |name: &&str| self.programs.iter().any(|program| name.ends_with(program.as_str()));
        PROGRAMS.into_iter().filter(is_wanted).collect()
    }

    /// Opens its maps, which are in `pins`. Another layout is told from its version: the sizes of maps would be told first.
    ///
    /// # Errors
    /// They are another version's.
    fn open_maps(&self, pins: &Path) -> Result<Maps, Error> {
        match self.layout_version {
            LAYOUT_VERSION => Ok(Maps::pinned(pins)?),
            found => Err(dataplane::Error::Layout { found }.into()),
        }
    }

    /// Refuses switches whose program is not attached.
    fn check(&self, config: &Config) -> Result<(), Error> {
        let s = &config.scalars;
        let egress_or_inline = if self.inline_peer.is_some() { "xdp" } else { "egress" };
        let needs = [
            ("cp_enable", s.cp_enable, egress_or_inline, "--role switch"),
            ("fast_cnp", s.fast_cnp, "egress", "--role switch"),
            ("np_enable", s.np_enable, "ingress", "--role host"),
            ("rp_enable", s.rp_enable, "ingress", "--role host"),
            ("rp_enable", s.rp_enable, "egress", "--role host"),
        ];
        for (key, value, program, remedy) in needs {
            if value != 0 && !self.programs.iter().any(|name| name == program) {
                return Err(Error::Role { key, program, role: word(&self.role), remedy });
            }
        }
        if s.rp_enable != 0 && config.line_rate_bps() == 0 {
            return Err(Error::LinkRate { iface: self.iface.clone() });
        }
        Ok(())
    }
}

/// Pins the program that removes idle flows, in the place of an older one.
fn pin_expire(ebpf: &mut Ebpf, pins: &Path) -> Result<(), Error> {
    let path = pins.join(EXPIRE);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::File { path, source });
        }
        _ => {}
    }
    let pinned = classifier(ebpf, EXPIRE)?.pin(&path);
    pinned.map_err(|source| Error::File { path, source: std::io::Error::other(source) })
}

/// The name a link has in an error or a note, by its index.
fn name_of(links: &[Link], ifindex: u32) -> Option<&str> {
    links.iter().find(|link| link.index == ifindex).map(|link| link.name.as_str())
}

/// The file system that attachments live on, as this process sees it; mounted if need be. Two that are equal are the
/// same.
///
/// # Errors
/// It cannot be mounted: that needs CAP_SYS_ADMIN, once after a boot.
pub fn file_system() -> Result<u64, Error> {
    StateDir::here()?.file_system()
}
