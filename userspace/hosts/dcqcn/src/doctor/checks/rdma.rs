//! RDMA devices.

use dcqcn_common::stats::Stat;
use dcqcn_params::Role;

use super::{Finding, Snapshot, known, set_tos};
use crate::doctor::snapshot::Rdma;

impl Rdma {
    /// How much one of its own counters grew between the two looks.
    pub(super) fn grown(&self, counter: &str) -> u64 {
        let value = |look: &std::collections::BTreeMap<String, u64>| look.get(counter).copied().unwrap_or(0);
        value(&self.after).saturating_sub(value(&self.before))
    }
}

/// `rdma-no-role`: soft-RoCE without the notification and reaction point it has not itself.
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
                "{} is software on {iface}, connected QPs: {qps}; attached: {}",
                device.name,
                role.map_or("no".to_owned(), |role| format!("as {}", dcqcn_params::word(&role)))
            );
            let what = format!(
                "{} has no congestion control: soft-RoCE answers no mark and ignores CNPs",
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

/// `rdma-bypass`.
pub(super) fn bypass(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in snapshot.rdma.iter().filter(|device| device.hardware == Some(true)) {
        let packets = device.grown("port_xmit_packets").saturating_add(device.grown("port_rcv_packets"));
        let evidence = format!("{} moved {packets} packets itself in {}", device.name, snapshot.window());
        for iface in &device.ifaces {
            let what = format!(
                "{} is hardware: what it sends and receives passes neither XDP nor TC of {iface}",
                device.name
            );
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

/// `rdma-not-ect`, `rdma-dscp`: what rdma_cm will put into packets.
pub(super) fn traffic_class(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &snapshot.rdma {
        let Some(tos) = device.default_roce_tos else { continue };
        for iface in &device.ifaces {
            let here = known(snapshot).find(|known| known.iface == iface);
            let wanted = here.as_ref().map_or(106, super::Known::roce_tos);
            let evidence =
                format!("default_roce_tos of {} is {tos}: DSCP {}, ECN {}", device.name, tos >> 2, tos & 3);
            if tos & 3 == 0 {
                let what = format!(
                    "connections of {} are Not-ECT unless they say otherwise: they cannot be marked",
                    device.name
                );
                findings.push(
                    Finding::warning("rdma-not-ect", what, evidence)
                        .on(iface)
                        .fix(set_tos(snapshot, iface, wanted)),
                );
                continue;
            }
            let rest = here.filter(|known| known.class_of(usize::from(tos >> 2)) == known.class_of(0));
            if let Some(known) = rest.filter(|known| !known.chosen_classes().is_empty()) {
                let what = format!("connections of {} get a DSCP that no class was chosen for", device.name);
                let fix = format!(
                    "{}, or `dcqcn set {iface} dscp_to_tc.{}={}`",
                    set_tos(snapshot, iface, wanted),
                    tos >> 2,
                    known.class_of(usize::from(wanted >> 2))
                );
                findings.push(Finding::warning("rdma-dscp", what, evidence).on(iface).fix(fix));
            }
        }
    }
    findings
}

/// `adapter-np-off`.
pub(super) fn adapter_notification(snapshot: &Snapshot) -> Vec<Finding> {
    let check = |device: &Rdma| {
        let marked = device.grown(Stat::NpEcnMarked.label());
        let sent = device.grown(Stat::NpCnpSent.label());
        let iface = device.ifaces.first()?;
        let what = format!("{} receives CE-marked packets and sends no CNP", device.name);
        let evidence =
            format!("np_ecn_marked_roce_packets +{marked}, np_cnp_sent +{sent} in {}", snapshot.window());
        let fix = format!("`echo 1 > /sys/class/net/{iface}/ecn/roce_np/enable/3` (3: RoCE's priority)");
        (marked != 0 && sent == 0)
            .then(|| Finding::error("adapter-np-off", what, evidence).on(iface).fix(fix))
    };
    snapshot.rdma.iter().filter_map(check).collect()
}

/// `adapter-rp-off`.
pub(super) fn adapter_reaction(snapshot: &Snapshot) -> Vec<Finding> {
    let check = |device: &Rdma| {
        let handled = device.grown(Stat::RpCnpHandled.label());
        let ignored = device.grown(Stat::RpCnpIgnored.label());
        let iface = device.ifaces.first()?;
        let what = format!("{} ignores the CNPs it receives", device.name);
        let evidence =
            format!("rp_cnp_ignored +{ignored}, rp_cnp_handled +{handled} in {}", snapshot.window());
        let fix = format!(
            "`echo 1 > /sys/class/net/{iface}/ecn/roce_rp/enable/3` (3: RoCE's priority); CNPs that name QP 0 come from a \
             notification point that does not know the QPN: pair it there (`dcqcn flows pair add`)"
        );
        (ignored > handled).then(|| Finding::error("adapter-rp-off", what, evidence).on(iface).fix(fix))
    };
    snapshot.rdma.iter().filter_map(check).collect()
}
