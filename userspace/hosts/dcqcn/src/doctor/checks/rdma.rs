//! RDMA devices.

use std::collections::BTreeMap;

use dcqcn_common::params::{DSCP_UNCHANGED, Scalars, TAIL_LOSS_PROBE_OFF};
use dcqcn_params::Role;

use super::{Finding, Severity, Snapshot, known, set_tos};
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

    /// Whether `iface` is the first of several, which recordings of older versions have: only it gets the findings.
    fn is_first(&self, iface: &str) -> bool {
        self.ifaces.first().is_some_and(|first| first == iface)
    }

    fn counter_grown(&self, counter: &str) -> u64 {
        let value = |sample: &BTreeMap<String, u64>| sample.get(counter).copied().unwrap_or(0);
        value(&self.after).saturating_sub(value(&self.before))
    }
}

/// How to enable an adapter's DCQCN.
fn enable(snapshot: &Snapshot, device: &Rdma, iface: &str) -> String {
    let driver = snapshot.link(iface).and_then(|link| link.driver.as_deref());
    // Recordings of other systems may lack the driver; assume the most common one.
    let command = adapters::of_driver(driver.unwrap_or("mlx5_core"));
    command
        .unwrap_or("enable DCQCN with its vendor's tool")
        .replace("IFACE", iface)
        .replace("DEVICE", &device.name)
}

/// `rdma-no-role`: soft-RoCE, which has no notification or reaction point, without this project's.
pub(super) fn without_role(snapshot: &Snapshot, device: &Rdma, iface: &str) -> Option<Finding> {
    let role = snapshot.attached(iface).map(|attached| attached.role);
    if device.hardware != Some(false) || role == Some(Role::Host) {
        return None;
    }
    let name = &device.name;
    let what =
        format!("{name} has no congestion control: soft-RoCE neither answers marks nor reacts to CNPs");
    let evidence = format!(
        "{name} is a software device on {iface}, connected QPs: {}; attached: {}",
        or_unknown(device.connected_qps),
        role.map_or("no".to_owned(), |role| format!("as {}", dcqcn_params::word(&role)))
    );
    let detach = if role.is_some() { format!("`dcqcn detach {iface}`, then ") } else { String::new() };
    let fix = format!("{detach}`dcqcn attach {iface} --role host`");
    Some(Finding::warning("rdma-no-role", what, evidence).fix(fix))
}

fn or_unknown(count: Option<u64>) -> String {
    count.map_or("unknown".to_owned(), |count| count.to_string())
}

/// `rdma-elsewhere`: devices whose traffic bypasses all attachments in this namespace.
pub(super) fn elsewhere(snapshot: &Snapshot) -> Vec<Finding> {
    let finding = |RdmaElsewhere { name, pid, command, connected_qps }: &RdmaElsewhere| {
        let what = format!(
            "{name} is in another network namespace: its traffic there bypasses the attachments here"
        );
        let qps = or_unknown(*connected_qps);
        let evidence = format!("the namespace of {command} (process {pid}); connected QPs: {qps}");
        Finding::info("rdma-elsewhere", what, evidence).fix(format!(
            "`nsenter -t {pid} -n dcqcn doctor`; then attach there, or on this side of its veth"
        ))
    };
    snapshot.rdma_elsewhere.iter().map(finding).collect()
}

pub(super) fn bypass(snapshot: &Snapshot, device: &Rdma, iface: &str) -> Option<Finding> {
    if device.hardware != Some(true) {
        return None;
    }
    let what = format!("{} is hardware: its traffic bypasses XDP and TC of {iface}", device.name);
    let packets = device.grown(CounterMeaning::Packets).1;
    let evidence = if packets.is_empty() {
        "its packets are not counted".to_owned()
    } else {
        format!("{} in {}", packets.join(", "), snapshot.window())
    };
    let fix = format!(
        "use the adapter's congestion control: {}. Use this project on a router or bridge in the path",
        enable(snapshot, device, iface)
    );
    let severity = if snapshot.attached(iface).is_some() { Severity::Warning } else { Severity::Info };
    Some(Finding::new("rdma-bypass", severity, what, evidence).fix(fix))
}

/// `rdma-ce`, `rdma-not-ect`, `rdma-dscp`: the default ToS of rdma_cm.
pub(super) fn traffic_class(snapshot: &Snapshot, device: &Rdma, iface: &str) -> Option<Finding> {
    let (tos, name) = (device.default_roce_tos?, &device.name);
    let here = known(snapshot).find(|known| known.iface == iface);
    let expected_tos = here.as_ref().map_or(106, super::Reading::roce_tos);
    let evidence = format!(
        "default_roce_tos of port {} of {name} is {tos}: DSCP {}, ECN {}",
        device.port,
        tos >> 2,
        tos & 3
    );
    if tos & 3 == 3 {
        let what = format!(
            "connections of {name} send every packet as CE: their receiver answers with CNPs and their rate falls to \
             rpg_min_rate"
        );
        return Some(Finding::error("rdma-ce", what, evidence).fix(set_tos(snapshot, iface, tos & !1)));
    }
    let sets = |of: fn(&Scalars) -> bool| here.as_ref().is_some_and(|known| of(&known.config.scalars));
    if tos & 3 == 0 && !sets(|scalars| scalars.ect_enable != 0) {
        let what = format!("connections of {name} are Not-ECT by default, so they cannot be marked");
        let fix = set_tos(snapshot, iface, expected_tos);
        return Some(Finding::warning("rdma-not-ect", what, evidence).fix(fix));
    }
    if sets(|scalars| scalars.roce_dscp < DSCP_UNCHANGED) {
        return None;
    }
    let known = here.filter(|known| known.class_of(usize::from(tos >> 2)) == known.class_of(0))?;
    let what = format!("connections of {name} have a DSCP without a separate class");
    let class = known.class_of(usize::from(expected_tos >> 2));
    let map = known.set(&format!("dscp_to_tc.{}={class}", tos >> 2));
    let fix = format!("{}, or {map}", set_tos(snapshot, iface, expected_tos));
    (!known.chosen_classes().is_empty()).then(|| Finding::warning("rdma-dscp", what, evidence).fix(fix))
}

