//! RDMA devices and their QPs (`RDMA_NLDEV_*`, include/uapi/rdma/rdma_netlink.h).

use std::fmt;

use super::error::Result;
use super::netlink::{Context, Netlink, Subject, Subsystem};
use super::wire::{Encoder, attribute, attributes, string, u32_at};

/// `RDMA_NL_NLDEV`: the client of RDMA netlink, in the upper bits of a request's type.
const NLDEV: u16 = 5;
/// `RDMA_NLDEV_CMD_GET`: devices.
const CMD_GET: u16 = 1;
/// `RDMA_NLDEV_CMD_PORT_GET`: the ports of a device.
const CMD_PORT_GET: u16 = 5;
/// `RDMA_NLDEV_CMD_RES_QP_GET`: the QPs of a device.
const CMD_RES_QP_GET: u16 = 10;

/// `RDMA_NODE_RNIC`: iWARP, over TCP.
const NODE_RNIC: u8 = 4;

/// `enum rdma_nldev_attr`.
mod attr {
    pub(super) const DEV_INDEX: u16 = 1;
    pub(super) const DEV_NAME: u16 = 2;
    pub(super) const PORT_INDEX: u16 = 3;
    pub(super) const DEV_NODE_TYPE: u16 = 14;
    pub(super) const RES_QP: u16 = 19;
    pub(super) const RES_QP_ENTRY: u16 = 20;
    pub(super) const RES_LQPN: u16 = 21;
    pub(super) const RES_RQPN: u16 = 22;
    pub(super) const RES_PID: u16 = 28;
    pub(super) const RES_KERN_NAME: u16 = 29;
    pub(super) const NDEV_INDEX: u16 = 50;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaDevice {
    pub index: u32,
    /// Name, as in `rdma link`.
    pub name: String,
    /// Ports with a network interface.
    pub ports: Vec<RdmaPort>,
}

impl RdmaDevice {
    pub fn is_on(&self, ifindex: u32) -> bool {
        self.ports.iter().any(|port| port.ifindex == ifindex)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaPort {
    /// Number, from 1, as below `/sys/class/infiniband/DEVICE/ports`.
    pub number: u32,
    pub ifindex: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectedQp {
    /// QPN of this host, 24 bits.
    pub local_qpn: u32,
    /// QPN of the other end.
    pub remote_qpn: u32,
    /// Owner; `None` if the kernel does not report one.
    pub owner: Option<QpOwner>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum QpOwner {
    /// A process, by its PID in this namespace.
    Process(u32),
    /// A kernel module, as in `nvme_rdma`.
    Kernel(String),
}

impl Netlink {
    /// The RDMA devices except those of iWARP; empty if the kernel has no RDMA.
    pub fn rdma_devices(&self) -> Result<Vec<RdmaDevice>> {
        if !self.has_rdma() {
            return Ok(Vec::new());
        }
        let mut devices = Vec::new();
        for (index, name) in self.rdma_names()? {
            let operation = format_args!("list the ports of an RDMA device");
            if let Some(ports) = self.of_rdma_device(operation, CMD_PORT_GET, index)? {
                devices.push(RdmaDevice {
                    index,
                    name,
                    ports: ports.iter().filter_map(|body| port(body)).collect(),
                });
            }
        }
        Ok(devices)
    }

    /// The connected QPs of device number `device`; none if it was removed. Datagram QPs are excluded: they
    /// have no other end.
    pub fn rdma_connected_qps(&self, device: u32) -> Result<Vec<ConnectedQp>> {
        let operation = format_args!("list the QPs of an RDMA device");
        let bodies = self.of_rdma_device(operation, CMD_RES_QP_GET, device)?.unwrap_or_default();
        Ok(bodies.iter().flat_map(|body| connected(body)).collect())
    }

    /// Indexes and names of the RDMA devices.
    fn rdma_names(&self) -> Result<Vec<(u32, String)>> {
        let bodies = self.rdma(format_args!("list the RDMA devices"), CMD_GET, |_| {})?;
        Ok(bodies.iter().filter_map(|body| device(body)).collect())
    }

    /// Lists objects of a device; `None` if the device was removed.
    fn of_rdma_device(
        &self,
        operation: fmt::Arguments<'_>,
        command: u16,
        device: u32,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let listed = self.rdma(operation, command, |request| {
            request.attribute(attr::DEV_INDEX, &device.to_ne_bytes());
        });
        unless_removed(listed, || Ok(self.rdma_names()?.iter().any(|(index, _)| *index == device)))
    }

    fn rdma(
        &self,
        operation: fmt::Arguments<'_>,
        command: u16,
        body: impl Fn(&mut Encoder),
    ) -> Result<Vec<Vec<u8>>> {
        let context = Context { operation, subject: Subject::Other(format_args!("RDMA")) };
        self.dump(context, Subsystem::Rdma, (NLDEV << 10) | command, body)
    }
}

/// The result of a request about a device; `None` if it failed because the device was removed since it was listed, for
/// which the kernel's error is a general one (`EINVAL`).
fn unless_removed<T>(result: Result<T>, exists: impl FnOnce() -> Result<bool>) -> Result<Option<T>> {
    match result {
        Ok(listed) => Ok(Some(listed)),
        Err(error) if exists()? => Err(error),
        Err(_) => Ok(None),
    }
}

/// Index and name of the device of one message, if it is not of iWARP.
fn device(body: &[u8]) -> Option<(u32, String)> {
    let index = u32_at(attribute(body, attr::DEV_INDEX)?, 0)?;
    let is_iwarp = attribute(body, attr::DEV_NODE_TYPE).is_some_and(|kind| kind.first() == Some(&NODE_RNIC));
    (!is_iwarp).then(|| (index, attribute(body, attr::DEV_NAME).map(string).unwrap_or_default()))
}

/// The port of one message, if it has a network interface.
fn port(body: &[u8]) -> Option<RdmaPort> {
    let number = |kind| u32_at(attribute(body, kind)?, 0);
    Some(RdmaPort { number: number(attr::PORT_INDEX)?, ifindex: number(attr::NDEV_INDEX)? })
}

/// The connected QPs of one message.
fn connected(body: &[u8]) -> impl Iterator<Item = ConnectedQp> {
    let table = attribute(body, attr::RES_QP).unwrap_or_default();
    attributes(table).filter(|(kind, _)| *kind == attr::RES_QP_ENTRY).filter_map(|(_, entry)| {
        let number = |kind| u32_at(attribute(entry, kind)?, 0);
        // Only RC and UC have a remote number, which is 0 until they are connected.
        let (local_qpn, remote_qpn) = (number(attr::RES_LQPN)?, number(attr::RES_RQPN)?);
        let process = number(attr::RES_PID).filter(|pid| *pid != 0).map(QpOwner::Process);
        let kernel = || attribute(entry, attr::RES_KERN_NAME).map(|name| QpOwner::Kernel(string(name)));
        let owner = process.or_else(kernel);
        (remote_qpn != 0).then_some(ConnectedQp { local_qpn, remote_qpn, owner })
    })
}

#[cfg(test)]
mod tests {
    use super::super::error::Error;
    use super::*;

    fn qp(table: &mut Encoder, local_qpn: u32, remote_qpn: Option<u32>) {
        table.nested(attr::RES_QP_ENTRY, |entry| {
            entry.attribute(attr::RES_LQPN, &local_qpn.to_ne_bytes());
            if let Some(remote_qpn) = remote_qpn {
                entry.attribute(attr::RES_RQPN, &remote_qpn.to_ne_bytes());
            }
        });
    }

    #[test]
    fn removed_device_is_not_an_error() {
        let failed = || Err::<u32, _>(Error::Interrupted);
        assert_eq!(unless_removed(failed(), || Ok(false)).unwrap(), None);
        assert!(matches!(unless_removed(failed(), || Ok(true)), Err(Error::Interrupted)));
        assert!(unless_removed(failed(), || Err(Error::Interrupted)).is_err());
        assert_eq!(unless_removed(Ok(7), || panic!("not listed again")).unwrap(), Some(7));
    }

    #[test]
    fn iwarp_device_is_not_listed() {
        let of = |kind: Option<u8>| {
            let mut body = Encoder::default();
            body.attribute(attr::DEV_INDEX, &3_u32.to_ne_bytes());
            body.attribute(attr::DEV_NAME, b"siw0\0");
            kind.iter().for_each(|kind| body.attribute(attr::DEV_NODE_TYPE, &[*kind]));
            device(&body.into_bytes())
        };
        let listed = Some((3, "siw0".to_owned()));
        assert_eq!([of(None), of(Some(1)), of(Some(NODE_RNIC))], [listed.clone(), listed, None]);
    }

    #[test]
    fn only_connected_queue_pairs_are_listed() {
        let mut body = Encoder::default();
        body.attribute(attr::DEV_NAME, b"rxe0\0");
        body.nested(attr::RES_QP, |table| {
            qp(table, 1, None);
            qp(table, 0x11, Some(0x17));
            qp(table, 0x12, Some(0));
            qp(table, 0x13, Some(0xff_fffe));
        });
        let found: Vec<_> = connected(&body.into_bytes()).map(|qp| (qp.local_qpn, qp.remote_qpn)).collect();
        assert_eq!(found, [(0x11, 0x17), (0x13, 0xff_fffe)]);
    }

    #[test]
    fn queue_pair_lists_its_process() {
        let mut body = Encoder::default();
        body.nested(attr::RES_QP, |table| {
            for (owner, value) in
                [(attr::RES_PID, &4_711_u32.to_ne_bytes()[..]), (attr::RES_KERN_NAME, b"nvme_rdma\0")]
            {
                table.nested(attr::RES_QP_ENTRY, |entry| {
                    entry.attribute(attr::RES_LQPN, &0x11_u32.to_ne_bytes());
                    entry.attribute(attr::RES_RQPN, &0x17_u32.to_ne_bytes());
                    entry.attribute(owner, value);
                });
            }
            qp(table, 0x12, Some(0x18));
        });
        let owners: Vec<_> = connected(&body.into_bytes()).map(|qp| qp.owner).collect();
        assert_eq!(owners, [Some(QpOwner::Process(4_711)), Some(QpOwner::Kernel("nvme_rdma".into())), None]);
    }

    #[test]
    fn truncated_message_parsed_within_bounds() {
        let mut body = Encoder::default();
        body.nested(attr::RES_QP, |table| (1..4).for_each(|n| qp(table, n, Some(n + 100))));
        let body = body.into_bytes();
        for len in 0..=body.len() {
            assert!(connected(&body[..len]).count() <= 3);
        }
    }
}
