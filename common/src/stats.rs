//! All counters, with one name for kernel, command line, metrics and documentation.

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $variant:ident = $label:literal,)+) => {
        /// A counter. Names that mlx5 has too are mlx5's.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Stat {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Stat {
            /// All counters, in map order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// Number of counters.
            pub const COUNT: usize = Self::ALL.len();

            /// Name.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }

            /// Meaning.
            pub const fn doc(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+),)+ }
            }
        }
    };
}

stats! {
    /// Packets that are not RoCE.
    NotRoce = "not_roce",
    /// RoCEv1 packets (ethertype 0x8915), without IP header and ECN: passed.
    RoceV1 = "roce_v1",
    /// UDP packets over IPv4 with options: passed, not inspected.
    Ipv4Options = "ipv4_options",
    /// IPv4 fragments of UDP: passed, not inspected.
    Ipv4Fragments = "ipv4_fragments",
    /// IPv6 packets with extension headers: passed, not inspected.
    Ipv6Extensions = "ipv6_extension_headers",
    /// Packets with three VLAN tags or more: passed, not inspected.
    VlanTooDeep = "vlan_too_deep",
    /// Truncated packets, or packets with contradictory lengths.
    Malformed = "malformed",
    /// RoCEv2 packets whose BTH has an unknown header version or opcode.
    UnknownBth = "unknown_bth",
    /// RoCEv2 data packets (SEND, WRITE, READ response).
    RoceData = "roce_data_packets",
    /// RoCEv2 packets that carry no data (ACK, NAK, requests) or belong to QP 0 or 1.
    RoceControl = "roce_control_packets",
    /// RoCEv2 CNPs.
    RoceCnp = "roce_cnp_packets",
    /// Connection management messages (REQ, REP, REJ, RTU, MRA, DREQ, DREP).
    CmMessages = "cm_messages",
    /// Connections whose QPs were learned from connection management messages.
    PairCm = "pairs_from_cm",
    /// Pairs from connection management that contradict another source, the more trusted of which is used;
    /// and CNPs sent with a hint because the data came from another host than the pair's.
    PairConflict = "pair_conflicts",
    /// CE-marked data packets received.
    NpEcnMarked = "np_ecn_marked_roce_packets",
    /// CNPs sent.
    NpCnpSent = "np_cnp_sent",
    /// CNPs sent whose sender QPN was unknown: they carry the receiver's as a hint.
    NpCnpHinted = "np_cnp_hinted",
    /// CE-marked data packets not answered: within the interval of the last CNP, or of those of all flows in
    /// a full set.
    NpCnpSuppressed = "np_cnp_suppressed",
    /// CNPs that could not be created: no memory, or cloning failed. Drops by the qdisc are in its own statistics.
    NpCnpFailed = "np_cnp_failed",
    /// Packets marked CE by this congestion point.
    CpEcnMarked = "cp_ecn_marked_packets",
    /// Packets whose queue depth is the virtual queue's because the backlog was not read recently:
    /// `dcqcn run` is not running.
    CpBacklogStale = "cp_backlog_stale",
    /// Packets that would have been marked but are Not-ECT.
    CpNotEct = "cp_not_ect_packets",
    /// Not-ECT packets dropped above Kmax (`drop_not_ect`).
    CpNotEctDropped = "cp_not_ect_dropped",
    /// CNPs that cut a flow's rate.
    RpCnpHandled = "rp_cnp_handled",
    /// CNPs ignored on this interface for any of the reasons below; another one may have handled them. Without
    /// `rp_enable` they are counted in `roce_cnp_packets` only.
    RpCnpIgnored = "rp_cnp_ignored",
    /// CNPs with a wrong ICRC or invalid fields.
    RpCnpInvalid = "rp_cnp_invalid",
    /// CNPs without a known flow on this interface; if another interface of the host has the flow, that one
    /// counts the CNP as handled.
    RpCnpUnknownFlow = "rp_cnp_unknown_flow",
    /// CNPs within `rate_reduce_monitor_period` of the previous one.
    RpCnpTooSoon = "rp_cnp_too_soon",
    /// Data packets delayed to a departure time (fq), or of a flow with its own class (HTB).
    RpPaced = "rp_paced_packets",
    /// Data packets of flows without an HTB class; `attach` limits the table to as many flows as there are classes.
    RpUnpaced = "rp_unpaced_packets",
    /// Data packets dropped beyond the pacing horizon.
    RpHorizonDrop = "rp_horizon_drop",
    /// Data packets beyond the pacing horizon that leave at the horizon, in order but faster than their rate.
    RpHorizonPass = "rp_horizon_pass",
    /// Flows added to the RP table.
    RpFlowNew = "rp_flow_new",
    /// Flows evicted from the RP table by newer ones.
    RpFlowEvicted = "rp_flow_evicted",
    /// Packets handed to the other port, inline, which drops those above its MTU.
    InlineForwarded = "inline_forwarded_packets",
    /// Events omitted from the event log: more of their kind than `event_rate`.
    EventLost = "events_lost",
    /// Rewrites that the kernel rejected: the packet passed unchanged; a clone was dropped, see `np_cnp_failed`.
    WriteFailed = "write_failed",
    /// Flows evicted from the NP table by newer ones.
    NpFlowEvicted = "np_flow_evicted",
    /// Cuts that the HTB pacer missed: `dcqcn run` is slow, or not running.
    CutLost = "cuts_lost",
    /// Packets whose flow or table set stayed locked by another CPU for microseconds: data keeps its flow's
    /// order, a CNP cuts nothing.
    TableBusy = "table_busy",
    /// Flows removed from the RP table after `[age] idle` without a packet.
    RpFlowExpired = "rp_flow_expired",
    /// Flows removed from the NP table after `[age] idle` without a packet.
    NpFlowExpired = "np_flow_expired",
    /// Packets without data (READ requests, atomics, ACKs) queued behind earlier ones of their QP.
    RpInOrder = "rp_in_order_packets",
    /// CNPs sent at the end of an interval for marks within it (`np_window` both).
    NpCnpWindowEnd = "np_cnp_window_end",
    /// Data packets that pass unpaced because every slot for their flow in the RP table is in use.
    RpTableFull = "rp_table_full",
    /// Packets that a process sent to port 4791 through a datagram socket: they belong to no QP, so no flow
    /// is charged and no pair learned.
    RpFromProcess = "rp_from_process_packets",
    /// CE-marked data packets received with a group address or an invalid one (IP or Ethernet), or, without
    /// `np_other_host`, for another host (by MAC address, or by a route if this host forwards): not answered.
    NpNotForHost = "np_not_for_host",
    /// CNPs not sent because of `cnp_rate`, or within a second of one of `np_clones_unseen`.
    NpCnpLimited = "np_cnp_limited",
    /// Pairs not learned: more than 1,000 a second.
    PairLimited = "pairs_limited",
    /// RoCEv2 packets with a vendor opcode (0xc0 to 0xff), as in multipath transports: passed, not inspected.
    VendorBth = "vendor_bth",
    /// RoCEv2 packets trimmed by a switch: the IP length is shorter than the UDP length, or the packet ends
    /// after the BTH but before its IP length. Passed, not inspected, without `trim_nak`.
    Trimmed = "trimmed_packets",
    /// Ultra Ethernet transport packets (UDP port 4793): passed, not inspected.
    Uet = "uet_packets",
    /// MAC control frames (ethertype 0x8808): PFC, link pauses and others; passed.
    MacControl = "mac_control_frames",
    /// Malformed PFC frames: too short, not sent to 01:80:c2:00:00:01, or with a VLAN tag (one within the packet
    /// makes it `not_roce`). They have no effect.
    PfcMalformed = "pfc_malformed_frames",
    /// PFC frames without effect, because more than 200,000 arrived in a second.
    PfcLimited = "pfc_limited_frames",
    /// Packets delayed because the neighbour has paused their queue's priority.
    RpPfcHeld = "rp_pfc_held_packets",
    /// Packets dropped because of a pause storm on their queue (`pfc_wd_action` drop).
    PfcWatchdogDrop = "pfc_wd_dropped_packets",
    /// CNPs that cut a flow with other VLAN tags than their own: the only flow with the same addresses and QPN.
    RpCnpOtherVlan = "rp_cnp_other_vlan",
    /// UDP GSO super-packets of RoCE: each is marked and paced as a whole, and its segments are counted and
    /// charged as packets.
    GsoPackets = "gso_super_packets",
    /// Packets of this host whose ECN bits or DSCP were set (`ect_enable`, `roce_dscp`).
    TosSet = "tos_set_packets",
    /// Probes delivered to the host's own stack after silence of a reliable connection (`tail_loss_probe`).
    TailLossProbe = "tail_loss_probes",
    /// Probes, and NAKs for trimmed packets, that the kernel did not deliver.
    TailLossProbeFailed = "tail_loss_probes_failed",
    /// Acknowledgements, and READ responses that acknowledge data, with a wrong ICRC: they change nothing
    /// (`tail_loss_probe`).
    AckInvalid = "ack_icrc_errors",
    /// Packets of connections for which the table of requesters has no room (`tail_loss_probe`, `trim_nak`).
    RequestersFull = "requesters_full",
    /// Data packets that this congestion point trimmed (`trim_dscp_value`).
    CpTrimmed = "cp_trimmed_packets",
    /// Data packets beyond `queue_limit` that passed untrimmed because of `trim_share`.
    CpTrimLimited = "cp_trim_limited",
    /// NAKs sent for trimmed requests (`trim_nak`).
    NpTrimNak = "np_trim_naks",
    /// Clones that left as copies of the data packet, because another program at TC egress ended the chain
    /// before this one; the NP then makes no clone for a second.
    NpCloneUnseen = "np_clones_unseen",
    /// Acknowledgements dropped because a READ response has acknowledged the same requests: soft-RoCE after
    /// Linux 6.1 could end the QP (`tail_loss_probe`).
    AckStale = "ack_stale_drops",
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::Stat;

    #[test]
    fn labels_are_unique_and_indexed_in_order() {
        let labels: std::collections::BTreeSet<_> = Stat::ALL.iter().map(|s| s.label()).collect();
        assert_eq!(labels.len(), Stat::COUNT);
        assert!(Stat::ALL.iter().enumerate().all(|(i, &s)| s as usize == i));
    }
}
