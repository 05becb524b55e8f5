//! The operator's qdiscs are preserved.

use dcqcn_tests::kill;
use dcqcn_tests::prelude::*;
use dcqcn_tests::tap::Tap;

fn show(host: &Host) -> Result<String> {
    host.command("tc -d qdisc show dev a0")
}

#[test]
fn pacer_placed_below_shaper() -> Result<()> {
    let lab = new_lab!("htb", "tbf");
    let tbf = "tc qdisc replace dev a0 root handle 7: tbf rate 20mbit burst 20k limit 1m";
    for child in [None, Some("tc qdisc add dev a0 parent 7:1 handle 8: pfifo limit 55")] {
        lab.host.command(tbf)?;
        if let Some(child) = child {
            lab.host.command(child)?;
        }
        let before = state(&lab.host, "a0")?;
        // Also if a higher rate is given.
        let note =
            "link rate 1gbit as specified, above the 20mbit of the tbf shaper on a0, which still applies";
        lab.prints("attach a0 --pacer htb --flows 64 --set link_rate=1gbit", note)?;
        assert!(show(&lab.host)?.contains("rate 20Mbit"));
        lab.ok("detach a0")?;
        assert_eq!(state(&lab.host, "a0")?, before);
        lab.ok("attach a0 --pacer htb --flows 64")?;
        complete(&lab, "a0")?;
        let attached = show(&lab.host)?;
        assert!(attached.contains("tbf 7: root") && attached.contains("rate 20Mbit"), "{attached}");
        assert!(attached.contains("htb dc00: parent 7:1"), "{attached}");
        lab.ok("detach a0")?;
        assert_eq!(state(&lab.host, "a0")?, before, "{child:?}");
        // The qdisc below a tbf passes packets again.
        let index = lab.host.index("a0")?;
        let sent = lab.host.netlink()?.qdisc_stats(index, Handle::ROOT)?.packets;
        let socket = lab.host.socket("a0")?;
        for _ in 0..3 {
            socket.send(&Roce::default().frame())?;
        }
        wait(|| {
            let now = lab.host.netlink()?.qdisc_stats(index, Handle::ROOT)?.packets;
            Ok(if now < sent + 3 { Err(show(&lab.host)?) } else { Ok(()) })
        })?;
    }
    Ok(())
}

#[test]
fn shaper_rate_change_followed() -> Result<()> {
    let lab = new_lab!("htb", "tbf");
    lab.host.command("tc qdisc add dev a0 root handle 7: tbf rate 200mbit burst 200k limit 1m")?;
    lab.ok("attach a0 --pacer htb --flows 64")?;
    let follow = || lab.host.follow("a0");
    assert!(follow()?.is_none(), "nothing has changed");
    lab.host.command("tc qdisc change dev a0 root handle 7: tbf rate 300mbit burst 200k limit 1m")?;
    let change = follow()?.context("a change")?;
    let rates = (change.old.scalars.link_rate_bps, change.new.scalars.link_rate_bps);
    assert_eq!(rates, (200_000_000, 300_000_000));
    lab.prints("get a0 link_rate", "300mbit")?;
    // A qdisc configured in the meantime stays, until it equals the saved one again.
    lab.ok("set a0 link_rate=150mbit")?;
    assert!(follow()?.is_none(), "the value set manually");
    lab.host.command("tc qdisc change dev a0 root handle 7: tbf rate 400mbit burst 200k limit 1m")?;
    assert!(follow()?.is_none(), "the value set manually, after a change of the shaper");
    lab.prints("get a0 link_rate", "150mbit")?;
    // Settings without it (a reloaded file, a reverted override) use the detected value.
    let attachment = lab.host.attachment("a0")?;
    let running = attachment.maps.params()?.config;
    let mut requested = request("a0", Role::Host, &[])?;
    (requested.settings.flows, requested.settings.pacer) = (Some(64), None);
    let revised = attach::revise(&requested, &attachment.info, &running)?;
    assert_eq!((running.scalars.link_rate_bps, revised.scalars.link_rate_bps), (150_000_000, 300_000_000));
    lab.ok("set a0 link_rate=300mbit")?;
    assert_eq!(follow()?.context("a change")?.new.scalars.link_rate_bps, 400_000_000);
    // A given value stays.
    lab.ok("detach a0")?;
    lab.ok("attach b0 --pacer none --flows 64 --set link_rate=100mbit")?;
    // The speed of the hardware, which is unknown here, does not: the recorded one may be that of an earlier
    // negotiation.
    let mut maps = lab.host.attachment("b0")?.maps;
    let params = maps.params()?;
    let port = Port { speed_bps: 25_000_000_000, wire_bps: 25_000_000_000, ..params.port };
    maps.set_params(&Params::new(&params.config, port)?)?;
    assert!(lab.host.follow("b0")?.is_none());
    assert_eq!(lab.host.attachment("b0")?.maps.params()?, params);
    lab.ok("detach b0").map(drop)
}

