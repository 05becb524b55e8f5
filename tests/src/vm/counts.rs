//! Losses and reordering: a port's and the RDMA devices' own counters.

use crate::vm::prelude::*;

/// Counters since the creation of the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Sent through the bottleneck port, bytes.
    pub bytes: u64,
    /// Packets its root qdisc dropped.
    pub drops: u64,
    /// Packets whose PSN was not the next, at any end.
    pub out_of_sequence: u64,
    /// Duplicate requests at a responder.
    pub duplicates: u64,
    /// Requests retransmitted after a time-out.
    pub retries: u64,
}

impl Counts {
    /// Counters of the port to `small`, and of the devices of `hosts`.
    pub fn read(lab: &Lab, small: u8, hosts: &[u8]) -> Result<Self> {
        let port = lab.port_stats(&Netlink::connect_in(&lab.switch)?, small)?;
        let sum = |name: &str| -> Result<u64> { hosts.iter().map(|host| lab.hw_counter(*host, name)).sum() };
        Ok(Self {
            bytes: port.bytes,
            drops: port.drops.into(),
            out_of_sequence: sum("out_of_seq_request")? + sum("rcvd_seq_err")?,
            duplicates: sum("duplicate_request")?,
            retries: sum("completer_retry_err")?,
        })
    }

    /// Increase since `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes - before.bytes,
            drops: self.drops - before.drops,
            out_of_sequence: self.out_of_sequence - before.out_of_sequence,
            duplicates: self.duplicates - before.duplicates,
            retries: self.retries - before.retries,
        }
    }
}
