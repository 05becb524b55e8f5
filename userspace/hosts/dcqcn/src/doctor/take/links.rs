//! Interfaces, their qdiscs, interrupts and statistics.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use dcqcn_netlink::{self as net, Netlink, tc};

use super::super::snapshot::{HIDING, Link, MERGING, Qdisc, Shaper};
use super::{AS_ROOT, Notes, Sampler, cpus, names, target, value};

/// First reading.
pub(super) fn take(netlink: &Netlink, notes: &mut Notes) -> Vec<Link> {
    let links = notes.essential("interfaces", netlink.links(), AS_ROOT).unwrap_or_default();
    let mut take = |link: net::Link| {
        let dir = directory(&link);
        let device = dir.as_ref().map(|dir| dir.join("device")).filter(|device| device.exists());
        let irqs = device.as_deref().map(irqs).unwrap_or_default();
        let node = device.as_ref().and_then(|device| value::<i64>(device.join("numa_node")));
        let qdiscs = notes.minor(&format!("qdiscs of {}", link.name), netlink.qdiscs(link.index), AS_ROOT);
        let text = ethtool_statistics(&link.name);
        let text = notes.minor("statistics of the NICs (`ethtool -S`)", text, "install ethtool").flatten();
        let mut features = netlink.features(link.index).unwrap_or_default();
        features.retain(|feature| MERGING.iter().chain(HIDING).any(|name| name == feature));
        Link {
            kind: link.kind.clone(),
            peer: link.peer,
            lower: link.peer,
            unread_packets: BTreeMap::new(),
            master: link.master,
            driver: device.as_ref().and_then(|device| target(device.join("driver"))),
            qdiscs: qdiscs.iter().flatten().map(qdisc).collect(),
            shaper: shaper(netlink, link.index),
            numa_node: node.and_then(|node| u32::try_from(node).ok()),
            irqs,
            features,
            rx_delay_us: netlink.rx_delay_us(link.index).ok().flatten(),
            queue_pairs: netlink.queue_pairs(link.index).ok().flatten(),
            queues: dir.as_deref().and_then(queues),
            ethtool: text.map(|text| [text, String::new()]),
            name: link.name,
            index: link.index,
            mtu: link.mtu,
            speed_bps: netlink.speed_bps(link.index).ok().flatten(),
            up: link.up,
        }
    };
    let mut links: Vec<Link> = links.into_iter().filter(net::Link::is_ethernet).map(&mut take).collect();
    // The index is valid in the other end's namespace, which is this one if an interface here refers back to it.
    let peers: Vec<(u32, Option<u32>)> = links.iter().map(|link| (link.index, link.peer)).collect();
    for link in &mut links {
        let ours = |peer: &u32| *peer != link.index && peers.contains(&(*peer, Some(link.index)));
        link.peer = link.peer.filter(ours);
        let is_in_netns = |lower: &u32| *lower != link.index && peers.iter().any(|(index, _)| index == lower);
        link.lower = link.lower.filter(|lower| {
            link.peer.is_none() && !net::is_cable(link.kind.as_deref()) && is_in_netns(lower)
        });
    }
    links
}

/// The token bucket at the root of an interface; a failed reading counts as no shaper.
fn shaper(netlink: &Netlink, ifindex: u32) -> Option<Shaper> {
    let tc::Shaping { shaper, rate_bps, burst_ns, .. } = netlink.shaping(ifindex).ok()??;
    let class = if let tc::Shaper::Htb { class } = shaper { Some(class) } else { None };
    Some(Shaper { name: shaper.to_string(), class, rate_bps, burst_ns, ..Shaper::default() })
}

