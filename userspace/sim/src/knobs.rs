//! The numbers a simulation is told, with name, unit, range and meaning: what flags, files, sweeps and help are made from.

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{MAX_RATE_BPS, MIN_RATE_BPS, Quantity, Unit};
use dcqcn_params::quantity;

use super::presets::{RoceSetup, Setup};
use super::scenario::{
    Class, MAX_BUFFER_BYTES, MAX_DELAY_NS, MAX_DURATION_NS, MAX_FLOWS, MAX_FRAME_BYTES, MAX_MESSAGE_BYTES,
    Marking, Pfc, Schedule, TcpGroup, TcpLaw,
};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const MARKINGS: &[&str] = &["ingress", "egress"];
const LAWS: &[&str] = &["cubic", "dctcp"];

/// A named number of a `T`, with all that the command line, the file and the help need.
#[derive(Debug)]
pub struct Knob<T: 'static> {
    /// Its name, with dashes.
    pub key: &'static str,
    /// What its value is called in a usage line.
    pub value: &'static str,
    /// How its value is written.
    pub unit: Unit,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// What it is.
    pub doc: &'static str,
    /// Reads it.
    pub get: fn(&T) -> u64,
    /// Writes it.
    pub set: fn(&mut T, u64),
}

impl<T> Knob<T> {
    /// Reads `text` into `target`.
    pub(super) fn read(&self, target: &mut T, text: &str) -> Result<(), SetupError> {
        let key = self.key;
        let text = if text == "bulk" && key == "size" { "0" } else { text };
        let parsed = if self.unit == Unit::Nanoseconds {
            quantity::parse_duration_ns(text)
        } else {
            quantity::parse(text, self.unit)
        };
        let value = parsed.map_err(|source| SetupError(format!("{key} = {source}")))?;
        if !(self.min..=self.max).contains(&value) {
            let [value, min, max] = [value, self.min, self.max].map(|value| Quantity(value, self.unit));
            return Err(SetupError(format!("{key} = {value} is out of range: allowed is {min} to {max}")));
        }
        (self.set)(target, value);
        Ok(())
    }

    /// Its value in `target`, as people write it.
    pub fn text(&self, target: &T) -> String {
        match (self.get)(target) {
            0 if self.key == "size" => "bulk".to_owned(),
            value => Quantity(value, self.unit).to_string(),
        }
    }

    /// Its name with its unit, for JSON.
    #[must_use]
    pub fn json_key(&self) -> String {
        let unit = match self.unit {
            Unit::Bytes => "_bytes",
            Unit::BitsPerSecond => "_bps",
            Unit::Nanoseconds => "_ns",
            Unit::PartsPerMillion => "_ppm",
            Unit::Count | Unit::Switch | Unit::Choice(_) => "",
        };
        format!("{}{unit}", self.key.replace('-', "_"))
    }
}

/// Why a setting is refused: the setting, its value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SetupError(pub String);

