//! Repair of attachments that other programs damage, as a CNI or an operator does, under traffic.

use std::ops::RangeInclusive;

use aya::Ebpf;
use aya::programs::links::LinkOrder;
use aya::programs::tc::{NlOptions, SchedClassifierLinkId, TcAttachOptions, TcAttachType};
use aya::programs::{Xdp, XdpMode};
use dcqcn_tests::bpf::{baselines, detach_link};
use dcqcn_tests::prelude::*;

use super::traffic::{flow_cut, wait_for_class};

/// Of the environment of a daemon that checks every second, and delays repairs by 1 s and 2 s.
const FAST: (&str, &str) = ("DCQCN_TEST_SPEEDUP", "10");
/// For a daemon with the normal periods: the third repair is delayed by 20 s, to the next check after that.
/// Some of it is for the verifier on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// A daemon with [`FAST`] that has attached to `a0`.
fn serving(host: &Host, file: &str) -> Result<Daemon> {
    let mut daemon = Daemon::start_with(host, file, &["--log-format", "json"], &[FAST])?;
    daemon.attaches("a0")?;
    Ok(daemon)
}

/// RoCE in both directions and TCP, at a bounded rate, while `work` runs.
fn under_load<T>(pair: &Pair, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _endpoints = [pair.a.roce_socket("a0", 1)?, pair.b.roce_socket("b0", 2)?];
    let listener = pair.b.run(|| TcpListener::bind((Ipv4Addr::from(v4(2)), 5_001)))??;
    let mut near = pair.a.run(|| TcpStream::connect((Ipv4Addr::from(v4(2)), 5_001)))??;
    let mut far = listener.accept()?.0;
    far.set_read_timeout(Some(TIMEOUT))?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let (out, back) = (Roce::default().frame(), Roce { src: 2, dst: 1, ..Roce::default() }.frame());
    let step = || -> Result<()> {
        a.send(&out)?;
        b.send(&back)?;
        let (sent, mut received) = ([7; 1_024], [0; 1_024]);
        near.write_all(&sent)?;
        far.read_exact(&mut received)?;
        ensure!(received == sent, "TCP data damaged");
        thread::sleep(Duration::from_millis(4));
        Ok(())
    };
    while_repeating([step], work)
}

/// Waits until the interface is complete after this many repairs.
fn repaired(host: &Host, iface: &str, times: u32) -> Result<()> {
    repaired_within(host, iface, times..=times)
}

/// As [`repaired`], after a number of repairs in a range.
fn repaired_within(host: &Host, iface: &str, times: RangeInclusive<u32>) -> Result<()> {
    wait_for(PATIENCE, || {
        let metrics = scrape(host, "/metrics")?;
        let value = |name: &str| -> Option<u32> {
            let series = format!("dcqcn_interface_{name}{{interface=\"{iface}\"}} ");
            metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
        };
        let (found, complete) = (value("repairs_total"), value("complete"));
        let is_repaired = found.is_some_and(|found| times.contains(&found)) && complete == Some(1);
        Ok(if is_repaired { Ok(()) } else { Err(format!("repairs {found:?}, complete {complete:?}")) })
    })?;
    ensure!(host.is_complete(iface)?, "{iface} is counted as repaired, and is not complete");
    Ok(())
}

/// Waits until `/readyz` has this status and all of `words`.
fn answers(host: &Host, status: u32, words: &[&str]) -> Result<()> {
    wait_for(PATIENCE, || {
        let ready = scrape(host, "/readyz")?;
        let has_status = ready.starts_with(&format!("HTTP/1.1 {status}"));
        Ok(if has_status && words.iter().all(|word| ready.contains(word)) { Ok(()) } else { Err(ready) })
    })
}

/// Waits until the programs of both hooks of `a0` see packets.
fn see_packets(host: &Host) -> Result<()> {
    for hook in [Hook::Ingress, Hook::Egress] {
        let seen = || -> Result<u64> { Ok(host.counters("a0", hook)?.stat.iter().sum()) };
        let from = seen()?;
        wait_value(seen, |now| *now > from)?;
    }
    Ok(())
}

