//! What is left of an attachment on an interface and in the kernel.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use aya::maps::loaded_maps;

use crate::host::Host;
use crate::lab::Lab;
use crate::socket::PATIENCE;

/// How long the kernel may take to free what nobody uses: some grace periods of RCU.
const GRACE: Duration = Duration::from_secs(30);

/// Everything of an interface that an attachment could change, but for counters.
///
/// # Errors
/// There is no such interface, or it does not come up.
pub fn state(host: &Host, iface: &str) -> Result<[String; 5]> {
    settled(host, iface)?;
    Ok([
        host.command(&format!("ip -d link show dev {iface}"))?,
        host.command(&format!("tc -d qdisc show dev {iface}"))?,
        host.command(&format!("tc -d class show dev {iface}"))?,
        host.command(&format!("tc filter show dev {iface} ingress"))?,
        host.command(&format!("tc filter show dev {iface} egress"))?,
    ])
}

/// Waits until the kernel has noticed that the wire is there.
fn settled(host: &Host, iface: &str) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !host.command(&format!("ip link show dev {iface}"))?.contains("state UP") {
        ensure!(Instant::now() < until, "{iface} does not come up");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// How many attachments the kernel has the maps of, told from those of other tests by the size of a table.
#[must_use]
pub fn tables(flows: u32) -> usize {
    let maps = loaded_maps().filter_map(Result::ok);
    maps.filter(|map| map.name() == b"PAIRS" && map.max_entries() == flows).count()
}

/// Waits until the kernel has freed all of them.
///
/// # Errors
/// It does not.
pub fn freed(flows: u32) -> Result<()> {
    let until = Instant::now() + GRACE;
    while tables(flows) != 0 {
        ensure!(Instant::now() < until, "{} attachments' maps stay in the kernel", tables(flows));
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Everything `status` finds wrong with one interface.
///
/// # Errors
/// It is not attached.
pub fn problems(lab: &Lab, iface: &str) -> Result<Vec<String>> {
    let status = lab.json(&format!("status {iface}"))?;
    let problems = status["attachments"][0]["problems"].as_array().with_context(|| status.to_string())?;
    Ok(problems.iter().map(ToString::to_string).collect())
}
