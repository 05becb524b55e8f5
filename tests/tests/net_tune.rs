//! Live tuning by the `dcqcn` command: several interfaces at once, the audit log, files and imports.

use std::os::fd::{AsFd, AsRawFd};

use aya::maps::{MapInfo, loaded_maps};
use dcqcn_common::params::Unit;
use dcqcn_tests::prelude::*;

/// Every parameter of an interface, by name, in the base unit.
fn state(lab: &Lab, iface: &str) -> Result<BTreeMap<String, u64>> {
    let keys: Vec<String> = Key::all().map(|key| key.to_string()).collect();
    let report = lab.json(&format!("get {iface} {}", keys.join(" ")))?;
    let parameters = report["parameters"].as_array().context("no parameters")?;
    parameters
        .iter()
        .map(|p| {
            Ok((p["key"].as_str().context("no key")?.to_owned(), p["value"].as_u64().context("no value")?))
        })
        .collect()
}

#[test]
fn multi_interface_change_is_atomic() -> Result<()> {
    let lab = new_lab!();
    lab.attach(&["a0"])?;
    lab.fails(3, "set a0,b0 rpg_gd=12", "b0 is not attached")?;
    lab.ok("attach b0 --role switch --pacer none --flows 64 --set link_rate=10gbit")?;

    let changed = lab.ok("set a0,b0 rpg_ai_rate=20mbit wred.3.kmax=1MB")?;
    let changes = "rpg_ai_rate: 40mbit -> 20mbit\nwred.3.kmax: 200KB -> 1MB\n";
    assert_eq!(changed, format!("a0:\n{changes}\nb0:\n{changes}"));
    lab.ok("set a0 b0 rpg_threshold=3")?;
    lab.ok("set --all min_time_between_cnps=60us")?;
    lab.prints("get --all rpg_threshold min_time_between_cnps", "b0:\nPARAMETER")?;

    let before = (state(&lab, "a0")?, state(&lab, "b0")?);
    for (code, line, what) in [
        // Valid for b0, whose link is ten times as fast.
        (1, "set b0,a0 rpg_max_rate=2gbit", "rejected for a0"),
        (1, "set --all rpg_gd=13 np_enable=on", "np_enable = true needs the ingress program"),
        (3, "set a0,b0,lo rpg_gd=13", "nothing was changed"),
        (1, "set a0,b0 wred.3.kmin=2MB", "wred.3.kmin = 2MB is above wred.3.kmax = 1MB"),
        (1, "set --all --profile lab", "profile `lab` is for links up to 1gbit, this one has 10gbit"),
        (2, "set a0 rpg_time_reset=55", "write a time, as in `55us`"),
        (2, "set a0 rpg_ai_rate=10mbit rpg_gd=99", "rpg_gd = 99 is out of range: 10 to 15"),
        (2, "set a0 pacer=none", "use `attach --pacer`"),
        (2, "set rpg_gd=13", "<IFACE|--all>"),
        (2, "set --all a0 rpg_gd=13", "either interfaces or --all"),
        (2, "get a0 rpg_ai_rat", "did you mean `rpg_ai_rate`?"),
        (1, "get a0 rpg_ai_rate --tc 3", "no parameter matches"),
    ] {
        lab.fails(code, line, what)?;
    }
    assert_eq!((state(&lab, "a0")?, state(&lab, "b0")?), before);

    let log = lab.json("log")?;
    let of_b0 = log["entries"].as_array().context("no entries")?.iter().filter(|e| e["iface"] == "b0");
    let (entries, refusals): (Vec<&Value>, Vec<&Value>) = of_b0.partition(|e| e["refused"].is_null());
    let refused: Vec<_> = refusals.iter().filter_map(|e| e["refused"].as_str()).collect();
    assert!(refused.iter().any(|why| why.contains("np_enable = true needs")), "{refused:?}");
    let logged: Vec<_> =
        entries.iter().map(|e| (e["key"].as_str(), e["old"].as_str(), e["new"].as_str())).collect();
    let expected = [
        ("rpg_ai_rate", "40mbit", "20mbit"),
        ("wred.3.kmax", "200KB", "1MB"),
        ("rpg_threshold", "5", "3"),
        ("min_time_between_cnps", "50us", "60us"),
    ];
    assert_eq!(logged, expected.map(|(key, old, new)| (Some(key), Some(old), Some(new))));
    assert_eq!((&entries[0]["uid"], &entries[0]["sudo_user"]), (&0.into(), &"ada".into()));
    let command = entries[0]["command"].as_str().unwrap_or_default();
    assert_contains(command, "set a0,b0 rpg_ai_rate=20mbit wred.3.kmax=1MB");
    lab.prints("log --last 1", "ada as root")?;

    // An unwritable log causes a warning, and the change stays.
    let output = lab.run_with(Path::new("/proc/nowhere"), "set a0 rpg_threshold=4")?;
    assert!(output.status.success());
    assert_contains(&String::from_utf8(output.stderr)?, "not recorded in the audit log");
    lab.prints("get a0 rpg_threshold", "4")?;
    lab.ok("detach --all").map(drop)
}

