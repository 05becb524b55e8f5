//! Numeric settings of a simulation: the source of flags, file keys, sweeps and help.

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{MAX_RATE_BPS, MIN_RATE_BPS, Quantity, Unit};
use dcqcn_params::Assignment;
use dcqcn_params::quantity::{self, in_range};

use super::{GroupSetup, Setup};
use crate::SetupError;
use crate::network::workload::MAX_FLOW_BYTES;
use crate::network::{MAX_DELAY_NS, MAX_FRAME_BYTES, Marking, QueuePfc, Schedule, TcpLaw};
use crate::star::{Class, MAX_BUFFER_BYTES, MAX_DURATION_NS, MAX_FLOWS};

const US: u64 = 1_000;
const MARKINGS: &[&str] = &["ingress", "egress"];
/// Endless data, as a size.
const BULK: &str = "bulk";
const LAWS: &[&str] = &["cubic", "dctcp"];

/// A numeric setting of a `T`, with its description.
#[derive(Debug)]
pub struct Knob<T: 'static> {
    /// Name, with dashes.
    pub key: &'static str,
    /// Name of its value in a usage line.
    pub value: &'static str,
    pub unit: Unit,
    pub min: u64,
    pub max: u64,
    pub doc: &'static str,
    pub get: fn(&T) -> u64,
    pub set: fn(&mut T, u64),
}

impl<T> Knob<T> {
    pub(in crate::presets) fn read(&self, target: &mut T, text: &str) -> Result<(), SetupError> {
        let key = self.key;
        let number = if text == BULK && key == "size" { "0" } else { text };
        let value =
            quantity::parse(number, self.unit).map_err(|source| SetupError::Quantity { key, source })?;
        // 0 is the value of `bulk`.
        let min = if key == "size" && text != BULK { 1 } else { self.min };
        in_range(key, value, min..=self.max, self.unit)?;
        (self.set)(target, value);
        Ok(())
    }

    /// Value in `target`, formatted for people.
    pub fn text(&self, target: &T) -> String {
        match (self.get)(target) {
            0 if self.key == "size" => BULK.to_owned(),
            value if self.unit == Unit::Switch => (if value == 0 { "off" } else { "on" }).to_owned(),
            value => Quantity(value, self.unit).to_string(),
        }
    }

    pub(crate) fn json_key(&self) -> String {
        let unit = match self.unit {
            Unit::Bytes => "_bytes",
            Unit::BitsPerSecond => "_bps",
            Unit::Nanoseconds => "_ns",
            Unit::PartsPerMillion => "_ppm",
            Unit::Count | Unit::OneOf(_) | Unit::Switch | Unit::Choice(_) => "",
        };
        format!("{}{unit}", self.key.replace('-', "_"))
    }
}

pub type Requirement = (String, String);

/// Prefixes of the parameters of the rate machine and of CNPs.
const OF_DCQCN: [&str; 11] = [
    "rpg_",
    "rp_",
    "np_",
    "dce_tcp_",
    "clamp_tgt_",
    "rate_",
    "initial_alpha",
    "alpha_bits",
    "min_time_between_cnps",
    "cnp_limit",
    "pacing_",
];
/// Parameters in `changes` without effect: those of DCQCN and of the tail-loss probe if they need a setting,
/// and WRED of classes without ECN-capable flows.
pub(crate) fn parameters_without_effect<'a>(
    changes: &'a [Assignment],
    of_dcqcn: Option<&'a str>,
    probe: Option<&'a str>,
    classes: &'a [u8],
) -> impl Iterator<Item = Requirement> + 'a {
    changes.iter().filter_map(move |change| {
        let key = change.key.to_string();
        let needs = if let Some(rest) = key.strip_prefix("wred.") {
            let class = rest.split('.').next().and_then(|class| class.parse().ok())?;
            (!classes.contains(&class)).then(|| format!("ECN-capable flows in class {class}"))
        } else if key.starts_with("tail_loss_probe") {
            probe.map(str::to_owned)
        } else if OF_DCQCN.iter().any(|prefix| key.starts_with(prefix)) {
            of_dcqcn.map(str::to_owned)
        } else {
            None
        };
        needs.map(|needs| (key, needs))
    })
}

/// Rejects a flag or parameter without effect in all runs of a sweep.
pub(crate) fn refuse_without_effect(
    mut runs: impl Iterator<Item = Vec<Requirement>>,
) -> Result<(), SetupError> {
    let first = runs.next().unwrap_or_default();
    let everywhere = runs.fold(first, |mut common, run| {
        common.retain(|ineffective| run.contains(ineffective));
        common
    });
    everywhere.first().map_or(Ok(()), refuse)
}

