//! Identity of attachments: namespaces and interfaces that are deleted, recreated, moved and renamed.

use dcqcn_netlink::netns::{current_cookie, current_inode, exists};
use dcqcn_tests::bpf::detach_link;
use dcqcn_tests::kill;
use dcqcn_tests::prelude::*;
use dcqcn_tests::tap::Tap;

const ATTACH: &str = "--pacer none --set link_rate=1gbit";

fn run(line: &str) -> Result<String> {
    output_of(&mut dcqcn(line)?)
}

#[test]
fn interface_name_with_dots() -> Result<()> {
    let lab = new_lab!();
    add_veth(&lab.host.netlink()?, "v.1", "v.2.3")?;
    for name in ["v.1", "v.2.3"] {
        lab.host.set_up(name, true)?;
        lab.ok(&format!("attach {name} --flows 64 {ATTACH}"))?;
    }
    complete(&lab, "v.2.3")?;
    lab.prints("status v.1", "egress on v.1")?;
    lab.ok("detach v.1")?;
    lab.ok("detach v.2.3").map(drop)
}

/// A namespace that is recreated under the same name gets the previous inode number, and its interfaces the
/// previous indexes.
#[test]
fn recreated_namespace_with_same_names() -> Result<()> {
    require!();
    const FLOWS: u32 = 1_245;
    let name = format!("dcqcn-test-{}-again", std::process::id());
    let mut inodes = Vec::new();
    for round in 0..4 {
        let netns = Netns::create(&name)?;
        let [inode, cookie] = [netns.run(current_inode)??, netns.run(current_cookie)??];
        inodes.push(inode);
        add_veth(&Netlink::connect_in(&netns)?, "a0", "b0")?;
        run(&format!("-n {name} attach a0 --flows {FLOWS} {ATTACH}"))
            .with_context(|| format!("round {round}"))?;
        let status: Value = serde_json::from_str(&run(&format!("-n {name} status a0 --json"))?)?;
        assert_eq!(status["attachments"][0]["problems"], json!([]), "{status}");
        Netns::delete(&name)?;
        drop(netns);
        wait_until_gone(inode, cookie)?;
    }
    eprintln!("inode numbers {inodes:?}");
    // Each attach has freed the state of the previous namespace; `gc` frees the last one's.
    assert!(tables(FLOWS) <= 1, "{} attachments of deleted namespaces", tables(FLOWS));
    run("gc")?;
    freed(FLOWS)
}

/// Without pins no link shows that the interface was removed. The inode number does not either, once it is reused.
#[test]
fn reused_netns_inode_journal_discarded() -> Result<()> {
    require!();
    const FLOWS: u32 = 1_251;
    let name = format!("dcqcn-test-{}-pinless", std::process::id());
    for _ in 0..8 {
        let netns = Netns::create(&name)?;
        let [inode, cookie] = [netns.run(current_inode)??, netns.run(current_cookie)??];
        add_veth(&Netlink::connect_in(&netns)?, "a0", "b0")?;
        run(&format!("-n {name} attach a0 --flows {FLOWS} {ATTACH}"))?;
        fs::remove_dir_all(format!("/run/dcqcn/bpf/ns-{cookie}"))?;
        let journals = Path::new("/run/dcqcn").join(format!("ns-{cookie}"));
        run("gc")?;
        assert!(journals.exists(), "its namespace still exists");
        Netns::delete(&name)?;
        drop(netns);
        wait_until_gone(inode, cookie)?;
        let another = Netns::create(&name)?;
        let has_its_inode = another.inode()? == inode;
        run("gc")?;
        assert!(!journals.exists(), "{} is left", journals.display());
        Netns::delete(&name)?;
        freed(FLOWS)?;
        if has_its_inode {
            return Ok(());
        }
    }
    require_that!(false, "this kernel reuses inode numbers of namespaces too late");
    Ok(())
}

/// Links lose their interface when it is removed, and when another program detaches them.
#[test]
fn detached_links_not_freed_elsewhere() -> Result<()> {
    require!("htb");
    let (lab, other) = (Lab::new("links-here")?, Lab::new("links-there")?);
    lab.host.command("tc qdisc add dev a0 root handle 7: pfifo limit 77")?;
    let before = lab.host.command("tc -d qdisc show dev a0")?;
    lab.ok("attach a0 --pacer htb --flows 64 --set link_rate=1gbit")?;
    for hook in ["ingress", "egress"] {
        detach_link(&lab.host.pins("a0")?.join(hook))?;
    }
    other.ok("gc")?;
    lab.ok("detach a0")?;
    assert_eq!(lab.host.command("tc -d qdisc show dev a0")?, before);
    lab.attach(&["b0"])?;
    let journal = lab.host.journal("b0")?;
    lab.host.command("ip link del b0")?;
    other.ok("gc")?;
    assert!(!journal.exists(), "its interface was removed");
    Ok(())
}

