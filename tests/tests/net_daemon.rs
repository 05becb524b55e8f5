//! `dcqcn run` as an operator has it: a file, interfaces that come and go, reloads, and a process that may die at any time.

use std::collections::HashSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use dcqcn_common::events::Table;
use dcqcn_common::flow::{FlowId, QpId, RpFlow};
use dcqcn_common::hooks::HTB_FIRST_FLOW;
use dcqcn_common::layout::{DEFAULT_FLOWS, LAYOUT_VERSION};
use dcqcn_common::params::Params;
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Bth;
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_engine::Hook;
use dcqcn_netlink::link::VethEnd;
use dcqcn_params::Role;
use dcqcn_plane::attach;
use dcqcn_tests::bpf::Held;
use dcqcn_tests::command::cpu_time;
use dcqcn_tests::daemon::{Daemon, field_of, get, wait};
use dcqcn_tests::host::{Host, Pair};
use dcqcn_tests::packets::{CNP_TOS, Roce};
use dcqcn_tests::skip::runnable;
use dcqcn_tests::socket::{PATIENCE, RawSocket};
use nix::sys::signal::Signal;

/// Everything of one host, at a link rate that stays what a cut makes of it.
const HOST: &str = "\
[[interface]]
name = 'a*'
role = 'host'
pacer = 'none'
flows = 1024
[interface.parameters]
link_rate = '1gbit'
rpg_time_reset = '0ns'
rpg_byte_reset = '0B'
";

/// Another pair of interfaces between the two hosts.
fn join(pair: &Pair, near: &str, far: &str) -> Result<()> {
    let near_end = VethEnd { name: near, netns: None, mac: None };
    let far_end = VethEnd { name: far, netns: Some(&pair.b.netns), mac: None };
    pair.a.netlink()?.add_veth(&near_end, &far_end)?;
    for (host, iface) in [(&pair.a, near), (&pair.b, far)] {
        host.netlink()?.set_up(host.index(iface)?, true)?;
    }
    Ok(())
}

fn link_rate_bps(host: &Host, iface: &str) -> Result<u64> {
    Ok(host.attachment(iface)?.maps.params()?.config.scalars.link_rate_bps)
}

/// The interfaces that have something attached.
fn attached(host: &Host) -> Result<Vec<String>> {
    Ok(host.run(attach::list)??.into_iter().map(|info| info.iface).collect())
}

#[test]
fn interfaces_that_come_are_attached_and_those_that_go_leave_nothing() -> Result<()> {
    if !runnable("interfaces_that_come_are_attached_and_those_that_go_leave_nothing", &[])? {
        return Ok(());
    }
    let pair = Pair::new("come")?;
    let mut daemon = Daemon::start(&pair.a, HOST)?;
    daemon.says(&["\"attached\"", "\"iface\":\"a0\""])?;
    // Its rights: CAP_NET_ADMIN, CAP_PERFMON and CAP_BPF, on every thread.
    for task in fs::read_dir(format!("/proc/{}/task", daemon.child.id()))? {
        let status = task?.path().join("status");
        for (field, expected) in [("CapEff:", "000000c000001000"), ("CapPrm:", "000000c000001000")] {
            assert_eq!(field_of(&status, field)?, expected);
        }
        assert_eq!(field_of(&status, "CapInh:")?, "0000000000000000");
        assert_eq!(field_of(&status, "NoNewPrivs:")?, "1");
    }
    assert_eq!(daemon.status("CapBnd:")?, "000000c000001000");

    join(&pair, "a1", "b1")?;
    daemon.says(&["\"attached\"", "\"iface\":\"a1\""])?;
    join(&pair, "c1", "d1")?;
    let first = Held::by(&pair.a, "a1")?;
    pair.a.netlink()?.delete_link(pair.a.index("a1")?)?;
    daemon.says(&["\"gone\"", "\"iface\":\"a1\""])?;
    assert!(first.is_freed(), "{first:?}");
    assert_eq!(attached(&pair.a)?, ["a0"]);

    pair.a.run(|| attach::detach("a0"))??;
    daemon.says(&["detached by somebody else", "\"iface\":\"a0\""])?;
    daemon.signal(Signal::SIGHUP)?;
    daemon.says(&["\"reloaded\""])?;
    assert_eq!(attached(&pair.a)?, ["a0"]);
    daemon.end()?;
    assert_eq!(attached(&pair.a)?, ["a0"], "stays attached");
    Ok(())
}