/// Network, time and seed.
pub const KNOBS: &[Knob<Setup>] = &[
    Knob {
        key: "link",
        value: "RATE",
        unit: Unit::BitsPerSecond,
        min: MIN_RATE_BPS,
        max: MAX_RATE_BPS,
        doc: "Rate of the bottleneck port",
        get: |s| s.scenario.port_rate_bps,
        set: |s, value| s.scenario.port_rate_bps = value,
    },
    Knob {
        key: "sender-link",
        value: "RATE",
        unit: Unit::BitsPerSecond,
        min: MIN_RATE_BPS,
        max: MAX_RATE_BPS,
        doc: "Rate of each sender's link, which is its flows' line rate; as the bottleneck unless set",
        get: |s| s.sender_link_bps.unwrap_or(s.scenario.port_rate_bps),
        set: |s, value| s.sender_link_bps = Some(value),
    },
    Knob {
        key: "delay",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: 0,
        max: MAX_DELAY_NS,
        doc: "One-way propagation delay of each link",
        get: |s| s.scenario.receiver_delay_ns,
        set: |s, value| {
            (s.scenario.sender_delay_ns, s.scenario.receiver_delay_ns) = (value, value);
            s.scenario.reply_delay_ns = 0;
        },
    },
    Knob {
        key: "loop-delay",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: 0,
        max: MAX_DELAY_NS,
        doc: "Instead of `delay`: delay of the whole control loop, from a mark until its effect reaches the port: \
              four times that of a link",
        get: |s| 2 * (s.scenario.sender_delay_ns + s.scenario.receiver_delay_ns) + s.scenario.reply_delay_ns,
        set: |s, value| {
            (s.scenario.sender_delay_ns, s.scenario.receiver_delay_ns) = (value / 4, value / 4);
            s.scenario.reply_delay_ns = value % 4;
        },
    },
    Knob {
        key: "buffer",
        value: "SIZE",
        unit: Unit::Bytes,
        min: MAX_FRAME_BYTES as u64,
        max: MAX_BUFFER_BYTES,
        doc: "Buffer of the bottleneck port",
        get: |s| s.scenario.buffer_bytes,
        set: |s, value| s.scenario.buffer_bytes = value,
    },
    Knob {
        key: "duration",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: 10 * US,
        max: MAX_DURATION_NS,
        doc: "Time to simulate",
        get: |s| s.scenario.duration_ns,
        set: |s, value| s.scenario.duration_ns = value,
    },
    Knob {
        key: "warm-up",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: 0,
        max: MAX_DURATION_NS,
        doc: "Start that the figures leave out; a third of the time unless set",
        get: Setup::warm_up_ns,
        set: |s, value| s.warm_up_ns = Some(value),
    },
    Knob {
        key: "sample",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: US,
        max: MAX_DURATION_NS,
        doc: "Time between two samples of a time series; a 2000th of the time unless set",
        get: Setup::sample_ns,
        set: |s, value| s.sample_ns = Some(value),
    },
    Knob {
        key: "seed",
        value: "N",
        unit: Unit::Count,
        min: 0,
        max: u64::MAX,
        doc: "Where random numbers begin: the same seed, the same result to the last bit",
        get: |s| s.scenario.seed,
        set: |s, value| s.scenario.seed = value,
    },
    Knob {
        key: "marking",
        value: "WHERE",
        unit: Unit::Choice(MARKINGS),
        min: 0,
        max: 1,
        doc: "Which queue depth decides over a mark: that on arrival (ingress) or on leaving (egress)",
        get: |s| u64::from(s.scenario.marking == Marking::Dequeue),
        set: |s, value| {
            s.scenario.marking = if value == 0 { Marking::Enqueue } else { Marking::Dequeue };
        },
    },
    Knob {
        key: "control",
        value: "ON|OFF",
        unit: Unit::Switch,
        min: 0,
        max: 1,
        doc: "Whether there are CNPs and flows slow down; off: RoCE sends at line rate",
        get: |s| u64::from(s.scenario.control),
        set: |s, value| s.scenario.control = value != 0,
    },
    Knob {
        key: "pfc",
        value: "ON|OFF",
        unit: Unit::Switch,
        min: 0,
        max: 1,
        doc: "Whether the port pauses senders of RoCE's class instead of dropping",
        get: |s| u64::from(s.pfc),
        set: |s, value| s.pfc = value != 0,
    },
    Knob {
        key: "xoff",
        value: "SIZE",
        unit: Unit::Bytes,
        min: 0,
        max: MAX_BUFFER_BYTES,
        doc: "With PFC: depth above which senders pause",
        get: |s| s.xoff_bytes,
        set: |s, value| s.xoff_bytes = value,
    },
    Knob {
        key: "xon",
        value: "SIZE",
        unit: Unit::Bytes,
        min: 0,
        max: MAX_BUFFER_BYTES,
        doc: "With PFC: depth at which they go on",
        get: |s| s.xon_bytes,
        set: |s, value| s.xon_bytes = value,
    },
    Knob {
        key: "tcp",
        value: "N",
        unit: Unit::Count,
        min: 0,
        max: MAX_FLOWS as u64,
        doc: "TCP flows beside",
        get: |s| s.tcp.flows.into(),
        set: |s, value| s.tcp.flows = value as u32,
    },
    Knob {
        key: "tcp-law",
        value: "LAW",
        unit: Unit::Choice(LAWS),
        min: 0,
        max: 1,
        doc: "How TCP's window grows: cubic or dctcp",
        get: |s| (s.tcp.law == TcpLaw::Dctcp).into(),
        set: |s, value| set_law(&mut s.tcp, value),
    },
];

/// For `staircase` alone.
pub const STEP: Knob<Setup> = Knob {
    key: "step",
    value: "TIME",
    unit: Unit::Nanoseconds,
    min: US,
    max: MAX_DURATION_NS,
    doc: "Time from the start until the third flow joins, and between later joins",
    get: |s| s.step_ns,
    set: |s, value| s.step_ns = value,
};

/// For `coexist` alone.
pub const CLASSES_KNOB: Knob<Setup> = Knob {
    key: "classes",
    value: "ON|OFF",
    unit: Unit::Switch,
    min: 0,
    max: 1,
    doc: "on: RoCE in class 3 and TCP in class 0, equal DWRR weights, half of the buffer each, ECN and DCQCN; off: all in one queue, without either",
    get: |s| s.classes.into(),
    set: |s, value| s.classes = value != 0,
};