/// A reverted override or a reloaded file: parameters absent from it do not keep values set manually in the meantime.
#[test]
fn unset_parameters_keep_attach_values() -> Result<()> {
    let lab = new_lab!();
    lab.host.command("ip link add br0 type bridge")?;
    lab.host.command("ip link set b0 master br0")?;
    for (iface, other_host) in [("a0", 0), ("b0", 1)] {
        lab.ok(&format!("attach {iface} --pacer none --flows 64 --set link_rate=100mbit"))?;
        let set = if other_host == 0 { "on" } else { "off" };
        lab.ok(&format!("set {iface} link_rate=50mbit wire_overhead=38B np_other_host={set} rpg_gd=12"))?;
        let attachment = lab.host.attachment(iface)?;
        let running = attachment.maps.params()?.config;
        let mut requested = request(iface, Role::Host, &[])?;
        requested.settings.flows = Some(64);
        let revised = attach::revise(&requested, &attachment.info, &running)?;
        let values = |config: &Config| {
            let set = &config.scalars;
            (set.link_rate_bps, set.wire_overhead_bytes, set.np_other_host, set.rpg_gd)
        };
        assert_eq!(values(&running), (50_000_000, 38, 1 - other_host, 12));
        assert_eq!(values(&revised), (100_000_000, 0, other_host, 11));
        lab.ok(&format!("detach {iface}"))?;
    }
    Ok(())
}

#[test]
fn rpg_max_rate_bounds_flows_only() -> Result<()> {
    let lab = new_lab!("htb");
    lab.ok("attach a0 --pacer htb --flows 64 --set link_rate=10gbit --set rpg_max_rate=1gbit")?;
    let classes = lab.host.netlink()?.classes(lab.host.index("a0")?)?;
    assert_eq!(classes.len(), 2);
    for class in classes {
        assert_eq!(class.ceil_bps, Some(10_000_000_000), "{class:?}");
    }
    lab.ok("detach a0").map(drop)
}

#[test]
fn foreign_qdisc_replacing_pacer_kept() -> Result<()> {
    let lab = new_lab!("htb", "tbf");
    lab.ok("attach a0 --pacer htb --flows 64 --set link_rate=1gbit")?;
    lab.host.command("tc qdisc replace dev a0 root handle 9: tbf rate 20mbit burst 20k limit 1m")?;
    let theirs = show(&lab.host)?;
    has_problem(&lab, "a0", "expected htb dc00: at root, found tbf")?;
    lab.fails(1, "attach a0 --pacer htb --flows 64", "already attached")?;
    lab.prints("detach a0", "stays tbf: another program replaced it")?;
    assert_eq!(show(&lab.host)?, theirs);
    Ok(())
}

#[test]
fn failed_undo_step_stays_in_journal() -> Result<()> {
    let lab = new_lab!("htb");
    lab.host.command("tc qdisc add dev a0 root handle 7: pfifo limit 77")?;
    let before = show(&lab.host)?;
    let attach = "attach a0 --pacer htb --flows 64 --set link_rate=1gbit";
    lab.ok(attach)?;
    // Simulates an unloaded module of the previous qdisc.
    let path = lab.host.journal("a0")?;
    let text = fs::read_to_string(&path)?;
    let without = text.replace("\"pfifo\"", "\"nosuchqdisc\"");
    assert_ne!(text, without);
    fs::write(&path, &without)?;
    let refused = lab.expect_error(1, "detach a0")?;
    assert_contains(&refused, "nosuchqdisc");
    assert_contains(&refused, "not yet restored: root qdisc");
    assert!(!lab.host.pins("a0")?.exists(), "programs and maps are removed");
    lab.prints("status", "half detached")?;
    lab.fails(1, "get a0", "half detached")?;
    lab.fails(1, "detach a0", "nosuchqdisc")?;
    // Only the journal has the undo step: neither a refused attachment nor another interface's takes it over.
    lab.fails(1, &attach.replace("64", "40000"), "flows = 40000 is out of range")?;
    lab.fails(1, "attach b0 --inline a0", "a0 is half detached")?;
    // After attaching again, it is still pending.
    lab.ok(attach)?;
    complete(&lab, "a0")?;
    lab.fails(1, "detach a0", "nosuchqdisc")?;
    // The module is loaded again.
    let text = fs::read_to_string(&path)?;
    fs::write(&path, text.replace("nosuchqdisc", "pfifo"))?;
    lab.ok("detach a0")?;
    assert_eq!(show(&lab.host)?, before);
    // Or the undo step is abandoned.
    lab.ok(attach)?;
    fs::write(&path, &without)?;
    lab.prints("detach a0 --force", "abandoned: root qdisc nosuchqdisc 7:")?;
    lab.prints("status", "no interface is attached")
}

