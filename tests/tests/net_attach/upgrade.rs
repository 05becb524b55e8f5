//! Maps with another version's layout: rejected without any change, and still managed by that version.

use dcqcn_common::layout::LAYOUT_VERSION;
use dcqcn_tests::prelude::*;
use dcqcn_tests::traffic::Traffic;

const FILE: &str = "[[interface]]\nname = 'a0'\npacer = 'htb'\nflows = 1024\n[interface.parameters]\nlink_rate = '600mbit'\n\
                    rpg_time_reset = '0ns'\nrpg_byte_reset = '0B'\n";

/// Writes versions of maps and programs into the journal, and returns the previous ones.
fn version_and_object(host: &Host, (version, object): (u64, &str)) -> Result<(u64, String)> {
    let path = host.journal("a0")?;
    let mut journal: Value = serde_json::from_slice(&fs::read(&path)?)?;
    let info = journal.pointer_mut("/info").context("no description")?;
    let before = (
        info["layout_version"].as_u64().context("the journal has no layout version")?,
        info["object"].as_str().context("no object")?.to_owned(),
    );
    info["layout_version"] = json!(version);
    info["object"] = json!(object);
    fs::write(&path, serde_json::to_vec(&journal)?)?;
    Ok(before)
}

fn expect_layout_error(host: &Host, line: &str) -> Result<()> {
    let output = host.output(dcqcn(line)?)?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && message.contains("layout version"), "{line}: {message}");
    let attached_by = format!("dcqcn {} attached it", env!("CARGO_PKG_VERSION"));
    for part in [attached_by.as_str(), "use the dcqcn that attached it", "`dcqcn detach a0`"] {
        ensure!(message.contains(part), "{line}: {message}");
    }
    Ok(())
}

#[test]
fn other_layout_detached_as_reported() -> Result<()> {
    let lab = new_lab!();
    lab.attach(&["a0"])?;
    version_and_object(&lab.host, (u64::from(LAYOUT_VERSION) - 1, "0123456789abcdef"))?;
    expect_layout_error(&lab.host, "set a0 rpg_gd=12")?;
    lab.ok("detach a0")?;
    lab.prints("status", "no interface is attached")?;
    lab.attach(&["a0"])?;
    lab.ok("set a0 rpg_gd=12")?;
    lab.ok("detach a0").map(drop)
}

/// Sends CNPs until the rate of the flow's pacer class falls by a tenth, and returns that rate.
fn slower(pair: &Pair, than_bps: u64) -> Result<u64> {
    let (index, socket) = (pair.a.index("a0")?, pair.b.socket("b0")?);
    wait(|| {
        socket.send(&Roce::default().cnp(None, CNP_TOS))?;
        let rates = pair.a.netlink()?.classes(index)?.into_iter().filter_map(|class| class.ceil_bps);
        let least = rates.min().unwrap_or(u64::MAX);
        Ok(if least < than_bps / 10 * 9 { Ok(least) } else { Err(format!("{least} bit/s")) })
    })
}

#[test]
fn other_layout_version_keeps_running() -> Result<()> {
    let pair = new_pair!("htb");
    let mut before = Daemon::start(&pair.a, FILE)?;
    before.wait_for_log(&["task started", "\"task\":\"pacer\""])?;
    let objects = LoadedObjects::by(&pair.a, "a0")?;
    let mut traffic = Traffic::start(&pair)?;
    traffic.pass(50)?;
    let first = slower(&pair, 600_000_000)?;
    // From here on, the versions of the command and the attachment differ.
    let of = version_and_object(&pair.a, (u64::from(LAYOUT_VERSION) + 1, "0123456789abcdef"))?;
    for line in ["upgrade a0 --dry-run", "upgrade --all --dry-run", "upgrade a0", "set a0 rpg_ai_rate=1mbit"]
    {
        expect_layout_error(&pair.a, line)?;
    }
    // The daemon continues: another cut, another rate.
    traffic.pass(50)?;
    slower(&pair, first)?;
    // After it exits, a daemon of the other version manages and changes nothing, and logs the reason.
    before.kill()?;
    before.again(&pair.a)?;
    before.wait_for_log(&["cannot manage interface; retrying", "layout version"])?;
    traffic.pass(50)?;
    ensure!(traffic.lost()? == 0);
    traffic.end()?;
    version_and_object(&pair.a, (of.0, &of.1))?;
    let after = LoadedObjects::by(&pair.a, "a0")?;
    ensure!(after.programs == objects.programs, "{objects:?}, then {after:?}");
    ensure!(after.maps.keys().eq(objects.maps.keys()), "{objects:?}, then {after:?}");
    ensure!(!pair.a.run(|| attach::is_upgradable("a0"))??, "the program is of this build");
    before.end()
}