#[test]
fn a_reload_is_in_force_on_all_interfaces_or_on_none() -> Result<()> {
    if !runnable("a_reload_is_in_force_on_all_interfaces_or_on_none", &[])? {
        return Ok(());
    }
    let pair = Pair::new("reload")?;
    join(&pair, "a1", "b1")?;
    join(&pair, "c0", "d0")?;
    let mut daemon = Daemon::start(&pair.a, HOST)?;
    daemon.says(&["\"attached\"", "\"iface\":\"a1\""])?;
    let both = |bps| -> Result<()> {
        assert_eq!([link_rate_bps(&pair.a, "a0")?, link_rate_bps(&pair.a, "a1")?], [bps; 2]);
        Ok(())
    };
    // Noticed by itself.
    daemon.write(&HOST.replace("1gbit", "2gbit"))?;
    daemon.says(&["parameters changed", "link_rate: 1gbit -> 2gbit", "\"iface\":\"a1\""])?;
    both(2_000_000_000)?;

    // Each is refused, with its reason, and changes nothing: what is no file; what one of two interfaces cannot become;
    // what fails only when a third interface is being attached.
    let mut elsewhere = format!("[[interface]]\nname = 'a1'\nflows = 2048\n{HOST}").replace("1gbit", "3gbit");
    for (file, reason) in [
        (HOST.replace("1gbit", "3gbit").replace("flows = 1024", "flows = 1"), "allowed is 8 to 1048576"),
        (elsewhere.clone(), "a1 is attached with flows = 1024, which cannot become 2048"),
        (
            format!(
                "{}[[interface]]\nname = 'c0'\npacer = 'none'\ninline = 'nosuch'\n",
                HOST.replace("1gbit", "3gbit")
            ),
            "nosuch",
        ),
    ] {
        daemon.write(&file)?;
        daemon.says(&["refused", reason])?;
        both(2_000_000_000)?;
        assert_eq!(attached(&pair.a)?, ["a0", "a1"]);
    }
    // On SIGHUP: another parameter, one interface more, one less.
    elsewhere = HOST.replace("1gbit", "4gbit").replace("'a*'", "'[ac]0'");
    daemon.write(&elsewhere)?;
    daemon.signal(Signal::SIGHUP)?;
    daemon.says(&["parameters changed", "link_rate: 2gbit -> 4gbit", "\"iface\":\"a0\""])?;
    daemon.says(&["no longer in the file", "\"iface\":\"a1\""])?;
    daemon.says(&["begun", "\"iface\":\"c0\""]).or_else(|_| daemon.says(&["\"iface\":\"c0\""]))?;
    assert_eq!(attached(&pair.a)?, ["a0", "c0"]);
    assert_eq!(link_rate_bps(&pair.a, "c0")?, 4_000_000_000);
    let audit = fs::read_to_string(daemon.dir.path().join("audit.jsonl"))?;
    assert!(audit.contains("link_rate") && audit.contains("2gbit"), "{audit}");
    Ok(())
}

#[test]
fn the_htb_pacer_follows_the_rate_of_the_line() -> Result<()> {
    if !runnable("the_htb_pacer_follows_the_rate_of_the_line", &["htb"])? {
        return Ok(());
    }
    let pair = Pair::new("line")?;
    let file = HOST.replace("pacer = 'none'", "pacer = 'htb'");
    let mut daemon = Daemon::start(&pair.a, &file)?;
    daemon.says(&["begun", "\"task\":\"pacer\""])?;
    wait_for_class(&pair.a, 0xffff, 1_000_000_000)?;
    daemon.write(&file.replace("1gbit", "300mbit"))?;
    wait_for_class(&pair.a, 0xffff, 300_000_000)?;
    wait_for_class(&pair.a, 1, 300_000_000)?;

    // Another daemon has nothing to do here.
    let mut other = Daemon::start(&pair.a, &file)?;
    other.says(&["a0 is served by another `dcqcn run`"])?;
    daemon.end()
}