#[test]
fn mq_and_children_restored() -> Result<()> {
    let lab = new_lab!("htb", "mq");
    lab.host.command("ip link del a0")?;
    lab.host.command("ip link add a0 numtxqueues 4 type veth peer name b0 numrxqueues 4")?;
    for iface in ["a0", "b0"] {
        lab.host.command(&format!("ip link set {iface} up"))?;
    }
    for children in
        [&[][..], &["parent 1:2 handle 12: pfifo limit 22", "parent 1:4 handle 14: bfifo limit 44000"]]
    {
        lab.host.command("tc qdisc replace dev a0 root handle 1: mq")?;
        for child in children {
            lab.host.command(&format!("tc qdisc replace dev a0 {child}"))?;
        }
        let before = show(&lab.host)?;
        lab.ok("attach a0 --pacer htb --flows 64 --set link_rate=1gbit")?;
        assert!(show(&lab.host)?.contains("htb dc00: root"));
        lab.ok("detach a0")?;
        assert_eq!(show(&lab.host)?, before);
    }
    Ok(())
}

#[test]
fn prepared_interface_keeps_its_fq() -> Result<()> {
    let lab = new_lab!("fq");
    lab.prints("prepare a0", "a0: fq limit")?;
    let before = lab.host.command("tc -d qdisc show dev a0")?;
    assert!(before.contains("qdisc fq "), "{before}");
    lab.prints("attach a0 --pacer fq --flows 64 --set link_rate=1gbit", "is kept")?;
    assert_eq!(lab.host.command("tc -d qdisc show dev a0")?, before);
    lab.ok("detach a0")?;
    assert_eq!(lab.host.command("tc -d qdisc show dev a0")?, before);
    lab.prints("prepare a0", "is kept")
}

#[test]
fn prepare_keeps_qdisc_of_attachment() -> Result<()> {
    let lab = new_lab!("htb");
    for (attach, what) in [
        ("--pacer htb", "the htb pacer"),
        ("--role switch --queues", "queues"),
        ("--role switch --queues=htb", "queues"),
    ] {
        lab.ok(&format!("attach a0 {attach} --flows 64 --set link_rate=1gbit"))?;
        let before = show(&lab.host)?;
        lab.fails(1, "prepare a0", &format!("it is attached with {what}; `dcqcn detach a0` first"))?;
        assert_eq!(show(&lab.host)?, before);
        lab.ok("detach a0")?;
    }
    Ok(())
}

#[test]
fn prepare_without_fq_names_the_cause() -> Result<()> {
    require!();
    require_that!(!kernel_has_qdisc("fq")?, "the kernel has fq");
    let lab = Lab::new("preparenofq")?;
    let before = show(&lab.host)?;
    for command in ["prepare a0", "prepare a0 --networkd"] {
        let refused = lab.expect_error(1, command)?;
        assert_contains(&refused, "cannot prepare a0: this kernel has no fq qdisc");
        assert_contains(&refused, "`dcqcn attach a0` selects a pacer that the kernel has");
    }
    assert_eq!(show(&lab.host)?, before);
    Ok(())
}

#[test]
fn vrf_member_is_not_a_bridge_port() -> Result<()> {
    let lab = new_lab!();
    require_that!(lab.host.command("ip link add vrf0 type vrf table 10").is_ok(), "the kernel has no VRF");
    lab.host.command("ip link set a0 master vrf0")?;
    lab.attach(&["a0"])?;
    let scalars = lab.host.attachment("a0")?.maps.params()?.config.scalars;
    assert_eq!(scalars.np_other_host, 0);
    lab.ok("detach a0").map(drop)
}

const TBF: &str = "tc qdisc replace dev a0 root handle 5: tbf rate 10mbit burst 32k latency 50ms";

