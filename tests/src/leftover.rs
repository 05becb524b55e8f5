//! Remains of an attachment on an interface and in the kernel.

use aya::maps::loaded_maps;
use dcqcn_netlink::netns::current_inode;

use crate::prelude::*;

/// Time for the kernel to free unused objects: some RCU grace periods.
pub const GRACE: Duration = Duration::from_secs(30);

/// All state of an interface that an attachment could change, except counters.
pub fn state(host: &Host, iface: &str) -> Result<[String; 5]> {
    wait_for_carrier(host, iface)?;
    Ok([
        host.command(&format!("ip -d link show dev {iface}"))?,
        host.command(&format!("tc -d qdisc show dev {iface}"))?,
        host.command(&format!("tc -d class show dev {iface}"))?,
        host.command(&format!("tc filter show dev {iface} ingress"))?,
        host.command(&format!("tc filter show dev {iface} egress"))?,
    ])
}

fn wait_for_carrier(host: &Host, iface: &str) -> Result<()> {
    let is_up = || Ok(host.command(&format!("ip link show dev {iface}"))?.contains("state UP"));
    wait_until(&format!("{iface} does not come up"), is_up)
}

/// Number of attachments with maps in the kernel, distinguished from those of other tests by the table size.
pub fn tables(flows: u32) -> usize {
    let maps = loaded_maps().filter_map(Result::ok);
    maps.filter(|map| map.name() == b"PAIRS" && map.max_entries() == flows).count()
}

/// Waits until the kernel has freed all of them.
pub fn freed(flows: u32) -> Result<()> {
    wait_for(GRACE, || match tables(flows) {
        0 => Ok(Ok(())),
        left => Ok(Err(format!("maps of {left} attachments remain in the kernel"))),
    })
}

pub fn is_attached(lab: &Lab, iface: &str) -> bool {
    let status = lab.json(&format!("status {iface}"));
    status.is_ok_and(|status| status["attachments"][0]["state"] == "attached")
}

/// Fails if the attachment of an interface has problems.
pub fn complete(lab: &Lab, iface: &str) -> Result<()> {
    let found = problems(lab, iface)?;
    ensure!(found.is_empty(), "{iface}: {found:?}");
    Ok(())
}

/// Processes of a host that wait to revert an unconfirmed change.
pub fn waiters(host: &Host) -> Result<Vec<Pid>> {
    let namespace = format!("net:[{}]", host.run(current_inode)??);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.filter_map(Result::ok) {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let is_here = fs::read_link(entry.path().join("ns/net"))
            .is_ok_and(|link| link.as_os_str() == namespace.as_str());
        let command = fs::read(entry.path().join("cmdline"));
        if is_here && command.is_ok_and(|line| line == b"dcqcn\0confirm\0--wait\0") {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// Fails unless the attachment of an interface has a problem with this text.
pub fn has_problem(lab: &Lab, iface: &str, text: &str) -> Result<()> {
    let found = problems(lab, iface)?;
    ensure!(found.iter().any(|problem| problem.contains(text)), "{found:?}");
    Ok(())
}

pub fn problems(lab: &Lab, iface: &str) -> Result<Vec<String>> {
    let status = lab.json(&format!("status {iface}"))?;
    let problems = status["attachments"][0]["problems"].as_array().with_context(|| status.to_string())?;
    Ok(problems.iter().map(ToString::to_string).collect())
}
