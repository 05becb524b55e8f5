//! Drivers' names of pause, mark and CNP counters: the only table of them.
//!
//! A counter is found by its name with any driver: recordings may lack the driver, and vendors adopt each other's
//! names. `#` stands for the digit of a priority, `?x` for `rx` or `tx`.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CounterMeaning {
    /// PFC frames sent or received.
    Pause,
    /// Frames of IEEE 802.3x sent or received, which pause all priorities.
    LinkPause,
    /// Packets of a priority discarded for lack of a buffer.
    Discard,
    /// Packets received with CE.
    EcnMarked,
    CnpSent,
    /// Received CNPs that the adapter acts on.
    CnpHandled,
    /// Received CNPs without effect.
    CnpIgnored,
    /// RDMA packets sent or received.
    Packets,
}

use CounterMeaning::{CnpHandled, CnpIgnored, CnpSent, Discard, EcnMarked, LinkPause, Packets, Pause};

/// Names in `ethtool -S` and in `hw_counters`.
const COUNTERS: [(CounterMeaning, &str); 8] = [
    (
        Pause,
        "?x_prio#_pause ?x_pfc_ena_frames_pri# ?x_priority_#_xoff.nic ?x_priority_#_xoff port.?x_priority_#_xoff \
         frames_?x_pripause frames_?x_pripause# frames_?x_pripause_# mac_?x_pfc_pri#_pkt_num ?x_pause_prio_# \
         mac.?x_pause_frames_class# ?x_ppp#_frames hc_tc#_?x_pause_phy ?x_pfc_frames ?x_pb_#_pxoff \
         rx_priority_pause_frames tx_priority_pauseframes",
    ),
    (
        LinkPause,
        "?x_global_pause ?x_pause_frames link_xoff_?x.nic port.link_xoff_?x ?x_flow_control_xoff frames_?x_pause \
         mac_?x_mac_pause_num tx_pauseframes",
    ),
    (
        Discard,
        "?x_prio#_discards ?x_prio#_discard rx_prio#_buf_discard rx_prio#_cong_discard rx_discard_packets_cos# \
         tc_no_buffer_discard_uc_tc_#",
    ),
    // Not mlx5's `rx_prio#_marked`: packets that the NIC marks itself, as the host is too slow.
    (
        EcnMarked,
        "np_ecn_marked_roce_packets rx_ecn_marked_pkts RxECNMrkd rx_rdma_ecn_pkts ecn_marked received_ecns",
    ),
    (CnpSent, "np_cnp_sent tx_cnp_pkts np_cnp_pkts cnpSent tx_rdma_cnp_pkts tx_cnp_pkt sent_cnps"),
    (CnpHandled, "rp_cnp_handled rx_cnp_pkts cnpHandled rx_rdma_cnp_pkts rx_cnp_pkt received_cnps"),
    (CnpIgnored, "rp_cnp_ignored cnpIgnored"),
    (
        Packets,
        "port_xmit_packets port_rcv_packets ?x_pkts ?x_pkt ?x_packets ?x_rdma_ucast_pkts ip4InPkts ip4OutPkts \
         ip6InPkts ip6OutPkts sent_pkts rcvd_pkts",
    ),
];

/// Kernel drivers of RoCE adapters, and the fix that enables both DCQCN points, with the interface as `IFACE`.
const DRIVERS: [(&str, &str); 5] = [
    (
        "mlx5_core",
        "`echo 1 > /sys/class/net/IFACE/ecn/roce_np/enable/3`, and the same in `roce_rp` (3: RoCE's priority); without \
         NVIDIA's driver check with `mstconfig -d PCI -e query` that ROCE_CC_PRIO_MASK_P1 (P2: second port) includes \
         RoCE's priority (default 255)",
    ),
    ("bnxt_en", "enable `dcqcn` of the adapter in configfs (`/sys/kernel/config/bnxt_re/DEVICE/ports/1/cc`)"),
    ("ice i40e idpf", "load the RDMA driver with DCQCN on (`irdma` of Intel's package: `dcqcn_enable=1`)"),
    ("ionic", "enable a DCQCN profile of the adapter (`nicctl update dcqcn`)"),
    ("hns3", "choose DCQCN in the adapter (`/sys/class/infiniband/DEVICE/ports/1/cc_param`)"),
];

/// Drivers whose PFC counters are among the above, and drivers of adapters without PFC.
const PAUSES_KNOWN: &str = "mlx5_core bnxt_en ice i40e ixgbe ionic hns3 mlxsw_spectrum mana nfp cxgb4 be2net \
                            qede e1000 e1000e igb igc";