#[test]
fn repair_refused_below_other_qdisc() -> Result<()> {
    let lab = new_lab!("htb", "tbf");
    for attach in ["--pacer htb", "--role switch --queues=htb"] {
        lab.ok(&format!("attach a0 {attach} --flows 64 --set link_rate=1gbit"))?;
        let id = lab.host.attachment("a0")?.info.id();
        lab.host.command(TBF)?;
        let repaired = lab.host.run(|| attach::repair(id, "a0", true))?;
        let refused = repaired.expect_err(attach).to_string();
        assert_contains(&refused, "another program's qdisc is there now");
        lab.ok("detach a0")?;
        let left = show(&lab.host)?;
        assert!(left.starts_with("qdisc tbf 5: root") && left.lines().count() == 1, "{left}");
        lab.host.command("tc qdisc del dev a0 root")?;
    }
    Ok(())
}

/// From the journal's first record until the qdisc is replaced, the programs are loaded.
fn changed_while_attaching(lab: &Lab, change: &str, kept: &str) -> Result<()> {
    let journal = lab.host.journals()?.join(format!("{}.json", lab.host.index("a0")?));
    thread::scope(|scope| -> Result<()> {
        let attaching = scope.spawn(|| lab.run("attach a0 --pacer htb --flows 64 --set link_rate=1gbit"));
        while !journal.exists() && !attaching.is_finished() {
            thread::yield_now();
        }
        lab.host.command(change)?;
        let attached = attaching.join().map_err(|_| anyhow!("the command panicked"))??;
        if !attached.status.success() {
            let error = String::from_utf8_lossy(&attached.stderr);
            assert_contains(&error, "changed the qdisc of a0 while attaching");
            lab.prints("status", "no interface is attached")?;
        }
        Ok(())
    })?;
    lab.run("detach a0")?;
    assert_contains(&show(&lab.host)?, kept);
    Ok(())
}

#[test]
fn qdisc_installed_while_attaching_is_kept() -> Result<()> {
    let lab = new_lab!("htb", "tbf");
    changed_while_attaching(&lab, TBF, "qdisc tbf 5: root")
}

#[test]
fn options_changed_while_attaching_are_kept() -> Result<()> {
    let lab = new_lab!("htb");
    lab.host.command("tc qdisc add dev a0 root handle 7: pfifo limit 77")?;
    let change = "tc qdisc change dev a0 root handle 7: pfifo limit 99";
    changed_while_attaching(&lab, change, "limit 99p")
}

/// The class that the pacer was in has gone with its shaper.
#[test]
fn shaper_replaced_above_the_pacer_is_kept() -> Result<()> {
    let lab = new_lab!("htb", "tbf");
    for change in [TBF, "tc qdisc del dev a0 root", "tc qdisc replace dev a0 root handle 7: pfifo limit 33"] {
        lab.host.command("tc qdisc replace dev a0 root handle 7: tbf rate 20mbit burst 20k limit 1m")?;
        lab.host.command("tc qdisc add dev a0 parent 7:1 handle 8: pfifo limit 55")?;
        lab.ok("attach a0 --pacer htb --flows 64")?;
        if change.contains(" 7:") {
            lab.host.command("tc qdisc del dev a0 root")?;
        }
        lab.host.command(change)?;
        let theirs = show(&lab.host)?;
        lab.prints("detach a0", "another program replaced it")?;
        assert_eq!(show(&lab.host)?, theirs, "{change}");
        lab.prints("status", "no interface is attached")?;
    }
    Ok(())
}

/// Filters of other kinds use the numbers of a BPF filter's name and program for something else.
#[test]
fn filter_detached_next_to_other_kinds() -> Result<()> {
    let lab = new_lab!();
    let before = state(&lab.host, "a0")?;
    for hook in ["egress", "ingress"] {
        kill::ok(&lab, Tc::Clsact, "attach a0 --pacer none --flows 64 --set link_rate=1gbit")?;
        let other = format!("dev a0 {hook} protocol ip prio 10");
        let redirect = "u32 match ip dst 1.2.3.4 action mirred egress redirect dev b0";
        lab.host.command(&format!("tc filter add {other} {redirect}"))?;
        kill::ok(&lab, Tc::Clsact, "detach a0")?;
        let filters = lab.host.command(&format!("tc filter show dev a0 {hook}"))?;
        assert!(filters.contains("u32") && !filters.contains("dcqcn"), "{filters}");
        lab.host.command("tc qdisc del dev a0 clsact")?;
        assert_eq!(state(&lab.host, "a0")?, before);
    }
    Ok(())
}

