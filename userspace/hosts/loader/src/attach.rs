//! Attaching, detaching and finding attachments.
//!
//! An attachment lives in the kernel: its programs, maps and links are pinned and outlive this process. A
//! journal stores the choices made ([`Info`]) and the steps to undo. Each step is journaled before it is
//! taken, so that a later command can undo the work of a process that was killed.

mod change;
mod execute;
mod find;
mod foreign;
mod gc;
mod hooks;
mod journal;
mod kinds;
mod link_rate;
mod pending;
mod plan;
mod prepare;
mod probe;
mod repair;
mod siblings;
mod state_dir;
mod takeover;
mod undo;
mod verify;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use aya::Ebpf;
use dcqcn_common::layout::{LAYOUT_VERSION, Mode};
use dcqcn_common::params::{Config, QUEUES_HTB};
use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::{Profile, QueuesChoice, Role, Settings, check_programs, word};
use dcqcn_support::sync::lock;
use serde::{Deserialize, Serialize};

use crate::dataplane::{MAPS, Maps, PROGRAMS, Programs, RUN, classifier};
pub use crate::error::Error;
pub use change::{Change, ChangeError, Transaction, change, follow};
pub use find::{
    Alive, Broken, Survey, alive, ids, is_alive, labels, list, list_alive, open, open_expire, open_probe,
    reopen, survey, with_removed, without_journal,
};
pub use foreign::{ForeignProgram, foreign_programs};
pub use gc::{Freed, gc};
pub(crate) use journal::FORMAT;
use journal::UndoStep;
pub use journal::{Id, State};
pub use pending::{Confirmed, Pending, Reverted, Which, confirm, pending, revert};
use plan::Plan;
pub use prepare::{prepare, write_networkd};
pub(crate) use probe::missing_for_access;
pub use repair::repair;
use state_dir::{StateDir, remove_file, remove_pins};
pub use state_dir::{hold_root, stop_waiting};
pub use takeover::{Claim, claim, is_claimed, is_upgradable, revise, upgrade};
pub use undo::{check_detach, detach, detach_all, detach_id, detach_with};
pub use verify::{Part, Sweep, verify};

#[derive(Clone, Debug)]
pub struct Request {
    pub iface: String,
    /// Role, other interface of an inline pair, profile, parameters, pacer, XDP mode, table sizes.
    pub settings: Settings,
}

/// Safety checks that the caller overrides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Replace a qdisc even if that may kill active RDMA queue pairs (QPs).
    pub interrupt: bool,
    /// Abandon undo steps that fail.
    pub force: bool,
    /// Attach on a PREEMPT_RT kernel that does not serialise programs on a CPU.
    pub realtime: bool,
}

/// Properties of an attachment, as chosen when it was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Info {
    /// Name of the interface when it was last read.
    pub iface: String,
    /// Index of the interface, which identifies it.
    pub ifindex: u32,
    /// Network namespace (`SO_NETNS_COOKIE`).
    #[serde(default)]
    pub netns_cookie: u64,
    /// The other interface of an inline attachment.
    pub inline_peer: Option<String>,
    #[serde(default)]
    pub peer_ifindex: Option<u32>,
    pub role: Role,
    /// Effective profile, never `auto`; `None` from versions that did not record it.
    #[serde(default)]
    pub profile: Option<Profile>,
    /// `none`, `fq` or `htb`.
    pub pacer: String,
    /// Qdisc of the port's queues: `none`, `ets` or `htb`.
    #[serde(default = "no_queues")]
    pub queues: String,
    /// `driver` or `skb`; `none` unless inline.
    pub xdp_mode: String,
    /// `tcx` (Linux 6.6) or `clsact`; `none` if the role needs no TC program.
    pub tc_mode: String,
    /// Attached programs: `xdp`, or `ingress` and `egress`.
    pub programs: Vec<String>,
    pub rp_flows: u32,
    pub np_flows: u32,
    /// Version of dcqcn that made the attachment.
    pub version: String,
    /// Hash of the object that the programs come from; empty from versions that did not record it.
    #[serde(default)]
    pub object: String,
    /// Sampling interval of the packet trace (`dcqcn events --packets`) in packets; `None` without a trace.
    #[serde(default)]
    pub log_packets: Option<u32>,
    /// Version of the map layout; 0 from versions that did not record it.
    #[serde(default)]
    pub layout_version: u32,
    /// CLOCK_BOOTTIME when attached.
    pub attached_at_ns: u64,
    /// Choices made and their reasons, as text.
    pub notes: Vec<String>,
    #[serde(default)]
    pub link_rate_from: LinkRateFrom,
    /// Last rate read from that source, bit/s.
    ///
    /// A different active rate was set explicitly, and is preserved.
    #[serde(default)]
    pub link_rate_found_bps: Option<u64>,
    /// Options of the request by their keys in a file, the others having been chosen when attaching; `None`
    /// from versions that did not record them.
    #[serde(default)]
    pub options: Option<BTreeMap<String, String>>,
    /// Defaults derived from the interface; `None` from versions that did not record them.
    #[serde(default)]
    pub derived: Option<DerivedDefaults>,
}