/// Makes a map read-only for processes (`bpf_map_freeze`, Linux 5.2).
fn freeze(map: &MapInfo) -> Result<()> {
    /// include/uapi/linux/bpf.h, `enum bpf_cmd`.
    const BPF_MAP_FREEZE: libc::c_long = 22;
    let fd = map.fd()?;
    let attr = [fd.as_fd().as_raw_fd()];
    // SAFETY: for this command the kernel reads `map_fd`, the first four bytes of `union bpf_attr`, and the length
    // passed here is four.
    let done = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_FREEZE, attr.as_ptr(), size_of_val(&attr)) };
    ensure!(done == 0, "BPF_MAP_FREEZE: {}", std::io::Error::last_os_error());
    Ok(())
}

fn ids_of_params() -> BTreeMap<u32, MapInfo> {
    let maps = loaded_maps().filter_map(Result::ok);
    maps.filter(|map| map.name_as_str() == Some("PARAMS")).map(|map| (map.id(), map)).collect()
}

#[test]
fn failed_write_restores_other_interfaces() -> Result<()> {
    let lab = new_lab!();
    lab.attach(&["a0"])?;
    let others = ids_of_params();
    lab.attach(&["b0"])?;
    let of_b0 = ids_of_params().into_iter().find(|(id, _)| !others.contains_key(id));
    freeze(&of_b0.context("b0 has no parameters")?.1)?;
    let before = (state(&lab, "a0")?, state(&lab, "b0")?);
    let refused = lab.expect_error(1, "set a0,b0 rpg_gd=12 wred.3.pmax=5%")?;
    assert_contains(&refused, "nothing was changed: rejected for b0");
    assert_contains(&refused, "map PARAMS");
    assert_eq!((state(&lab, "a0")?, state(&lab, "b0")?), before);
    let entries = lab.json("log")?["entries"].as_array().cloned().context("no entries")?;
    let refused: Vec<_> =
        entries.iter().map(|entry| (entry["iface"].as_str(), entry["refused"].is_string())).collect();
    assert_eq!(refused, [(Some("a0"), true), (Some("b0"), true)], "{entries:?}");
    lab.ok("set a0 rpg_gd=12")?;
    lab.ok("detach --all").map(drop)
}

/// A change that is often valid, and often not.
fn random_change(numbers: &mut fastrand::Rng, keys: &[Key]) -> Option<(Key, u64)> {
    let key = *keys.get(numbers.usize(..keys.len()))?;
    let (low, high) = key.range().into_inner();
    let value = match key.unit() {
        // Most sizes, times and rates in range conflict with other parameters; those near the defaults often do not.
        Unit::Bytes | Unit::BitsPerSecond | Unit::Nanoseconds => {
            (key.default().max(1_000) * (1 + numbers.u64(..40)) / 20).clamp(low, high)
        }
        Unit::OneOf(values) => *numbers.choice(values)?,
        _ => numbers.u64(low..=high),
    };
    Some((key, value))
}