/// A pod that shares the node's journals: the processes of other namespaces are not visible in it.
const CONTAINER: &str = "unshare --net --pid --fork --mount-proc";

/// As on Linux before 6.6.
#[test]
fn gc_in_a_container_frees_no_other_netns() -> Result<()> {
    let lab = new_lab!();
    kill::ok(&lab, Tc::Clsact, "attach a0 --pacer none --flows 64 --set link_rate=1gbit")?;
    let freed = output_of(words(CONTAINER)?.arg(binary()?).arg("gc"))?;
    assert!(lab.host.journal("a0")?.exists(), "{freed}");
    complete(&lab, "a0")
}

/// Links without an interface: another program detached them, or the interface was removed.
#[test]
fn gc_in_a_container_keeps_managed_interface() -> Result<()> {
    let lab = new_lab!();
    lab.attach(&["a0"])?;
    let (journal, info) = (lab.host.journal("a0")?, lab.host.attachment("a0")?.info);
    let claim = lab.host.run(|| attach::claim(&info))??;
    for hook in ["ingress", "egress"] {
        detach_link(&lab.host.pins("a0")?.join(hook))?;
    }
    // Names of namespaces are mounts, in which they are visible too.
    let gc = ["sh", "-c", "umount -l /run/netns && exec \"$0\" gc"];
    let gc = || output_of(words(CONTAINER)?.args(gc).arg(binary()?));
    gc()?;
    assert!(journal.exists(), "a daemon manages it");
    drop(claim);
    assert_contains(&gc()?, "its network namespace is not visible here");
    assert!(!journal.exists());
    Ok(())
}

/// systemd-nspawn mounts another boot ID for each container, which may share the attachments of the host.
#[test]
fn gc_with_other_boot_id_frees_nothing() -> Result<()> {
    let lab = new_lab!();
    lab.ok(&format!("attach a0 --flows 64 {ATTACH}"))?;
    let gc = "mount --bind /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id && exec \"$0\" gc";
    output_of(words("unshare --mount sh -c")?.arg(gc).arg(binary()?))?;
    assert!(lab.host.journal("a0")?.exists());
    complete(&lab, "a0")?;
    lab.ok("detach a0").map(drop)
}

/// A namespace ends some time after its last user.
fn wait_until_gone(inode: u64, cookie: u64) -> Result<()> {
    let what = format!("namespace {inode} does not end");
    wait_until(&what, || Ok(exists(inode, cookie) != Some(true)))?;
    // Its interfaces are removed after it.
    thread::sleep(Duration::from_millis(300));
    Ok(())
}

#[test]
fn renamed_interface_keeps_attachment() -> Result<()> {
    const FLOWS: u32 = 1_247;
    let lab = new_lab!("htb", "tbf");
    lab.host.command("tc qdisc add dev a0 root handle 7: pfifo limit 77")?;
    let before = lab.host.command("tc -d qdisc show dev a0")?;
    lab.ok(&format!("attach a0 --pacer htb --flows {FLOWS} --set link_rate=1gbit"))?;
    lab.host.rename("a0", "lan.0")?;
    lab.prints("status", "lan.0")?;
    complete(&lab, "lan.0")?;
    lab.ok("set lan.0 rpg_ai_rate=20mbit")?;
    lab.fails(1, &format!("attach lan.0 --flows 64 {ATTACH}"), "lan.0 is already attached")?;
    lab.fails(1, "status a0", "no interface \"a0\"")?;
    lab.prints("detach lan.0", "ingress detached from lan.0")?;
    assert_eq!(lab.host.command("tc -d qdisc show dev lan.0")?, before.replace("a0", "lan.0"));
    freed(FLOWS)
}