/// Parameter defaults derived from the interface when attaching; used if the settings do not specify them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DerivedDefaults {
    /// Link rate in bit/s, detected or specified; 0 = unknown. A detected rate is updated later.
    pub link_rate_bps: u64,
    /// Bytes per frame that the wire adds.
    pub wire_overhead_bytes: u64,
    pub other_host: bool,
    /// `queue_limit` of the classes with a DSCP: the limit of a shaper; 0 = none.
    #[serde(default)]
    pub queue_limit_bytes: u64,
    /// Profile selected by link speed. A later change of speed does not change it.
    #[serde(default)]
    pub profile: Profile,
}

/// Default for journals of versions without queues.
fn no_queues() -> String {
    word(&QueuesChoice::None)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkRateFrom {
    #[default]
    Given,
    Speed,
    Shaper,
    Virtual,
}

pub struct Attachment {
    pub info: Info,
    pub maps: Maps,
}

/// Attaches an interface; returns the properties chosen. A failed attach undoes its steps.
pub fn attach(request: &Request) -> Result<Info, Error> {
    attach_with(request, Options::default())
}

pub fn attach_with(request: &Request, options: Options) -> Result<Info, Error> {
    let none = || Err(Error::NotAttached { iface: request.iface.clone() });
    attach_all(std::slice::from_ref(request), options)?.pop().unwrap_or_else(none)
}

/// Attaches several interfaces, with one thread per CPU.
///
/// Most of the time is spent in the kernel's verifier. Results are in the order of the requests.
///
/// # Errors
/// Nothing was attempted: capabilities are missing, or another process holds the lock.
pub fn attach_all(requests: &[Request], options: Options) -> Result<Vec<Result<Info, Error>>, Error> {
    probe::check(options.realtime)?;
    let state_dir = StateDir::here()?;
    state_dir.mount()?;
    gc::elsewhere(&state_dir);
    let netlink = Netlink::connect()?;
    let free_previous = |request: &Request| {
        // Interfaces that do not exist are reported below.
        let mut links = interfaces(request).filter_map(|iface| netlink.link(iface).ok());
        links.try_for_each(|link| gc::free_previous_namespace(&state_dir, &netlink, &link))
    };
    let moved: Vec<_> = requests.iter().map(free_previous).collect();
    let _lock = state_dir.lock()?;
    let sweep = Sweep::of(state_dir)?;
    let Sweep { state_dir, links, .. } = &sweep;
    // Sequential: at this point a partial attachment was left by another process, not by a thread of this
    // call.
    let mut taken = Vec::new();
    let free_interfaces = |(request, moved): (_, Result<(), Error>)| {
        moved.and_then(|()| free_interfaces(&sweep, request, options.interrupt, &mut taken))
    };
    let inherited: Vec<_> = requests.iter().zip(moved).map(free_interfaces).collect();
    gc::sweep(state_dir, |ifindex| name_of(links, ifindex).is_none())?;
    let free = Mutex::new(siblings::free(state_dir)?);
    let sibling = || lock(&free).next();
    let loader = execute::Loader::default();
    let mut jobs: Vec<Option<_>> = requests.iter().zip(inherited).map(Some).collect();
    let ifaces: Vec<Vec<&str>> =
        requests.iter().map(|request| interfaces(request).map(String::as_str).collect()).collect();
    let mut results = Vec::new();
    for round in rounds(&ifaces, links) {
        let round = round.into_iter().filter_map(|at| Some((at, jobs.get_mut(at)?.take()?))).collect();
        results.extend(run_in_parallel(round, |(at, (request, inherited))| {
            let attach = |inherited| {
                let netlink = Netlink::connect()?;
                let plan = Plan::make(state_dir, &netlink, links, request, options.interrupt, sibling)?;
                execute::run(plan, &netlink, state_dir, &loader, inherited)
            };
            (at, inherited.and_then(attach))
        }));
    }
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Interfaces of a request: one, or an inline pair.
fn interfaces(request: &Request) -> impl Iterator<Item = &String> {
    [Some(&request.iface), request.settings.inline.as_ref()].into_iter().flatten()
}

/// Checks that the interfaces of a request are free and undoes abandoned attachments, with the lock held.
///
/// `taken` collects the interfaces of all requests. Returns undo steps that failed.
fn free_interfaces(
    sweep: &Sweep,
    request: &Request,
    may_interrupt: bool,
    taken: &mut Vec<u32>,
) -> Result<Vec<UndoStep>, Error> {
    let Sweep { state_dir, netlink, .. } = sweep;
    let mut inherited = Vec::new();
    for iface in interfaces(request) {
        let link = netlink.link(iface)?;
        if taken.contains(&link.index) {
            return Err(Error::NamedTwice(iface.clone()));
        }
        taken.push(link.index);
        find::check_unattached(sweep, &link)?;
        let left = gc::reclaim(sweep, &link)?;
        // Steps are relative to the interface of their journal.
        if *iface != request.iface && !left.is_empty() {
            return Err(Error::Unfinished { iface: iface.clone(), state: State::Detaching.words() });
        }
        if state_dir.read(link.index)?.is_none() {
            // Of an attachment without a journal. Those of other interfaces stay: `repair = "none"` leaves them.
            if let Some(done) = undo::remove_own_qdisc(netlink, link.index, may_interrupt)? {
                tracing::warn!(iface, "{done}");
            }
            remove_pins(&state_dir.pins(link.index))?;
        }
        inherited.extend(left);
    }
    Ok(inherited)
}

/// Returns the choices and steps that attaching would make; changes nothing.
pub fn rehearse(request: &Request, options: Options) -> Result<(Info, Vec<String>), Error> {
    probe::check(options.realtime)?;
    let sweep = Sweep::take()?;
    let Sweep { state_dir, netlink, links, .. } = &sweep;
    for iface in interfaces(request) {
        find::check_unattached(&sweep, &netlink.link(iface)?)?;
    }
    let mut free = siblings::free(state_dir)?;
    let plan = Plan::make(state_dir, netlink, links, request, options.interrupt, || free.next())?;
    let steps = plan.steps.iter().map(UndoStep::description).collect();
    Ok((plan.info, steps))
}

impl Info {
    /// Mode the programs are loaded in.
    fn mode(&self) -> Mode {
        match (&self.inline_peer, self.programs.iter().any(|name| name == "ingress")) {
            (Some(_), _) => Mode::Inline,
            (None, true) => Mode::Host,
            // `Self::check` rejects an RP without the ingress program.
            (None, false) => Mode::Marking,
        }
    }

    fn which(&self) -> Programs {
        self.log_packets.map_or(Programs::Plain, |one_in| Programs::PacketTrace { one_in })
    }

    fn program_names(&self) -> Vec<&'static str> {
        let is_wanted = |name: &&str| self.programs.iter().any(|program| name.ends_with(program.as_str()));
        PROGRAMS.into_iter().filter(is_wanted).collect()
    }

    /// Opens its maps in `pins`.
    ///
    /// Checks the recorded layout version first, for a clearer error than a size mismatch.
    fn open_maps(&self, pins: &Path) -> Result<Maps, Error> {
        self.check_layout(self.layout_version)?;
        // Reports a directory without access as such.
        state_dir::names(pins)?;
        if self.has_lost_maps(pins) {
            return Err(self.maps_missing(pins));
        }
        let maps = Maps::pinned(pins)?;
        let params = maps.params().map_err(|error| Error::of_map(error, pins))?;
        self.check_layout(params.port.layout_version)?;
        Ok(maps)
    }

    /// Error of an attachment whose maps were removed.
    fn maps_missing(&self, pins: &Path) -> Error {
        let iface = self.iface.clone();
        match state_dir::unmounted(pins) {
            Some(path) => Error::Unmounted { iface, path: path.to_owned() },
            None => Error::MapsMissing { iface },
        }
    }

    fn check_layout(&self, found: u32) -> Result<(), Error> {
        if found == LAYOUT_VERSION {
            return Ok(());
        }
        Err(Error::Layout { iface: self.iface.clone(), version: self.version.clone(), found })
    }

    /// Whether maps were removed; `false` if that cannot be read.
    fn has_lost_maps(&self, pins: &Path) -> bool {
        let is_missing =
            |present: Vec<String>| MAPS.iter().any(|map| !present.iter().any(|name| name == map));
        self.layout_version == LAYOUT_VERSION && state_dir::names(pins).is_ok_and(is_missing)
    }

    /// Rejects parameters that enable a function whose program is not attached.
    fn check(&self, config: &Config) -> Result<(), Error> {
        check_programs(config, &self.programs).map_err(|missing| Error::ProgramMissing {
            iface: self.iface.clone(),
            missing: Box::new(missing),
        })?;
        let s = &config.scalars;
        // A class of htb without a rate sends nothing.
        let has_htb_queues = s.queues == QUEUES_HTB;
        if s.rp_enable != 0 && config.line_rate_bps() == 0 || has_htb_queues && s.link_rate_bps == 0 {
            return Err(Error::LinkRate { iface: self.iface.clone() });
        }
        Ok(())
    }
}

/// Pins the programs that are run, not attached, replacing older ones.
fn pin_run(ebpf: &mut Ebpf, pins: &Path) -> Result<(), Error> {
    for name in RUN {
        let path = pins.join(name);
        remove_file(&path)?;
        let pinned = classifier(ebpf, name)?.pin(&path);
        pinned.map_err(|source| Error::File { path, source: std::io::Error::other(source) })?;
    }
    Ok(())
}

fn name_of(links: &[Link], ifindex: u32) -> Option<&str> {
    links.iter().find(|link| link.index == ifindex).map(|link| link.name.as_str())
}

/// Mounts the BPF file system if necessary, and keeps access to it after capabilities are dropped.
///
/// # Errors
/// Mounting fails; the first mount after boot requires CAP_SYS_ADMIN.
pub fn hold_file_system() -> Result<(), Error> {
    StateDir::here()?.mount()?;
    hold_root()
}

/// Groups requests, by index in `requests`, into rounds that can be attached concurrently. A request is the
/// names or altnames of one interface, or of both ends of an inline pair.
///
/// An upper device (VLAN, bridge, bond) is in a later round than its lower devices, because the kernel
/// rejects an XDP program on an interface if an upper device has one.
fn rounds(requests: &[Vec<&str>], links: &[Link]) -> Vec<Vec<usize>> {
    let mut ports: Vec<Vec<&Link>> = Vec::new();
    for names in requests {
        let is_one = |link: &&Link| names.iter().any(|name| is_called(link, name));
        ports.push(links.iter().filter(is_one).collect());
    }
    let is_above = |upper: usize, lower: usize| {
        let (Some(uppers), Some(lowers)) = (ports.get(upper), ports.get(lower)) else { return false };
        upper != lower && uppers.iter().any(|upper| lowers.iter().any(|lower| upper.is_above(lower)))
    };
    let mut left: Vec<usize> = (0..requests.len()).collect();
    let mut rounds = Vec::new();
    while !left.is_empty() {
        let waits = |upper: &usize| left.iter().any(|lower| is_above(*upper, *lower));
        let (later, now): (Vec<_>, Vec<_>) = left.iter().copied().partition(waits);
        // Interfaces do not form cycles; if they did, this would put the rest into one round.
        let (now, later) = if now.is_empty() { (later, now) } else { (now, later) };
        rounds.push(now);
        left = later;
    }
    rounds
}

fn is_called(link: &Link, name: &str) -> bool {
    link.name == name || link.altnames.iter().any(|altname| altname == name)
}

/// Runs `work` for each of `jobs`, with one thread per CPU; results are in the order of the jobs.
fn run_in_parallel<T: Send, R: Send>(jobs: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    run_on(thread::available_parallelism().map_or(1, NonZero::get), jobs, work)
}

fn run_on<T: Send, R: Send>(threads: usize, jobs: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = threads.min(jobs.len());
    let results = Mutex::new(Vec::with_capacity(jobs.len()));
    let jobs = Mutex::new(jobs.into_iter().enumerate());
    // Not in the `while let` itself, which would hold the lock while the job runs.
    let next = || lock(&jobs).next();
    let worker = || {
        while let Some((number, job)) = next() {
            let result = work(job);
            lock(&results).push((number, result));
        }
    };
    thread::scope(|scope| {
        // At a limit of threads, this one does all jobs.
        (1..threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, worker)));
        worker();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::journal::tests::record;
    use super::*;

    #[test]
    fn function_of_another_role_needs_detaching() {
        let info = Info { programs: vec!["egress".into()], ..record().info };
        let mut config = Config::DEFAULT;
        (config.scalars.np_enable, config.scalars.rp_enable) = (0, 1);
        let refused = info.check(&config).unwrap_err().to_string();
        assert!(refused.starts_with("rp_enable = true needs the ingress program"), "{refused}");
        assert!(refused.ends_with("attach with role = \"host\"; `dcqcn detach eth0` first"), "{refused}");
    }

    #[test]
    fn htb_queues_need_the_link_rate() {
        let info = Info { programs: vec!["egress".into()], ..record().info };
        let mut config = Config::DEFAULT;
        (config.scalars.np_enable, config.scalars.rp_enable, config.scalars.queues) = (0, 0, QUEUES_HTB);
        let refused = info.check(&config).unwrap_err().to_string();
        assert!(refused.starts_with("the link rate of eth0 is unknown"), "{refused}");
        config.scalars.link_rate_bps = 1_000_000_000;
        info.check(&config).unwrap();
    }

    /// Each of two jobs waits for a message from the other.
    #[test]
    fn parallel_jobs_keep_result_order() {
        type Job = (u32, Sender<u32>, Receiver<u32>);
        let jobs = || -> Vec<Job> {
            let ((to_one, one), (to_two, two)) = (channel(), channel());
            vec![(1, to_two, one), (2, to_one, two)]
        };
        let exchange = |(number, other, own): Job| {
            other.send(number).ok()?;
            own.recv_timeout(Duration::from_secs(5)).ok()
        };
        assert_eq!(run_on(2, jobs(), exchange), [Some(2), Some(1)]);
        assert_eq!(run_on(8, jobs(), exchange), [Some(2), Some(1)]);
    }

    #[test]
    fn upper_device_follows_lower() {
        let link = |index: u32, name: &str, kind: Option<&str>, peer, master| Link {
            index,
            name: name.into(),
            altnames: vec![format!("alt-{name}")],
            kind: kind.map(Into::into),
            peer,
            master,
            ..Link::default()
        };
        let links = [
            link(2, "eth0", None, None, Some(9)),
            link(3, "eth1", None, None, Some(9)),
            link(5, "veth0", Some("veth"), Some(6), None),
            link(6, "veth1", Some("veth"), Some(5), None),
            link(9, "bond0", Some("bond"), None, None),
            link(10, "bond0.5", Some("vlan"), Some(9), None),
        ];
        let rounds_of = |requests: &[&str]| {
            let requests: Vec<Vec<&str>> = requests.iter().map(|names| names.split('=').collect()).collect();
            rounds(&requests, &links)
        };
        assert_eq!(
            rounds_of(&["bond0.5", "veth0", "bond0", "eth1", "veth1", "eth0", "gone"]),
            [vec![1, 3, 4, 5, 6], vec![2], vec![0]]
        );
        assert_eq!(rounds_of(&["alt-bond0.5", "alt-bond0", "eth1"]), [vec![2], vec![1], vec![0]]);
        assert_eq!(
            rounds_of(&["bond0", "veth0=eth1"]),
            [vec![1], vec![0]],
            "the other end of an inline pair"
        );
        assert_eq!(rounds_of(&["bond0=eth0", "veth0"]), [vec![0, 1]]);
        assert!(rounds_of(&[]).is_empty());
    }

    #[test]
    fn other_layout_named_with_detach_command() {
        for layout_version in [LAYOUT_VERSION - 1, LAYOUT_VERSION + 1] {
            let info = Info { layout_version, version: "0.0.9".into(), ..record().info };
            let refused =
                info.open_maps(Path::new("/nonexistent")).err().expect("another layout").to_string();
            assert!(refused.contains("dcqcn 0.0.9 attached it"), "{refused}");
            assert!(refused.contains("`dcqcn detach eth0`"), "{refused}");
        }
    }

    #[test]
    fn unmounted_file_system_named_with_fix() {
        let root = tempfile::tempdir().expect("a directory");
        let info = Info { layout_version: LAYOUT_VERSION, ..record().info };
        let refused = info.open_maps(&root.path().join("bpf/ns-1/3")).err().expect("no maps").to_string();
        let expected = format!("no BPF file system is mounted at {}/bpf, ", root.path().display());
        assert!(refused.starts_with(&expected) && refused.contains("`dcqcn attach eth0`"), "{refused}");
    }

    #[test]
    fn one_thread_runs_all_jobs_in_order() {
        assert_eq!(run_on(1, vec![3, 1, 2], |job| job * 10), [30, 10, 20]);
        assert_eq!(run_on(4, Vec::<u32>::new(), |job| job), [0; 0]);
    }
}
