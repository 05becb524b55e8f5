//! Counters of the interfaces, for comparison by the fleet's gate.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use dcqcn_common::layout::CLASSES;
use dcqcn_common::stats::Stat;
use dcqcn_control_api::{Counts, Failing, Health};
use dcqcn_netlink::Netlink;
use dcqcn_netlink::rdma::RdmaPort;
use dcqcn_support::clock::monotonic_ns;
use dcqcn_telemetry::Reading;

use crate::daemon::depths::Depths;
use crate::metrics::Scrape;
use crate::shared_state::SharedState;

const RDMA: &str = "/sys/class/infiniband";
/// Drivers' names of retransmission and time-out counters: mlx5, irdma and soft-RoCE.
const RDMA_ERRORS: &str = "implied_nak_seq_err local_ack_timeout_err packet_seq_err out_of_sequence rnr_nak_retry_err \
                           roce_adp_retrans roce_slow_restart RetransSegs retry_exceeded_err retry_rnr_exceeded_err \
                           completer_retry_err rcvd_seq_err";

/// Reads the counters of every interface attached in this network namespace.
pub(crate) fn read(shared: &SharedState) -> Health {
    let (counted, failing) = read_each(shared, |_, counts| counts);
    Health { at_ns: monotonic_ns(), interfaces: counted, failing }
}

/// Maps every attached interface of this network namespace, and its counters, to a value; logs failures.
pub(crate) fn read_each<T>(
    shared: &SharedState,
    of: impl Fn(&Reading, Counts) -> T,
) -> (BTreeMap<String, T>, Vec<Failing>) {
    let scrape = Scrape::take(false);
    let mut failing = shared.snapshot().failing.clone();
    failing.extend(scrape.unreadable);
    let (devices, drops, depth_samples) = (rdma(), interface_drops(), shared.depth_samples());
    let count = |reading: &Reading| {
        let mut counts = counts(reading);
        if let Some(rdma) = devices.get(&reading.info.ifindex) {
            (counts.rdma_errors, counts.queue_pairs) = (rdma.errors, rdma.queue_pairs);
        }
        counts.interface_drops = drops.get(&reading.info.ifindex).copied().unwrap_or_default();
        let Depths { snapshots, active, at_floor } = depth_samples.request(reading.info.ifindex);
        (counts.queue_samples, counts.active_flows, counts.flows_at_floor) =
            (snapshots.to_vec(), active, at_floor);
        (reading.info.iface.clone(), of(reading, counts))
    };
    (scrape.readings.iter().map(count).collect(), failing)
}

fn counts(reading: &Reading) -> Counts {
    let total = |stat| reading.total(stat);
    let pauses = (0..CLASSES).map(|priority| reading.pause_frames(priority));
    let [pauses_received, pauses_sent] =
        pauses.fold([0, 0], |[received, sent], [of, by]| [received + of, sent + by]);
    let marking = reading.params.config.wred.iter().enumerate().filter(|(_, wred)| wred.ecn != 0);
    let depths = marking.map(|(tc, wred)| (reading.depths(tc).into_iter().max(), wred.kmax_bytes));
    let deepest = depths.max_by_key(|(depth_bytes, _)| *depth_bytes);
    let (queue_bytes, kmax_bytes) = deepest.unwrap_or_default();
    Counts {
        attached_at_ns: reading.info.id().attached_at_ns,
        data_packets: total(Stat::RoceData),
        marked_packets: total(Stat::CpEcnMarked) + total(Stat::NpEcnMarked),
        cnps_sent: total(Stat::NpCnpSent),
        cnps_handled: total(Stat::RpCnpHandled),
        pauses_received,
        pauses_sent,
        drops: total(Stat::RpHorizonDrop)
            + total(Stat::CpNotEctDropped)
            + reading.queues().map(|(_, stats)| u64::from(stats.drops)).sum::<u64>(),
        flows: reading.rp_flows as u64,
        queue_bytes: queue_bytes.unwrap_or_default(),
        kmax_bytes,
        ..Counts::default()
    }
}

/// Packets dropped by each interface, in both directions; empty if unreadable. Not from sysfs, which shows the network
/// namespace of the process that mounted it.
fn interface_drops() -> BTreeMap<u32, u64> {
    let statistics = Netlink::connect().and_then(|netlink| netlink.statistics()).unwrap_or_default();
    statistics.into_iter().map(|(ifindex, statistics)| (ifindex, statistics.dropped)).collect()
}

struct Rdma {
    /// Retransmissions and time-outs; unreadable counters are ignored.
    errors: u64,
    /// Connected QPs, if every device lists its own.
    queue_pairs: Option<u64>,
}

fn rdma() -> BTreeMap<u32, Rdma> {
    let mut found: BTreeMap<u32, Rdma> = BTreeMap::new();
    let Ok(netlink) = Netlink::connect() else { return found };
    for device in netlink.rdma_devices().unwrap_or_default() {
        let pairs = netlink.rdma_connected_qps(device.index).ok().map(|pairs| pairs.len() as u64);
        for RdmaPort { number, ifindex } in device.ports {
            let rdma = found.entry(ifindex).or_insert_with(|| Rdma { errors: 0, queue_pairs: Some(0) });
            rdma.errors += port_errors(Path::new(RDMA), &device.name, number);
            rdma.queue_pairs = rdma.queue_pairs.zip(pairs).map(|(known, more)| known + more);
        }
    }
    found
}

/// Retransmissions and time-outs of one port, below a directory such as `/sys/class/infiniband`.
fn port_errors(devices: &Path, device: &str, port: u32) -> u64 {
    let counters = devices.join(device).join(format!("ports/{port}/hw_counters"));
    RDMA_ERRORS.split(' ').filter_map(|name| number(&counters.join(name))).sum()
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_the_port() {
        let dir = tempfile::tempdir().unwrap();
        for (port, errors) in [(1, "7"), (2, "5")] {
            let counters = dir.path().join(format!("mlx5_0/ports/{port}/hw_counters"));
            fs::create_dir_all(&counters).unwrap();
            fs::write(counters.join("packet_seq_err"), errors).unwrap();
        }
        let of = |port| port_errors(dir.path(), "mlx5_0", port);
        assert_eq!([of(1), of(2), of(3)], [7, 5, 0]);
    }
}