#[test]
fn random_changes_converge() -> Result<()> {
    const CHANGES: usize = 300;
    let lab = new_lab!();
    lab.attach(&["a0", "b0"])?;
    let read = |iface: &str| -> Result<Config> {
        let mut config = Config::DEFAULT;
        for (key, value) in state(&lab, iface)? {
            key.parse::<Key>()?.set(&mut config, value)?;
        }
        Ok(config)
    };
    let mut model = read("a0")?;
    ensure!(read("b0")? == model, "both start the same");
    let keys: Vec<Key> = Key::all().filter(|key| !key.follows_from_attach()).collect();
    let mut numbers = fastrand::Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    let (mut applied, mut entered) = (0, 0);
    for _ in 0..CHANGES {
        let mut changed = model;
        let mut line = "set a0,b0".to_owned();
        let mut named = Vec::new();
        for _ in 0..=numbers.u32(..3) {
            let (key, value) = random_change(&mut numbers, &keys).context("no parameters")?;
            // A key that is specified twice is rejected.
            if named.contains(&key) {
                continue;
            }
            named.push(key);
            if key.set(&mut changed, value).is_err() {
                // Of some parameters only 0 and values from a larger one on are valid.
                key.set(&mut changed, 0)?;
            }
            line.push_str(&format!(" {key}={}", key.text(&changed)));
        }
        // No audit entry, as nothing changes.
        let valid = changed.validate().is_ok() && changed.line_rate_bps() != 0;
        let output = lab.run(&line)?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() == valid, "{line}: expected valid = {valid}: {message}");
        if valid {
            entered += 2 * Key::all().filter(|key| key.get(&model) != key.get(&changed)).count();
            model = changed;
            applied += 1;
        }
    }
    for iface in ["a0", "b0"] {
        assert_eq!(read(iface)?, model, "{iface}");
    }
    assert!((CHANGES / 4..CHANGES).contains(&applied), "{applied} of {CHANGES} were valid");
    let log = lab.json("log")?;
    let entries = log["entries"].as_array().context("no entries")?;
    let refused = entries.iter().filter(|entry| entry["refused"].is_string()).count();
    assert_eq!((entries.len() - refused, refused), (entered, CHANGES - applied));
    assert_eq!(log["unreadable_lines"], Value::Array(Vec::new()));
    lab.ok("detach --all").map(drop)
}

#[test]
fn saved_config_attaches_identically() -> Result<()> {
    let lab = new_lab!();
    lab.ok("attach a0 --pacer none --flows 128 --profile nvidia --set link_rate=10gbit")?;
    lab.ok("set a0 wred.3.kmin=100KB wred.3.kmax=1048576 wred.3.pmax=0.5% dscp_to_tc.26=4 cp_enable=on")?;
    let file = lab.path("a0.toml");
    let file = file.display();
    lab.ok(&format!("config show a0 --out {file}"))?;
    assert_eq!(fs::read_to_string(lab.path("a0.toml"))?, lab.ok("config show a0")?);
    lab.prints(&format!("config diff a0 --config {file}"), "a0 matches ")?;
    lab.ok(&format!("config check {file}"))?;
    let before = state(&lab, "a0")?;
    let status = |lab: &Lab| -> Result<Value> { Ok(lab.json("status a0")?["attachments"][0].take()) };
    let attached = status(&lab)?;

    lab.ok("detach a0")?;
    lab.ok(&format!("attach a0 --config {file}"))?;
    assert_eq!(state(&lab, "a0")?, before);
    for key in ["role", "pacer", "xdp_mode", "rp_flows", "link_rate_bps"] {
        assert_eq!(status(&lab)?[key], attached[key], "{key}");
    }

    let output = lab.run("config diff a0 --profile paper --json")?;
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(report["same"], false);
    lab.ok("set a0 --profile paper")?;
    lab.ok("config diff a0 --profile paper")?;
    // The interface is unchanged.
    lab.prints("get a0 dscp_to_tc.26 cp_enable link_rate", "10gbit")?;
    lab.expect_error(4, &format!("config diff a0 --config {file}"))?;
    lab.fails(1, "config diff a0 --config /nonexistent.toml", "cannot read /nonexistent.toml")?;
    lab.fails(1, "config show a0 --out /nonexistent/x.toml", "cannot write /nonexistent/x.toml")?;
    lab.fails(3, "config show b0", "b0 is not attached")?;
    lab.ok("detach a0").map(drop)
}

#[test]
fn profile_set_with_rate_uses_that_rate() -> Result<()> {
    let lab = new_lab!();
    lab.ok("attach a0 --pacer none --flows 64 --set link_rate=10gbit")?;
    lab.ok("set a0 --profile lab link_rate=250mbit")?;
    lab.prints("get a0 rpg_time_reset", "4.4ms")?;
    lab.fails(1, "set a0 --profile lab link_rate=10gbit", "this one has 10gbit")?;
    lab.ok("detach a0").map(drop)
}

#[test]
fn ecnconfig_lists_readable_interfaces() -> Result<()> {
    let lab = new_lab!();
    lab.attach(&["a0", "b0"])?;
    fs::remove_file(lab.host.pins("a0")?.join("PARAMS"))?;
    let output = lab.run("ecnconfig -l")?;
    assert_eq!(output.status.code(), Some(7));
    assert_contains(&String::from_utf8(output.stdout)?, "Profile: b0:3\n");
    assert_contains(&String::from_utf8(output.stderr)?, "a0");
    lab.ok("detach --all").map(drop)
}

