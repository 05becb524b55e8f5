//! Attaching, detaching and finding what is attached.
//!
//! What is attached lives in the kernel: programs, maps and links are pinned, and outlive this process. A description
//! beside the pins ([`Info`]) says what was chosen and what to put back.

mod change;
mod hooks;
mod place;
mod probe;
mod takeover;

use std::path::Path;
use std::{fs, panic, thread};

use aya::Ebpf;
use aya::util::online_cpus;
use dcqcn_common::layout::{LAYOUT_VERSION, Mode};
use dcqcn_common::params::{Config, PACER_FQ, PACER_HTB, PACER_NONE, Params, Port, Quantity, Unit};
use dcqcn_netlink::tc::{SavedQdisc, Shaping};
use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::{PacerChoice, Role, Settings, XdpModeChoice, word};
use dcqcn_support::render;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::dataplane::{self, EXPIRE, Expire, Maps, PROGRAMS, Sizes, classifier};
pub use crate::error::Error;
use crate::pacer;
pub use change::{Change, Refused, Transaction, change};
use place::Place;
pub use takeover::{Claim, claim, revise, upgrade};

/// What to attach, and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// The interface.
    pub iface: String,
    /// The other end of a bump in the wire, for an inline attachment.
    pub inline_peer: Option<String>,
    /// Role, profile, parameters, pacer, XDP mode, table sizes.
    pub settings: Settings,
}

/// What was chosen when attaching, and what detaching puts back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Info {
    /// The interface.
    pub iface: String,
    /// Its index; another interface of the same name has another.
    pub ifindex: u32,
    /// The other interface of an inline attachment.
    pub inline_peer: Option<String>,
    /// Its role.
    pub role: Role,
    /// `none`, `fq` or `htb`.
    pub pacer: String,
    /// `driver` or `skb`; `none` where the role needs no XDP.
    pub xdp_mode: String,
    /// `tcx` (Linux 6.6) or `clsact`; `none` where the role needs no TC.
    pub tc_mode: String,
    /// The programs attached: `xdp`, `ingress`, `egress`.
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
    /// CLOCK_BOOTTIME when it was attached.
    pub attached_at_ns: u64,
    /// What was chosen, and why.
    pub notes: Vec<String>,
    /// The root qdisc the pacer replaced.
    saved_qdisc: Option<SavedQdisc>,
    /// `clsact` was not there before (kernels without TCX).
    added_clsact: bool,
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
    probe::check()?;
    let place = Place::here()?;
    let _lock = place.lock()?;
    attach_locked(&place, request)
}

/// How many interfaces [`attach_all`] is well given at once: nobody else can change anything meanwhile.
pub const AT_ONCE: usize = 4;

