//! Numeric settings of a simulation: the source of flags, file keys, sweeps and help.

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{MAX_RATE_BPS, MIN_RATE_BPS, Quantity, Unit};
use dcqcn_params::quantity;

use super::{GroupSetup, Setup};
use crate::network::{Marking, QueuePfc, Schedule, TcpLaw, TcpRules};
use crate::star::{
    Class, MAX_BUFFER_BYTES, MAX_DELAY_NS, MAX_DURATION_NS, MAX_FLOWS, MAX_FRAME_BYTES, MAX_MESSAGE_BYTES,
};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const MARKINGS: &[&str] = &["ingress", "egress"];
const LAWS: &[&str] = &["cubic", "dctcp"];

/// A numeric setting of a `T`, with its description.
#[derive(Debug)]
pub struct Knob<T: 'static> {
    /// Name, with dashes.
    pub key: &'static str,
    /// Name of its value in a usage line.
    pub value: &'static str,
    /// Unit.
    pub unit: Unit,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// Meaning.
    pub doc: &'static str,
    /// Getter.
    pub get: fn(&T) -> u64,
    /// Setter.
    pub set: fn(&mut T, u64),
}

impl<T> Knob<T> {
    /// Parses `text` into `target`.
    pub(in crate::presets) fn read(&self, target: &mut T, text: &str) -> Result<(), SetupError> {
        let key = self.key;
        let text = if text == "bulk" && key == "size" { "0" } else { text };
        // A bare number is in seconds for times of a whole run only.
        let parsed = if ["duration", "warm-up", "step", "stop"].contains(&key) {
            quantity::parse_duration_ns(text)
        } else {
            quantity::parse(text, self.unit)
        };
        let value = parsed.map_err(|source| SetupError(format!("{key} = {source}")))?;
        if !(self.min..=self.max).contains(&value) {
            let [value, min, max] = [value, self.min, self.max].map(|value| Quantity(value, self.unit));
            return Err(SetupError(format!("{key} = {value} is out of range: {min} to {max}")));
        }
        (self.set)(target, value);
        Ok(())
    }

    /// Value in `target`, formatted for people.
    pub fn text(&self, target: &T) -> String {
        match (self.get)(target) {
            0 if self.key == "size" => "bulk".to_owned(),
            value => Quantity(value, self.unit).to_string(),
        }
    }

