//! Flow tables: ageing, and cost.

use dcqcn_common::events::Table;
use dcqcn_common::hooks::HTB_MAX_FLOWS;
use dcqcn_loader::attach::Attachment;
use dcqcn_tests::prelude::*;

#[test]
fn only_idle_flows_are_removed() -> Result<()> {
    const FLOWS: u32 = 200;
    let pair = new_pair!();
    let mut daemon = Daemon::start(&pair.a, &format!("{HOST}[age]\nidle = '2s'\n"))?;
    daemon.wait_for_log(&["task started", "\"task\":\"age\""])?;
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
    // Two of them continue.
    wait(|| {
        for dest_qpn in [7, 9] {
            socket.send(&Roce { dest_qpn, payload: 0, ..Roce::default() }.frame())?;
        }
        let left = flows()?;
        Ok(if left == [7, 9] { Ok(()) } else { Err(format!("remaining flows: {left:?}")) })
    })?;
    daemon.wait_for_log(&["idle flows removed"])?;
    let [new, removed] =
        [Stat::RpFlowNew, Stat::RpFlowExpired].map(|stat| pair.a.count("a0", Hook::Egress, stat));
    assert_eq!(new? - removed?, 2, "each removed flow is counted");
    // A returning flow starts with initial state.
    socket.send(&Roce { dest_qpn: 50, payload: 0, ..Roce::default() }.frame())?;
    assert_eq!(flows()?, [7, 9, 50]);
    wait_value(|| Ok(pair.a.attachment("a0")?.maps.np_flows().count()), |left| *left == 0)?;
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::NpFlowExpired)?, u64::from(FLOWS));
    daemon.end()
}

/// A flow found idle that sends before its removal stays: the program checks the time itself.
#[test]
fn flow_revived_during_ageing_stays() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Host, &["link_rate=1gbit"])?;
    let (socket, data) = (pair.a.socket("a0")?, Roce::default());
    let Attachment { info, maps } = pair.a.attachment("a0")?;
    let expire = pair.a.run(|| attach::open_expire(&info))??;
    socket.send(&data.frame())?;
    let found = maps.rp_flows().next().context("no flow")??;
    let before_ns = found.2.last_seen_ns() + 1;
    socket.send(&data.frame())?;
    assert_eq!(expire.run(Table::Rp, found.0, before_ns)?, 0);
    let revived = maps.rp_flows().next().context("the active flow was removed")??;
    assert_eq!((revived.2.id, revived.2.hot.packets), (found.2.id, 2));
    assert_eq!(expire.run(Table::Np, found.0, u64::MAX)?, 0);
    assert_eq!(expire.run(Table::Rp, u32::MAX, u64::MAX)?, 0);
    assert_eq!(expire.run(Table::Rp, found.0, revived.2.last_seen_ns() + 1)?, 1);
    assert!(maps.rp_flows().next().is_none());
    Ok(())
}

#[test]
fn daemon_memory_with_full_tables() -> Result<()> {
    require!("htb");
    const RESIDENT_KB: u64 = 60 << 10;
    /// Far above any measured value; work per flow at each scan would exceed it.
    const BUSY: f64 = 0.05;
    const WINDOW: Duration = Duration::from_secs(3);
    let pair = Pair::new("rest")?;
    pair.also("a1", "b1")?;
    for (host, iface) in [(&pair.a, "a1"), (&pair.b, "b1")] {
        host.set_up(iface, true)?;
    }
    // Slower links have smaller tables.
    let file = HOST.replace("pacer = 'none'", "pacer = 'htb'").replace("flows = 1024\n", "");
    let file = file.replace("'1gbit'", "'10gbit'");
    let mut daemon = Daemon::start(&pair.a, &format!("{file}[age]\nidle = '10min'\n"))?;
    for iface in ["a0", "a1"] {
        daemon.wait_for_log(&["task started", "\"task\":\"pacer\"", &format!("\"iface\":\"{iface}\"")])?;
        let socket = pair.a.socket(iface)?;
        for dest_qpn in 2..HTB_MAX_FLOWS * 2 {
            socket.send(&Roce { dest_qpn, payload: 0, ..Roce::default() }.frame())?;
        }
        let evicted = pair.a.count(iface, Hook::Egress, Stat::RpFlowEvicted)?;
        let flows = pair.a.count(iface, Hook::Egress, Stat::RpFlowNew)? - evicted;
        assert!(flows > u64::from(HTB_MAX_FLOWS) * 9 / 10, "{flows} flows");
    }
    thread::sleep(Duration::from_secs(2));
    let before = cpu_time(daemon.pid())?;
    thread::sleep(WINDOW);
    let busy = (cpu_time(daemon.pid())? - before).as_secs_f64() / WINDOW.as_secs_f64();
    let resident_kb: u64 = daemon.status("VmHWM:")?.trim_end_matches(" kB").parse()?;
    let percent = busy * 100.0;
    eprintln!("two idle interfaces of {HTB_MAX_FLOWS} flows: {resident_kb} KiB, {percent:.2} % of a core");
    assert!(resident_kb < RESIDENT_KB, "{resident_kb} KiB");
    assert!(busy < BUSY, "{:.2} % of a core", busy * 100.0);
    Ok(())
}
