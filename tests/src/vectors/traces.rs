//! Traces of one flow's rate machine, and of its packets.

use dcqcn_common::classify::QP_GSI;

use super::parts::{CNP_TOS, START_US, named, short, step, vector};
use super::{Step, Vector};
use crate::prelude::*;

/// A reaction point whose machine runs without pacing: departure times are not compared.
pub(super) const REACTS: &str =
    "np_enable=off rpg_hai_rate=400mbit rate_reduce_monitor_period=0 wire_overhead=0";

/// Time line of one flow.
pub(super) struct Timeline {
    pub(super) roce: Roce,
    pub(super) steps: Vec<Step>,
    now_us: u64,
}

impl Timeline {
    pub(super) fn new() -> Self {
        Self { roce: short(), steps: Vec::new(), now_us: START_US }
    }

    pub(super) fn send(&mut self, after_us: u64) -> &mut Self {
        self.now_us += after_us;
        self.steps.push(step("egress", self.now_us, &self.roce.frame()));
        self
    }

    pub(super) fn cnp(&mut self, after_us: u64) -> &mut Self {
        self.now_us += after_us;
        self.steps.push(named("CNP", step("ingress", self.now_us, &self.roce.cnp(None, CNP_TOS))));
        self
    }
}

pub(super) fn rate_paper() -> Vector {
    let mut trace = Timeline::new();
    trace.send(0).cnp(0).cnp(50).cnp(50);
    for _ in 0..12 {
        trace.send(54).send(1);
    }
    trace.cnp(7).send(100).cnp(300).cnp(10).send(3);
    let settings = format!("{REACTS} link_rate=40gbit");
    vector("The paper's machine at 40 Gbit/s, CNPs at 0, 50 and 100 us.", &settings, trace.steps)
}

pub(super) fn rate_bytes() -> Vector {
    let mut trace = Timeline::new();
    trace.roce.payload = 240;
    trace.send(0).cnp(10);
    for n in 0..60 {
        trace.send(n % 7);
    }
    trace.cnp(3);
    for n in 0..60 {
        trace.send(n % 11 * 9);
    }
    let settings = format!("{REACTS} link_rate=40gbit rpg_byte_reset=1000B rpg_threshold=3");
    vector("Byte counter and timer, into hyper increase.", &settings, trace.steps)
}

pub(super) fn rate_gaps() -> Vector {
    let mut trace = Timeline::new();
    trace.send(0);
    for gap_us in [1, 54, 55, 56, 110, 275, 276, 330, 1_000, 10_000, 100_000, 1_000_000, 3_000_000] {
        trace.cnp(20).cnp(60).send(gap_us).send(gap_us).cnp(gap_us).send(0);
    }
    let settings = format!("{REACTS} link_rate=100gbit rpg_byte_reset=0");
    vector("Gaps of one to 55,000 periods, timer only.", &settings, trace.steps)
}

pub(super) fn rate_hyper() -> Vector {
    let mut trace = Timeline::new();
    trace.roce.payload = 400;
    trace.send(0).cnp(10).cnp(60).cnp(60);
    for gap_us in [1, 200, 400, 800, 1_600, 3_200, 1, 6_400, 1] {
        trace.send(gap_us).send(1).send(1);
    }
    let more = "link_rate=400gbit rpg_byte_reset=1000B rpg_threshold=1 rpg_hai_rate=50mbit rpg_ai_rate=5mbit";
    let settings = format!("{REACTS} {more}");
    vector("Growing steps up to the line rate.", &settings, trace.steps)
}

pub(super) fn rate_line() -> Vector {
    let mut trace = Timeline::new();
    trace.send(0).cnp(10).cnp(5).cnp(5);
    for _ in 0..8 {
        trace.cnp(70).send(20);
    }
    for gap_us in [500, 1_000, 4_400, 50_000, 400_000] {
        trace.send(gap_us).send(1);
    }
    let more = "link_rate=20mbit rpg_min_rate=1mbit rpg_ai_rate=100kbit rpg_hai_rate=1mbit \
                rpg_time_reset=2200us dce_tcp_rtt=2200us rpg_byte_reset=0 rpg_min_dec_fac=60 rpg_gd=12 \
                initial_alpha_value=700 dce_tcp_g=960 rate_reduce_monitor_period=10us";
    let settings = format!("{REACTS} {more}");
    vector("A slow link: floors, gentle cuts, another gain.", &settings, trace.steps)
}

/// A reaction point that paces.
pub(super) const PACES: &str = "np_enable=off pacing_credit=0 rpg_hai_rate=200mbit \
                                rate_reduce_monitor_period=0 wire_overhead=0 link_rate=1gbit";

pub(super) fn order() -> Vector {
    use Opcode as Op;
    let mut trace = Timeline::new();
    // A known flow, cut to its floor of 10 Mbit/s.
    trace.send(0);
    for _ in 0..16 {
        trace.cnp(50);
    }
    let requests = [
        Op::RC_RDMA_WRITE_ONLY,
        Op::RC_RDMA_WRITE_FIRST,
        Op::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
        Op::RC_RDMA_READ_REQUEST,
        Op::RC_SEND_ONLY,
        Op::RC_COMPARE_SWAP,
        Op::RC_FETCH_ADD,
        Op::RC_FLUSH,
        Op::RC_ATOMIC_WRITE,
        Op::RC_SEND_ONLY_WITH_INVALIDATE,
        // No packet of the other sequence is queued yet.
        Op::RC_ACKNOWLEDGE,
        Op::RC_ATOMIC_ACKNOWLEDGE,
        Op::RC_RDMA_READ_RESPONSE_FIRST,
        Op::RC_RDMA_READ_RESPONSE_LAST,
        Op::RC_ACKNOWLEDGE,
        Op::RC_ATOMIC_ACKNOWLEDGE,
        Op::RC_RDMA_READ_REQUEST,
    ];
    for round in 0..3 {
        for opcode in requests {
            trace.roce.opcode = opcode;
            trace.send(round);
        }
        trace.cnp(7);
    }
    // An unknown flow has no queued packets.
    trace.roce = Roce { dest_qpn: 0x99, opcode: Op::RC_ACKNOWLEDGE, ..short() };
    trace.send(1);
    trace.roce.opcode = Op::RC_RDMA_READ_REQUEST;
    trace.send(1);
    // Management packets are not delayed.
    trace.roce = Roce { dest_qpn: QP_GSI, opcode: Op::UD_SEND_ONLY, ..short() };
    trace.send(1);
    Vector { paces: true, ..vector("All packets of a QP in order, at 10 Mbit/s.", PACES, trace.steps) }
}

pub(super) fn gap() -> Vector {
    let mut trace = Timeline::new();
    trace.roce.payload = 960;
    trace.send(0);
    for _ in 0..16 {
        trace.cnp(50);
    }
    trace.send(10).send(10).send(1_000);
    for gap_us in [0, 1, 50, 200, 400, 700, 30, 10, 5] {
        trace.send(gap_us).send(gap_us / 2).cnp(gap_us);
    }
    for gap_us in [55, 110, 275, 1, 2_000, 20, 3, 300, 5_000, 40] {
        trace.send(gap_us).send(0).send(gap_us / 3).cnp(gap_us / 5).cnp(gap_us / 7).send(1);
    }
    Vector { paces: true, ..vector("The gap after a packet follows the current rate.", PACES, trace.steps) }
}