fn uses_tcx(host: &Host) -> Result<bool> {
    Ok(host.attachment("a0")?.info.tc_mode != "clsact")
}

/// Another application's program that ends the chain.
fn pass_tc(theirs: &mut Ebpf) -> Result<&mut SchedClassifier> {
    Ok(theirs.program_mut("pass_tc").context("no program pass_tc")?.try_into()?)
}

/// Attaches it before dcqcn's program at the ingress of `a0`; returns its ID and its link.
fn attach_first(host: &Host, theirs: &mut Ebpf) -> Result<(u32, SchedClassifierLinkId)> {
    let options = if uses_tcx(host)? {
        TcAttachOptions::TcxOrder(LinkOrder::first())
    } else {
        // The kernel gives the first filter 49152.
        TcAttachOptions::Netlink(NlOptions { priority: 100, ..NlOptions::default() })
    };
    let program = pass_tc(theirs)?;
    program.load()?;
    let link = host.run(|| program.attach_with_options("a0", TcAttachType::Ingress, options))??;
    Ok((program.info()?.id(), link))
}

/// Removes programs and changes qdiscs, in the way of this kernel or of one without TCX.
fn repairs_under_churn(pair: &Pair, tc: Tc) -> Result<()> {
    /// Distinguishes its maps from those of other tests.
    const FLOWS: u32 = 1_031;
    pair.a.set_up("lo", true)?;
    let both = [FAST, ("DCQCN_TEST_CLSACT", "1")];
    let environment = if tc == Tc::Clsact { &both[..] } else { &both[..1] };
    let options = ["--log-format", "json", "--detach-on-exit"];
    let file = format!("{HOST}{CONTROL}{METRICS}").replace("1024", &FLOWS.to_string());
    let mut daemon = Daemon::start_with(&pair.a, &file, &options, environment)?;
    daemon.attaches("a0")?;
    let (pins, journal) = (pair.a.pins("a0")?, pair.a.journal("a0")?);
    let info = pair.a.attachment("a0")?.info;
    let line = format!("daemon status --socket {}", daemon.socket());
    let status = |code, text: &str| -> Result<()> {
        let printed = String::from_utf8(pair.a.dcqcn(&line, code)?.stdout)?;
        ensure!(printed.contains(text), "no `{text}` in: {printed}");
        Ok(())
    };
    let remove = |hook: &str| match tc {
        Tc::Tcx => fs::remove_file(pins.join(hook)).context("cannot remove a pin"),
        Tc::Clsact => pair.a.command(&format!("tc filter del dev a0 {hook}")).map(drop),
    };
    let clsact = |action: &str| pair.a.command(&format!("tc qdisc {action} dev a0 clsact"));
    let mut theirs = baselines()?;
    let id = under_load(pair, || {
        // Neither replaces anything of dcqcn's.
        pair.a.command("tc qdisc replace dev a0 root handle 9: pfifo limit 77")?;
        if tc == Tc::Tcx {
            clsact("add")?;
            clsact("del")?;
        }
        remove("egress")?;
        repaired(&pair.a, "a0", 1)?;
        see_packets(&pair.a)?;
        status(0, "repairs of a0: 1")?;

        // Not damage: it is named by its ID, as names need CAP_SYS_ADMIN.
        let (id, _) = attach_first(&pair.a, &mut theirs)?;
        let named = format!("(program {id}): packets pass unseen");
        answers(&pair.a, 503, &["ingress: the chain ends at ", &named])?;
        status(7, &named)?;
        status(7, "repairs of a0: 1")?;
        // A repair runs before it again.
        match tc {
            Tc::Tcx => detach_link(&pins.join("ingress"))?,
            Tc::Clsact => _ = pair.a.command("tc filter del dev a0 ingress pref 49152")?,
        }
        repaired(&pair.a, "a0", 2)?;
        answers(&pair.a, 200, &["a0"])?;
        see_packets(&pair.a)?;
        let others = pair.a.run(|| attach::foreign_programs(&info))??;
        let stays = |other: &attach::ForeignProgram| other.name == "pass_tc" && !other.is_before;
        ensure!(others.iter().any(stays), "{others:?}");

        match tc {
            Tc::Tcx => ["ingress", "egress"].into_iter().try_for_each(&remove)?,
            Tc::Clsact => {
                clsact("del")?;
                clsact("add")?;
            }
        }
        repaired(&pair.a, "a0", 3)?;
        see_packets(&pair.a)?;
        status(0, "repairs of a0: 3")?;

        remove("egress")?;
        let suspended = "egress: expected, not found; repairs suspended after 3 in 10 minutes";
        answers(&pair.a, 503, &[suspended])?;
        status(7, suspended)?;
        daemon.wait_for_log(&["repairs suspended after 3 in 10 minutes", "\"iface\":\"a0\""])?;
        if tc == Tc::Tcx {
            clsact("add")?;
        }
        pair.a.command(
            "tc filter add dev a0 ingress protocol ip prio 10 u32 match ip dst 1.2.3.4 classid 1:1",
        )?;
        Ok(id)
    })?;
    daemon.end()?;
    let log = fs::read_to_string(daemon.log())?;
    ensure!(log.matches("\"repaired\"").count() == 3, "{log}");
    // What is foreign stays, and nothing else.
    freed(FLOWS)?;
    ensure!(!journal.exists() && !pins.exists(), "{} or {} is left", journal.display(), pins.display());
    let left = state(&pair.a, "a0")?.concat();
    for theirs in ["qdisc pfifo 9: root", "qdisc clsact", "u32"] {
        assert_contains(&left, theirs);
    }
    // Not the name of the namespace.
    ensure!(!left.contains("dcqcn_"), "{left}");
    if tc == Tc::Tcx {
        let chain = |hook| pair.a.run(move || SchedClassifier::query_tcx("a0", hook));
        let (ingress, egress) = (chain(TcAttachType::Ingress)??.1, chain(TcAttachType::Egress)??.1);
        let ids: Vec<u32> = ingress.iter().map(|program| program.id()).collect();
        ensure!(ids == [id] && egress.is_empty(), "{ids:?}, {} at egress", egress.len());
    }
    Ok(())
}