#[test]
fn metrics_are_served_where_the_file_says() -> Result<()> {
    if !runnable("metrics_are_served_where_the_file_says", &[])? {
        return Ok(());
    }
    let pair = Pair::new("metrics")?;
    pair.a.netlink()?.set_up(pair.a.index("lo")?, true)?;
    let listen =
        |port: u16, top: u8| format!("{HOST}[metrics]\nlisten = '127.0.0.1:{port}'\ntop_qps = {top}\n");
    let mut daemon = Daemon::start(&pair.a, &listen(9310, 0))?;
    daemon.says(&["\"attached\"", "\"iface\":\"a0\""])?;
    assert!(get(&pair.a, "127.0.0.1:9310", "/metrics")?.contains("interface=\"a0\""));
    // The same address with other flows, then another address; one in use is refused.
    for (file, port) in [(listen(9310, 3), 9310), (listen(9311, 3), 9311)] {
        fs::write(daemon.log(), "")?;
        daemon.write(&file)?;
        daemon.says(&["\"reloaded\""])?;
        assert!(get(&pair.a, &format!("127.0.0.1:{port}"), "/healthz")?.starts_with("HTTP/1.1 200"));
    }
    let _taken = pair.a.run(|| TcpListener::bind("127.0.0.1:9312"))??;
    daemon.write(&listen(9312, 0).replace("1gbit", "2gbit"))?;
    daemon.says(&["refused", "cannot serve metrics on 127.0.0.1:9312"])?;
    assert_eq!(link_rate_bps(&pair.a, "a0")?, 1_000_000_000);
    assert!(get(&pair.a, "127.0.0.1:9311", "/healthz")?.starts_with("HTTP/1.1 200"));
    Ok(())
}

#[test]
fn a_reload_changes_the_form_of_the_log_and_what_is_in_it() -> Result<()> {
    if !runnable("a_reload_changes_the_form_of_the_log_and_what_is_in_it", &[])? {
        return Ok(());
    }
    let pair = Pair::new("log")?;
    let file =
        |format: &str, filter: &str| format!("{HOST}[log]\nformat = '{format}'\nfilter = '{filter}'\n");
    let mut daemon = Daemon::start_with(&pair.a, &file("text", "debug"), &[], &[])?;
    // Each program as it was loaded, in text.
    for program in ["dcqcn_xdp", "dcqcn_ingress", "dcqcn_egress", "dcqcn_expire"] {
        daemon.says(&["DEBUG dcqcn_plane::dataplane: loaded", &format!("program=\"{program}\"")])?;
    }
    daemon.says(&["INFO dcqcn_control::daemon::fleet: attached", "iface=\"a0\""])?;
    for (format, reloaded) in [("json", "\"message\":\"reloaded\""), ("text", " reloaded file=")] {
        fs::write(daemon.log(), "")?;
        daemon.write(&file(format, "info"))?;
        daemon.says(&[reloaded])?;
    }
    // Told nothing but errors, it is silent about a reload; the file counts from then on all the same.
    daemon.write(&file("json", "error").replace("1gbit", "2gbit"))?;
    wait(|| {
        let bps = link_rate_bps(&pair.a, "a0")?;
        Ok(if bps == 2_000_000_000 { Ok(()) } else { Err(format!("{bps} bit/s")) })
    })?;
    fs::write(daemon.log(), "")?;
    daemon.write(&HOST.replace("link_rate", "lnk_rate"))?;
    daemon.says(&["\"level\":\"ERROR\"", "did you mean `link_rate`?"])?;
    daemon.end()
}

#[test]
fn a_bad_file_is_refused_at_the_start() -> Result<()> {
    if !runnable("a_bad_file_is_refused_at_the_start", &[])? {
        return Ok(());
    }
    let pair = Pair::new("bad")?;
    let mut daemon = Daemon::start(&pair.a, &HOST.replace("link_rate", "lnk_rate"))?;
    assert_eq!(daemon.child.wait()?.code(), Some(1));
    let log = fs::read_to_string(daemon.log())?;
    assert!(log.contains(":7: ") && log.contains("did you mean `link_rate`?"), "{log}");
    assert!(attached(&pair.a)?.is_empty());
    Ok(())
}