/// For `time`, samples the shapers' backlogs and the packets.
pub(super) fn watch(
    netlink: &Netlink,
    links: &mut [Link],
    mut sampler: Option<&mut Sampler>,
    time: Duration,
) {
    const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
    struct Watched<'a> {
        ifindex: u32,
        shaper: &'a mut Shaper,
        first: Option<(Instant, u64)>,
    }
    let mut watched: Vec<Watched<'_>> = links
        .iter_mut()
        .filter_map(|link| Some(Watched { ifindex: link.index, shaper: link.shaper.as_mut()?, first: None }))
        .collect();
    let until = Instant::now() + time;
    loop {
        for Watched { ifindex, shaper, first } in &mut watched {
            // Skip an interface that was removed.
            let Ok(stats) = netlink.qdisc_stats(*ifindex, tc::Handle::ROOT) else { continue };
            let now = Instant::now();
            let (started, bytes) = *first.get_or_insert((now, stats.bytes));
            shaper.samples += 1;
            shaper.waiting += u32::from(stats.backlog_packets != 0);
            shaper.observed_ns = now.duration_since(started).as_nanos() as u64;
            shaper.sent_bytes = stats.bytes.saturating_sub(bytes);
        }
        if let Some(sampler) = &mut sampler {
            sampler.read();
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let is_idle = watched.is_empty() && sampler.is_none();
        thread::sleep(if is_idle { left } else { left.min(SAMPLE_INTERVAL) });
    }
}

/// Changes at the second reading.
pub(super) fn second(netlink: &Netlink, links: &mut [Link]) {
    for link in links {
        for qdisc in netlink.qdiscs(link.index).unwrap_or_default() {
            let handle = qdisc.handle.to_string();
            let parent = qdisc.parent.to_string();
            let known = link.qdiscs.iter_mut().find(|known| known.handle == handle && known.parent == parent);
            if let Some(known) = known {
                known.drops_after = qdisc.stats.drops;
                known.backlog_bytes = qdisc.stats.backlog_bytes;
            }
        }
        link.ethtool = match link.ethtool.take() {
            Some([before, _]) => ethtool_statistics(&link.name).ok().flatten().map(|after| [before, after]),
            None => None,
        };
    }
}

/// Sysfs directory of an interface; `None` if sysfs belongs to another network namespace.
fn directory(link: &net::Link) -> Option<PathBuf> {
    let dir = Path::new("/sys/class/net").join(&link.name);
    let address = link.mac?.map(|byte| format!("{byte:02x}")).join(":");
    let same =
        value::<u32>(dir.join("ifindex"))? == link.index && value::<String>(dir.join("address"))? == address;
    same.then_some(dir)
}

/// Receive and transmit queues in an interface's sysfs directory; `None` on a kernel without RPS, which lists
/// no receive queues.
fn queues(dir: &Path) -> Option<[u32; 2]> {
    let queues = names(dir.join("queues"));
    let [rx, tx] = ["rx-", "tx-"].map(|kind| queues.iter().filter(|name| name.starts_with(kind)).count());
    (rx != 0 && tx != 0).then(|| [rx, tx].map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
}

/// CPUs of each of a device's interrupts. A virtio device uses those of its PCI function.
fn irqs(device: &Path) -> BTreeMap<u32, Vec<u32>> {
    let numbers = |dir: PathBuf| names(dir).into_iter().filter_map(|name| name.parse().ok());
    let mut irqs: Vec<u32> = numbers(device.join("msi_irqs")).collect();
    if irqs.is_empty()
        && let Ok(device) = device.canonicalize()
        && let Some(above) = device.parent()
    {
        irqs.extend(numbers(above.join("msi_irqs")));
    }
    let cpus_of = |irq: u32| {
        let dir = Path::new("/proc/irq").join(irq.to_string());
        let list: String =
            value(dir.join("effective_affinity_list")).or_else(|| value(dir.join("smp_affinity_list")))?;
        Some((irq, cpus(&list)))
    };
    irqs.into_iter().filter_map(cpus_of).collect()
}

/// Output of `ethtool -S`; `None` if the driver has no statistics.
fn ethtool_statistics(iface: &str) -> std::io::Result<Option<String>> {
    let output = Command::new("ethtool").arg("-S").arg(iface).output()?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn qdisc(qdisc: &tc::Qdisc) -> Qdisc {
    Qdisc {
        kind: qdisc.kind.clone(),
        handle: qdisc.handle.to_string(),
        parent: qdisc.parent.to_string(),
        fq: qdisc.fq(),
        backlog_bytes: qdisc.stats.backlog_bytes,
        drops_before: qdisc.stats.drops,
        drops_after: qdisc.stats.drops,
    }
}