/// A new interface with the former name of a renamed one is a different interface.
#[test]
fn name_moved_to_another_interface() -> Result<()> {
    let lab = new_lab!();
    lab.ok(&format!("attach a0 --flows 64 {ATTACH}"))?;
    for line in
        ["ip link set a0 down", "ip link set a0 name old", "ip link set b0 down", "ip link set b0 name a0"]
    {
        lab.host.command(line)?;
    }
    // The address of a bridge or bond is that of a port.
    lab.host.command("ip link set old address 02:00:00:00:00:99")?;
    for command in ["get a0", "set a0 rpg_gd=12", "detach a0"] {
        lab.fails(3, command, "a0 is not attached")?;
    }
    lab.ok(&format!("attach a0 --flows 64 {ATTACH}"))?;
    complete(&lab, "a0")?;
    complete(&lab, "old")?;
    lab.ok("detach a0")?;
    lab.host.command("ip link set a0 name b0")?;
    lab.fails(1, "get a0", "no interface \"a0\"")?;
    complete(&lab, "old")?;
    // Removed, with a name that another one has now.
    lab.host.command("ip link set old name n0")?;
    lab.ok("detach --all")?;
    lab.ok(&format!("attach n0 --flows 64 {ATTACH}"))?;
    for line in ["ip link del n0", "ip link add n0 type veth peer name b0"] {
        lab.host.command(line)?;
    }
    lab.fails(3, "detach n0", "n0 is not attached")?;
    assert_shown_as_removed(&lab)?;
    lab.ok("detach --all")?;
    lab.prints("status", "no interface is attached")
}

/// Unless a test in another namespace has freed it already: its `attach` or `gc` does.
fn assert_shown_as_removed(lab: &Lab) -> Result<()> {
    let status = lab.ok("status")?;
    let is_freed = status.contains("no interface is attached");
    assert!(is_freed || status.contains("interface removed"), "{status}");
    Ok(())
}

/// An interface that is created with an index, or moved here, may get that of a deleted one.
#[test]
fn reused_index_is_another_interface() -> Result<()> {
    const FLOWS: u32 = 1_253;
    let lab = new_lab!();
    for free in ["detach a0", "gc", "attach n0 --flows 64 --pacer none --set link_rate=1gbit"] {
        lab.ok(&format!("attach a0 --flows {FLOWS} {ATTACH}"))?;
        let (index, journal) = (lab.host.index("a0")?, lab.host.journal("a0")?);
        // As inline XDP in a driver leaves it.
        let mut record: Value = serde_json::from_str(&fs::read_to_string(&journal)?)?;
        let steps = record["steps"].as_array_mut().context("no steps")?;
        let features = ["tx-generic-segmentation"];
        steps.push(json!({ "offloads": { "ifindex": index, "features": features } }));
        fs::write(&journal, record.to_string())?;
        lab.host.command("ip link del a0")?;
        lab.host.command(&format!("ip link add n0 index {index} type veth peer name b0"))?;
        lab.host.command("ethtool -K n0 gso off")?;
        assert_shown_as_removed(&lab)?;
        lab.fails(3, "get n0", "n0 is not attached")?;
        lab.run(free)?;
        let offloads = lab.host.command("ethtool -k n0")?;
        assert_contains(&offloads, "generic-segmentation-offload: off");
        freed(FLOWS)?;
        lab.run("detach n0")?;
        lab.prints("status", "no interface is attached")?;
        lab.host.command("ip link del n0")?;
        lab.host.command("ip link add a0 type veth peer name b0")?;
    }
    Ok(())
}

#[test]
fn changed_mac_address_keeps_attachment() -> Result<()> {
    let lab = new_lab!();
    for tc in [Tc::Tcx, Tc::Clsact] {
        kill::ok(&lab, tc, &format!("attach a0 --flows 64 {ATTACH}"))?;
        lab.host.command("ip link set a0 address 02:00:00:00:00:99")?;
        complete(&lab, "a0")?;
        assert!(!lab.ok("status")?.contains("interface removed"));
        lab.ok("gc")?;
        // As inline XDP in a driver leaves it. Undone last, without the programs that show which interface it is.
        let journal = lab.host.journal("a0")?;
        let mut record: Value = serde_json::from_str(&fs::read_to_string(&journal)?)?;
        let offloads = json!({
            "offloads": { "ifindex": lab.host.index("a0")?, "features": ["tx-generic-segmentation"] }
        });
        record["steps"].as_array_mut().context("no steps")?.insert(0, offloads);
        fs::write(&journal, record.to_string())?;
        lab.host.command("ethtool -K a0 gso off")?;
        let done = lab.ok("detach a0")?;
        assert_contains(&done, "egress detached from a0");
        assert_contains(&done, "tx-generic-segmentation of a0 enabled again");
        lab.host.command("ip link set a0 address 02:00:00:00:00:98")?;
    }
    Ok(())
}