/// Numbered frames from host 1 to host 2, until stopped; returns how many.
fn stream(host: &Host, stop: &AtomicBool) -> Result<u32> {
    let socket = host.socket("a0")?;
    socket.limit_send_buffer(64 << 10)?;
    let mut psn = 0;
    while !stop.load(Ordering::Relaxed) {
        socket.send(&Roce { psn, ..Roce::default() }.frame())?;
        psn += 1;
        thread::sleep(Duration::from_micros(500));
    }
    Ok(psn)
}

/// How many different frames arrive of the `sent` that [`stream`] has sent.
fn arrived(socket: &RawSocket, sent: u32) -> Result<usize> {
    let mut psns = HashSet::new();
    while psns.len() < sent as usize {
        let Some(frame) = socket.receive(PATIENCE)? else { break };
        let bth = frame.get(Roce::default().bth()..).and_then(Bth::parse).context("not RoCE")?.0;
        if bth.dest_qpn() == Roce::default().dest_qpn {
            psns.insert(bth.psn());
        }
    }
    Ok(psns.len())
}

/// Waits until this many more frames of [`stream`] have left.
fn passed(host: &Host, more: u64) -> Result<()> {
    // The flow is there when its first frame has left.
    let packets = || flow(host).map_or(0, |flow| flow.packets);
    let from = packets();
    wait(|| {
        let now = packets();
        Ok(if now >= from + more { Ok(()) } else { Err(format!("{} frames have left", now - from)) })
    })
}

/// Runs `work` while host 1 sends; every frame must arrive.
fn under_traffic(pair: &Pair, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let receiver = pair.b.socket("b0")?;
    let stop = AtomicBool::new(false);
    let sent = thread::scope(|scope| -> Result<u32> {
        let sender = scope.spawn(|| stream(&pair.a, &stop));
        let worked = passed(&pair.a, 100).and_then(|()| work()).and_then(|()| passed(&pair.a, 100));
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().map_err(|_| anyhow!("the sender panicked"))?;
        worked.and(sent)
    })?;
    let arrived = arrived(&receiver, sent)?;
    eprintln!("{sent} frames sent, {arrived} arrived");
    ensure!(arrived == sent as usize, "{sent} frames sent, {arrived} arrived");
    Ok(())
}

/// The flow, once this many CNPs for it have been handled.
fn flow_cut(host: &Host, times: u32) -> Result<RpFlow> {
    wait(|| {
        let flow = flow(host)?;
        Ok(if flow.cnp_handled == times { Ok(flow) } else { Err(format!("{flow:?}")) })
    })
}

fn flow(host: &Host) -> Result<RpFlow> {
    let maps = host.attachment("a0")?.maps;
    let [src, addr] = [1, 2].map(|host| dcqcn_common::classify::mapped(dcqcn_tests::packets::v4(host)));
    let id = FlowId { src, receiver: QpId { addr, qpn: Roce::default().dest_qpn } };
    maps.rp_find(&maps.params()?, &id)?.context("no such flow")
}

/// Waits for a class of the HTB pacer to have this rate; `minor` 0 stands for a flow's.
fn wait_for_class(host: &Host, minor: u16, rate_bps: u64) -> Result<()> {
    let index = host.index("a0")?;
    let is_asked = |found: u16| match minor {
        0 => (HTB_FIRST_FLOW..0xffff).contains(&u32::from(found)),
        minor => found == minor,
    };
    wait(|| {
        let classes = host.netlink()?.classes(index)?;
        let classes = classes.into_iter().filter(|class| is_asked(class.handle.minor()));
        let rates: Vec<u64> = classes.filter_map(|class| class.ceil_bps).collect();
        let is_there = rates.iter().any(|rate| rate.abs_diff(rate_bps) <= rate_bps / 100);
        Ok(if is_there { Ok(()) } else { Err(format!("no class of {rate_bps} bit/s: {rates:?}")) })
    })
}

