//! An attachment outlives its process, and leaves no state when it is removed.

use aya::programs::XdpMode;
use dcqcn_common::layout::Mode;
use dcqcn_loader::attach::{Error, Request, Sweep};
use dcqcn_loader::dataplane::{self, MAPS, SHARED};
use dcqcn_netlink::netns::current_cookie;
use dcqcn_params::XdpModeChoice;
use dcqcn_tests::prelude::*;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::umount;

use crate::{MARKING, fill};

const ROOT: &str = "/run/dcqcn";

/// Everything of a host that an attachment could change.
#[derive(Debug, PartialEq, Eq)]
struct State {
    qdiscs: String,
    classes: String,
    links: String,
    features: String,
    files: Vec<String>,
}

impl State {
    fn of(host: &Host) -> Result<Self> {
        let namespace = host.run(current_cookie)??;
        let mut files = Vec::new();
        for dir in [format!("{ROOT}/bpf/ns-{namespace}"), format!("{ROOT}/ns-{namespace}")] {
            walk(Path::new(&dir), &mut files)?;
        }
        Ok(Self {
            qdiscs: host.command("tc -d qdisc show")?,
            classes: host.command("tc -d class show dev a0")?,
            links: links(host)?,
            features: host.command("ethtool -k a0")?,
            files,
        })
    }
}

fn links(host: &Host) -> Result<String> {
    let is_up = |links: &String| links.lines().any(|line| line.contains("a0@") && line.contains("state UP"));
    wait_value(|| host.command("ip -d link show"), is_up)
}

fn walk(path: &Path, into: &mut Vec<String>) -> Result<()> {
    if path.exists() {
        into.push(path.display().to_string());
    }
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            walk(&entry?.path(), into)?;
        }
    }
    into.sort();
    Ok(())
}

fn marks(pair: &Pair) -> Result<()> {
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let data = Roce::default();
    fill(&a, &b, &Roce { ecn: Ecn::NOT_ECT, ..data.clone() }.frame())?;
    a.send(&data.frame())?;
    assert_eq!(b.expect()?, Roce { ecn: Ecn::CE, ..data }.frame());
    Ok(())
}

fn does_not_mark(pair: &Pair) -> Result<()> {
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let frame = Roce::default().frame();
    for _ in 0..2 {
        a.send(&frame)?;
        assert_eq!(b.expect()?, frame);
    }
    Ok(())
}

fn attach_line() -> String {
    let attach = "attach a0 --role switch --flows 1024 --set link_rate=1gbit".to_owned();
    MARKING.iter().fold(attach, |line, change| format!("{line} --set {change}"))
}

#[test]
fn data_plane_outlives_process() -> Result<()> {
    let pair = new_pair!();
    let before = State::of(&pair.a)?;
    pair.a.dcqcn(&attach_line(), 0)?;
    marks(&pair)?;
    let refused = pair.a.attach("a0", Role::Host, &["link_rate=1gbit"]).expect_err("attached twice");
    assert!(matches!(refused.downcast_ref(), Some(Error::AlreadyAttached { .. })), "{refused}");
    marks(&pair)?;
    let objects = LoadedObjects::by(&pair.a, "a0")?;
    assert_eq!((objects.maps.len(), objects.programs.len()), (MAPS.len() - SHARED.len(), 3), "{objects:?}");
    pair.a.dcqcn("detach a0", 0)?;
    does_not_mark(&pair)?;
    assert_eq!(State::of(&pair.a)?, before);
    assert!(objects.wait_until_freed(), "{objects:?}");
    Ok(())
}

#[test]
fn recreated_interface_attached_again() -> Result<()> {
    let pair = new_pair!("htb");
    let before = State::of(&pair.a)?;
    // With a pacer, whose saved qdisc does not apply to the new interface.
    let changes = [&MARKING[..], &["link_rate=1gbit", "cp_enable=on"]].concat();
    let mut request = request("a0", Role::Host, &changes)?;
    request.settings.pacer = Some(PacerChoice::Htb);
    pair.a.attach_as(&request)?;
    let first = LoadedObjects::by(&pair.a, "a0")?;
    assert_eq!(first.programs.len(), 4, "{first:?}");
    pair.a.netlink()?.delete_link(pair.a.index("a0")?)?;
    let listed = pair.a.run(attach::list)??;
    assert!(!pair.a.run(Sweep::take)??.is_alive(&listed[0]));

    join((&pair.a, "a0", 1), (&pair.b, "b0", 2), 1_500)?;
    does_not_mark(&pair)?;
    let fresh = State::of(&pair.a)?;
    pair.a.attach_as(&request)?;
    assert!(first.wait_until_freed(), "{first:?}");
    marks(&pair)?;
    let second = LoadedObjects::by(&pair.a, "a0")?;
    pair.a.detach("a0")?;
    does_not_mark(&pair)?;
    assert_eq!(State::of(&pair.a)?, State { files: before.files, ..fresh });
    assert!(second.wait_until_freed(), "{second:?}");

    // Detached after its interface was removed.
    pair.a.attach_as(&request)?;
    let third = LoadedObjects::by(&pair.a, "a0")?;
    pair.a.netlink()?.delete_link(pair.a.index("a0")?)?;
    pair.a.detach("a0")?;
    assert!(pair.a.run(attach::list)??.is_empty());
    assert!(third.wait_until_freed(), "{third:?}");
    Ok(())
}

