//! Everything that is counted, under one name for kernel, command line, metrics and documentation.

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $variant:ident = $label:literal,)+) => {
        /// What a hook counts. Names that mlx5 has too are mlx5's.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Stat {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Stat {
            /// Every one, in the order of the map.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// Its name.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }

            /// What it counts.
            #[must_use]
            pub const fn doc(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+),)+ }
            }
        }
    };
}

stats! {
    /// Packets that are not RoCE at all.
    NotRoce = "not_roce",
    /// RoCEv1 packets (ethertype 0x8915): no IP header, no ECN; left alone.
    RoceV1 = "roce_v1",
    /// IPv4 packets with options: passed, not looked into.
    Ipv4Options = "ipv4_options",
    /// IPv4 fragments of UDP: passed, not looked into.
    Ipv4Fragments = "ipv4_fragments",
    /// IPv6 packets with extension headers: passed, not looked into.
    Ipv6Extensions = "ipv6_extension_headers",
    /// Packets with three VLAN tags or more: passed, not looked into.
    VlanTooDeep = "vlan_too_deep",
    /// Packets cut short, or whose lengths contradict each other.
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
    /// Connections whose QPs became known by their connection management messages.
    PairCm = "pairs_from_cm",
    /// Pairs refused, as a source at least as sure names another QP at the other end; and CNPs with a hint, as the data came from another host than the pair's.
    PairConflict = "pair_conflicts",
    /// CE-marked data packets that arrived.
    NpEcnMarked = "np_ecn_marked_roce_packets",
    /// CNPs sent.
    NpCnpSent = "np_cnp_sent",
    /// CNPs sent whose sender QPN was unknown: they carry the receiver's as a hint.
    NpCnpHinted = "np_cnp_hinted",
    /// CE-marked data packets within the interval of the last CNP.
    NpCnpSuppressed = "np_cnp_suppressed",
    /// CNPs that could not be made: no memory, or the clone would not go.
    NpCnpFailed = "np_cnp_failed",
    /// Packets marked CE here.
    CpEcnMarked = "cp_ecn_marked_packets",
    /// Packets judged by the virtual queue because the backlog was not read lately: `dcqcn run` does not run.
    CpBacklogStale = "cp_backlog_stale",
    /// Packets that would have been marked but are Not-ECT.
    CpNotEct = "cp_not_ect_packets",
    /// Not-ECT packets dropped above Kmax because `drop_not_ect` says so.
    CpNotEctDropped = "cp_not_ect_dropped",
    /// CNPs that cut a flow's rate.
    RpCnpHandled = "rp_cnp_handled",
    /// CNPs that changed nothing, for any of the reasons below.
    RpCnpIgnored = "rp_cnp_ignored",
    /// CNPs with a wrong ICRC or a field no CNP has.
    RpCnpInvalid = "rp_cnp_invalid",
    /// CNPs that belong to no known flow of this interface; another interface of the host may have one, and counts it as handled.
    RpCnpUnknownFlow = "rp_cnp_unknown_flow",
    /// CNPs sooner after the last than `rate_reduce_monitor_period`.
    RpCnpTooSoon = "rp_cnp_too_soon",
    /// Data packets given a departure time or a class of their own.
    RpPaced = "rp_paced_packets",
    /// Data packets of flows that have no class of the HTB pacer. `attach` makes no table with more flows than classes.
    RpUnpaced = "rp_unpaced_packets",
    /// Data packets dropped beyond the pacing horizon.
    RpHorizonDrop = "rp_horizon_drop",
    /// Data packets beyond the pacing horizon that leave at the horizon, in order but faster than their rate.
    RpHorizonPass = "rp_horizon_pass",
    /// Flows that took a place in the RP table.
    RpFlowNew = "rp_flow_new",
    /// Flows pushed out of the RP table by newer ones.
    RpFlowEvicted = "rp_flow_evicted",
    /// Packets sent on to the other port, inline.
    InlineForwarded = "inline_forwarded_packets",
    /// Events left out of the event log: more of their kind than `event_rate`.
    EventLost = "events_lost",
    /// Rewrites the kernel refused; the packet passed unchanged.
    WriteFailed = "write_failed",
    /// Flows pushed out of the NP table by newer ones.
    NpFlowEvicted = "np_flow_evicted",
    /// Cuts whose message to the HTB pacer found no room: `dcqcn run` is slow, or does not run.
    CutLost = "cuts_lost",
    /// Packets whose flow, or set of a table, another CPU held for microseconds: data leaves in its flow's order, a CNP cuts nothing.
    TableBusy = "table_busy",
    /// Flows removed from the RP table after `[age] idle` without a packet.
    RpFlowExpired = "rp_flow_expired",
    /// Flows removed from the NP table after `[age] idle` without a packet.
    NpFlowExpired = "np_flow_expired",
    /// Packets without data (READ requests, atomics, ACKs) that wait for those of their queue pair ahead of them.
    RpInOrder = "rp_in_order_packets",
    /// CNPs sent for marks that came within the interval of the CNP before, when that was over (`np_window` both).
    NpCnpWindowEnd = "np_cnp_window_end",
    /// Data packets that pass unpaced because every place their flow could have in the RP table is in use.
    RpTableFull = "rp_table_full",
    /// Packets that a process sent to port 4791 through a datagram socket of its own: no queue pair's, so no flow is charged and no pair learned.
    RpFromProcess = "rp_from_process_packets",
    /// CE-marked data packets for a group or with an address that no host has (IP or Ethernet), or for another host without `np_other_host`: not answered.
    NpNotForHost = "np_not_for_host",
    /// CNPs not sent because `cnp_rate` was used up.
    NpCnpLimited = "np_cnp_limited",
    /// Pairs not learned: more than 1,000 a second.
    PairLimited = "pairs_limited",
    /// RoCEv2 packets whose opcode is a manufacturer's own (0xc0 to 0xff), as those of multipath transports: passed, not looked into.
    VendorBth = "vendor_bth",
    /// RoCEv2 packets cut behind their headers: shorter by their IP header than by UDP's, as switches that trim send them. Passed, not
    /// looked into.
    Trimmed = "trimmed_packets",
    /// Ultra Ethernet transport packets (UDP port 4793): passed, not looked into.
    Uet = "uet_packets",
    /// MAC control frames (ethertype 0x8808): PFC, pauses of the whole link, and others; passed on.
    MacControl = "mac_control_frames",
    /// PFC frames that are none: too short, or not sent to 01:80:c2:00:00:01. They hold nothing.
    PfcMalformed = "pfc_malformed_frames",
    /// PFC frames received that hold nothing, as more than 200,000 came in a second.
    PfcLimited = "pfc_limited_frames",
    /// Packets of flows that wait because the neighbour has paused their queue's priority.
    RpPfcHeld = "rp_pfc_held_packets",
    /// Packets dropped because a storm of pauses holds their queue (`pfc_wd_action` drop).
    PfcWatchdogDrop = "pfc_wd_dropped_packets",
    /// CNPs that cut a flow whose data has other VLAN tags than they have: the only one with their addresses and QPN.
    RpCnpOtherVlan = "rp_cnp_other_vlan",
    /// UDP GSO super-packets of RoCE: each is marked and paced as a whole, and its segments are counted and charged as packets.
    GsoPackets = "gso_super_packets",
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