#[test]
fn moved_interface_attached_in_new_netns() -> Result<()> {
    require!();
    const FLOWS: u32 = 1_249;
    let (from, to) = (Lab::new("from")?, Lab::new("to")?);
    to.host.command("ip link del a0")?;
    let attach = format!("attach a0 --flows {FLOWS} {ATTACH}");
    from.ok(&attach)?;
    from.host.command(&format!("ip link set a0 netns {}", to.host.netns.name()))?;
    assert_shown_as_removed(&from)?;
    to.host.command("ip link set a0 up")?;
    to.ok(&attach)?;
    complete(&to, "a0")?;
    assert_eq!(tables(FLOWS), 1, "the attachment in the previous namespace is freed");
    to.ok("detach a0")?;
    let detached = state(&to.host, "a0")?;
    assert!(!detached[0].contains("xdp"), "{detached:?}");
    // Left by a move, and freed in the original namespace.
    to.ok(&attach)?;
    to.host.command(&format!("ip link set a0 netns {}", from.host.netns.name()))?;
    assert_contains(&to.ok("gc")?, "the interface was removed");
    freed(FLOWS)?;
    assert!(!from.host.command("ip -d link show dev a0")?.contains("xdp"));
    Ok(())
}

#[test]
fn recreated_inline_peer_detected() -> Result<()> {
    let lab = new_lab!();
    let netlink = lab.host.netlink()?;
    add_veth(&netlink, "p0", "q0")?;
    let attach = format!("attach a0 --inline p0 --flows 64 {ATTACH}");
    lab.ok(&attach)?;
    complete(&lab, "a0")?;
    lab.fails(1, &format!("attach p0 --flows 64 {ATTACH}"), "p0 is attached inline with a0")?;
    netlink.delete_link(netlink.link("p0")?.index)?;
    add_veth(&netlink, "p0", "q0")?;
    has_problem(&lab, "a0", "xdp_peer")?;
    has_problem(&lab, "a0", "removed")?;
    lab.prints("status", "INCOMPLETE")?;
    // Nothing runs at the new one: the next attach starts over.
    lab.ok(&attach)?;
    complete(&lab, "a0")?;
    lab.ok("detach a0").map(drop)
}

/// The parameters apply to both directions.
#[test]
fn inline_ports_share_the_slower_rate() -> Result<()> {
    let lab = new_lab!();
    let _taps = ["t0", "t1"].map(|name| Tap::new(&lab.host, name, 1));
    for (iface, mbit) in [("t0", 10_000), ("t1", 1_000)] {
        lab.host.command(&format!("ethtool -s {iface} speed {mbit}"))?;
    }
    for attach in ["attach t0 --inline t1", "attach t1 --inline t0"] {
        let iface = &attach[7..9];
        lab.ok(&format!("{attach} --flows 64"))?;
        lab.prints(&format!("get {iface} link_rate"), "1gbit")?;
        lab.host.command("ethtool -s t0 speed 100")?;
        let change = lab.host.follow(iface)?.context("no change")?;
        assert_eq!(change.new.scalars.link_rate_bps, 100_000_000);
        lab.ok(&format!("detach {iface}"))?;
        lab.host.command("ethtool -s t0 speed 10000")?;
    }
    Ok(())
}

