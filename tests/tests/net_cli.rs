//! Life cycle of an attachment, by the `dcqcn` command in a separate network namespace.

use dcqcn_tests::prelude::*;

#[test]
fn interface_life_cycle_by_command() -> Result<()> {
    let lab = new_lab!();
    let netlink = lab.host.netlink()?;
    let index = netlink.link("a0")?.index;
    let qdisc_before = netlink.root_qdisc(index)?;

    lab.fails(3, "status a0", "a0 is not attached")?;
    lab.fails(3, "set a0 np_enable=off", "a0 is not attached")?;
    lab.fails(1, "attach a9", "no interface \"a9\"")?;
    lab.fails(1, "attach a0 --profile lab --set link_rate=10gbit", "up to 1gbit")?;
    lab.prints("attach a0 --profile lab --set link_rate=250mbit --flows 1024", "attached to a0 as host")?;
    lab.fails(1, "attach a0", "a0 is already attached as host")?;

    let status = lab.json("status")?;
    let [attachment] = status["attachments"].as_array().context("no array")?.as_slice() else {
        panic!("{status}");
    };
    assert_eq!(attachment["iface"], "a0");
    assert_eq!(attachment["role"], "host");
    assert_eq!(attachment["alive"], true);
    assert_eq!(attachment["link_rate_bps"], 250_000_000);

    for command in ["flows a0", "queues a0", "counters a0", "counters a0 --all", "status a0"] {
        lab.ok(command)?;
        lab.json(command)?;
    }
    lab.prints("get a0 rpg_time_reset", "4.4ms")?;

    lab.ok("detach a0")?;
    lab.prints("status", "no interface is attached")?;
    lab.fails(3, "detach a0", "a0 is not attached")?;
    assert_eq!(netlink.root_qdisc(index)?, qdisc_before);
    Ok(())
}

/// An attachment has a journal before it has maps and parameters.
#[test]
fn concurrent_attach_awaited() -> Result<()> {
    let lab = new_lab!();
    thread::scope(|scope| {
        let attaching = scope.spawn(|| lab.ok("attach a0 --set link_rate=1gbit"));
        let mut is_over = false;
        while !is_over {
            is_over = attaching.is_finished();
            for attachment in lab.json("status")?["attachments"].as_array().context("no array")? {
                assert_eq!(attachment["link_rate_bps"], 1_000_000_000, "{attachment}");
                assert_ne!(attachment["tc_mode"], "none", "{attachment}");
            }
        }
        attaching.join().expect("no panic").map(drop)
    })
}

#[test]
fn command_line_overrides_file() -> Result<()> {
    let lab = new_lab!();
    let file = tempfile::NamedTempFile::new()?;
    let text =
        "role = 'switch'\n[parameters]\nlink_rate = '1gbit'\n[wred.3]\nkmin = '10KB'\nkmax = '300KB'\n";
    fs::write(&file, text)?;
    let file = file.path().display();
    lab.prints(&format!("attach a0 --config {file} --set wred.3.kmax=400KB"), "attached to a0 as switch")?;
    let queues = lab.json("queues a0")?;
    assert_eq!(queues["cp_enable"], true);
    let class = &queues["classes"][3];
    assert_eq!((&class["kmin_bytes"], &class["kmax_bytes"]), (&10_000.into(), &400_000.into()));
    assert_eq!(class["drain_rate_bps"], 1_000_000_000);
    lab.fails(1, &format!("attach b0 --config {file} --set wred.3.kmin=1MB"), "above wred.3.kmax")?;
    lab.fails(3, "status b0", "b0 is not attached")?;
    lab.ok("detach a0").map(drop)
}

#[test]
fn altname_selects_the_interface() -> Result<()> {
    let lab = new_lab!();
    lab.host.command("ip link property add dev a0 altname other0")?;
    let file = lab.path("file");
    let text = "[[interface]]\nname = 'a0'\nflows = 64\n[interface.parameters]\nlink_rate = '1gbit'\n";
    fs::write(&file, text)?;
    let file = file.display();
    lab.ok(&format!("attach other0 --config {file}"))?;
    lab.prints(&format!("config diff other0 --config {file}"), "a0 matches")?;
    lab.ok("set other0 rpg_gd=12")?;
    // Longer than a name may be.
    let long = "enp3s0f0np0-storage-uplink";
    lab.host.command(&format!("ip link property add dev a0 altname {long}"))?;
    lab.ok(&format!("set {long} rpg_gd=11"))?;
    lab.prints("log other0", "rpg_gd")?;
    lab.ok("detach other0").map(drop)
}

#[test]
fn several_interfaces_have_one_report() -> Result<()> {
    let lab = new_lab!();
    let planned = lab.json("attach a0 b0 --dry-run --set link_rate=1gbit")?;
    assert_eq!(planned["planned"].as_array().map(Vec::len), Some(2), "{planned}");
    lab.fails(3, "detach a0 b0", "b0 is not attached")
}

#[test]
fn pairs_added_listed_and_removed() -> Result<()> {
    let lab = new_lab!();
    lab.fails(3, "flows pair list a0", "a0 is not attached")?;
    lab.ok("attach a0 --pacer none --set link_rate=1gbit --flows 64")?;
    lab.prints("flows pair list a0", "no pairs are known")?;

    let table = lab.ok("flows pair add a0 10.0.0.1 0x11 35 --peer 10.0.0.2")?;
    assert_contains(&table, "10.0.0.1  0x000011  0x000023  static");
    assert_contains(&table, "10.0.0.2  0x000023  0x000011  static");
    lab.ok("flows pair add a0 fd00::1 17 0x24")?;
    let pairs = lab.json("flows pair list a0")?;
    assert_eq!(pairs["pairs"].as_array().map(Vec::len), Some(3), "{pairs}");
    assert_eq!(lab.json("flows a0")?["pairs"], pairs["pairs"]);

    lab.ok("flows pair del a0 10.0.0.2 0x23")?;
    lab.fails(1, "flows pair del a0 10.0.0.2 0x23", "no pair of QP 0x23 at 10.0.0.2 is known")?;
    lab.fails(2, "flows pair add a0 10.0.0.1 1 0x23", "2 to 16777215")?;
    lab.fails(2, "flows pair add a0 10.0.0 0x11 0x23", "invalid IP address")?;
    assert_eq!(lab.json("flows pair list a0")?["pairs"].as_array().map(Vec::len), Some(2));
    lab.ok("detach a0").map(drop)
}
