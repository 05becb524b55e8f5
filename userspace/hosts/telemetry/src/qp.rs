//! Flows of the reaction point in text and JSON, and the processes that own QPs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::{fmt, fs};

use dcqcn_common::flow::RpFlow;
use dcqcn_common::rate::{ALPHA_ONE, RateMachine, RpParams};
use dcqcn_netlink::Netlink;
use dcqcn_netlink::rdma::QpOwner;
use dcqcn_params::qp::{ip, vlan};
use serde::Serialize;

/// State of a flow's rate machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RateRow {
    /// Current rate, R_C.
    pub rate_bps: u64,
    /// Target rate, R_T.
    pub target_bps: u64,
    /// Alpha, 0 to 1: exactly the machine's fraction of 2^31.
    pub alpha: f64,
    /// Increases by timer since the last cut.
    pub time_stage: u32,
    /// Increases by bytes since the last cut.
    pub byte_stage: u32,
}

impl RateRow {
    /// State of `machine`, which is advanced to `now_ns` (CLOCK_MONOTONIC).
    pub fn new(machine: &RateMachine, p: &RpParams, now_ns: u64) -> Self {
        Self {
            rate_bps: machine.rate_bps,
            target_bps: machine.target_bps,
            alpha: f64::from(machine.alpha_q31(p, now_ns)) / f64::from(ALPHA_ONE),
            time_stage: machine.time_stage,
            byte_stage: machine.byte_stage,
        }
    }
}

/// A flow sent from here, identified by source address and destination QP, in the form that all commands use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowRow {
    pub source: IpAddr,
    pub address: IpAddr,
    pub qpn: u32,
    /// VLAN IDs, the outer one first; absent without a tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<String>,
    /// Kind of its last increase.
    pub state: &'static str,
    #[serde(flatten)]
    pub rate: RateRow,
    pub packets: u64,
    /// Data bytes sent, layer 2.
    pub bytes: u64,
    /// Time since it last sent.
    pub last_seen_age_ns: u64,
    /// Time since the last CNP that cut it; `null` if none.
    pub last_cnp_age_ns: Option<u64>,
    /// CNPs that cut it.
    pub cnp_handled: u32,
    /// CNPs ignored because they arrived too soon.
    pub cnp_ignored: u32,
    /// Owner of the sending QP; omitted if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

impl FlowRow {
    /// `flow` as of `now_ns` (CLOCK_MONOTONIC).
    pub fn new(flow: &RpFlow, p: &RpParams, now_ns: u64) -> Self {
        let mut machine = flow.hot.machine;
        // The machine is lazy: events since the last packet have not been applied.
        machine.advance(p, now_ns);
        Self {
            source: ip(flow.id.src),
            address: ip(flow.id.receiver.addr),
            qpn: flow.id.receiver.qpn,
            vlan: vlan(&flow.id.receiver),
            state: state(&machine, p),
            rate: RateRow::new(&machine, p, now_ns),
            packets: flow.hot.packets,
            bytes: flow.hot.bytes,
            last_seen_age_ns: now_ns.saturating_sub(flow.last_seen_ns()),
            last_cnp_age_ns: age(flow.cnps.last_ns, now_ns),
            cnp_handled: flow.cnps.handled,
            cnp_ignored: flow.cnps.ignored,
            process: None,
        }
    }
}

/// Kind of the last increase (DCQCN, SIGCOMM'15, section 3.1), given by the larger and the smaller of the two stages,
/// without disabled counters. In the `firmware` variant, which counts after an increase, the next one.
fn state(machine: &RateMachine, p: &RpParams) -> &'static str {
    if machine.active == 0 || machine.rate_bps >= p.line_rate_bps {
        return "line-rate";
    }
    let stages = [(machine.time_stage, p.time_reset_ns), (machine.byte_stage, p.byte_reset_bytes)];
    let on = || stages.iter().filter(|(_, period)| *period != 0).map(|(stage, _)| *stage);
    match (on().max(), on().min()) {
        (Some(most), _) if most < p.threshold => "fast-recovery",
        (_, Some(least)) if least > p.threshold => "hyper-increase",
        (Some(_), _) => "additive-increase",
        (None, _) => "no-increase",
    }
}

/// Time since `at_ns`; 0 means never.
pub(crate) fn age(at_ns: u64, now_ns: u64) -> Option<u64> {
    (at_ns != 0).then(|| now_ns.saturating_sub(at_ns))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// PID; `null` for a QP of the kernel.
    pub pid: Option<u32>,
    /// Command (`/proc/PID/comm`), or kernel module.
    pub command: String,
    /// Container: the first 12 digits of the ID, or the name; `null` if none.
    pub container: Option<String>,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, command, container } = self;
        match pid {
            Some(pid) => write!(f, "{command}[{pid}]")?,
            None => write!(f, "kernel:{command}")?,
        }
        container.as_ref().map_or(Ok(()), |container| write!(f, " in {container}"))
    }
}

/// Owners of the QPs on an interface's RDMA devices, by remote QPN. If connections with different owners share a remote
/// QPN, it has no entry.
#[derive(Debug, Default)]
pub(crate) struct Owners(BTreeMap<u32, Option<QpOwner>>);

impl Owners {
    /// Reads them; empty if RDMA netlink is unavailable.
    pub(crate) fn read(iface: &str) -> Self {
        let mut owners = Self::default();
        let Ok(netlink) = Netlink::connect() else { return owners };
        let Ok(link) = netlink.link(iface) else { return owners };
        let devices = netlink.rdma_devices().unwrap_or_default();
        for device in devices.iter().filter(|device| device.is_on(link.index)) {
            for qp in netlink.rdma_connected_qps(device.index).unwrap_or_default() {
                owners.add(qp.remote_qpn, qp.owner);
            }
        }
        owners
    }