#[test]
fn detaching_restores_the_host() -> Result<()> {
    let pair = new_pair!("tbf", "htb");
    let index = pair.a.index("a0")?;
    let tbf = QdiscSpec::Tbf { rate_bps: 200_000_000, burst_bytes: 20_000, limit_bytes: 1_000_000 };
    for root in [None, Some(tbf)] {
        if let Some(root) = &root {
            pair.a.netlink()?.replace_root(index, Handle::new(7, 0), root)?;
        }
        for pacer in [PacerChoice::None, PacerChoice::Htb, PacerChoice::Auto] {
            let before = State::of(&pair.a)?;
            let changes = [&MARKING[..], &["link_rate=1gbit", "cp_enable=on"]].concat();
            let mut request = request("a0", Role::Host, &changes)?;
            request.settings.pacer = Some(pacer);
            pair.a.attach_as(&request)?;
            let objects = LoadedObjects::by(&pair.a, "a0")?;
            let attached = State::of(&pair.a)?;
            assert_eq!(attached.features, before.features, "a host attachment changes no offload");
            assert!(!attached.links.contains("xdp"), "{}", attached.links);
            assert_eq!(attached.qdiscs != before.qdiscs, pacer != PacerChoice::None);
            marks(&pair)?;
            pair.a.detach("a0")?;
            assert_eq!(State::of(&pair.a)?, before, "{root:?}, {pacer:?}");
            assert!(objects.wait_until_freed(), "{objects:?}");
            does_not_mark(&pair)?;
        }
    }
    Ok(())
}

#[test]
fn failed_attach_leaves_nothing() -> Result<()> {
    let pair = new_pair!("htb");
    let host = |pacer, mode| -> Result<Request> {
        let mut request = request("a0", Role::Host, &["link_rate=1gbit"])?;
        (request.settings.pacer, request.settings.xdp_mode) = (Some(pacer), Some(mode));
        Ok(request)
    };
    let before = State::of(&pair.a)?;
    if kernel_has_qdisc("fq")? {
        eprintln!("this kernel has fq: attaching without it is not tried");
    } else {
        let error = pair.a.attach_as(&host(PacerChoice::Fq, XdpModeChoice::Auto)?).expect_err("no fq");
        assert!(error.to_string().contains("no fq qdisc"), "{error}");
        assert_eq!(State::of(&pair.a)?, before);
    }
    // A host attachment has no XDP program, so another one on the interface is not an obstacle, and remains attached.
    let other = OtherXdp::attach(&pair.a)?;
    let before = State::of(&pair.a)?;
    pair.a.attach_as(&host(PacerChoice::None, XdpModeChoice::Auto)?)?;
    pair.a.detach("a0")?;
    assert_eq!(State::of(&pair.a)?, before);
    drop(other);
    let before = State::of(&pair.a)?;
    for mode in [XdpModeChoice::Driver, XdpModeChoice::Skb] {
        let error = pair.a.attach_as(&host(PacerChoice::None, mode)?).expect_err("no XDP, no mode");
        assert!(error.to_string().contains("for inline attachments only"), "{error}");
        assert_eq!(State::of(&pair.a)?, before, "{mode:?}");
        does_not_mark(&pair)?;
    }
    // A pacer must be able to restore the replaced qdisc.
    pair.a.command("tc qdisc add dev a0 root handle 5: htb")?;
    pair.a.command("tc class add dev a0 parent 5: classid 5:1 htb rate 1gbit")?;
    let before = State::of(&pair.a)?;
    let error = pair.a.attach_as(&host(PacerChoice::Htb, XdpModeChoice::Auto)?).expect_err("classes in use");
    assert!(error.to_string().contains("--pacer none"), "{error}");
    assert_eq!(State::of(&pair.a)?, before);
    pair.a.attach_as(&host(PacerChoice::None, XdpModeChoice::Auto)?)?;
    pair.a.detach("a0")?;
    assert_eq!(State::of(&pair.a)?, before);
    Ok(())
}

/// Another program's XDP program on host 1's interface, as long as this lives.
struct OtherXdp {
    _object: aya::Ebpf,
}

impl OtherXdp {
    fn attach(host: &Host) -> Result<Self> {
        let sizes = Sizes { rp_flows: 8, np_flows: 8 };
        let mut object = dataplane::load(Programs::Plain, sizes, Mode::Host, None, &PROGRAMS[..1])?;
        let index = host.index("a0")?;
        let program = dataplane::xdp(&mut object)?;
        host.run(|| program.attach_to_if_index(index, XdpMode::Driver))??;
        Ok(Self { _object: object })
    }
}

/// `ip netns exec` has a separate mount namespace, which ends with the command.
#[test]
fn attached_by_ip_netns_exec() -> Result<()> {
    let pair = new_pair!();
    let before = State::of(&pair.a)?;
    if unmount_unused()? {
        eprintln!("as the first attach since boot");
    }
    let exec = |line: &str| -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", pair.a.netns.name()]).arg(binary()?).args(line.split_whitespace());
        output_of(&mut command).map(drop)
    };
    exec(&attach_line())?;
    marks(&pair)?;
    assert_eq!(pair.a.attachment("a0")?.info.iface, "a0", "seen from outside");
    exec("set a0 wred.3.ecn=off")?;
    does_not_mark(&pair)?;
    exec("detach a0")?;
    assert_eq!(State::of(&pair.a)?, before);
    Ok(())
}

/// Unmounts the project's BPF file system if nothing is attached anywhere; false if it stays.
fn unmount_unused() -> Result<bool> {
    let bpf = Path::new(ROOT).join("bpf");
    let Ok(lock) = File::options().append(true).open(Path::new(ROOT).join("lock")) else {
        return Ok(false);
    };
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    // Two files that show maps and programs are the file system's own.
    let used = fs::read_dir(&bpf)?.filter_map(Result::ok).any(|entry| entry.path().is_dir());
    Ok(!used && umount(&bpf).is_ok())
}
