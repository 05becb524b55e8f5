//! Under traffic: the daemon's effect on rates, and no frame loss from any action.

use dcqcn_common::flow::RpFlow;
use dcqcn_common::hooks::HTB_FIRST_FLOW;
use dcqcn_common::layout::LAYOUT_VERSION;
use dcqcn_tests::prelude::*;
use dcqcn_tests::traffic::Traffic;

/// Runs `work` while host 1 sends; every frame must arrive.
fn under_traffic(pair: &Pair, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut traffic = Traffic::start(pair)?;
    traffic.pass(100)?;
    work()?;
    traffic.pass(100)?;
    let lost = traffic.lost()?;
    ensure!(lost == 0, "{lost} of {} frames lost", traffic.sent());
    traffic.end()
}

/// The flow, once this many CNPs for it have been handled.
pub(super) fn flow_cut(host: &Host, times: u32) -> Result<RpFlow> {
    wait_value(|| flow(host), |flow| flow.cnps.handled == times)
}

fn flow(host: &Host) -> Result<RpFlow> {
    host.flow("a0", &Roce::default())
}

/// Waits for a class of the HTB pacer to have this rate; `minor` 0 means a flow's.
pub(super) fn wait_for_class(host: &Host, minor: u16, rate_bps: u64) -> Result<()> {
    let index = host.index("a0")?;
    let is_selected = |found: u16| match minor {
        0 => (HTB_FIRST_FLOW..0xffff).contains(&u32::from(found)),
        minor => found == minor,
    };
    wait(|| {
        let classes = host.netlink()?.classes(index)?;
        let classes = classes.into_iter().filter(|class| is_selected(class.handle.minor()));
        let rates: Vec<u64> = classes.filter_map(|class| class.ceil_bps).collect();
        let available = rates.iter().any(|rate| rate.abs_diff(rate_bps) <= rate_bps / 100);
        Ok(if available { Ok(()) } else { Err(format!("no class of {rate_bps} bit/s: {rates:?}")) })
    })
}

#[test]
fn htb_pacer_follows_line_rate() -> Result<()> {
    let pair = new_pair!("htb");
    let file = HOST.replace("pacer = 'none'", "pacer = 'htb'");
    let mut daemon = Daemon::start(&pair.a, &file)?;
    daemon.wait_for_log(&["task started", "\"task\":\"pacer\""])?;
    wait_for_class(&pair.a, 0xffff, 1_000_000_000)?;
    daemon.write(&file.replace("1gbit", "300mbit"))?;
    wait_for_class(&pair.a, 0xffff, 300_000_000)?;
    wait_for_class(&pair.a, 1, 300_000_000)?;

    // Another daemon cannot manage the interface.
    let mut other = Daemon::start(&pair.a, &file)?;
    other.wait_for_log(&["a0 is managed by another `dcqcn run`"])?;
    daemon.end()
}

#[test]
fn killed_daemon_resumes_under_traffic() -> Result<()> {
    let pair = new_pair!("htb");
    // 60 Mbit/s exceed the rate of these frames, so that the class does not delay them for long.
    let file = HOST.replace("pacer = 'none'", "pacer = 'htb'").replace("1gbit", "600mbit");
    let mut daemon =
        Daemon::start(&pair.a, &format!("{file}cp_enable = true\nmin_time_between_cnps = '1us'\n"))?;
    daemon.wait_for_log(&["task started", "\"task\":\"pacer\""])?;
    let cut = || -> Result<()> { Ok(pair.b.socket("b0")?.send(&Roce::default().cnp(None, CNP_TOS))?) };
    under_traffic(&pair, || {
        cut()?;
        let first = flow_cut(&pair.a, 1)?;
        ensure!(first.hot.machine.rate_bps == 300_000_000, "{first:?}");
        wait_for_class(&pair.a, 0, 300_000_000)?;

        daemon.kill()?;
        let objects = LoadedObjects::by(&pair.a, "a0")?;
        ensure!(objects.programs.len() == 4, "{objects:?}");
        // RP: a CNP cuts; the class stays at the last rate. NP: marked data are answered.
        wait_for_class(&pair.a, 0, 300_000_000)?;
        thread::sleep(Duration::from_millis(60));
        cut()?;
        let second = flow_cut(&pair.a, 2)?;
        ensure!(second.hot.machine.rate_bps < 300_000_000, "{second:?}");
        let marked = Roce { src: 2, dst: 1, ecn: Ecn::CE, dest_qpn: 0x77, ..Roce::default() };
        pair.b.socket("b0")?.send(&marked.frame())?;
        wait_value(|| pair.a.count("a0", Hook::Egress, Stat::NpCnpSent), |answers| *answers == 1)?;
        // CP: this class of traffic has a queue that marks.
        ensure!(pair.a.counters("a0", Hook::Egress)?.class[3].packets >= 100);

        daemon.again(&pair.a)?;
        daemon.wait_for_log(&["taken over", "\"iface\":\"a0\""])?;
        wait_for_class(&pair.a, 0, second.hot.machine.rate_bps)?;
        let third = flow(&pair.a)?;
        let (rate, before) = (third.hot.machine.rate_bps, second.hot.machine.rate_bps);
        ensure!(rate == before && third.cnps.handled == 2, "{third:?}");
        ensure!(third.hot.packets >= second.hot.packets);
        let maps = LoadedObjects::by(&pair.a, "a0")?.maps;
        ensure!(maps.keys().eq(objects.maps.keys()), "the maps were recreated");
        Ok(())
    })
}

#[test]
fn upgrade_replaces_programs_in_place() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::serving(&pair.a, HOST, "a0")?;
    daemon.end()?;
    let before = LoadedObjects::by(&pair.a, "a0")?;
    pair.a.make_outdated("a0")?;
    let params = pair.a.attachment("a0")?.maps.params()?;
    under_traffic(&pair, || {
        pair.b.socket("b0")?.send(&Roce::default().cnp(None, CNP_TOS))?;
        let cut = flow_cut(&pair.a, 1)?;
        ensure!(cut.hot.machine.rate_bps == 500_000_000, "{cut:?}");
        daemon.again(&pair.a)?;
        daemon.wait_for_log(&["programs replaced in place", "egress, ingress"])?;
        let after = flow(&pair.a)?;
        let (rate, before) = (after.hot.machine.rate_bps, cut.hot.machine.rate_bps);
        ensure!(rate == before && after.cnps.handled == 1, "{after:?}");
        ensure!(pair.a.attachment("a0")?.maps.params()? == params, "the parameters stay");
        Ok(())
    })?;
    daemon.end()?;
    let after = LoadedObjects::by(&pair.a, "a0")?;
    assert!(after.maps.keys().eq(before.maps.keys()), "the maps stay");
    assert!(after.programs.iter().all(|id| !before.programs.contains(id)), "{before:?} {after:?}");
    assert_eq!(after.programs.len(), 4);
    assert!(pair.a.run(|| attach::upgrade("a0"))??.is_empty(), "current already");

    // Maps of another layout.
    pair.a.make_outdated("a0")?;
    let mut maps = pair.a.attachment("a0")?.maps;
    let params = maps.params()?;
    let port = Port { layout_version: LAYOUT_VERSION + 1, ..params.port };
    maps.set_params(&Params { port, ..*params })?;
    let refused = pair.a.run(|| attach::upgrade("a0"))?.expect_err("another layout").to_string();
    assert!(refused.contains("layout version") && refused.contains("detach"), "{refused}");
    maps.set_params(&params)?;
    drop(maps);
    assert_eq!(LoadedObjects::by(&pair.a, "a0")?.programs, after.programs);
    Ok(())
}