    /// Name with its unit, for JSON.
    pub(crate) fn json_key(&self) -> String {
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

/// Reason why a setting is rejected, with value and allowed range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SetupError(pub String);

/// Unit and range of a value.
struct Form {
    value: &'static str,
    unit: Unit,
    min: u64,
    max: u64,
}

const fn rate(min: u64, max: u64) -> Form {
    Form { value: "RATE", unit: Unit::BitsPerSecond, min, max }
}

const fn time(min: u64, max: u64) -> Form {
    Form { value: "TIME", unit: Unit::Nanoseconds, min, max }
}

const fn size(min: u64, max: u64) -> Form {
    Form { value: "SIZE", unit: Unit::Bytes, min, max }
}

const fn count(min: u64, max: u64) -> Form {
    Form { value: "N", unit: Unit::Count, min, max }
}

const fn percent(min: u64, max: u64) -> Form {
    Form { value: "PERCENT", unit: Unit::PartsPerMillion, min, max }
}

const fn switch() -> Form {
    Form { value: "ON|OFF", unit: Unit::Switch, min: 0, max: 1 }
}

const fn choice(value: &'static str, words: &'static [&'static str]) -> Form {
    Form { value, unit: Unit::Choice(words), min: 0, max: words.len() as u64 - 1 }
}

/// A table of knobs, or `one`: a row has name, unit and range, meaning, getter and setter.
macro_rules! knobs {
    ($(#[$doc:meta])* $vis:vis one $name:ident: $of:ty; $($row:tt)*) => {
        $(#[$doc])*
        $vis const $name: Knob<$of> = knobs!(@row $($row)*);
    };
    ($(#[$doc:meta])* $vis:vis $name:ident: $of:ty; $($key:literal: $form:expr, $what:literal, $get:expr, $set:expr;)+) => {
        $(#[$doc])*
        $vis const $name: &[Knob<$of>] = &[$(knobs!(@row $key: $form, $what, $get, $set;)),+];
    };
    (@row $key:literal: $form:expr, $what:literal, $get:expr, $set:expr;) => {{
        const FORM: Form = $form;
        let Form { value, unit, min, max } = FORM;
        Knob { key: $key, value, unit, min, max, doc: $what, get: $get, set: $set }
    }};
}

knobs! {
    /// Network, time and seed.
    pub KNOBS: Setup;

    "link": rate(MIN_RATE_BPS, MAX_RATE_BPS),
        "Rate of the bottleneck port",
        |s| s.star.port_rate_bps, |s, value| s.star.port_rate_bps = value;

    "sender-link": rate(MIN_RATE_BPS, MAX_RATE_BPS),
        "Rate of each sender's link, and line rate of its flows [default: that of the bottleneck]",
        |s| s.sender_link_bps.unwrap_or(s.star.port_rate_bps), |s, value| s.sender_link_bps = Some(value);

    "delay": time(0, MAX_DELAY_NS),
        "One-way propagation delay of each link",
        |s| s.star.receiver_delay_ns,
        |s, value| set_delays(s, value);

    "loop-delay": time(0, MAX_DELAY_NS),
        "Delay of the control loop, from a mark until its effect reaches the port: four times `delay`, \
         which it replaces",
        |s| 2 * (s.star.sender_delay_ns + s.star.receiver_delay_ns),
        |s, value| set_delays(s, value / 4);

    "buffer": size(MAX_FRAME_BYTES as u64, MAX_BUFFER_BYTES),
        "Buffer of the bottleneck port",
        |s| s.star.buffer_bytes, |s, value| s.star.buffer_bytes = value;

    "duration": time(10 * US, MAX_DURATION_NS),
        "Time to simulate; with `size` a maximum, as the simulation ends when all messages are complete",
        Setup::duration_ns, |s, value| s.duration_ns = Some(value);

    "warm-up": time(0, MAX_DURATION_NS),
        "Warm-up excluded from statistics [default: a third of the duration; with `size`, none]",
        Setup::warm_up_ns, |s, value| s.warm_up_ns = Some(value);

    "sample": time(US, MAX_DURATION_NS),
        "Sampling interval of time series [default: duration / 2000; with `size`, 1/1000 of the time \
         that the port needs for all data]",
        Setup::sample_ns, |s, value| s.sample_ns = Some(value);

    "seed": count(0, u64::MAX),
        "Seed of random numbers; equal seeds give bit-identical results",
        |s| s.star.seed, |s, value| s.star.seed = value;

    "marking": choice("WHERE", MARKINGS),
        "When the queue depth for marking is sampled: on arrival (ingress) or on departure (egress)",
        |s| u64::from(s.star.marking == Marking::Dequeue),
        |s, value| s.star.marking = if value == 0 { Marking::Enqueue } else { Marking::Dequeue };

    "control": switch(),
        "DCQCN: CNPs and rate control; off: RoCE sends at line rate",
        |s| u64::from(s.star.control), |s, value| s.star.control = value != 0;

    "pfc": switch(),
        "PFC: the port pauses senders of RoCE's class instead of dropping packets",
        |s| u64::from(s.pfc), |s, value| s.pfc = value != 0;

    "xoff": size(0, MAX_BUFFER_BYTES),
        "With PFC: depth above which senders pause",
        |s| s.xoff_bytes, |s, value| s.xoff_bytes = value;

    "xon": size(0, MAX_BUFFER_BYTES),
        "With PFC: depth at which paused senders resume",
        |s| s.xon_bytes, |s, value| s.xon_bytes = value;

    "tcp": count(0, MAX_FLOWS as u64),
        "Number of TCP flows alongside",
        |s| s.tcp.group.flows.into(), |s, value| s.tcp.group.flows = value as u32;

    "tcp-law": choice("LAW", LAWS),
        "Congestion control of TCP: cubic or dctcp",
        |s| law(&s.tcp), |s, value| set_law(&mut s.tcp, value);
}

knobs! {
    /// For `staircase` alone.
    pub one STEP: Setup;

    "step": time(US, MAX_DURATION_NS),
        "Time from the start until the third flow joins, and between later joins",
        |s| s.step_ns, |s, value| s.step_ns = value;
}

knobs! {
    /// For `coexist` alone.
    pub one CLASSES_KNOB: Setup;

    "classes": switch(),
        "on: RoCE in class 3 and TCP in class 0, equal DWRR weights, half of the buffer each, ECN and \
         DCQCN; off: all in one queue, without either",
        |s| s.classes.into(), |s, value| s.classes = value != 0;
}

knobs! {
    /// A group of RoCE flows.
    pub ROCE_KNOBS: GroupSetup;

    "flows": count(1, MAX_FLOWS as u64),
        "Number of RoCE flows (queue pairs)",
        |r| r.group.flows.into(), |r, value| r.group.flows = value as u32;

    "flows-per-sender": count(1, MAX_FLOWS as u64),
        "Flows per sender, which share its link",
        |r| r.group.flows_per_sender.into(), |r, value| r.group.flows_per_sender = value as u32;

    "size": size(0, MAX_MESSAGE_BYTES),
        "Data of each flow: one message of this length, or `bulk` for endless data",
        |r| r.size_bytes, |r, value| r.size_bytes = value;

    "block": size(0, MAX_MESSAGE_BYTES),
        "Closed loop of blocks of this length, instead of `size`: each completion requests the next; 0: off",
        |r| r.block_bytes, |r, value| r.block_bytes = value;

    "outstanding": count(1, 65_536),
        "Outstanding blocks of each flow",
        |r| r.outstanding.into(), |r, value| r.outstanding = value as u32;

    "load": percent(1_000, 2_000_000),
        "With `flow-sizes`: total offered payload, as a share of the link",
        |r| r.load_ppm, |r, value| r.load_ppm = value;

    "start": time(0, MAX_DURATION_NS),
        "Start time",
        |r| r.group.start_ns, |r, value| r.group.start_ns = value;

    "jitter": time(0, MAX_DURATION_NS),
        "Maximum random delay of each start",
        |r| r.group.start_jitter_ns, |r, value| r.group.start_jitter_ns = value;

    "stop": time(0, MAX_DURATION_NS),
        "Stop time; 0: never",
        |r| r.group.stop_ns.unwrap_or(0), |r, value| r.group.stop_ns = (value != 0).then_some(value);

    "mtu": size(64, 9_000),
        "Payload of a full RoCE packet",
        |r| r.group.transport.payload_bytes.into(), |r, value| r.group.transport.payload_bytes = value as u32;

    "header": size(0, 256),
        "Overhead of a RoCE frame, from Ethernet to FCS; 0: packets of the fluid model",
        |r| r.group.transport.header_bytes.into(), |r, value| r.group.transport.header_bytes = value as u32;

    "ack-every": count(1, 1_000_000),
        "Packets of a flow per acknowledgement",
        |r| r.group.transport.ack_every.into(), |r, value| r.group.transport.ack_every = value as u32;

    "timeout": time(US, MAX_DURATION_NS),
        "Retransmission timeout of a RoCE flow",
        |r| r.group.transport.timeout_ns, |r, value| r.group.transport.timeout_ns = value;
}

knobs! {
    /// A class, in the groups of a file only.
    pub(in crate::presets) one GROUP_CLASS: GroupSetup;

    "class": count(0, CLASSES as u64 - 1),
        "Class (queue), 0 to 7; `wred.CLASS` marks it",
        |r| r.group.class.into(), |r, value| r.group.class = value as u8;
}

/// Settings of RoCE flows that TCP flows have too.
pub(in crate::presets) const SHARED: [&str; 3] = ["flows", "start", "stop"];

knobs! {
    /// Further settings of TCP flows, in the groups of a file only.
    pub(in crate::presets) TCP_KNOBS: GroupSetup;

    "law": choice("LAW", LAWS),
        "Congestion control: cubic or dctcp",
        law, set_law;

    "ecn": switch(),
        "Whether cubic sends ECN-capable packets",
        |t| t.group.transport.tcp.is_some_and(|tcp| tcp.ecn).into(),
        |t, value| change_tcp(t, |tcp| tcp.ecn = value != 0);

    "mss": size(64, 9_000),
        "Payload of a segment",
        |t| t.group.transport.payload_bytes.into(), |t, value| t.group.transport.payload_bytes = value as u32;

    "window": size(10_000, MAX_BUFFER_BYTES),
        "Receive window",
        |t| t.group.transport.tcp.map_or(0, |tcp| tcp.max_window_bytes),
        |t, value| change_tcp(t, |tcp| tcp.max_window_bytes = value);

    "min-rto": time(10 * US, 60_000 * MS),
        "Minimum retransmission timeout",
        |t| t.group.transport.timeout_ns, |t, value| t.group.transport.timeout_ns = value;
}

/// Short names of parameters of RoCE's class.
pub const SHORTHANDS: [(&str, &str, &str, &str); 3] = [
    ("kmin", "wred.3.kmin", "SIZE", "Queue depth above which RoCE packets are marked"),
    ("kmax", "wred.3.kmax", "SIZE", "Queue depth above which all RoCE packets are marked"),
    ("pmax", "wred.3.pmax", "PERCENT", "Marking probability at kmax"),
];

fn set_delays(setup: &mut Setup, link_ns: u64) {
    (setup.star.sender_delay_ns, setup.star.receiver_delay_ns) = (link_ns, link_ns);
}

fn change_tcp(setup: &mut GroupSetup, change: impl FnOnce(&mut TcpRules)) {
    if let Some(tcp) = &mut setup.group.transport.tcp {
        change(tcp);
    }
}

fn law(setup: &GroupSetup) -> u64 {
    setup.group.transport.tcp.is_some_and(|tcp| tcp.law == TcpLaw::Dctcp).into()
}

fn set_law(setup: &mut GroupSetup, value: u64) {
    let law = if value == 0 { TcpLaw::Cubic } else { TcpLaw::Dctcp };
    change_tcp(setup, |tcp| (tcp.law, tcp.ecn) = (law, value != 0));
}

knobs! {
    /// A queue of the port in a file: `weight` 0 is strict.
    pub(in crate::presets) CLASS_KNOBS: Class;

    "weight": count(0, 1_000),
        "DWRR weight; 0: strict priority",
        |class| if let Schedule::Dwrr(weight) = class.schedule { weight.into() } else { 0 },
        |class, value| class.schedule = if value == 0 { Schedule::Strict } else { Schedule::Dwrr(value as u32) };

    "limit": size(0, MAX_BUFFER_BYTES),
        "Maximum queue; 0: only the buffer limits it",
        |class| class.limit_bytes.unwrap_or(0),
        |class, value| class.limit_bytes = (value != 0).then_some(value);

    "xoff": size(0, MAX_BUFFER_BYTES),
        "PFC: depth above which senders pause, and below 4/5 of which they resume; 0: no PFC",
        |class| class.pfc.map_or(0, |pfc| pfc.xoff_bytes),
        |class, value| class.pfc = (value != 0).then_some(QueuePfc { xoff_bytes: value, xon_bytes: value / 5 * 4 });
}
