//! Test vectors: packets in, configuration, queue depth and time; packets out and state. The same for every engine.
//!
//! A file of `tests/vectors/` is one [`Vector`]: a configuration, and a sequence of packets. The files are generated
//! from [`scenarios()`] by the reference engine (`DCQCN_WRITE_VECTORS=1 cargo test -p dcqcn-tests --test vectors`), and
//! are self-contained.

mod endpoints;
mod parts;
mod scenarios;
mod traces;
mod untrusted;
mod variants;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::Ipv6Addr;

use dcqcn_common::flow::{FlowId, RpFlow, RpSet};
use dcqcn_common::layout::{Backlog, ClassCounters, Counters, Pair};
use dcqcn_params::{Assignment, Settings};
use dcqcn_replay::{Engine, Kernel, Outcome, State, Verdict};

use crate::prelude::*;

pub use scenarios::scenarios;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    pub about: String,
    /// Changes to the defaults, in the syntax of `dcqcn set`.
    pub settings: Vec<String>,
    /// Whether departure times are enforced, as with `attach --pacer fq`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub paces: bool,
    /// Bytes of a packet where queues are counted in packets. All thresholds are multiples of it.
    pub packet_bytes: u64,
    pub pairs: Vec<Other>,
    /// The packets, in order.
    pub steps: Vec<Step>,
    /// Counters of the traffic classes after the last, by class: packets, bytes, ECT packets, marked packets.
    pub classes: BTreeMap<usize, [u64; 4]>,
}

/// A pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Other {
    /// Address; an IPv4 one mapped.
    pub addr: Ipv6Addr,
    pub qpn: u32,
    pub other_qpn: u32,
}

