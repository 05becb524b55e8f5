//! Drivers' names of pause, mark and CNP counters: the only table of them.
//!
//! A counter is found by its name with any driver: recordings may lack the driver, and vendors adopt each other's
//! names. `#` stands for the digit of a priority, `?x` for `rx` or `tx`.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CounterMeaning {
    /// PFC frames sent or received.
    Pause,
    /// Packets of a priority discarded for lack of a buffer.
    Discard,
    /// Packets received with CE.
    EcnMarked,
    CnpSent,
    /// Received CNPs that the adapter acts on.
    CnpHandled,
    /// Received CNPs without effect.
    CnpIgnored,
}

use CounterMeaning::{CnpHandled, CnpIgnored, CnpSent, Discard, EcnMarked, Pause};

/// An adapter's counters, and how to enable its DCQCN.
pub(super) struct Adapter {
    /// Kernel drivers of its network interfaces.
    drivers: &'static [&'static str],
    /// Names in `ethtool -S` and in `hw_counters`.
    counters: &'static [(CounterMeaning, &'static str)],
    /// Fix that enables both points, with the interface as `IFACE`.
    pub(super) enable: &'static str,
}

const ADAPTERS: [Adapter; 8] = [
    Adapter {
        drivers: &["mlx5_core"],
        counters: &[
            (Pause, "?x_prio#_pause"),
            (Discard, "?x_prio#_discards"),
            (Discard, "?x_prio#_discard"),
            (EcnMarked, "np_ecn_marked_roce_packets"),
            (CnpSent, "np_cnp_sent"),
            (CnpHandled, "rp_cnp_handled"),
            (CnpIgnored, "rp_cnp_ignored"),
        ],
        enable: "`echo 1 > /sys/class/net/IFACE/ecn/roce_np/enable/3`, and the same in `roce_rp` (3: RoCE's priority)",
    },
    Adapter {
        drivers: &["bnxt_en"],
        counters: &[
            (Pause, "?x_pfc_ena_frames_pri#"),
            (EcnMarked, "rx_ecn_marked_pkts"),
            (CnpSent, "tx_cnp_pkts"),
            (CnpSent, "np_cnp_pkts"),
            (CnpHandled, "rx_cnp_pkts"),
        ],
        enable: "enable `dcqcn` of the adapter in configfs (`/sys/kernel/config/bnxt_re/DEVICE/ports/1/cc`)",
    },
    Adapter {
        drivers: &["ice", "i40e", "idpf"],
        counters: &[
            (Pause, "?x_priority_#_xoff.nic"),
            (Pause, "?x_priority_#_xoff"),
            (Pause, "port.?x_priority_#_xoff"),
            (EcnMarked, "RxECNMrkd"),
            (CnpSent, "cnpSent"),
            (CnpHandled, "cnpHandled"),
            (CnpIgnored, "cnpIgnored"),
        ],
        enable: "load the RDMA driver with DCQCN on (`irdma` of Intel's package: `dcqcn_enable=1`)",
    },
    Adapter {
        drivers: &["ionic"],
        counters: &[
            (Pause, "frames_?x_pripause"),
            (Pause, "frames_?x_pripause#"),
            (Pause, "frames_?x_pripause_#"),
            (EcnMarked, "rx_rdma_ecn_pkts"),
            (CnpSent, "tx_rdma_cnp_pkts"),
            (CnpHandled, "rx_rdma_cnp_pkts"),
        ],
        enable: "enable a DCQCN profile of the adapter (`nicctl update dcqcn`)",
    },
    Adapter {
        drivers: &["hns3"],
        counters: &[(Pause, "mac_?x_pfc_pri#_pkt_num")],
        enable: "choose DCQCN in the adapter (`/sys/class/infiniband/DEVICE/ports/1/cc_param`)",
    },
    Adapter {
        drivers: &["mlxsw_spectrum"],
        counters: &[
            (Pause, "?x_pause_prio_#"),
            (Discard, "tc_no_buffer_discard_uc_tc_#"),
            (EcnMarked, "ecn_marked"),
        ],
        enable: "a switch port does not answer marks: enable DCQCN at the hosts",
    },
    Adapter {
        drivers: &["nfp"],
        counters: &[(Pause, "mac.?x_pause_frames_class#")],
        enable: "the adapter does not have RDMA",
    },
    Adapter {
        drivers: &["cxgb4"],
        counters: &[(Pause, "?x_ppp#_frames")],
        enable: "the adapter's RDMA is iWARP, without DCQCN",
    },
];

/// Drivers of virtual interfaces, which have no pauses to count.
const PARAVIRTUAL: [&str; 6] = ["virtio_net", "vmxnet3", "hv_netvsc", "xen_netfront", "gve", "ena"];

pub(super) fn means(name: &str, meaning: CounterMeaning) -> bool {
    let mut counters = ADAPTERS.iter().flat_map(|adapter| adapter.counters);
    counters.any(|(of, pattern)| *of == meaning && is(name, pattern))
}

pub(super) fn of_driver(driver: &str) -> Option<&'static Adapter> {
    ADAPTERS.iter().find(|adapter| adapter.drivers.contains(&driver))
}

pub(super) fn is_paravirtual(driver: &str) -> bool {
    PARAVIRTUAL.contains(&driver)
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
    fn vendor_counter_names_classified() {
        for (name, meaning) in [
            ("rx_prio3_pause", Pause),
            ("rx_pfc_ena_frames_pri3", Pause),
            ("rx_priority_3_xoff.nic", Pause),
            ("frames_rx_pripause", Pause),
            ("frames_tx_pripause_7", Pause),
            ("mac_rx_pfc_pri3_pkt_num", Pause),
            ("rx_pause_prio_3", Pause),
            ("rx_prio0_discards", Discard),
            ("rx_ecn_marked_pkts", EcnMarked),
            ("RxECNMrkd", EcnMarked),
            ("cnpSent", CnpSent),
            ("rx_rdma_cnp_pkts", CnpHandled),
            ("cnpIgnored", CnpIgnored),
        ] {
            let all = [Pause, Discard, EcnMarked, CnpSent, CnpHandled, CnpIgnored];
            let found: Vec<_> = all.into_iter().filter(|meaning| means(name, *meaning)).collect();
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
}
