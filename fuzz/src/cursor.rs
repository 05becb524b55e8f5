//! A history of packets, times and parameters, derived from arbitrary bytes.

use std::sync::LazyLock;

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Config, PACER_FQ, PACER_HTB, PACER_NONE};
use dcqcn_common::wire::bth::Opcode;
use dcqcn_common::wire::cm::CommIds;
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_common::wire::eth::EtherType;
use dcqcn_common::wire::pfc::PfcRepr;
use dcqcn_replay::{Hook, Meta};
use dcqcn_tests::both::LO;
use dcqcn_tests::packets::{CmMessage, Dreq, Rep, Roce, cm, req};

pub(crate) enum Step {
    /// A packet enters a hook.
    Packet { hook: Hook, frame: Vec<u8>, meta: Meta },
    /// Other parameters.
    Params(Box<Config>),
}

/// Reads steps.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    /// Current time, advanced by every step.
    pub(crate) now_ns: u64,
}

/// One packet of each kind.
static FRAMES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    const OPCODES: [Opcode; 8] = [
        Opcode::RC_RDMA_WRITE_MIDDLE,
        Opcode::RC_RDMA_READ_REQUEST,
        Opcode::RC_RDMA_READ_RESPONSE_MIDDLE,
        Opcode::RC_ACKNOWLEDGE,
        Opcode::RC_FETCH_ADD,
        Opcode::UD_SEND_ONLY,
        Opcode::UC_SEND_ONLY,
        Opcode::RC_SEND_ONLY,
    ];
    let mut frames = Vec::new();
    for (number, opcode) in OPCODES.into_iter().cycle().take(48).enumerate() {
        let ecn = [Ecn::ECT0, Ecn::ECT0, Ecn::CE, Ecn::NOT_ECT][number / 3 % 4];
        let roce = Roce {
            v6: number % 5 == 4,
            tags: if number % 7 == 6 { vec![(EtherType::VLAN, 5)] } else { vec![] },
            opcode,
            ecn,
            dest_qpn: 0x10 + (number / 16) as u32,
            payload: [1_024, 64, 0][number % 3],
            ..Roce::default()
        };
        frames.push(roce.frame());
        if number % 4 == 0 {
            // CNPs of the peer for this data.
            frames.push(roce.cnp(None, 0xc0));
            frames.push(roce.cnp(Some(roce.dest_qpn), 0xc0));
        }
    }
    let comm_ids = CommIds { local: 2, remote: 1 };
    frames.push(cm(1, 2, &CmMessage::Req(req(1, 0x11))));
    frames.push(cm(2, 1, &CmMessage::Rep(Rep { comm_ids, local_qpn: 0x10, starting_psn: 1 })));
    let comm_ids = CommIds { local: 1, remote: 2 };
    frames.push(cm(1, 2, &CmMessage::Dreq(Dreq { comm_ids, remote_qpn: 0x10 })));
    // Pauses of the data's priority: 2.6 ms and 1.7 s at the rate below, and XON.
    for quanta in [100, u16::MAX, 0] {
        let pause = PfcRepr { priorities: 1 << 3, quanta: [quanta; CLASSES] };
        frames.push(pause.frame([2, 0, 0, 0, 0, 9]).to_vec());
    }
    frames
});

/// Parameters derived from a byte: small queues, low rates and a near horizon, so that short histories have effects.
pub(crate) fn config(choice: u8) -> Config {
    let mut config = Config::DEFAULT;
    let scalars = &mut config.scalars;
    (scalars.cp_enable, scalars.link_rate_bps) = (1, 20_000_000);
    (scalars.rpg_min_rate_bps, scalars.rpg_time_reset_ns) = (1_000_000, 10_000_000);
    scalars.pacing_horizon_ns = 20_000_000;
    scalars.pacer = [PACER_FQ, PACER_FQ, PACER_HTB, PACER_NONE][usize::from(choice % 4)];
    scalars.fast_cnp = u64::from(choice >> 2 & 1);
    scalars.drop_not_ect = u64::from(choice >> 3 & 1);
    scalars.pacing_horizon_drop = u64::from(choice >> 4 & 1);
    scalars.cnp_consume = u64::from(choice >> 5 & 1);
    scalars.np_window = u64::from(choice >> 6 & 1);
    config.pfc[3].rx = u64::from(choice >> 7);
    for wred in &mut config.wred {
        (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (2_000, 6_000, 300_000);
    }
    config
}

impl<'a> Cursor<'a> {
    /// Begins.
    pub(crate) const fn new(bytes: &'a [u8], now_ns: u64) -> Self {
        Self { bytes, now_ns }
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(first)
    }

    /// The next step; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Step> {
        /// Marks to try: none, those of clones that become CNPs, another.
        const MARKS: [u32; 4] = [0, 0x0dcc_0a00, 0x0dcc_0a01, 0x1234];
        let (what, frame, time) = (self.byte()?, self.byte()?, self.byte()?);
        self.now_ns = self.now_ns.saturating_add(1 << (time % 32));
        if what >= 0xf8 {
            return Some(Step::Params(Box::new(config(frame))));
        }
        let hook = [Hook::Egress, Hook::Egress, Hook::Ingress, Hook::Xdp][usize::from(what % 4)];
        let is_forwarded = what >> 2 & 1 == 1;
        let mark = if what >> 3 & 3 == 3 { MARKS[usize::from(what >> 5) % MARKS.len()] } else { 0 };
        let mut frame = FRAMES.get(usize::from(frame) % FRAMES.len())?.clone();
        // Every fourth packet is modified in one or two header bytes, or truncated.
        let mutations = if time >> 5 < 6 { 0 } else { usize::from(time >> 5) - 5 };
        for _ in 0..mutations {
            let (at, value) = (usize::from(self.byte()?), self.byte()?);
            match frame.get_mut(at) {
                Some(byte) if at < 120 => *byte ^= value,
                _ => frame.truncate(at.max(14)),
            }
        }
        let ingress_ifindex = if is_forwarded || hook != Hook::Egress { LO } else { 0 };
        let meta = Meta { ingress_ifindex, mark, priority: 0, departure_ns: 0, segment_bytes: 0 };
        Some(Step::Packet { hook, frame, meta })
    }
}