/// Always fails.
pub(crate) fn refuse<T>(requirement: &Requirement) -> Result<T, SetupError> {
    Err(SetupError::Requires(requirement.clone()))
}

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

/// A table of knobs, or `one`: a row has name, unit and range, and meaning, with a field, or a getter and a setter.
macro_rules! knobs {
    ($(#[$doc:meta])* $vis:vis one $name:ident: $of:ty; $key:literal: $($row:tt)*) => {
        $(#[$doc])*
        $vis const $name: Knob<$of> = knobs!(@row $key: $($row)*);
    };
    ($(#[$doc:meta])* $vis:vis $name:ident: $of:ty; $($key:literal: $form:expr, $([$($field:tt)+],)? $what:literal $(, $get:expr, $set:expr)?;)+) => {
        $(#[$doc])*
        $vis const $name: &[Knob<$of>] =
            &[$(knobs!(@row $key: $form, $([$($field)+],)? $what $(, $get, $set)?;)),+];
    };
    (@row $key:literal: $form:expr, [$($field:tt)+], $what:literal;) => {
        knobs!(@row $key: $form, $what, |of| of.$($field)+.get(), |of, value| of.$($field)+.set(value);)
    };
    (@row $key:literal: $form:expr, $what:literal, $get:expr, $set:expr;) => {{
        const FORM: Form = $form;
        let Form { value, unit, min, max } = FORM;
        Knob { key: $key, value, unit, min, max, doc: $what, get: $get, set: $set }
    }};
}

/// A field that a knob reads and sets; its range fits.
trait Field {
    fn get(&self) -> u64;
    fn set(&mut self, value: u64);
}

macro_rules! fields {
    ($($type:ty: |$own:ident| $get:expr, |$value:ident| $set:expr;)+) => {
        $(impl Field for $type {
            fn get(&self) -> u64 {
                let $own = *self;
                $get
            }

            fn set(&mut self, $value: u64) {
                *self = $set;
            }
        })+
    };
}

fields! {
    u64: |own| own, |value| value;
    u32: |own| own.into(), |value| value as Self;
    u8: |own| own.into(), |value| value as Self;
    bool: |own| own.into(), |value| value != 0;
    // 0: none.
    Option<u64>: |own| own.unwrap_or(0), |value| (value != 0).then_some(value);
    Marking: |own| (own == Self::Dequeue).into(), |value| if value == 0 { Self::Enqueue } else { Self::Dequeue };
    // 0: strict.
    Schedule: |own| if let Self::Dwrr(weight) = own { weight.into() } else { 0 },
        |value| if value == 0 { Self::Strict } else { Self::Dwrr(value as u32) };
}

knobs! {
    /// Network, time and seed.
    pub KNOBS: Setup;
    "link": rate(MIN_RATE_BPS, MAX_RATE_BPS), [star.port_rate_bps],
        "Rate of the bottleneck port";
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
    "buffer": size(MAX_FRAME_BYTES as u64, MAX_BUFFER_BYTES), [star.buffer_bytes],
        "Buffer of the bottleneck port";
    "duration": time(10 * US, MAX_DURATION_NS),
        "Time to simulate; with `size` a maximum, as the simulation ends when all messages are complete",
        Setup::duration_ns, |s, value| s.duration_ns = Some(value);
    "warm-up": time(0, MAX_DURATION_NS),
        "Warm-up excluded from statistics [default: a third of the duration; with `size`, none]",
        Setup::warm_up_ns, |s, value| s.warm_up_ns = Some(value);
    "sample": time(US, MAX_DURATION_NS),
        "Sampling interval of time series [default: duration / 2000; with `size`, 1/1000 of the time \
         that the port needs for all data; at least its time of 32 packets]",
        Setup::sample_ns, |s, value| s.sample_ns = Some(value);
    "seed": count(0, u64::MAX), [star.seed],
        "Seed of random numbers; equal seeds give bit-identical results";
    "marking": choice("WHERE", MARKINGS), [star.marking],
        "When the queue depth for marking is sampled: on arrival (ingress) or on departure (egress)";
    "control": switch(), [star.control],
        "DCQCN: CNPs and rate control; off: RoCE sends at line rate";
    "pfc": switch(), [pfc],
        "PFC: the port pauses senders of RoCE's class instead of dropping packets";
    "xoff": size(0, MAX_BUFFER_BYTES), [xoff_bytes],
        "With PFC: depth above which senders pause";
    "xon": size(0, MAX_BUFFER_BYTES), [xon_bytes],
        "With PFC: depth at which paused senders resume";
    "tcp": count(0, MAX_FLOWS as u64), [tcp.group.flows],
        "Number of TCP flows alongside";
    "tcp-law": choice("LAW", LAWS),
        "Congestion control of TCP: cubic or dctcp",
        |s| law(&s.tcp), |s, value| set_law(&mut s.tcp, value);
}

knobs! {
    /// For `staircase` alone.
    pub one STEP: Setup;
    "step": time(US, MAX_DURATION_NS), [step_ns],
        "Time from the start until the third flow joins, and between later joins";
}

knobs! {
    /// For `coexist` alone.
    pub one CLASSES_KNOB: Setup;
    "classes": switch(), [classes],
        "on: RoCE in class 3 and TCP in class 0, equal DWRR weights, half of the buffer each, ECN and \
         DCQCN; off: all in one queue, without either";
}

knobs! {
    /// A group of RoCE flows.
    pub ROCE_KNOBS: GroupSetup;
    "flows": count(1, MAX_FLOWS as u64), [group.flows],
        "Number of RoCE flows (queue pairs)";
    "flows-per-sender": count(1, MAX_FLOWS as u64), [group.flows_per_sender],
        "Flows per sender, which share its link";
    "size": size(0, MAX_FLOW_BYTES), [size_bytes],
        "Data of each flow: one message of this length, or `bulk` for endless data";
    "block": size(0, MAX_FLOW_BYTES), [block_bytes],
        "Closed loop of blocks of this length, instead of `size`: each completion requests the next; 0: off";
    "outstanding": count(1, 65_536), [outstanding],
        "Outstanding blocks of each flow";
    "load": percent(1_000, 2_000_000), [load_ppm],
        "With `flow-sizes`: total offered payload, as a share of the link";
    "start": time(0, MAX_DURATION_NS), [group.start_ns],
        "Start time";
    "jitter": time(0, MAX_DURATION_NS), [group.start_jitter_ns],
        "Maximum random delay of each start";
    "stop": time(0, MAX_DURATION_NS), [group.stop_ns],
        "Stop time; 0: never";
    "mtu": size(64, 9_000), [group.transport.payload_bytes],
        "Payload of a full RoCE packet";
    "header": size(0, 256), [group.transport.header_bytes],
        "Overhead of a RoCE frame, from Ethernet to FCS; 0: packets of the fluid model";
    "ack-every": count(1, 1_000_000), [group.transport.ack_every],
        "Packets of a flow per acknowledgement";
    "timeout": time(US, MAX_DURATION_NS), [group.transport.timeout_ns],
        "Retransmission timeout of a RoCE flow";
}

knobs! {
    /// A class, in the groups of a file only.
    pub(in crate::presets) one GROUP_CLASS: GroupSetup;
    "class": count(0, CLASSES as u64 - 1), [group.class],
        "Class (queue), 0 to 7; `wred.CLASS` marks it";
}

/// Settings of RoCE flows that TCP flows have too.
pub(in crate::presets) const SHARED: [&str; 3] = ["flows", "start", "stop"];

knobs! {
    /// Further settings of TCP flows, in the groups of a file only.
    pub(in crate::presets) TCP_KNOBS: GroupSetup;
    "law": choice("LAW", LAWS),
        "Congestion control: cubic or dctcp",
        law, set_law;
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

fn law(setup: &GroupSetup) -> u64 {
    (setup.group.transport.tcp == Some(TcpLaw::Dctcp)).into()
}

fn set_law(setup: &mut GroupSetup, value: u64) {
    let law = if value == 0 { TcpLaw::Cubic } else { TcpLaw::Dctcp };
    setup.group.transport.tcp = setup.group.transport.tcp.map(|_| law);
}

knobs! {
    /// A queue of the port in a file: `weight` 0 is strict.
    pub(in crate::presets) CLASS_KNOBS: Class;
    "weight": count(0, 1_000), [schedule],
        "DWRR weight; 0: strict priority";
    "xoff": size(0, MAX_BUFFER_BYTES),
        "PFC: depth above which senders pause, and below 4/5 of which they resume; 0: no PFC",
        |class| class.pfc.map_or(0, |pfc| pfc.xoff_bytes),
        |class, value| class.pfc = (value != 0).then_some(QueuePfc { xoff_bytes: value, xon_bytes: value / 5 * 4 });
}