/// Attaches several interfaces, at the same time as far as there are cores: the verifier is what attaching waits for. Each is
/// attached or not, whatever happens to the others.
#[must_use]
pub fn attach_all(requests: &[Request]) -> Vec<Result<Info, Error>> {
    let locked = || -> Result<_, Error> {
        probe::check()?;
        let place = Place::here()?;
        let lock = place.lock()?;
        Ok((place, lock))
    };
    if let [request] = requests {
        return vec![attach(request)];
    }
    let (place, _lock) = match locked() {
        Ok(locked) => locked,
        // Each is told of it.
        Err(_) => return requests.iter().map(attach).collect(),
    };
    let place = &place;
    thread::scope(|scope| {
        let threads: Vec<_> =
            requests.iter().map(|request| scope.spawn(move || attach_locked(place, request))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// As [`attach`], with the lock held.
fn attach_locked(place: &Place, request: &Request) -> Result<Info, Error> {
    let netlink = Netlink::connect()?;
    let plan = Plan::make(place, &netlink, request)?;
    let pins = place.pins(&request.iface);
    place.create()?;
    plan.carry_out(&netlink, place, &pins).inspect_err(|_| {
        // What was done so far is undone; the first error is the one to report.
        if let Ok(Some(info)) = read_info(&place.info(&request.iface)) {
            let _ = undo(&netlink, &info, &pins);
        }
        let _ = fs::remove_file(place.info(&request.iface));
        place.tidy();
    })
}

/// Detaches, puts back what was there before, and says what it did.
///
/// # Errors
/// It is not attached, or the kernel refuses a step; then the rest is still done.
pub fn detach(iface: &str) -> Result<Vec<String>, Error> {
    let place = Place::here()?;
    let _lock = place.lock()?;
    let info = find(&place, iface)?;
    let done = undo(&Netlink::connect()?, &info, &place.pins(iface))?;
    let path = place.info(iface);
    fs::remove_file(&path).map_err(|source| Error::File { path, source })?;
    place.tidy();
    Ok(done)
}

/// Detaches everything in this network namespace.
///
/// # Errors
/// As [`detach`].
pub fn detach_all() -> Result<(), Error> {
    for info in list()? {
        detach(&info.iface)?;
    }
    Ok(())
}

/// Everything attached in this network namespace.
///
/// # Errors
/// A description or a map cannot be read.
pub fn list() -> Result<Vec<Info>, Error> {
    let place = Place::here()?;
    let infos = place.ifaces()?.into_iter().filter_map(|iface| read_info(&place.info(&iface)).transpose());
    infos.collect()
}

/// Everything attached in this network namespace whose interface is still there.
///
/// # Errors
/// As [`list`], or the kernel's list of interfaces cannot be read.
pub fn list_alive() -> Result<Vec<Info>, Error> {
    let links = Netlink::connect()?.links()?;
    let is_alive =
        |info: &Info| links.iter().any(|link| link.index == info.ifindex && link.name == info.iface);
    Ok(list()?.into_iter().filter(is_alive).collect())
}

/// Opens what is attached to `iface`; waits for it if it is just being attached.
///
/// # Errors
/// [`Error::NotAttached`], or its maps are another version's.
pub fn open(iface: &str) -> Result<Attachment, Error> {
    let place = Place::here()?;
    match open_at(&place, iface) {
        // It has its description before it has all of its maps, and who attaches it holds the lock.
        Err(Error::Dataplane(_)) => {
            let _lock = place.lock()?;
            open_at(&place, iface)
        }
        opened => opened,
    }
}

/// As [`open`], with the lock held.
fn open_at(place: &Place, iface: &str) -> Result<Attachment, Error> {
    let info = find(place, iface)?;
    let maps = Maps::pinned(&place.pins(iface))?;
    Ok(Attachment { info, maps })
}

/// Opens the program that removes the idle flows of `iface`.
///
/// # Errors
/// As [`open`].
pub fn open_expire(iface: &str) -> Result<Expire, Error> {
    let place = Place::here()?;
    find(&place, iface)?;
    Ok(Expire::pinned(&place.pins(iface))?)
}

/// The file system that attachments live on, as this process sees it; mounted if need be. Two that are equal are the
/// same.
///
/// # Errors
/// It cannot be mounted: that needs CAP_SYS_ADMIN, once after a boot.
pub fn file_system() -> Result<u64, Error> {
    Place::here()?.file_system()
}

/// Whether the interface an attachment belongs to is still there.
///
/// # Errors
/// The kernel's list of interfaces cannot be read.
pub fn is_alive(info: &Info) -> Result<bool, Error> {
    Ok(Netlink::connect()?.links()?.iter().any(|link| link.index == info.ifindex && link.name == info.iface))
}

impl Info {
    /// What its programs are loaded for.
    fn mode(&self) -> Mode {
        if self.inline_peer.is_some() { Mode::Inline } else { Mode::Host }
    }

    /// The names its programs have in the object.
    fn program_names(&self) -> Vec<&'static str> {
        let is_wanted = |name: &&str| self.programs.iter().any(|program| name.ends_with(program.as_str()));
        PROGRAMS.into_iter().filter(is_wanted).collect()
    }

    /// Refuses switches whose program is not attached.
    fn check(&self, config: &Config) -> Result<(), Error> {
        let s = &config.scalars;
        let egress_or_inline = if self.inline_peer.is_some() { "xdp" } else { "egress" };
        let needs = [
            ("cp_enable", s.cp_enable, egress_or_inline, "--role switch"),
            ("fast_cnp", s.fast_cnp, "egress", "--role switch"),
            ("np_enable", s.np_enable, "ingress", "--role host"),
            ("rp_enable", s.rp_enable, "xdp", "--role host"),
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

/// Everything decided before the first change.
struct Plan {
    link: Link,
    peer: Option<Link>,
    config: Config,
    sizes: Sizes,
    xdp_mode: XdpModeChoice,
    info: Info,
}

impl Plan {
    fn make(place: &Place, netlink: &Netlink, request: &Request) -> Result<Self, Error> {
        let Request { iface, inline_peer, settings } = request;
        let link = netlink.link(iface)?;
        let peer = inline_peer.as_deref().map(|peer| netlink.link(peer)).transpose()?;
        for link in [Some(&link), peer.as_ref()].into_iter().flatten() {
            clear_way(place, netlink, link)?;
        }
        if peer.as_ref().is_some_and(|peer| peer.index == link.index) {
            return Err(Error::Unsupported(format!("--inline needs two interfaces, not {iface} twice")));
        }
        let mut notes = Vec::new();
        let (link_bps, overhead_bytes) = link_rate(netlink, &link, settings, &mut notes)?;
        let role = settings.role.unwrap_or(if peer.is_some() { Role::Switch } else { Role::default() });
        let settings = Settings { role: Some(role), ..settings.clone() };
        let mut config = settings.config(link_bps).map_err(|e| Error::Unsupported(e.to_string()))?;
        let s = &mut config.scalars;
        if s.link_rate_bps == 0 {
            s.link_rate_bps = link_bps.unwrap_or(0);
        }
        if s.wire_overhead_bytes == 0 {
            s.wire_overhead_bytes = overhead_bytes;
        }
        let ends = s.np_enable | s.rp_enable;
        if peer.is_some() && (ends | s.fast_cnp) != 0 {
            return Err(Error::Unsupported(
                "an inline attachment only marks: np_enable, rp_enable and fast_cnp stay off".into(),
            ));
        }
        let programs: &[&str] = if peer.is_some() {
            &["xdp"]
        } else if ends != 0 || role == Role::Host {
            &["xdp", "ingress", "egress"]
        } else {
            &["egress"]
        };
        let (pacer, why) = pacer::choose(settings.pacer.unwrap_or_default(), s.rp_enable != 0)?;
        notes.push(why);
        s.pacer = match pacer {
            PacerChoice::Fq => PACER_FQ,
            PacerChoice::Htb => PACER_HTB,
            PacerChoice::Auto | PacerChoice::None => PACER_NONE,
        };
        let flows = settings.flows.unwrap_or(Sizes::default().rp_flows);
        let info = Info {
            iface: iface.clone(),
            ifindex: link.index,
            inline_peer: inline_peer.clone(),
            role,
            pacer: word(&pacer),
            xdp_mode: "none".into(),
            tc_mode: "none".into(),
            programs: programs.iter().map(|&name| name.to_owned()).collect(),
            rp_flows: flows,
            np_flows: flows,
            version: env!("CARGO_PKG_VERSION").into(),
            object: takeover::object_id(),
            attached_at_ns: clock_gettime(ClockId::CLOCK_BOOTTIME)
                .map_or(0, |t| std::time::Duration::from(t).as_nanos() as u64),
            notes,
            saved_qdisc: None,
            added_clsact: false,
        };
        info.check(&config)?;
        let sizes = Sizes { rp_flows: flows, np_flows: flows };
        Ok(Self { link, peer, config, sizes, xdp_mode: settings.xdp_mode.unwrap_or_default(), info })
    }

    fn carry_out(self, netlink: &Netlink, place: &Place, pins: &Path) -> Result<Info, Error> {
        let Self { link, peer, config, sizes, xdp_mode, mut info } = self;
        let write = |info: &Info| write_info(&place.info(&info.iface), info);
        let params = Params::new(&config, port(&link, peer.as_ref(), &sizes)?)?;
        fs::create_dir(pins).map_err(|source| Error::File { path: pins.to_owned(), source })?;
        write(&info)?;
        let mut ebpf = dataplane::load(sizes, info.mode(), Some(pins), &info.program_names())?;
        Maps::take(&mut ebpf)?.set_params(&params)?;
        pin_expire(&mut ebpf, pins)?;
        // From here on packets are seen; what it takes to put things back is written down before it is changed.
        match config.scalars.pacer {
            PACER_FQ | PACER_HTB => {
                info.saved_qdisc = Some(netlink.save_root(link.index)?);
                write(&info)?;
                pacer::install(netlink, link.index, &config, &mut info.notes)?;
            }
            _ => {}
        }
        let attached = hooks::attach(&mut ebpf, &link, peer.as_ref(), xdp_mode, pins, &mut info);
        // After a failure too: clsact filters have no pin to find them by.
        write(&info)?;
        attached.map(|()| info)
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

/// Refuses an interface that is in use, and removes what an interface of the same name that is gone left behind.
fn clear_way(place: &Place, netlink: &Netlink, link: &Link) -> Result<(), Error> {
    if link.mac.is_none() {
        return Err(Error::NotEthernet { iface: link.name.clone() });
    }
    for iface in place.ifaces()? {
        let Some(info) = read_info(&place.info(&iface))? else {
            continue;
        };
        if info.iface == link.name && info.ifindex == link.index {
            return Err(Error::AlreadyAttached { iface: info.iface, role: word(&info.role) });
        }
        if info.inline_peer.as_ref() == Some(&link.name) && is_alive(&info)? {
            return Err(Error::InlinePeer { iface: link.name.clone(), first: info.iface });
        }
        if info.iface == link.name {
            tracing::info!(iface, "removing what is left of an earlier interface of this name");
            undo(netlink, &Info { saved_qdisc: None, ..info }, &place.pins(&iface))?;
            let path = place.info(&iface);
            fs::remove_file(&path).map_err(|source| Error::File { path, source })?;
        }
    }
    // Pins without a description: an attach that was killed.
    remove_pins(&place.pins(&link.name))
}

/// The rate that queues drain at and flows start at, and the bytes the wire adds to a frame.
fn link_rate(
    netlink: &Netlink,
    link: &Link,
    settings: &Settings,
    notes: &mut Vec<String>,
) -> Result<(Option<u64>, u64), Error> {
    /// Preamble 8, FCS 4, inter-packet gap 12 (IEEE 802.3).
    const ETHERNET_OVERHEAD_BYTES: u64 = 24;
    let show = |bps| Quantity(bps, Unit::BitsPerSecond);
    if let Some(Shaping { shaper, rate_bps, burst_ns }) = netlink.shaping(link.index)? {
        notes.push(format!("link rate {} from the {shaper} shaper on {}", show(rate_bps), link.name));
        if burst_ns < Shaping::SAFE_BURST_NS {
            notes.push(format!(
                "its burst is {} at that rate: served later than this it is slower, and queues longer than marking \
                 counts; see `dcqcn doctor`",
                render::ns(burst_ns)
            ));
        }
        return Ok((Some(rate_bps), 0));
    }
    let said = settings.link_rate_bps().filter(|bps| *bps != 0);
    let speed = link.speed_bps.filter(|_| !link.is_virtual());
    match (said, speed) {
        (Some(asked_bps), Some(link_bps)) if asked_bps > link_bps => {
            Err(Error::AboveLink { iface: link.name.clone(), asked_bps, link_bps })
        }
        (Some(bps), _) => {
            notes.push(format!("link rate {} as given", show(bps)));
            Ok((Some(bps), if speed.is_some() { ETHERNET_OVERHEAD_BYTES } else { 0 }))
        }
        (None, Some(bps)) => {
            notes.push(format!("link rate {} from the speed of {}", show(bps), link.name));
            Ok((Some(bps), ETHERNET_OVERHEAD_BYTES))
        }
        (None, None) => {
            if let Some(bps) = link.speed_bps {
                notes.push(format!(
                    "link rate {} as {} says, which is virtual: set link_rate if its path is slower",
                    show(bps),
                    link.name
                ));
            }
            Ok((link.speed_bps, 0))
        }
    }
}

fn port(link: &Link, peer: Option<&Link>, sizes: &Sizes) -> Result<Port, Error> {
    let mut random = [0; 8];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut random))
        .map_err(|source| Error::File { path: "/dev/urandom".into(), source })?;
    let [a, b, c, d, e, f, g, h] = random;
    let cpus = online_cpus().map_err(|(path, source)| Error::File { path: path.into(), source })?;
    Ok(Port {
        layout_version: LAYOUT_VERSION,
        ifindex: [link.index, peer.map_or(0, |peer| peer.index)],
        // Its lowest bit tells the two kinds of clones apart; 0 and 1 are marks others use.
        cnp_mark: (u32::from_ne_bytes([a, b, c, d]) | 0x8000_0000) & !1,
        hash_seed: u32::from_ne_bytes([e, f, g, h]),
        mac: link.mac.unwrap_or_default(),
        htb_major: pacer::HTB_MAJOR.into(),
        cpus: cpus.len() as u32,
        ..Port::new(link.index, sizes.rp_sets(), sizes.np_sets())
    })
}

/// Takes back what an attachment changed, as far as it got.
fn undo(netlink: &Netlink, info: &Info, pins: &Path) -> Result<Vec<String>, Error> {
    let mut done = hooks::detach(netlink, info, pins)?;
    if let Some(saved) = &info.saved_qdisc
        && is_alive(info)?
    {
        netlink.restore_root(info.ifindex, saved)?;
        done.push(format!("root qdisc of {} is again {saved}", info.iface));
    }
    remove_pins(pins)?;
    done.push("maps removed".into());
    Ok(done)
}

fn remove_pins(pins: &Path) -> Result<(), Error> {
    let failed = |source| Error::File { path: pins.to_owned(), source };
    match fs::read_dir(pins) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(entries) => {
            for entry in entries {
                fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
            }
            fs::remove_dir(pins).map_err(failed)
        }
    }
}

fn find(place: &Place, iface: &str) -> Result<Info, Error> {
    if let Some(info) = read_info(&place.info(iface))? {
        return Ok(info);
    }
    for other in place.ifaces()? {
        match read_info(&place.info(&other))? {
            Some(info) if info.inline_peer.as_deref() == Some(iface) => {
                return Err(Error::InlinePeer { iface: iface.to_owned(), first: info.iface });
            }
            _ => {}
        }
    }
    // An interface that does not exist deserves to be told so.
    Netlink::connect()?.link(iface)?;
    Err(Error::NotAttached { iface: iface.to_owned() })
}

fn read_info(path: &Path) -> Result<Option<Info>, Error> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| Error::Info { path: path.to_owned(), source }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { path: path.to_owned(), source }),
    }
}

/// Replaces the description at once: a reader sees the old one or the new one.
fn write_info(path: &Path, info: &Info) -> Result<(), Error> {
    let text =
        serde_json::to_vec_pretty(info).map_err(|source| Error::Info { path: path.to_owned(), source })?;
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .map_err(|source| Error::File { path: path.to_owned(), source })
}