/// A packet that enters a hook, with its results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// `xdp`, `ingress`, `egress`.
    pub hook: String,
    pub now_us: u64,
    /// At `egress`: it arrived by another port, and was not sent by the host itself.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_forwarded: bool,
    /// Packets in front of it in its queue.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub depth_packets: u64,
    /// Bytes of the packet, in hexadecimal.
    pub packet: String,
    /// Output: the packet itself by default.
    #[serde(default, skip_serializing_if = "Output::is_same")]
    pub out: Output,
    /// The CNP emitted with it, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cnp: Option<String>,
    /// Departure, if delayed; nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub departure_ns: u64,
    pub counters: BTreeMap<String, u64>,
    /// The packet's flow at the reaction point, after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<Flow>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    #[default]
    Same,
    Dropped,
    /// These bytes, in hexadecimal.
    Changed(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// The receiver's address; an IPv4 one mapped.
    pub addr: Ipv6Addr,
    /// The receiver's QPN.
    pub qpn: u32,
    pub rate_bps: u64,
    pub target_bps: u64,
    /// Alpha at the last CNP, or at the start of the period before it, in 2^-31.
    pub alpha_at_epoch_q31: u32,
    /// Events of the increase timer since the last cut.
    pub time_stage: u32,
    pub byte_stage: u32,
    /// Bytes since the byte counter's last event.
    pub bytes: u64,
    /// An instant of the decrease check, nanoseconds; `firmware` only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cut_check_ns: u64,
    /// Pending effects of the last CNP: bits for alpha (1) and the cut (2); `firmware` only.
    #[serde(default, skip_serializing_if = "is_none")]
    pub pending: u16,
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn is_none(bits: &u16) -> bool {
    *bits == 0
}

impl Output {
    fn is_same(&self) -> bool {
        *self == Self::Same
    }
}

impl Vector {
    pub fn config(&self) -> Result<Config> {
        let changes = self.settings.iter().map(|setting| setting.parse::<Assignment>());
        let settings = Settings { changes: changes.collect::<Result<_, _>>()?, ..Settings::default() };
        let mut config = settings.config(None)?;
        if self.paces {
            config.scalars.pacer = PACER_FQ;
        }
        Ok(config)
    }

    /// Runs the vector through an engine with its configuration, and returns the differences.
    pub fn differences(&self, engine: &mut dyn Engine) -> Result<Vec<String>> {
        let observed = self.observe(engine)?;
        let steps = self.steps.iter().zip(&observed.steps).enumerate();
        let mut differences: Vec<String> = steps
            .filter(|(_, (expected, observed))| expected != observed)
            .map(|(n, (expected, observed))| {
                format!("step {n}: expected {expected:?}\n  observed {observed:?}")
            })
            .collect();
        if self.classes != observed.classes {
            differences
                .push(format!("classes: expected {:?}, observed {:?}", self.classes, observed.classes));
        }
        Ok(differences)
    }

    /// As [`Self::differences`], of the programs in the kernel. Needs root.
    pub fn kernel_differences(&self) -> Result<Vec<String>> {
        const SIZES: Sizes = Sizes { rp_flows: 1_024, np_flows: 1_024 };
        let port = Port::new(1, SIZES.rp_sets(), SIZES.np_sets());
        self.differences(&mut Kernel::new(SIZES, &Params::new(&self.config()?, port)?, 1)?)
    }

    pub fn observe(&self, engine: &mut dyn Engine) -> Result<Self> {
        let mut observed = self.clone();
        for Other { addr, qpn, other_qpn } in &self.pairs {
            let pair = Pair::new(*other_qpn, PairSource::Static);
            engine.set_pair(&qp_id(*addr, *qpn), &pair)?;
        }
        let reacts = self.config()?.scalars.rp_enable != 0;
        let mut before = engine.counters()?;
        let mut sent = HashMap::new();
        for (n, step) in observed.steps.iter_mut().enumerate() {
            step.observe(engine, self.packet_bytes, &mut before).with_context(|| format!("step {n}"))?;
            // Read only where needed, as it is slow in some engines.
            step.flow = if reacts { flow(&engine.state()?, &mut sent, step.now_us * 1_000) } else { None };
        }
        observed.classes = classes(&before);
        Ok(observed)
    }
}

impl Step {
    fn observe(
        &mut self,
        engine: &mut dyn Engine,
        packet_bytes: u64,
        before: &mut [Counters; 3],
    ) -> Result<()> {
        let hook = match self.hook.as_str() {
            "xdp" => Hook::Xdp,
            "ingress" => Hook::Ingress,
            "egress" => Hook::Egress,
            other => bail!("unknown hook `{other}`"),
        };
        let now_ns = self.now_us * 1_000;
        let backlog = Backlog { bytes: self.depth_packets * packet_bytes, read_at_ns: now_ns };
        for queue in 0..8 {
            engine.set_backlog(queue, &backlog)?;
        }
        let packet = bytes(&self.packet)?;
        let is_ingress = hook != Hook::Egress || self.is_forwarded;
        let meta = Meta { ingress_ifindex: u32::from(is_ingress), ..Meta::default() };
        let Outcome { verdict, packet: left, departure_ns, emitted, .. } =
            engine.process(hook, now_ns, &packet, &meta)?;
        self.departure_ns = departure_ns;
        self.out = match verdict {
            Verdict::Drop => Output::Dropped,
            _ if left == packet => Output::Same,
            _ => Output::Changed(hex(&left)),
        };
        ensure!(emitted.len() <= 1, "{} further packets", emitted.len());
        self.cnp = emitted.first().map(|cnp| hex(&cnp.packet));
        let after = engine.counters()?;
        self.counters = Stat::ALL
            .iter()
            .map(|&stat| (stat.label().to_owned(), total(&after, stat) - total(before, stat)))
            .filter(|(_, counted)| *counted != 0)
            .collect();
        *before = after;
        Ok(())
    }
}

/// The flow that has sent more data than in `sent`, which is then updated, or was cut at this time.
fn flow(state: &State, sent: &mut HashMap<FlowId, u64>, now_ns: u64) -> Option<Flow> {
    let flows = || state.rp.iter().flat_map(RpSet::flows).map(|(_, flow)| flow);
    let has_sent = |flow: &RpFlow| sent.get(&flow.id) != Some(&flow.hot.packets);
    let touched = flows().find(|flow| has_sent(flow) || flow.cnps.last_ns == now_ns && now_ns != 0);
    *sent = flows().map(|flow| (flow.id, flow.hot.packets)).collect();
    let flow = touched?;
    let receiver = flow.id.receiver;
    let words = receiver.addr.map(u32::to_ne_bytes).concat();
    let addr = <[u8; 16]>::try_from(words.as_slice()).ok()?;
    Some(Flow {
        addr: addr.into(),
        qpn: receiver.qpn,
        rate_bps: flow.hot.machine.rate_bps,
        target_bps: flow.hot.machine.target_bps,
        alpha_at_epoch_q31: flow.hot.machine.alpha_at_epoch_q31,
        time_stage: flow.hot.machine.time_stage,
        byte_stage: flow.hot.machine.byte_stage,
        bytes: flow.hot.machine.bytes,
        cut_check_ns: flow.hot.machine.cut_check_ns,
        pending: flow.hot.machine.pending,
    })
}

fn total(counters: &[Counters; 3], stat: Stat) -> u64 {
    counters.iter().map(|hook| hook.stat[stat as usize]).sum()
}

fn classes(counters: &[Counters; 3]) -> BTreeMap<usize, [u64; 4]> {
    let mut classes = BTreeMap::new();
    for hook in counters {
        for (tc, class) in hook.class.iter().enumerate() {
            let ClassCounters { packets, bytes, ect_packets, ecn_marked_packets } = *class;
            if packets != 0 {
                classes.insert(tc, [packets, bytes, ect_packets, ecn_marked_packets]);
            }
        }
    }
    classes
}

fn qp_id(addr: Ipv6Addr, qpn: u32) -> QpId {
    QpId { addr: dcqcn_common::classify::words(addr.octets()), qpn, vlan: 0 }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    ensure!(hex.len().is_multiple_of(2), "an odd number of digits");
    let digits = |at| hex.get(at..at + 2).with_context(|| format!("no digits at {at}"));
    (0..hex.len()).step_by(2).map(|at| Ok(u8::from_str_radix(digits(at)?, 16)?)).collect()
}

impl Vector {
    /// Contents of the file, a step per line.
    pub fn file(&self) -> Result<String> {
        let mut text = String::from("{\n");
        let Self { about, settings, paces, packet_bytes, pairs, steps, classes } = self;
        writeln!(text, "\"about\": {},", serde_json::to_string(about)?)?;
        writeln!(text, "\"settings\": {},", serde_json::to_string(settings)?)?;
        if *paces {
            writeln!(text, "\"paces\": true,")?;
        }
        writeln!(text, "\"packet_bytes\": {packet_bytes},")?;
        writeln!(text, "\"pairs\": {},", serde_json::to_string(pairs)?)?;
        let steps = steps.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        writeln!(text, "\"steps\": [\n{}\n],", steps.join(",\n"))?;
        writeln!(text, "\"classes\": {}\n}}", serde_json::to_string(classes)?)?;
        Ok(text)
    }
}

/// Path of the file of a vector.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors").join(name).with_extension("json")
}

/// A vector as stored on disk.
pub fn load(name: &str) -> Result<Vector> {
    read(&path(name))
}

pub fn read(path: &Path) -> Result<Vector> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}", path.display()))
}