#[test]
fn killed_under_traffic_it_leaves_all_at_work_and_takes_it_over() -> Result<()> {
    if !runnable("killed_under_traffic_it_leaves_all_at_work_and_takes_it_over", &["htb"])? {
        return Ok(());
    }
    let pair = Pair::new("kill")?;
    // 60 Mb/s are more than the frames sent here need, so that the class does not hold them back for long.
    let file = HOST.replace("pacer = 'none'", "pacer = 'htb'").replace("1gbit", "600mbit");
    let mut daemon =
        Daemon::start(&pair.a, &format!("{file}cp_enable = true\nmin_time_between_cnps = '1us'\n"))?;
    daemon.says(&["begun", "\"task\":\"pacer\""])?;
    let cut = || pair.b.socket("b0")?.send(&Roce::default().cnp(None, CNP_TOS));
    under_traffic(&pair, || {
        cut()?;
        let first = flow_cut(&pair.a, 1)?;
        ensure!(first.machine.rate_bps == 300_000_000, "{first:?}");
        wait_for_class(&pair.a, 0, 300_000_000)?;

        daemon.signal(Signal::SIGKILL)?;
        daemon.child.wait()?;
        let held = Held::by(&pair.a, "a0")?;
        ensure!(held.programs.len() == 4, "{held:?}");
        // RP: a CNP cuts; the class stays at the last rate. NP: marked data are answered.
        wait_for_class(&pair.a, 0, 300_000_000)?;
        thread::sleep(Duration::from_millis(60));
        cut()?;
        let second = flow_cut(&pair.a, 2)?;
        ensure!(second.machine.rate_bps < 300_000_000, "{second:?}");
        let marked = Roce { src: 2, dst: 1, ecn: Ecn::CE, dest_qpn: 0x77, ..Roce::default() };
        pair.b.socket("b0")?.send(&marked.frame())?;
        wait(|| {
            let answers = pair.a.count("a0", Hook::Egress, Stat::NpCnpSent)?;
            Ok(if answers == 1 { Ok(()) } else { Err(format!("{answers} CNPs")) })
        })?;
        // CP: this class of traffic has a queue that marks.
        ensure!(pair.a.counters("a0", Hook::Egress)?.class[3].packets >= 100);

        daemon.again(&pair.a)?;
        daemon.says(&["taken over", "\"iface\":\"a0\""])?;
        wait_for_class(&pair.a, 0, second.machine.rate_bps)?;
        let third = flow(&pair.a)?;
        ensure!(third.machine.rate_bps == second.machine.rate_bps && third.cnp_handled == 2, "{third:?}");
        ensure!(third.packets >= second.packets);
        ensure!(Held::by(&pair.a, "a0")?.maps.keys().eq(held.maps.keys()), "the maps are others");
        Ok(())
    })
}

#[test]
fn a_new_version_replaces_programs_in_place() -> Result<()> {
    if !runnable("a_new_version_replaces_programs_in_place", &[])? {
        return Ok(());
    }
    let pair = Pair::new("upgrade")?;
    let mut daemon = Daemon::start(&pair.a, HOST)?;
    daemon.says(&["\"attached\"", "\"iface\":\"a0\""])?;
    daemon.end()?;
    let before = Held::by(&pair.a, "a0")?;
    let info = pair.a.journal("a0")?;
    let description = fs::read_to_string(&info)?;
    // As another build would have left it.
    let object = pair.a.attachment("a0")?.info.object;
    let other = description.replace(&object, "0123456789abcdef");
    assert_ne!(other, description);
    fs::write(&info, &other)?;
    under_traffic(&pair, || {
        pair.b.socket("b0")?.send(&Roce::default().cnp(None, CNP_TOS))?;
        let cut = flow_cut(&pair.a, 1)?;
        ensure!(cut.machine.rate_bps == 500_000_000, "{cut:?}");
        daemon.again(&pair.a)?;
        daemon.says(&["programs replaced in place", "egress, ingress, xdp"])?;
        let after = flow(&pair.a)?;
        ensure!(after.machine.rate_bps == cut.machine.rate_bps && after.cnp_handled == 1, "{after:?}");
        Ok(())
    })?;
    daemon.end()?;
    let after = Held::by(&pair.a, "a0")?;
    assert!(after.maps.keys().eq(before.maps.keys()), "the maps stay");
    assert!(after.programs.iter().all(|id| !before.programs.contains(id)), "{before:?} {after:?}");
    assert_eq!(after.programs.len(), 4);
    assert!(pair.a.run(|| attach::upgrade("a0"))??.is_empty(), "current already");

    // Maps that are laid out otherwise.
    fs::write(&info, &other)?;
    let mut maps = pair.a.attachment("a0")?.maps;
    let params = maps.params()?;
    let port = dcqcn_common::params::Port { layout_version: LAYOUT_VERSION + 1, ..params.port };
    maps.set_params(&Params { port, ..params })?;
    let refused = pair.a.run(|| attach::upgrade("a0"))?.expect_err("another layout").to_string();
    assert!(refused.contains("layout version") && refused.contains("detach"), "{refused}");
    maps.set_params(&params)?;
    drop(maps);
    assert_eq!(Held::by(&pair.a, "a0")?.programs, after.programs);
    Ok(())
}

