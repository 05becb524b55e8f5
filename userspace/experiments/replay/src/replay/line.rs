//! Output of a replay per packet: one line of JSON.

use std::net::{Ipv4Addr, Ipv6Addr};

use dcqcn_common::classify::{Frame as _, Roce};
use dcqcn_common::params::Params;
use dcqcn_common::wire::bth::Bth;
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_common::wire::eth::{EtherType, Ethernet, VlanTag};
use dcqcn_common::wire::ipv4::Ipv4;
use dcqcn_common::wire::ipv6::Ipv6;
use dcqcn_telemetry::{FlowRow, NpFlowRow};
use serde::Serialize;

use crate::{Hook, MIN_PACKET, Outcome, Verdict, classify};

#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) json_version: u32,
    pub(super) index: u64,
    pub(super) time_ns: u64,
    pub(super) length: u32,
    pub(super) captured_length: usize,
    /// Headers, if it is RoCEv2.
    pub(super) parse: Option<Parse>,
    /// Reason for leaving it unchanged, if any.
    pub(super) left_alone: Option<&'static str>,
    pub(super) hook: Hook,
    #[serde(flatten)]
    pub(super) left: PacketResult,
    /// CE was set here.
    pub(super) marked: bool,
    /// Depth of its class's virtual queue in front of it, where the congestion point runs.
    pub(super) depth_before_bytes: Option<u64>,
    pub(super) depth_after_bytes: Option<u64>,
    pub(super) flow: Option<Flow>,
    pub(super) emitted: Vec<EmittedPacket>,
}

#[derive(Debug, Serialize)]
pub(super) struct PacketResult {
    verdict: &'static str,
    redirect_ifindex: Option<u32>,
    /// Earliest departure, in the time of the run; `None` = immediately.
    departure_ns: Option<u64>,
    priority: u32,
}

impl PacketResult {
    pub(super) fn new(outcome: &Outcome) -> Self {
        let (verdict, redirect_ifindex) = match outcome.verdict {
            Verdict::Pass => ("pass", None),
            Verdict::Drop => ("drop", None),
            Verdict::Redirect { ifindex } => ("redirect", Some(ifindex)),
            Verdict::Receive => ("receive", None),
            Verdict::NotRun => ("not_run", None),
        };
        let departure_ns = Some(outcome.departure_ns).filter(|&departure_ns| departure_ns != 0);
        Self { verdict, redirect_ifindex, departure_ns, priority: outcome.priority }
    }
}

/// A packet emitted with another.
#[derive(Debug, Serialize)]
pub(super) struct EmittedPacket {
    #[serde(flatten)]
    left: PacketResult,
    parse: Option<Parse>,
    left_alone: Option<&'static str>,
    hex: String,
}

impl EmittedPacket {
    pub(super) fn new(outcome: &Outcome, params: &Params) -> Self {
        let (parse, left_alone) = parse(&outcome.packet, params);
        let hex = outcome.packet.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { left: PacketResult::new(outcome), parse, left_alone, hex }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Parse {
    /// EtherType after the tags.
    ethertype: String,
    vlan: Vec<Tag>,
    ip_version: u8,
    src: String,
    dst: String,
    dscp: usize,
    ecn: &'static str,
    opcode: &'static str,
    kind: &'static str,
    dest_qpn: u32,
    /// Datagrams only.
    source_qpn: Option<u32>,
    psn: u32,
    class: u8,
    queue: u8,
}

#[derive(Debug, Serialize)]
struct Tag {
    vid: u16,
    pcp: u8,
    dei: bool,
}

/// Classification of a packet by the hooks, or the counter of packets left unchanged.
pub(super) fn parse(packet: &[u8], params: &Params) -> (Option<Parse>, Option<&'static str>) {
    if packet.len() < MIN_PACKET {
        return (None, Some("too_short"));
    }
    match classify(packet) {
        Ok(roce) => (Parse::new(&packet, &roce, params), None),
        Err(stat) => (None, Some(stat.label())),
    }
}

impl Parse {
    fn new(frame: &&[u8], roce: &Roce, params: &Params) -> Option<Self> {
        let (src, dst) = if roce.v6 {
            let ip = Ipv6::new(frame.header(roce.l3)?);
            (Ipv6Addr::from(ip.src()).to_string(), Ipv6Addr::from(ip.dst()).to_string())
        } else {
            let ip = Ipv4::new(frame.header(roce.l3)?);
            (Ipv4Addr::from(ip.src()).to_string(), Ipv4Addr::from(ip.dst()).to_string())
        };
        let vlan = (Ethernet::LEN..roce.l3)
            .step_by(VlanTag::LEN)
            .filter_map(|at| frame.header(at))
            .map(VlanTag::new)
            .map(|tag| Tag { vid: tag.vid(), pcp: tag.pcp(), dei: tag.dei() })
            .collect();
        let EtherType(ethertype) = if roce.v6 { EtherType::IPV6 } else { EtherType::IPV4 };
        let class = params.config.dscp_to_tc.get(roce.dscp()).copied().unwrap_or(0);
        Some(Self {
            ethertype: format!("{ethertype:#06x}"),
            vlan,
            ip_version: if roce.v6 { 6 } else { 4 },
            src,
            dst,
            dscp: roce.dscp(),
            ecn: match roce.ecn() {
                Ecn::NOT_ECT => "not_ect",
                Ecn::ECT0 => "ect0",
                Ecn::ECT1 => "ect1",
                _ => "ce",
            },
            opcode: roce.opcode.name(),
            kind: if roce.congests() {
                "data"
            } else if roce.is_cnp() {
                "cnp"
            } else {
                "control"
            },
            dest_qpn: roce.dest_qpn,
            source_qpn: roce.source_qpn(frame),
            psn: Bth::new(frame.header(roce.bth())?).psn(),
            class,
            queue: params.config.tc_to_queue.get(usize::from(class)).copied().unwrap_or(0),
        })
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub(super) enum Flow {
    Rp(FlowRow),
    Np(NpFlowRow),
}
