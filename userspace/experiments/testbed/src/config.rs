//! Configuration of an incast.

use std::fmt;

use dcqcn_common::params::Unit;
use dcqcn_params::quantity::in_range;
use dcqcn_support::render::{self, count};
use serde::Serialize;

use super::error::ConfigError;

/// Maximum number of sender hosts: subnets are numbered by one byte, and 0 is the receiver's.
pub(crate) const MAX_SENDERS: u16 = 250;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IncastConfig {
    /// Sender hosts, 1 to 250.
    pub senders: u16,
    /// QPs per sender, 1 to 64.
    pub qps_per_sender: u16,
    /// Rate of every link, the bottleneck included, bit/s. 1 Mbit/s to 100 Gbit/s.
    pub link_bps: u64,
    pub duration_ns: u64,
    /// Start-up excluded from the steady state, ns. Less than the duration.
    pub warm_up_ns: u64,
    /// RDMA path MTU, bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu_bytes: u32,
    /// Length of each message, bytes. 1 to 2^30.
    pub message_bytes: u32,
    /// Maximum unacknowledged packets of a QP. 1 to 2^20.
    pub window_packets: u32,
    /// Packets per requested acknowledgement, at least 1.
    pub ack_every_packets: u32,
    /// Retransmission timeout, ns. At least 1 ms; it must exceed the time of a window at a cut rate.
    pub timeout_ns: u64,
    /// Buffer of the bottleneck's RoCE queue, bytes. At least two frames.
    pub buffer_bytes: u32,
    /// Bulk TCP flows that share the bottleneck in a separate class, 0 to 64.
    pub tcp_flows: u16,
    pub ipv6: bool,
    /// Whether the switch is BMv2 instead of Linux.
    pub bmv2: bool,
    /// Whether the bottleneck's queues are those of `dcqcn attach --queues`.
    pub queues: bool,
    /// Whether one more host floods the port with non-RoCE traffic, DSCP 0.
    pub flood: bool,
}

impl Default for IncastConfig {
    fn default() -> Self {
        Self {
            senders: 4,
            qps_per_sender: 1,
            link_bps: 200_000_000,
            duration_ns: 10_000_000_000,
            warm_up_ns: 2_000_000_000,
            mtu_bytes: 4096,
            message_bytes: 1 << 20,
            window_packets: 256,
            ack_every_packets: 16,
            // 4.096 us * 2^15: "local ack timeout" 15 (IBTA vol. 1, 9.7.6.1.3).
            timeout_ns: 4_096 << 15,
            buffer_bytes: 512_000,
            tcp_flows: 0,
            ipv6: false,
            bmv2: false,
            queues: false,
            flood: false,
        }
    }
}

impl IncastConfig {
    /// Frames of BMv2's switch: an RDMA payload of the path MTU, with the headers of a middle RC packet.
    const RC_OVERHEAD_BYTES: u32 = 58;
    /// The largest path MTU that fits the lab's links around BMv2.
    const BMV2_MTU_BYTES: u32 = 1_024;

    /// An incast for BMv2, which forwards some thousand packets a second with queues of 64.
    pub fn bmv2() -> Self {
        let mtu_bytes = Self::BMV2_MTU_BYTES;
        Self {
            link_bps: 10_000_000,
            mtu_bytes,
            message_bytes: 64 << 10,
            window_packets: 32,
            // "Local ack timeout" 17: a window takes half a second at a quarter of the fair share of four.
            timeout_ns: 4_096 << 17,
            buffer_bytes: 64 * (mtu_bytes + Self::RC_OVERHEAD_BYTES),
            bmv2: true,
            ..Self::default()
        }
    }

    /// Bytes of a data packet, layer 2.
    pub(crate) const fn packet_bytes(&self) -> u32 {
        self.mtu_bytes + Self::RC_OVERHEAD_BYTES
    }

    /// Checks every field against its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        // Named as on the command line.
        let ranges: [(&str, u64, u64, u64, Unit); 11] = [
            ("senders", self.senders.into(), 1, MAX_SENDERS.into(), Unit::Count),
            ("qps", self.qps_per_sender.into(), 1, 64, Unit::Count),
            ("link", self.link_bps, 1_000_000, 100_000_000_000, Unit::BitsPerSecond),
            ("duration", self.duration_ns, 100_000_000, 3_600_000_000_000, Unit::Nanoseconds),
            ("warm-up", self.warm_up_ns, 0, self.duration_ns.saturating_sub(1), Unit::Nanoseconds),
            ("message", self.message_bytes.into(), 1, 1_000_000_000, Unit::Bytes),
            ("window", self.window_packets.into(), 1, 1_000_000, Unit::Count),
            ("packets per acknowledgement", self.ack_every_packets.into(), 1, 1_000_000, Unit::Count),
            ("timeout", self.timeout_ns, 1_000_000, 60_000_000_000, Unit::Nanoseconds),
            ("buffer", self.buffer_bytes.into(), 10_000, 1_000_000_000, Unit::Bytes),
            ("tcp", self.tcp_flows.into(), 0, 64, Unit::Count),
        ];
        for (name, value, low, high, unit) in ranges {
            in_range(name, value, low..=high, unit)?;
        }
        if !matches!(self.mtu_bytes, 256 | 512 | 1024 | 2048 | 4096) {
            return Err(ConfigError::Mtu(self.mtu_bytes));
        }
        if self.bmv2 && self.mtu_bytes > Self::BMV2_MTU_BYTES {
            return Err(ConfigError::Bmv2Mtu(self.mtu_bytes));
        }
        if self.bmv2 && self.tcp_flows != 0 {
            return Err(ConfigError::Bmv2Tcp(self.tcp_flows));
        }
        Ok(())
    }
}

impl fmt::Display for IncastConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} into {}", count(self.senders, "sender"), render::bps(self.link_bps as f64))?;
        write!(f, ", {} per mode", render::seconds(self.duration_ns))?;
        write!(f, ", MTU {}, buffer {}", self.mtu_bytes, render::bytes(self.buffer_bytes.into()))?;
        if self.bmv2 {
            write!(f, ", switched by BMv2")?;
        }
        match self.tcp_flows {
            0 => Ok(()),
            flows => write!(f, ", alongside {}", count(flows, "TCP flow")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_describes_run() {
        let config = IncastConfig { tcp_flows: 2, ..IncastConfig::default() };
        let title =
            "4 senders into 200 Mbit/s, 10 s per mode, MTU 4096, buffer 512 KB, alongside 2 TCP flows";
        assert_eq!(config.to_string(), title);
    }

    #[test]
    fn bad_fields_of_config_rejected() {
        IncastConfig::default().validate().unwrap();
        let refused = |config: IncastConfig| config.validate().unwrap_err().to_string();
        assert!(
            refused(IncastConfig { senders: 0, ..IncastConfig::default() })
                .contains("senders = 0 is out of range: 1 to 250")
        );
        assert!(refused(IncastConfig { mtu_bytes: 1500, ..IncastConfig::default() }).contains("1500"));
        let endless_warm_up = IncastConfig { warm_up_ns: 10_000_000_000, ..IncastConfig::default() };
        assert!(refused(endless_warm_up).contains("warm-up = 10s"));
        let brief = IncastConfig { duration_ns: 0, ..IncastConfig::default() };
        assert_eq!(refused(brief), "duration = 0ns is out of range: 100ms to 3600s");
    }
}