#[test]
fn removed_links_restored_three_times() -> Result<()> {
    let pair = new_pair!();
    let chain = pair.a.run(|| SchedClassifier::query_tcx("a0", TcAttachType::Ingress))?;
    require_that!(chain.is_ok(), "the kernel has no TCX");
    repairs_under_churn(&pair, Tc::Tcx)
}

#[test]
fn removed_filters_restored_three_times() -> Result<()> {
    repairs_under_churn(&new_pair!(), Tc::Clsact)
}

/// With the normal periods.
#[test]
fn removed_program_is_restored_and_counted() -> Result<()> {
    let pair = new_pair!();
    pair.a.set_up("lo", true)?;
    let mut daemon = serving(&pair.a, &format!("{HOST}{METRICS}"))?;
    pair.a.set("a0", &["rpg_ai_rate=7mbit"])?;
    for (times, hook) in [(1, "egress"), (2, "ingress")] {
        fs::remove_file(pair.a.pins("a0")?.join(hook))?;
        repaired(&pair.a, "a0", times)?;
        daemon.wait_for_log(&["\"repaired\"", &format!("{hook} on a0")])?;
    }
    let params = pair.a.attachment("a0")?.maps.params()?;
    assert_eq!(params.config.scalars.rpg_ai_rate_bps, 7_000_000);
    // The restored parts can be detached.
    daemon.end()?;
    pair.a.detach("a0")?;
    assert!(pair.a.attached()?.is_empty());
    Ok(())
}