#[test]
fn import_is_atomic() -> Result<()> {
    let lab = new_lab!();
    lab.ok("attach a0 --pacer none --flows 64 --set link_rate=10gbit")?;
    lab.ok("attach b0 --role switch --pacer none --flows 64 --set link_rate=10gbit")?;
    let sample = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../userspace/hosts/params/src/sonic/sample_config_db.json");
    let import = format!("import --format sonic {} b0 --port Ethernet4", sample.display());

    let before = state(&lab, "b0")?;
    lab.prints(&format!("{import} --dry-run"), "wred.3.kmin: 5KB -> 400KB")?;
    let broken = lab.path("broken.json");
    fs::write(&broken, fs::read_to_string(&sample)?.replace("\"400000\"", "\"many\""))?;
    let report_text =
        lab.expect_error(1, &format!("import --format sonic {} b0 --port Ethernet4", broken.display()))?;
    assert_contains(&report_text, "`many`: expected");
    lab.fails(1, &format!("import --format sonic {} b0 --port Ethernet9", sample.display()), "no such port")?;
    assert_eq!(state(&lab, "b0")?, before);

    let report = lab.json(&import)?;
    assert!(report["unmapped"].as_array().is_some_and(|unmapped| !unmapped.is_empty()));
    lab.prints("get b0 wred.3.kmin link_rate", "100gbit")?;
    let exported = lab.path("export.json");
    lab.ok(&format!("export --format sonic b0 --port Ethernet4 --out {}", exported.display()))?;
    let again = lab.json(&format!("import --format sonic {} b0 --port Ethernet4", exported.display()))?;
    assert_eq!(again["changes"], Value::Array(vec![]));
    // An export of a port that sends no pauses has no rows for it, and the `cir` of its shapers has no counterpart.
    let tables: Vec<&Value> =
        again["unmapped"].as_array().into_iter().flatten().map(|of| &of["table"]).collect();
    assert_eq!(tables, ["SCHEDULER", "SCHEDULER", "SCHEDULER", "BUFFER_PG"]);

    lab.ok("ecnconfig -p b0:3 -gmin 500000 -gmax 1500000 -gdrop 10 -ymin 1 -ymax 2")?;
    lab.prints("get b0 wred.3.kmin wred.3.kmax wred.3.pmax", "10%")?;
    lab.fails(1, "ecnconfig -p b0:3 -gmin 9000000", "is above wred.3.kmax")?;
    lab.fails(1, "ecnconfig -p AZURE_LOSSLESS -gmin 1", "AZURE_LOSSLESS")?;
    lab.ok("ecnconfig -q 3 off")?;
    lab.prints("ecnconfig -q 3", "b0 queue 3: off")?;
    lab.prints("ecnconfig -l", "Profile: b0:3\n")?;

    let nic = lab.path("ecn");
    fs::create_dir_all(nic.join("roce_rp"))?;
    for (name, text) in [("rpg_ai_rate", "10\n"), ("dce_tcp_g", "1019\n"), ("rpg_threshold", "x\n")] {
        fs::write(nic.join("roce_rp").join(name), text)?;
    }
    let import = format!("import --format nvidia {} a0", nic.display());
    let before = state(&lab, "a0")?;
    lab.fails(1, &import, "rpg_threshold: `x` is not a whole number")?;
    assert_eq!(state(&lab, "a0")?, before);
    fs::write(nic.join("roce_rp/rpg_threshold"), "1\n")?;
    lab.ok(&import)?;
    let state = state(&lab, "a0")?;
    for (key, value) in
        [("rpg_ai_rate", 10_000_000), ("dce_tcp_g", 1_019), ("rp_variant", 1), ("alpha_bits", 10)]
    {
        assert_eq!(state[key], value, "{key}");
    }
    let log = lab.json("log")?;
    let commands: Vec<&str> = log["entries"]
        .as_array()
        .context("no entries")?
        .iter()
        .filter_map(|e| e["command"].as_str())
        .collect();
    for what in ["import --format sonic", "ecnconfig -p", "ecnconfig -q", "import --format nvidia"] {
        assert!(commands.iter().any(|command| command.contains(what)), "{what}");
    }
    assert!(!commands.iter().any(|command| command.contains("--dry-run")));
    lab.ok("detach --all").map(drop)
}
