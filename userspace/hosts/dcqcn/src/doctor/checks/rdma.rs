//! RDMA devices.

use std::collections::BTreeMap;

use dcqcn_common::params::{DSCP_UNCHANGED, Scalars, TAIL_LOSS_PROBE_OFF};
use dcqcn_params::Role;

use super::{Finding, Snapshot, known, set_tos};
use crate::doctor::adapters::{self, CounterMeaning};
use crate::doctor::snapshot::{Rdma, RdmaElsewhere};

impl Rdma {
    /// Growth of the device's own counters of this meaning between the two readings, in total and by name.
    pub(super) fn grown(&self, meaning: CounterMeaning) -> (u64, Vec<String>) {
        let names = self.after.keys().filter(|name| adapters::means(name, meaning));
        let grown: Vec<(&String, u64)> = names.map(|name| (name, self.counter_grown(name))).collect();
        let sum = grown.iter().fold(0, |sum: u64, (_, grown)| sum.saturating_add(*grown));
        (sum, grown.into_iter().map(|(name, grown)| format!("{name} +{grown}")).collect())
    }

    /// Growth of one of the device's own counters.
    fn counter_grown(&self, counter: &str) -> u64 {
        let value = |sample: &BTreeMap<String, u64>| sample.get(counter).copied().unwrap_or(0);
        value(&self.after).saturating_sub(value(&self.before))
    }
}

/// How to enable an adapter's DCQCN.
fn enable(snapshot: &Snapshot, device: &Rdma, iface: &str) -> String {
    let driver = snapshot.link(iface).and_then(|link| link.driver.as_deref());
    let command = match driver.and_then(adapters::of_driver) {
        Some(adapter) => adapter.enable,
        // Recordings of other systems may lack the driver; assume the most common one.
        None => adapters::of_driver("mlx5_core").map_or("", |adapter| adapter.enable),
    };
    command.replace("IFACE", iface).replace("DEVICE", &device.name)
}

/// `rdma-no-role`: soft-RoCE, which has no notification or reaction point, without this project's.
pub(super) fn without_role(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in snapshot.rdma.iter().filter(|device| device.hardware == Some(false)) {
        for iface in &device.ifaces {
            let role = snapshot.attached(iface).map(|attached| attached.role);
            if role == Some(Role::Host) {
                continue;
            }
            let qps = device.connected_qps.map_or("unknown".to_owned(), |qps| qps.to_string());
            let evidence = format!(
                "{} is a software device on {iface}, connected QPs: {qps}; attached: {}",
                device.name,
                role.map_or("no".to_owned(), |role| format!("as {}", dcqcn_params::word(&role)))
            );
            let what = format!(
                "{} has no congestion control: soft-RoCE neither answers marks nor reacts to CNPs",
                device.name
            );
            let detach =
                if role.is_some() { format!("`dcqcn detach {iface}`, then ") } else { String::new() };
            let fix = format!("{detach}`dcqcn attach {iface} --role host`");
            findings.push(Finding::warning("rdma-no-role", what, evidence).on(iface).fix(fix));
        }
    }
    findings
}

/// `rdma-elsewhere`: devices whose traffic bypasses all attachments in this namespace.
pub(super) fn elsewhere(snapshot: &Snapshot) -> Vec<Finding> {
    let finding = |device: &RdmaElsewhere| {
        let RdmaElsewhere { name, pid, command, connected_qps } = device;
        let qps = connected_qps.map_or("unknown".to_owned(), |qps| qps.to_string());
        let what = format!(
            "{name} is in another network namespace: its traffic there bypasses the attachments here"
        );
        let evidence = format!("the namespace of {command} (process {pid}); connected QPs: {qps}");
        Finding::info("rdma-elsewhere", what, evidence).fix(format!(
            "`nsenter -t {pid} -n dcqcn doctor`; then attach there, or on this side of its veth"
        ))
    };
    snapshot.rdma_elsewhere.iter().map(finding).collect()
}

/// `rdma-bypass`.
pub(super) fn bypass(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in snapshot.rdma.iter().filter(|device| device.hardware == Some(true)) {
        let packets = device
            .counter_grown("port_xmit_packets")
            .saturating_add(device.counter_grown("port_rcv_packets"));
        let evidence =
            format!("{} transferred {packets} packets in hardware in {}", device.name, snapshot.window());
        for iface in &device.ifaces {
            let what = format!("{} is hardware: its traffic bypasses XDP and TC of {iface}", device.name);
            let fix = format!(
                "use the adapter's own DCQCN (`/sys/class/net/{iface}/ecn/roce_np/enable/PRIO` and `roce_rp`), and this \
                 project on a router or bridge in the path"
            );
            let finding = if snapshot.attached(iface).is_some() { Finding::warning } else { Finding::info };
            findings.push(finding("rdma-bypass", what, evidence.clone()).on(iface).fix(fix));
        }
    }
    findings
}