#[test]
fn link_kinds_attach_or_are_rejected() -> Result<()> {
    let test = test_name!();
    let lab = new_lab!();
    for (name, make) in [
        ("br0", "ip link add br0 type bridge"),
        ("br1", "ip link add br1 type bridge vlan_filtering 1"),
        ("bond0", "ip link add bond0 type bond"),
        ("a0.5", "ip link add link a0 name a0.5 type vlan id 5"),
        ("dummy0", "ip link add dummy0 type dummy"),
        ("mac0", "ip link add link a0 name mac0 type macvlan"),
        ("macvtap0", "ip link add link a0 name macvtap0 type macvtap"),
        // An interface below a macvlan cannot have an ipvlan too.
        ("ipvlan0", "ip link add link b0 name ipvlan0 type ipvlan mode l2"),
        ("vxlan0", "ip link add vxlan0 type vxlan id 5 dstport 4789 dev a0"),
        ("geneve0", "ip link add geneve0 type geneve id 5 remote 192.0.2.9"),
        ("gretap5", "ip link add gretap5 type gretap remote 192.0.2.9"),
        ("tap0", "ip tuntap add tap0 mode tap"),
        ("team0", "ip link add team0 type team"),
        ("nk1", "ip link add nk1 type netkit mode l2"),
    ] {
        if let Err(error) = lab.host.command(make) {
            eprintln!("SKIPPED {test}, in part: this kernel makes no {name}: {error}");
            continue;
        }
        lab.host.command(&format!("ip link set {name} up"))?;
        let output = lab.run(&format!("attach {name} --flows 64 {ATTACH}"))?;
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {message}");
        complete(&lab, name)?;
        lab.ok(&format!("detach {name}"))?;
    }
    for (name, make, expected) in [
        ("lo", "ip link set lo up", "it is a loopback"),
        ("lo", "ip link set lo address 02:00:00:00:00:01", "it is a loopback"),
        ("tun0", "ip tuntap add tun0 mode tun", "which RoCEv2 needs; make it with `mode tap`"),
        ("nk0", "ip link add nk0 type netkit mode l3", "it is a netkit without Ethernet frames"),
        ("vrf0", "ip link add vrf0 type vrf table 10", "attach that interface, a port of the VRF"),
        ("vxlan1", "ip link add vxlan1 type vxlan external", "the interface that its outer packets leave by"),
        (
            "geneve1",
            "ip link add geneve1 type geneve external",
            "the interface that its outer packets leave by",
        ),
        (
            "gretap6",
            "ip link add gretap6 type gretap external",
            "the interface that its outer packets leave by",
        ),
    ] {
        if let Err(error) = lab.host.command(make) {
            eprintln!("SKIPPED {test}, in part: this kernel makes no {name}: {error}");
            continue;
        }
        lab.fails(1, &format!("attach {name} --flows 64 {ATTACH}"), expected)?;
    }
    Ok(())
}

/// As on a node whose pod keeps its pins on another BPF file system and shares the journals.
#[test]
fn journal_of_another_bpf_mount_kept() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Host, &["link_rate=1gbit"])?;
    let (journal, pins) = (pair.a.journal("a0")?, pair.a.pins("a0")?);
    let text = fs::read_to_string(&journal)?;
    let mut record: Value = serde_json::from_str(&text)?;
    let dev = record["bpf_dev"].as_u64().context("no bpf_dev in the journal")?;
    record["bpf_dev"] = (dev + 1).into();
    let shared = record.to_string();
    fs::write(&journal, &shared)?;
    let elsewhere = pins.with_file_name("elsewhere");
    fs::rename(&pins, &elsewhere)?;
    for refused in [
        pair.a.attach("a0", Role::Host, &["link_rate=1gbit"]).unwrap_err().to_string(),
        pair.a.detach("a0").unwrap_err().to_string(),
        pair.a.attachment("a0").err().context("opened")?.to_string(),
    ] {
        assert!(refused.contains("pinned in a container"), "{refused}");
    }
    pair.a.run(|| attach::gc(|_| true))??;
    assert_eq!(fs::read_to_string(&journal)?, shared);
    // Without its programs, as after an unmount, it is treated as a leftover.
    fs::rename(&elsewhere, &pins)?;
    fs::write(&journal, text)?;
    pair.a.detach("a0")?;
    assert!(!journal.exists());
    Ok(())
}

/// The names of two interfaces are exchanged while the object is loaded.
#[test]
fn renamed_while_attaching() -> Result<()> {
    let lab = new_lab!();
    let index = lab.host.index("a0")?;
    let journal = lab.host.journal("a0")?;
    for iface in ["a0", "b0"] {
        lab.host.command(&format!("ip link set {iface} down"))?;
    }
    thread::scope(|scope| {
        let attached = scope.spawn(|| lab.ok(&format!("attach a0 --flows 64 {ATTACH}")));
        while !journal.exists() && !attached.is_finished() {
            thread::yield_now();
        }
        lab.host.command("ip link set a0 name x0")?;
        lab.host.command("ip link set b0 name a0")?;
        attached.join().map_err(|_| anyhow!("panicked"))?.map(drop)
    })?;
    assert_eq!(lab.host.index("x0")?, index);
    complete(&lab, "x0")?;
    lab.ok("detach x0")?;
    lab.expect_error(3, "detach a0").map(drop)
}

