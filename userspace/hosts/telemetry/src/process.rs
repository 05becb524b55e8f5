//! The process that owns a QP.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use dcqcn_netlink::Netlink;
use dcqcn_netlink::rdma::QpOwner;
use serde::Serialize;

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
    use super::*;

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