/// Another application's program at the head of the chain ends it: dcqcn's program is attached but sees no packets.
#[test]
fn bypassed_programs_fail_readyz() -> Result<()> {
    let pair = new_pair!();
    pair.a.set_up("lo", true)?;
    let mut daemon = serving(&pair.a, &format!("{HOST}{METRICS}"))?;
    require_that!(uses_tcx(&pair.a)?, "the kernel has no TCX");
    under_load(&pair, || {
        answers(&pair.a, 200, &["a0"])?;
        let mut theirs = baselines()?;
        let (_, link) = attach_first(&pair.a, &mut theirs)?;
        answers(&pair.a, 503, &["ingress: the chain ends at"])?;
        daemon.wait_for_log(&["programs see no packets", "\"iface\":\"a0\""])?;
        pass_tc(&mut theirs)?.detach(link)?;
        answers(&pair.a, 200, &["a0"])?;
        daemon.wait_for_log(&["programs see packets again"])
    })?;
    daemon.end()
}

/// The classes of its flows too, at their rates. No task restarts, so that PFC, the watchdog and the probe
/// keep their state.
#[test]
fn qdisc_restored_if_requested() -> Result<()> {
    let pair = new_pair!("htb");
    pair.a.set_up("lo", true)?;
    join((&pair.a, "a1", 3), (&pair.b, "b1", 4), 4_200)?;
    let before = state(&pair.a, "a0")?;
    let file = HOST.replace("pacer = 'none'", "pacer = 'htb'");
    let file = file.replace("name = 'a*'", "name = 'a0'\nrepair = 'all'")
        + &file.replace("name = 'a*'", "name = 'a1'")
        + METRICS;
    let options = ["--log-format", "json", "--detach-on-exit"];
    let mut daemon = Daemon::start_with(&pair.a, &file, &options, &[FAST])?;
    daemon.attaches("a0")?;
    daemon.attaches("a1")?;
    let log = daemon.log();
    let tasks_started = || -> Result<usize> {
        let log = fs::read_to_string(&log)?;
        let of_a0 = log.lines().filter(|line| line.contains("\"iface\":\"a0\""));
        Ok(of_a0.filter(|line| line.contains("\"task started\"")).count())
    };
    let (sender, data) = (pair.a.socket("a0")?, Roce::default());
    let send = || -> Result<()> {
        sender.send(&data.frame())?;
        thread::sleep(Duration::from_millis(4));
        Ok(())
    };
    let replace =
        |iface: &str| pair.a.command(&format!("tc qdisc replace dev {iface} root handle 9: pfifo limit 77"));
    while_repeating([send], || {
        wait_value(|| pair.a.find_flow("a0", &Roce::default()), Option::is_some)?;
        pair.b.socket("b0")?.send(&Roce::default().cnp(None, CNP_TOS))?;
        flow_cut(&pair.a, 1)?;
        // Its timers are off, so that the rate does not change from now on.
        wait_for_class(&pair.a, 0, 500_000_000)?;
        replace("a1")?;
        pair.a.command("tc qdisc del dev a0 root")?;
        daemon.wait_for_log(&["\"repaired\"", "qdisc htb on a0"])?;
        repaired(&pair.a, "a0", 1)?;
        wait_for_class(&pair.a, 0, 500_000_000)?;
        wait_for_class(&pair.a, 0xffff, 1_000_000_000)?;
        let started = tasks_started()?;
        replace("a0")?;
        repaired(&pair.a, "a0", 2)?;
        wait_for_class(&pair.a, 0, 500_000_000)?;
        fs::remove_file(pair.a.pins("a0")?.join("egress"))?;
        repaired(&pair.a, "a0", 3)?;
        ensure!(started != 0 && tasks_started()? == started, "{}", fs::read_to_string(&log)?);
        Ok(())
    })?;
    let missing = "pacer: expected htb dc00: at root, found pfifo";
    daemon.wait_for_log(&["attachment incomplete", "\"iface\":\"a1\"", missing])?;
    answers(&pair.a, 503, &[missing])?;
    let metrics = scrape(&pair.a, "/metrics")?;
    assert_contains(&metrics, "dcqcn_interface_repairs_total{interface=\"a1\"} 0\n");
    daemon.end()?;
    assert_eq!(state(&pair.a, "a0")?, before);
    assert_contains(&pair.a.command("tc qdisc show dev a1")?, "qdisc pfifo 9: root");
    Ok(())
}