#[test]
fn systemd_is_told_of_every_state() -> Result<()> {
    if !runnable("systemd_is_told_of_every_state", &[])? {
        return Ok(());
    }
    let pair = Pair::new("notify")?;
    let dir = tempfile::tempdir()?;
    let address = dir.path().join("notify");
    let socket = UnixDatagram::bind(&address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let path = address.to_str().context("a path that is no text")?;
    let environment = [("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", "1000000")];
    let mut daemon = Daemon::start_with(&pair.a, HOST, &[], &environment)?;
    let expect = |word: &str| -> Result<String> {
        for _ in 0..50 {
            let mut datagram = [0; 512];
            let len = socket.recv(&mut datagram).with_context(|| format!("no {word}"))?;
            let text = String::from_utf8_lossy(&datagram[..len]).into_owned();
            if text.lines().any(|line| line.starts_with(word)) {
                return Ok(text);
            }
        }
        bail!("no {word}")
    };
    assert!(expect("READY=1")?.contains("STATUS=serving a0"));
    expect("WATCHDOG=1")?;
    daemon.signal(Signal::SIGHUP)?;
    assert!(expect("RELOADING=1")?.contains("MONOTONIC_USEC="));
    expect("READY=1")?;
    expect("WATCHDOG=1")?;
    daemon.signal(Signal::SIGTERM)?;
    expect("STOPPING=1")?;
    assert!(daemon.child.wait()?.success());
    Ok(())
}

#[test]
fn idle_flows_are_removed_and_living_ones_stay() -> Result<()> {
    if !runnable("idle_flows_are_removed_and_living_ones_stay", &[])? {
        return Ok(());
    }
    const FLOWS: u32 = 200;
    let pair = Pair::new("age")?;
    let mut daemon = Daemon::start(&pair.a, &format!("{HOST}[age]\nidle = '2s'\n"))?;
    daemon.says(&["begun", "\"task\":\"age\""])?;
    let (socket, peer) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let flows = || -> Result<Vec<u32>> {
        let maps = pair.a.attachment("a0")?.maps;
        let mut qpns =
            maps.rp_flows().map(|flow| Ok(flow?.2.id.receiver.qpn)).collect::<Result<Vec<u32>>>()?;
        qpns.sort_unstable();
        Ok(qpns)
    };
    for dest_qpn in 2..2 + FLOWS {
        socket.send(&Roce { dest_qpn, payload: 0, ..Roce::default() }.frame())?;
        peer.send(&Roce { src: 2, dst: 1, ecn: Ecn::CE, dest_qpn, ..Roce::default() }.frame())?;
    }
    assert_eq!(pair.a.count("a0", Hook::Egress, Stat::RpFlowNew)?, u64::from(FLOWS));
    // Two of them go on.
    wait(|| {
        for dest_qpn in [7, 9] {
            socket.send(&Roce { dest_qpn, payload: 0, ..Roce::default() }.frame())?;
        }
        let left = flows()?;
        Ok(if left == [7, 9] { Ok(()) } else { Err(format!("flows {left:?} are left")) })
    })?;
    daemon.says(&["idle flows removed"])?;
    let [new, removed] =
        [Stat::RpFlowNew, Stat::RpFlowExpired].map(|stat| pair.a.count("a0", Hook::Egress, stat));
    assert_eq!(new? - removed?, 2, "each that is gone is counted");
    // A flow that comes back starts anew.
    socket.send(&Roce { dest_qpn: 50, payload: 0, ..Roce::default() }.frame())?;
    assert_eq!(flows()?, [7, 9, 50]);
    wait(|| {
        let left = pair.a.attachment("a0")?.maps.np_flows().count();
        Ok(if left == 0 { Ok(()) } else { Err(format!("{left} flows of the notification point stay")) })
    })?;
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::NpFlowExpired)?, u64::from(FLOWS));
    daemon.end()
}