/// A group of RoCE flows.
pub const ROCE_KNOBS: &[Knob<RoceSetup>] = &[
    Knob {
        key: "flows",
        value: "N",
        unit: Unit::Count,
        min: 1,
        max: MAX_FLOWS as u64,
        doc: "RoCE flows (queue pairs)",
        get: |r| r.group.flows.into(),
        set: |r, value| r.group.flows = value as u32,
    },
    Knob {
        key: "flows-per-sender",
        value: "N",
        unit: Unit::Count,
        min: 1,
        max: MAX_FLOWS as u64,
        doc: "How many of them share a sender and its link",
        get: |r| r.group.flows_per_sender.into(),
        set: |r, value| r.group.flows_per_sender = value as u32,
    },
    Knob {
        key: "size",
        value: "SIZE",
        unit: Unit::Bytes,
        min: 0,
        max: MAX_MESSAGE_BYTES,
        doc: "What each flow sends: one message of this length, or `bulk`, data without an end",
        get: |r| r.size_bytes,
        set: |r, value| r.size_bytes = value,
    },
    Knob {
        key: "block",
        value: "SIZE",
        unit: Unit::Bytes,
        min: 0,
        max: MAX_MESSAGE_BYTES,
        doc: "Instead: blocks of this length in a closed loop, the next asked for when one is complete; 0: no",
        get: |r| r.block_bytes,
        set: |r, value| r.block_bytes = value,
    },
    Knob {
        key: "outstanding",
        value: "N",
        unit: Unit::Count,
        min: 1,
        max: 65_536,
        doc: "Blocks of each flow under way at a time",
        get: |r| r.outstanding.into(),
        set: |r, value| r.outstanding = value as u32,
    },
    Knob {
        key: "load",
        value: "PERCENT",
        unit: Unit::PartsPerMillion,
        min: 1_000,
        max: 2_000_000,
        doc: "With `flow-sizes`: payload that all flows offer together, as a share of the link",
        get: |r| r.load_ppm,
        set: |r, value| r.load_ppm = value,
    },
    Knob {
        key: "start",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: 0,
        max: MAX_DURATION_NS,
        doc: "When they start",
        get: |r| r.group.start_ns,
        set: |r, value| r.group.start_ns = value,
    },
    Knob {
        key: "jitter",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: 0,
        max: MAX_DURATION_NS,
        doc: "Each starts up to this much later, at random",
        get: |r| r.group.start_jitter_ns,
        set: |r, value| r.group.start_jitter_ns = value,
    },
    Knob {
        key: "stop",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: 0,
        max: MAX_DURATION_NS,
        doc: "When they stop; 0: never",
        get: |r| r.group.stop_ns.unwrap_or(0),
        set: |r, value| r.group.stop_ns = (value != 0).then_some(value),
    },
    Knob {
        key: "mtu",
        value: "SIZE",
        unit: Unit::Bytes,
        min: 64,
        max: 9_000,
        doc: "Payload of a full RoCE packet",
        get: |r| r.group.payload_bytes.into(),
        set: |r, value| r.group.payload_bytes = value as u32,
    },
    Knob {
        key: "header",
        value: "SIZE",
        unit: Unit::Bytes,
        min: 0,
        max: 256,
        doc: "What a RoCE frame has besides, from Ethernet to FCS; 0: packets as the fluid model has them",
        get: |r| r.group.header_bytes.into(),
        set: |r, value| r.group.header_bytes = value as u32,
    },
    Knob {
        key: "ack-every",
        value: "N",
        unit: Unit::Count,
        min: 1,
        max: 1_000_000,
        doc: "Packets of a flow per acknowledgement",
        get: |r| r.group.ack_every.into(),
        set: |r, value| r.group.ack_every = value as u32,
    },
    Knob {
        key: "timeout",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: US,
        max: MAX_DURATION_NS,
        doc: "Retransmission timeout of a RoCE flow",
        get: |r| r.group.retransmit_timeout_ns,
        set: |r, value| r.group.retransmit_timeout_ns = value,
    },
];

/// A class, in the groups of a file only.
pub(super) const ROCE_CLASS_KNOB: Knob<RoceSetup> = Knob {
    key: "class",
    value: "N",
    unit: Unit::Count,
    min: 0,
    max: CLASSES as u64 - 1,
    doc: "Class (queue), 0 to 7; `wred.CLASS` marks it",
    get: |r| r.group.class.into(),
    set: |r, value| r.group.class = value as u8,
};