/// The interface is moved, and another one gets its index: that one has no program.
#[test]
fn interface_with_index_of_moved_one() -> Result<()> {
    let lab = new_lab!();
    let elsewhere = Lab::new("moved-to")?;
    let index = lab.host.index("a0")?;
    lab.ok(&format!("attach a0 --flows 64 {ATTACH}"))?;
    elsewhere.host.command("ip link del a0")?;
    lab.host.command(&format!("ip link set a0 netns {}", elsewhere.host.netns.name()))?;
    lab.host.command(&format!("ip link add a0 index {index} type bridge"))?;
    lab.expect_error(3, "status a0")?;
    has_problem(&lab, "", "on another interface")
}

/// A port becomes a bridge's, and stops being one; a value that was set stays.
#[test]
fn np_other_host_follows_the_bridge() -> Result<()> {
    let lab = new_lab!();
    lab.ok(&format!("attach a0 --flows 64 {ATTACH}"))?;
    lab.host.command("ip link add br0 type bridge")?;
    let follow = || lab.host.follow("a0");
    let is_on = || anyhow::Ok(lab.host.attachment("a0")?.maps.params()?.config.scalars.np_other_host != 0);
    assert!(follow()?.is_none());
    for (command, expected) in [("ip link set a0 master br0", true), ("ip link set a0 nomaster", false)] {
        lab.host.command(command)?;
        assert_eq!(follow()?.map(|change| change.new.scalars.np_other_host), Some(u64::from(expected)));
        assert_eq!(is_on()?, expected, "{command}");
        assert!(follow()?.is_none(), "{command}, again");
    }
    lab.ok("set a0 np_other_host=on")?;
    lab.host.command("ip link set a0 master br0")?;
    assert!(follow()?.is_none());
    lab.host.command("ip link set a0 nomaster")?;
    assert!(follow()?.is_none() && is_on()?, "set explicitly");
    lab.ok("detach a0").map(drop)
}

/// Frames from another address would move it to this port in switches.
#[test]
fn changed_address_is_source_of_cnps() -> Result<()> {
    let lab = new_lab!();
    lab.ok(&format!("attach a0 --flows 64 {ATTACH}"))?;
    lab.host.command("ip link set a0 address 02:00:00:00:00:77")?;
    assert!(lab.host.follow("a0")?.is_none(), "no parameter of the operator changes");
    assert_eq!(lab.host.attachment("a0")?.maps.params()?.port.mac, [2, 0, 0, 0, 0, 0x77]);
    lab.ok("detach a0").map(drop)
}

/// As udev does while a daemon attaches several new interfaces.
#[test]
fn known_attachment_opened_after_renames() -> Result<()> {
    let lab = new_lab!();
    for iface in ["a0", "b0"] {
        lab.ok(&format!("attach {iface} --flows 64 {ATTACH}"))?;
    }
    let info = lab.host.attachment("a0")?.info;
    for (from, to) in [("a0", "x0"), ("b0", "a0")] {
        lab.host.command(&format!("ip link set {from} down"))?;
        lab.host.command(&format!("ip link set {from} name {to}"))?;
    }
    let found = lab.host.run(|| attach::reopen(&info))??.info;
    assert_eq!((found.iface.as_str(), found.id()), ("x0", info.id()));
    lab.ok("detach x0")?;
    assert!(lab.host.run(|| attach::reopen(&info))?.is_err());
    lab.ok(&format!("attach x0 --flows 64 {ATTACH}"))?;
    assert!(lab.host.run(|| attach::reopen(&info))?.is_err(), "a later attachment");
    lab.ok("detach x0")?;
    lab.ok("detach a0").map(drop)
}

#[test]
fn host_above_a_host_is_noted() -> Result<()> {
    let lab = new_lab!();
    lab.host.command("ip link add link a0 name mac0 type macvlan mode bridge")?;
    lab.ok(&format!("attach a0 --flows 64 {ATTACH}"))?;
    lab.prints(&format!("attach mac0 --flows 64 {ATTACH}"), "the packets of mac0 pass a0 too")?;
    lab.ok("detach mac0")?;
    let switch = lab.ok(&format!("attach mac0 --role switch --flows 64 {ATTACH}"))?;
    assert!(!switch.contains("pass a0 too"), "{switch}");
    lab.ok("detach mac0")?;
    lab.ok("detach a0").map(drop)
}