/// `rdma-timeouts`: soft-RoCE counts retransmissions by a NAK and by its timer together, and NAKs alone.
pub(super) fn timeouts(snapshot: &Snapshot, device: &Rdma, iface: &str) -> Option<Finding> {
    let grown = |name: &str| {
        let [before, after] = [&device.before, &device.after].map(|values| values.get(name).copied());
        Some(after?.saturating_sub(before?))
    };
    let (retries, naks) = (grown("completer_retry_err")?, grown("rcvd_seq_err")?);
    let is_probed = known(snapshot)
        .find(|known| known.iface == iface)
        .is_some_and(|known| known.config.scalars.tail_loss_probe != TAIL_LOSS_PROBE_OFF);
    if !device.is_first(iface) || retries <= naks || is_probed {
        return None;
    }
    let name = &device.name;
    let what =
        format!("{name} retransmits after timeouts of seconds: last packets or acknowledgements are lost");
    let evidence = format!("completer_retry_err +{retries}, rcvd_seq_err +{naks} in {}", snapshot.window());
    let fix = format!(
        "`dcqcn set {iface} tail_loss_probe=on` with `dcqcn run`: it retransmits after four round trips"
    );
    Some(Finding::warning("rdma-timeouts", what, evidence).fix(fix))
}

/// `nvme-registers`: to retransmit past a registration of memory, soft-RoCE executes it again, which fails
/// (`rxe_do_local_ops`, `rxe_reg_fast_mr`).
pub(super) fn nvme_registers(snapshot: &Snapshot) -> Option<Finding> {
    let device = snapshot.rdma.iter().find(|device| device.hardware == Some(false))?;
    let unsplit = &snapshot.host.nvme_unsplit;
    let (evidence, fix) = match snapshot.host.nvme_registers? {
        true => (
            "/sys/module/nvme_rdma/parameters/register_always is Y".to_owned(),
            "disconnect, `modprobe -r nvme-rdma`, `modprobe nvme-rdma register_always=N` (`options nvme-rdma \
             register_always=N` in /etc/modprobe.d keeps it), connect, and run `dcqcn doctor` again"
                .to_owned(),
        ),
        false if unsplit.is_empty() => return None,
        false => (
            format!("blocks of {} may be in several pieces of memory", unsplit.join(", ")),
            format!(
                "split them into pages: `for disk in {}; do echo $(($(getconf PAGE_SIZE) / 1024)) > \
                 /sys/block/$disk/queue/max_sectors_kb; echo 2 > /sys/block/$disk/queue/nomerges; done`",
                unsplit.join(" ")
            ),
        ),
    };
    let what = format!(
        "the NVMe initiator registers memory: a retransmission can end its QP on {}, and I/O stalls for 10 to 40 s",
        device.name
    );
    Some(Finding::warning("nvme-registers", what, evidence).fix(fix))
}

pub(super) fn adapter_notification(snapshot: &Snapshot, device: &Rdma, iface: &str) -> Option<Finding> {
    let (marked, marks) = device.grown(CounterMeaning::EcnMarked);
    let (sent, cnps) = device.grown(CounterMeaning::CnpSent);
    // An adapter without a counter of sent CNPs is `counters-not-read`.
    if !device.is_first(iface) || marked == 0 || sent != 0 || cnps.is_empty() {
        return None;
    }
    let what = format!("{} receives CE-marked packets and sends no CNP", device.name);
    let evidence = format!("{} in {}", [marks, cnps].concat().join(", "), snapshot.window());
    Some(Finding::error("adapter-np-off", what, evidence).fix(enable(snapshot, device, iface)))
}

pub(super) fn adapter_reaction(snapshot: &Snapshot, device: &Rdma, iface: &str) -> Option<Finding> {
    let (handled, acting) = device.grown(CounterMeaning::CnpHandled);
    let (ignored, ignoring) = device.grown(CounterMeaning::CnpIgnored);
    if !device.is_first(iface) || ignored <= handled {
        return None;
    }
    let what = format!("{} ignores the CNPs it receives", device.name);
    let evidence = format!("{} in {}", [ignoring, acting].concat().join(", "), snapshot.window());
    let fix = format!(
        "{}; CNPs that name QP 0 come from a notification point without the QPN: add the pair there \
         (`dcqcn flows pair add IFACE ...`)",
        enable(snapshot, device, iface)
    );
    Some(Finding::error("adapter-rp-off", what, evidence).fix(fix))
}