/// Drivers of virtual interfaces, which have no pauses to count.
pub(super) const PARAVIRTUAL: [&str; 6] =
    ["virtio_net", "vmxnet3", "hv_netvsc", "xen_netfront", "gve", "ena"];

pub(super) fn means(name: &str, meaning: CounterMeaning) -> bool {
    COUNTERS.iter().any(|(of, names)| *of == meaning && names.split(' ').any(|pattern| is(name, pattern)))
}

/// Whether a driver lacks counters of PFC frames only if PFC is off or not supported.
pub(super) fn knows_pauses(driver: &str) -> bool {
    PAUSES_KNOWN.split(' ').any(|known| known == driver)
}

/// The fix that enables DCQCN in the adapter of a known driver.
pub(super) fn of_driver(driver: &str) -> Option<&'static str> {
    let found = DRIVERS.iter().find(|(drivers, _)| drivers.split(' ').any(|of| of == driver));
    found.map(|(_, fix)| *fix)
}

fn is(name: &str, pattern: &str) -> bool {
    let fits = |(byte, pattern): (u8, u8)| match pattern {
        b'#' => matches!(byte, b'0'..=b'7'),
        b'?' => matches!(byte, b'r' | b't'),
        exact => byte == exact,
    };
    name.len() == pattern.len() && name.bytes().zip(pattern.bytes()).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mlx5_fix_only_queries_the_firmware() {
        let fix = of_driver("mlx5_core").unwrap();
        assert!(fix.contains("`mstconfig -d PCI -e query`") && !fix.contains(" set "), "{fix}");
    }

    #[test]
    fn vendor_counter_names_classified() {
        for (name, meaning) in [
            ("rx_prio3_pause", Pause),
            ("rx_pfc_ena_frames_pri3", Pause),
            ("rx_priority_3_xoff.nic", Pause),
            ("frames_rx_pripause", Pause),
            ("frames_tx_pripause_7", Pause),
            ("mac_rx_pfc_pri3_pkt_num", Pause),
            ("rx_pause_prio_3", Pause),
            ("hc_tc3_rx_pause_phy", Pause),
            ("tx_priority_pauseframes", Pause),
            ("rx_pfc_frames", Pause),
            ("rx_pb_3_pxoff", Pause),
            ("rx_global_pause", LinkPause),
            ("link_xoff_rx.nic", LinkPause),
            ("tx_flow_control_xoff", LinkPause),
            ("mac_rx_mac_pause_num", LinkPause),
            ("tx_pauseframes", LinkPause),
            ("rx_prio0_discards", Discard),
            ("rx_prio3_buf_discard", Discard),
            ("rx_prio3_cong_discard", Discard),
            ("rx_discard_packets_cos4", Discard),
            ("tx_cnp_pkt", CnpSent),
            ("received_cnps", CnpHandled),
            ("rx_ecn_marked_pkts", EcnMarked),
            ("RxECNMrkd", EcnMarked),
            ("cnpSent", CnpSent),
            ("rx_rdma_cnp_pkts", CnpHandled),
            ("cnpIgnored", CnpIgnored),
            ("tx_rdma_ucast_pkts", Packets),
            ("port_xmit_packets", Packets),
            ("ip4InPkts", Packets),
        ] {
            let found: Vec<_> =
                COUNTERS.iter().map(|(of, _)| *of).filter(|meaning| means(name, *meaning)).collect();
            assert_eq!(found, [meaning], "{name}");
        }
        for name in [
            "rx_prio3_pause_duration",
            "pfc_pri3_rx_duration_us",
            "rx_prio8_pause",
            "rx_prio33_pause",
            "ax_prio3_pause",
            "",
        ] {
            assert!(!means(name, Pause), "{name}");
        }
        assert!(of_driver("ice").is_some() && of_driver("efa").is_none());
    }

    #[test]
    fn marks_of_a_slow_host_are_not_ce() {
        assert!(!means("rx_prio3_marked", EcnMarked));
    }

    #[test]
    fn reference_lists_all_counter_names() {
        const PAGE: &str = include_str!("../../../../../docs/reference/doctor.md");
        for name in COUNTERS.iter().flat_map(|(_, names)| names.split(' ')) {
            let name = name.replace('#', "N");
            assert!(PAGE.contains(&format!("`{name}`")), "no `{name}` in docs/reference/doctor.md");
        }
    }
}