/// A group of TCP flows of a file.
pub const TCP_KNOBS: &[Knob<TcpGroup>] = &[
    Knob {
        key: "flows",
        value: "N",
        unit: Unit::Count,
        min: 1,
        max: MAX_FLOWS as u64,
        doc: "TCP flows, each with a sender of its own",
        get: |t| t.flows.into(),
        set: |t, value| t.flows = value as u32,
    },
    Knob {
        key: "class",
        value: "N",
        unit: Unit::Count,
        min: 0,
        max: CLASSES as u64 - 1,
        doc: "Class (queue), 0 to 7",
        get: |t| t.class.into(),
        set: |t, value| t.class = value as u8,
    },
    Knob {
        key: "law",
        value: "LAW",
        unit: Unit::Choice(LAWS),
        min: 0,
        max: 1,
        doc: "How the window grows: cubic or dctcp",
        get: |t| (t.law == TcpLaw::Dctcp).into(),
        set: set_law,
    },
    Knob {
        key: "ecn",
        value: "ON|OFF",
        unit: Unit::Switch,
        min: 0,
        max: 1,
        doc: "Whether cubic sends packets that may be marked",
        get: |t| t.ecn.into(),
        set: |t, value| t.ecn = value != 0,
    },
    Knob {
        key: "start",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: 0,
        max: MAX_DURATION_NS,
        doc: "When they start",
        get: |t| t.start_ns,
        set: |t, value| t.start_ns = value,
    },
    Knob {
        key: "stop",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: 0,
        max: MAX_DURATION_NS,
        doc: "When they stop; 0: never",
        get: |t| t.stop_ns.unwrap_or(0),
        set: |t, value| t.stop_ns = (value != 0).then_some(value),
    },
    Knob {
        key: "mss",
        value: "SIZE",
        unit: Unit::Bytes,
        min: 64,
        max: 9_000,
        doc: "Payload of a segment",
        get: |t| t.payload_bytes.into(),
        set: |t, value| t.payload_bytes = value as u32,
    },
    Knob {
        key: "window",
        value: "SIZE",
        unit: Unit::Bytes,
        min: 10_000,
        max: MAX_BUFFER_BYTES,
        doc: "The receiver's window",
        get: |t| t.max_window_bytes,
        set: |t, value| t.max_window_bytes = value,
    },
    Knob {
        key: "min-rto",
        value: "TIME",
        unit: Unit::Nanoseconds,
        min: 10 * US,
        max: 60_000 * MS,
        doc: "Shortest retransmission timeout",
        get: |t| t.min_rto_ns,
        set: |t, value| t.min_rto_ns = value,
    },
];

/// Short names of parameters of RoCE's class.
pub const SHORTHANDS: [(&str, &str, &str, &str); 3] = [
    ("kmin", "wred.3.kmin", "SIZE", "Queue depth above which RoCE packets are marked"),
    ("kmax", "wred.3.kmax", "SIZE", "Queue depth above which all are"),
    ("pmax", "wred.3.pmax", "PERCENT", "Probability of a mark at kmax"),
];

fn set_law(group: &mut TcpGroup, value: u64) {
    group.law = if value == 0 { TcpLaw::Cubic } else { TcpLaw::Dctcp };
    group.ecn = value != 0;
}

/// A queue of the port as a file says it: `weight` 0 is strict.
pub(super) const CLASS_KNOBS: &[Knob<Class>] = &[
    Knob {
        key: "weight",
        value: "N",
        unit: Unit::Count,
        min: 0,
        max: 1_000,
        doc: "DWRR weight; 0: strict priority",
        get: |class| match class.schedule {
            Schedule::Strict => 0,
            Schedule::Dwrr(weight) => weight.into(),
        },
        set: |class, value| {
            class.schedule = if value == 0 { Schedule::Strict } else { Schedule::Dwrr(value as u32) };
        },
    },
    Knob {
        key: "limit",
        value: "SIZE",
        unit: Unit::Bytes,
        min: 0,
        max: MAX_BUFFER_BYTES,
        doc: "Longest queue; 0: the buffer",
        get: |class| class.limit_bytes.unwrap_or(0),
        set: |class, value| class.limit_bytes = (value != 0).then_some(value),
    },
    Knob {
        key: "xoff",
        value: "SIZE",
        unit: Unit::Bytes,
        min: 0,
        max: MAX_BUFFER_BYTES,
        doc: "PFC: depth above which senders pause, and below 4/5 of which they go on; 0: no PFC",
        get: |class| class.pfc.map_or(0, |pfc| pfc.xoff_bytes),
        set: |class, value| {
            let pfc = Pfc { xoff_bytes: value, xon_bytes: value / 5 * 4 };
            class.pfc = (value != 0).then_some(pfc);
        },
    },
];