/// What is found idle and sends before it is removed stays: the program looks at the time itself.
#[test]
fn a_flow_that_revives_between_look_and_removal_stays() -> Result<()> {
    if !runnable("a_flow_that_revives_between_look_and_removal_stays", &[])? {
        return Ok(());
    }
    let pair = Pair::new("revive")?;
    pair.a.attach("a0", Role::Host, &["link_rate=1gbit"])?;
    let (socket, data) = (pair.a.socket("a0")?, Roce::default());
    let maps = pair.a.attachment("a0")?.maps;
    let expire = pair.a.run(|| attach::open_expire("a0"))??;
    socket.send(&data.frame())?;
    let found = maps.rp_flows().next().context("no flow")??;
    let before_ns = found.2.last_seen_ns + 1;
    socket.send(&data.frame())?;
    assert_eq!(expire.run(Table::Rp, found.0, before_ns)?, 0);
    let revived = maps.rp_flows().next().context("it was removed")??;
    assert_eq!((revived.2.id, revived.2.packets), (found.2.id, 2));
    assert_eq!(expire.run(Table::Np, found.0, u64::MAX)?, 0);
    assert_eq!(expire.run(Table::Rp, u32::MAX, u64::MAX)?, 0);
    assert_eq!(expire.run(Table::Rp, found.0, revived.2.last_seen_ns + 1)?, 1);
    assert!(maps.rp_flows().next().is_none());
    Ok(())
}

#[test]
fn it_needs_little_memory_with_two_interfaces_and_all_flows() -> Result<()> {
    if !runnable("it_needs_little_memory_with_two_interfaces_and_all_flows", &["htb"])? {
        return Ok(());
    }
    const RESIDENT_KB: u64 = 60 << 10;
    const WINDOW: Duration = Duration::from_secs(3);
    let pair = Pair::new("rest")?;
    join(&pair, "a1", "b1")?;
    let file = HOST.replace("pacer = 'none'", "pacer = 'htb'").replace("flows = 1024\n", "");
    let mut daemon = Daemon::start(&pair.a, &format!("{file}[age]\nidle = '10min'\n"))?;
    for iface in ["a0", "a1"] {
        daemon.says(&["begun", "\"task\":\"pacer\"", &format!("\"iface\":\"{iface}\"")])?;
        let socket = pair.a.socket(iface)?;
        for dest_qpn in 2..DEFAULT_FLOWS * 2 {
            socket.send(&Roce { dest_qpn, payload: 0, ..Roce::default() }.frame())?;
        }
        let evicted = pair.a.count(iface, Hook::Egress, Stat::RpFlowEvicted)?;
        let flows = pair.a.count(iface, Hook::Egress, Stat::RpFlowNew)? - evicted;
        assert!(flows > u64::from(DEFAULT_FLOWS) * 9 / 10, "{flows} flows");
    }
    thread::sleep(Duration::from_secs(2));
    let before = cpu_time(daemon.child.id())?;
    thread::sleep(WINDOW);
    let busy = (cpu_time(daemon.child.id())? - before).as_secs_f64() / WINDOW.as_secs_f64();
    let resident_kb: u64 = daemon.status("VmHWM:")?.trim_end_matches(" kB").parse()?;
    eprintln!(
        "at rest, two interfaces of {DEFAULT_FLOWS} flows: {resident_kb} KiB, {:.2} % of a core",
        busy * 100.0
    );
    assert!(resident_kb < RESIDENT_KB, "{resident_kb} KiB");
    Ok(())
}