/// The qdisc `ingress` has the parent of clsact and no egress hook.
#[test]
fn ingress_qdisc_without_tcx_is_refused() -> Result<()> {
    let lab = new_lab!();
    lab.host.command("tc qdisc add dev a0 ingress")?;
    let before = state(&lab.host, "a0")?;
    let attach = "attach a0 --role switch --set link_rate=1gbit";
    let refused = kill::ok(&lab, Tc::Clsact, attach).map_err(|error| error.to_string()).unwrap_err();
    assert_contains(&refused, "a0 has the qdisc ingress, which has no egress hook");
    assert_eq!(state(&lab.host, "a0")?, before);
    Ok(())
}

/// Only a shaper at the root, whose class takes the pacer, keeps its rate.
#[test]
fn shaper_below_root_is_not_replaced() -> Result<()> {
    let lab = new_lab!("htb", "tbf");
    let queues = "numtxqueues 2 numrxqueues 2";
    lab.host.command(&format!("ip link add m0 {queues} type veth peer name m1 {queues}"))?;
    lab.host.command("ip link set m0 up")?;
    lab.host.command("ip link set m1 up")?;
    lab.host.command("tc qdisc add dev m0 root handle 5: mq")?;
    lab.host.command("tc qdisc add dev m0 parent 5:2 handle 52: tbf rate 10mbit burst 10k latency 1s")?;
    lab.host.command("tc qdisc add dev a0 root handle 7: tbf rate 100mbit burst 100k latency 1s")?;
    lab.host.command("tc qdisc add dev a0 parent 7:1 handle 8: tbf rate 50mbit burst 100k latency 1s")?;
    for (iface, shaper) in [("m0", "tbf 52: at root"), ("a0", "tbf 8: at 7:1")] {
        let before = state(&lab.host, iface)?;
        let error = format!("{iface} has the shaper {shaper}, which attaching would replace");
        lab.fails(1, &format!("attach {iface} --pacer htb --flows 64"), &error)?;
        assert_eq!(state(&lab.host, iface)?, before);
        let attached = lab.ok(&format!("attach {iface} --pacer none --flows 64"))?;
        let is_noted = attached.contains("the shaper tbf 52: at 5:2 is not taken for the link rate");
        assert_eq!(is_noted, iface == "m0");
        lab.ok(&format!("detach {iface}"))?;
    }
    Ok(())
}

const QUEUES: usize = 4;
const FRAMES: u32 = 32;

#[test]
fn kernel_mq_restored() -> Result<()> {
    let lab = new_lab!("htb", "mq");
    let mut tap = match Tap::new(&lab.host, "q0", QUEUES) {
        Ok(tap) => tap,
        Err(error) => {
            eprintln!("SKIPPED kernel_mq_restored: this kernel makes no such interface: {error:#}");
            return Ok(());
        }
    };
    let show = || lab.host.command("tc -d qdisc show dev q0");
    let before = show()?;
    ensure!(before.starts_with("qdisc mq 0: root"), "{before}");
    for pacer in ["none", "htb"] {
        lab.ok(&format!("attach q0 --pacer {pacer} --flows 64 --set link_rate=1gbit"))?;
        complete(&lab, "q0")?;
        let socket = lab.host.socket("q0")?;
        for flow in 0..FRAMES {
            socket.send(&Roce { dest_qpn: 0x100 + flow, ..Roce::default() }.frame())?;
        }
        tap.read_frames(FRAMES as usize, TIMEOUT).with_context(|| pacer.to_owned())?;
        lab.ok("detach q0")?;
        assert_eq!(show()?, before, "{pacer}");
    }
    Ok(())
}

/// Without TCX, where programs are filters of a clsact.
#[test]
fn shared_filter_block_names_the_fix() -> Result<()> {
    let lab = new_lab!();
    let attach = "attach a0 --pacer none --flows 64 --set link_rate=1gbit";
    for block in ["ingress_block 7", "egress_block 7"] {
        lab.host.command(&format!("tc qdisc add dev a0 {block} clsact"))?;
        let refused = lab.host.output(kill::command(&lab, Tc::Clsact, attach)?)?;
        let refused = String::from_utf8(refused.stderr)?;
        assert_contains(&refused, "a0 shares filter block 7");
        lab.host.command("tc qdisc del dev a0 clsact")?;
        lab.host.command("tc qdisc add dev a0 clsact")?;
        kill::ok(&lab, Tc::Clsact, attach)?;
        lab.ok("detach a0")?;
        lab.host.command("tc qdisc del dev a0 clsact")?;
    }
    // Links need no clsact.
    lab.host.command("tc qdisc add dev a0 ingress_block 7 clsact")?;
    lab.ok(attach)?;
    lab.ok("detach a0").map(drop)
}