/// `a0` and `a1` as the two sides of an inline attachment, and sockets at their ends.
fn inline_pair(pair: &Pair) -> Result<[RawSocket; 2]> {
    pair.a.set_up("lo", true)?;
    join((&pair.a, "a1", 3), (&pair.b, "b1", 4), 4_200)?;
    for iface in ["b0", "b1"] {
        // A veth accepts redirected packets only with NAPI, which GRO enables.
        pair.b.command(&format!("ethtool -K {iface} gro on"))?;
    }
    Ok([pair.b.socket("b0")?, pair.b.socket("b1")?])
}

const INLINE: &str =
    "[[interface]]\nname = 'a0'\ninline = 'a1'\nflows = 64\n[interface.parameters]\nlink_rate = '1gbit'\n";

/// Waits until a frame is forwarded in each direction.
fn forward(ends: &[RawSocket; 2]) -> Result<()> {
    let frame = Roce::default().frame();
    for (from, to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        to.drain()?;
        wait_until("no frame is forwarded", || {
            from.send(&frame)?;
            Ok(to.receive(SILENCE)?.is_some_and(|received| received == frame))
        })?;
    }
    Ok(())
}

/// On either interface of the pair.
#[test]
fn inline_programs_are_restored() -> Result<()> {
    let pair = new_pair!();
    let ends = inline_pair(&pair)?;
    let mut daemon = serving(&pair.a, &format!("{INLINE}{METRICS}"))?;
    forward(&ends)?;
    for (times, pin, restored) in [(1, "xdp", "xdp on a0"), (2, "xdp_peer", "xdp_peer on a1")] {
        fs::remove_file(pair.a.pins("a0")?.join(pin))?;
        repaired(&pair.a, "a0", times)?;
        daemon.wait_for_log(&["\"repaired\"", restored])?;
        forward(&ends)?;
    }
    daemon.end()?;
    pair.a.detach("a0")?;
    assert!(!pair.a.command("ip -d link show a1")?.contains("xdp"));
    Ok(())
}

/// Once another application's program is gone. With the normal periods: a slow machine has 30 s to remove it before the
/// third and last attempt.
#[test]
fn inline_program_restored_after_another() -> Result<()> {
    let pair = new_pair!();
    let ends = inline_pair(&pair)?;
    let mut daemon = Daemon::serving(&pair.a, &format!("{INLINE}{METRICS}"), "a0")?;
    daemon.signal(Signal::SIGSTOP)?;
    fs::remove_file(pair.a.pins("a0")?.join("xdp_peer"))?;
    let mut theirs = baselines()?;
    let program: &mut Xdp = theirs.program_mut("drop_xdp").context("no program drop_xdp")?.try_into()?;
    program.load()?;
    // The link ends a moment after its pin.
    let link =
        wait(|| Ok(pair.a.run(|| program.attach("a1", XdpMode::Skb))?.map_err(|error| error.to_string())))?;
    daemon.signal(Signal::SIGCONT)?;
    daemon.wait_for_log_within(PATIENCE, &["repair failed", "it already has the XDP program"])?;
    answers(&pair.a, 503, &["xdp_peer: expected, not found"])?;
    let id = format!("id {} ", program.info()?.id());
    assert_contains(&pair.a.command("ip -d link show a1")?, &id);
    program.detach(link)?;
    daemon.wait_for_log(&["attachment incomplete", "xdp_peer"])?;
    repaired_within(&pair.a, "a0", 2..=3)?;
    forward(&ends)?;
    daemon.end()?;
    pair.a.detach("a0")
}