    fn add(&mut self, remote_qpn: u32, owner: Option<QpOwner>) {
        let known = self.0.entry(remote_qpn).or_insert_with(|| owner.clone());
        if *known != owner {
            *known = None;
        }
    }

    /// Owner of the QP that sends to `remote_qpn`.
    pub(crate) fn of(&self, remote_qpn: u32) -> Option<Process> {
        match self.0.get(&remote_qpn)?.as_ref()? {
            QpOwner::Kernel(module) => Some(Process { pid: None, command: module.clone(), container: None }),
            QpOwner::Process(pid) => process(Path::new("/proc"), *pid),
        }
    }
}

/// A process in a mounted procfs; `None` if it has exited.
fn process(proc: &Path, pid: u32) -> Option<Process> {
    let directory = proc.join(pid.to_string());
    let command = fs::read_to_string(directory.join("comm")).ok()?.trim_end().to_owned();
    let cgroup = fs::read_to_string(directory.join("cgroup")).unwrap_or_default();
    Some(Process { pid: Some(pid), command, container: container(&cgroup) })
}

/// The container in `/proc/PID/cgroup`: `docker-ID.scope`, `cri-containerd-ID.scope`, `.../ID`, `lxc.payload.NAME`.
fn container(cgroup: &str) -> Option<String> {
    /// Digits of a container ID, and of its short form in commands.
    const DIGITS: usize = 64;
    const SHORT: usize = 12;
    let segments =
        cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2)).flat_map(|path| path.rsplit('/'));
    segments.into_iter().find_map(|segment| {
        if let Some(name) = segment.strip_prefix("lxc.payload.") {
            return Some(name.to_owned());
        }
        let name = segment.strip_suffix(".scope").unwrap_or(segment);
        let id = name.rsplit(['-', ':']).next()?;
        let is_id = id.len() == DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_id.then(|| id.chars().take(SHORT).collect())
    })
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::{Config, Params, Port};

    use super::*;

    #[test]
    fn states_follow_stages() {
        let mut config = Config::DEFAULT;
        config.scalars.link_rate_bps = 1_000_000_000;
        let p = Params::new(&config, Port::new(1, 8, 8)).unwrap().rp;
        let state_at = |time_stage, byte_stage| {
            let machine =
                RateMachine { active: 1, rate_bps: 1, time_stage, byte_stage, ..RateMachine::new(&p) };
            state(&machine, &p)
        };
        assert_eq!([state_at(0, 4), state_at(4, 0)], ["fast-recovery"; 2]);
        assert_eq!([state_at(5, 0), state_at(0, 5), state_at(6, 5)], ["additive-increase"; 3]);
        assert_eq!(state_at(6, 6), "hyper-increase");
        assert_eq!(state(&RateMachine::new(&p), &p), "line-rate");
        let timer_only = RpParams { byte_reset_bytes: 0, ..p };
        let machine = RateMachine { active: 1, rate_bps: 1, time_stage: 6, ..RateMachine::new(&p) };
        assert_eq!(state(&machine, &timer_only), "hyper-increase");
    }

    const ID: &str = "4bf9c1d0a5e6f7a8b9c0d1e2f3a4b5c6d7e8f9a0b1c2d3e4f5a6b7c8d9e0f1a2";

    #[test]
    fn container_id_parsed_for_every_runtime() {
        for (line, expected) in [
            (format!("0::/system.slice/docker-{ID}.scope"), Some("4bf9c1d0a5e6")),
            (format!("12:cpu:/docker/{ID}\n0::/"), Some("4bf9c1d0a5e6")),
            (
                format!("0::/kubepods.slice/kubepods-pod1_2.slice/cri-containerd-{ID}.scope"),
                Some("4bf9c1d0a5e6"),
            ),
            (format!("0::/kubepods/burstable/pod8f2c/{ID}/init"), Some("4bf9c1d0a5e6")),
            (format!("0::/kubepods.slice/pod.slice:cri-containerd:{ID}"), Some("4bf9c1d0a5e6")),
            (format!("0::/machine.slice/libpod-{ID}.scope/container"), Some("4bf9c1d0a5e6")),
            ("0::/lxc.payload.web1/system.slice".into(), Some("web1")),
            ("0::/user.slice/user-0.slice/session-3.scope".into(), None),
            ("0::/".into(), None),
            (String::new(), None),
        ] {
            assert_eq!(container(&line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn ambiguous_qpn_has_no_owner() {
        let mut owners = Owners::default();
        let kernel = || Some(QpOwner::Kernel("nvme_rdma".into()));
        owners.add(0x11, kernel());
        owners.add(0x11, kernel());
        owners.add(0x12, kernel());
        owners.add(0x12, Some(QpOwner::Process(1)));
        owners.add(0x12, Some(QpOwner::Process(1)));
        assert_eq!(owners.of(0x11).unwrap().to_string(), "kernel:nvme_rdma");
        assert_eq!((owners.of(0x12), owners.of(0x13)), (None, None));
    }

    #[test]
    fn process_parsed_from_proc() {
        let proc = tempfile::tempdir().unwrap();
        let directory = proc.path().join("4711");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("comm"), "ib_write_bw\n").unwrap();
        fs::write(directory.join("cgroup"), format!("0::/system.slice/docker-{ID}.scope\n")).unwrap();
        let found = process(proc.path(), 4711).unwrap();
        assert_eq!(found.to_string(), "ib_write_bw[4711] in 4bf9c1d0a5e6");
        assert_eq!(process(proc.path(), 4712), None);
    }
}