/// `rdma-ce`, `rdma-not-ect`, `rdma-dscp`: the default ToS of rdma_cm.
pub(super) fn traffic_class(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &snapshot.rdma {
        let Some(tos) = device.default_roce_tos else { continue };
        for iface in &device.ifaces {
            let here = known(snapshot).find(|known| known.iface == iface);
            let expected_tos = here.as_ref().map_or(106, super::Reading::roce_tos);
            let evidence =
                format!("default_roce_tos of {} is {tos}: DSCP {}, ECN {}", device.name, tos >> 2, tos & 3);
            if tos & 3 == 3 {
                let what = format!(
                    "connections of {} send every packet as CE: their receiver answers with CNPs and their rate falls to \
                     rpg_min_rate",
                    device.name
                );
                let fix = set_tos(snapshot, iface, tos & !1);
                findings.push(Finding::error("rdma-ce", what, evidence).on(iface).fix(fix));
                continue;
            }
            let sets =
                |of: fn(&Scalars) -> bool| here.as_ref().is_some_and(|known| of(&known.config.scalars));
            if tos & 3 == 0 && !sets(|scalars| scalars.ect_enable != 0) {
                let what = format!(
                    "connections of {} are Not-ECT by default, so they cannot be marked",
                    device.name
                );
                findings.push(Finding::warning("rdma-not-ect", what, evidence).on(iface).fix(set_tos(
                    snapshot,
                    iface,
                    expected_tos,
                )));
                continue;
            }
            if sets(|scalars| scalars.roce_dscp < DSCP_UNCHANGED) {
                continue;
            }
            let rest = here.filter(|known| known.class_of(usize::from(tos >> 2)) == known.class_of(0));
            if let Some(known) = rest.filter(|known| !known.chosen_classes().is_empty()) {
                let what = format!("connections of {} have a DSCP without a separate class", device.name);
                let fix = format!(
                    "{}, or `dcqcn set {iface} dscp_to_tc.{}={}`",
                    set_tos(snapshot, iface, expected_tos),
                    tos >> 2,
                    known.class_of(usize::from(expected_tos >> 2))
                );
                findings.push(Finding::warning("rdma-dscp", what, evidence).on(iface).fix(fix));
            }
        }
    }
    findings
}

/// `rdma-timeouts`: soft-RoCE counts retransmissions by a NAK and by its timer together, and NAKs alone.
pub(super) fn timeouts(snapshot: &Snapshot) -> Vec<Finding> {
    let check = |device: &Rdma| {
        let grown = |name: &str| {
            let [before, after] = [&device.before, &device.after].map(|values| values.get(name).copied());
            Some(after?.saturating_sub(before?))
        };
        let (retries, naks) = (grown("completer_retry_err")?, grown("rcvd_seq_err")?);
        let iface = device.ifaces.first()?;
        let is_probed = known(snapshot)
            .find(|known| known.iface == iface)
            .is_some_and(|known| known.config.scalars.tail_loss_probe != TAIL_LOSS_PROBE_OFF);
        if retries <= naks || is_probed {
            return None;
        }
        let what = format!(
            "{} retransmits after timeouts of seconds: last packets or acknowledgements are lost",
            device.name
        );
        let evidence =
            format!("completer_retry_err +{retries}, rcvd_seq_err +{naks} in {}", snapshot.window());
        let fix = format!(
            "`dcqcn set {iface} tail_loss_probe=on` with `dcqcn run`: it retransmits after four round trips"
        );
        Some(Finding::warning("rdma-timeouts", what, evidence).on(iface).fix(fix))
    };
    snapshot.rdma.iter().filter_map(check).collect()
}

/// `adapter-np-off`.
pub(super) fn adapter_notification(snapshot: &Snapshot) -> Vec<Finding> {
    let check = |device: &Rdma| {
        let (marked, marks) = device.grown(CounterMeaning::EcnMarked);
        let (sent, cnps) = device.grown(CounterMeaning::CnpSent);
        let iface = device.ifaces.first()?;
        // An adapter without a counter of sent CNPs is `counters-not-read`.
        if marked == 0 || sent != 0 || cnps.is_empty() {
            return None;
        }
        let what = format!("{} receives CE-marked packets and sends no CNP", device.name);
        let evidence = format!("{} in {}", [marks, cnps].concat().join(", "), snapshot.window());
        Some(Finding::error("adapter-np-off", what, evidence).on(iface).fix(enable(snapshot, device, iface)))
    };
    snapshot.rdma.iter().filter_map(check).collect()
}

/// `adapter-rp-off`.
pub(super) fn adapter_reaction(snapshot: &Snapshot) -> Vec<Finding> {
    let check = |device: &Rdma| {
        let (handled, mut counters) = device.grown(CounterMeaning::CnpHandled);
        let (ignored, ignoring) = device.grown(CounterMeaning::CnpIgnored);
        let iface = device.ifaces.first()?;
        if ignored <= handled {
            return None;
        }
        counters.splice(0..0, ignoring);
        let what = format!("{} ignores the CNPs it receives", device.name);
        let evidence = format!("{} in {}", counters.join(", "), snapshot.window());
        let fix = format!(
            "{}; CNPs that name QP 0 come from a notification point without the QPN: add the pair there \
             (`dcqcn flows pair add IFACE ...`)",
            enable(snapshot, device, iface)
        );
        Some(Finding::error("adapter-rp-off", what, evidence).on(iface).fix(fix))
    };
    snapshot.rdma.iter().filter_map(check).collect()
}
