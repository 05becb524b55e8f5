//! `dcqcn-lab replay`: a capture through any engine.
//!
//! Time is the capture's, shifted so that the first packet arrives at `BASE_NS`. Every packet enters the same hook
//! alone, as if it arrived on interface 1, with initially empty tables. Packets that the hook emits pass the egress
//! hook.

mod capture;
mod line;
mod pcapng;
mod summary;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::iter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dcqcn_common::classify::Roce;
use dcqcn_common::flow::{FlowId, QpId, set_index};
use dcqcn_common::hooks::np_flow_id;
use dcqcn_common::params::{Config, Invalid, PACER_FQ, Params, Port};
use dcqcn_common::wire::bth::{Bth, Class};
use dcqcn_common::wire::cnp;
use dcqcn_common::wire::ext::Deth;
use dcqcn_loader::dataplane::Sizes;
use dcqcn_p4::switch::DEFAULT_PACKET_BYTES;
use dcqcn_support::JSON_VERSION;
use dcqcn_support::file::Replacement;
use dcqcn_telemetry::{FlowRow, NpFlowRow};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, PcapError, PcapResult, TsResolution};
use serde::Serialize;

use crate::{Bmv2, Engine, Hook, Kernel, MAX_PACKET, Meta, Outcome, P4, Reference, Verdict, classify, is_ce};
pub use capture::{Capture, CaptureError, Captured};
use line::{EmittedPacket, Flow, Line, PacketResult};
pub use summary::Summary;

/// Time of the first packet, in the time of the run, ns: enough for captures with unordered packets.
pub(crate) const BASE_NS: u64 = 1_000_000_000;
/// A packet that is earlier than the one before it by more was captured after the clock was set back.
const MAX_REORDERING_NS: i128 = 1_000_000_000;
/// Default link rate: the paper's, 40 Gbit/s. A capture does not contain it.
pub const DEFAULT_LINK_RATE_BPS: u64 = 40_000_000_000;
/// Interface of a replay: the loopback has this index in every network namespace.
const IFINDEX: u32 = 1;

/// Engine that runs the hooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// The library, in this process.
    #[default]
    Reference,
    /// The eBPF object, in the running kernel.
    Kernel,
    /// The compiled P4 program, in this process.
    P4,
    /// The P4 program, in `simple_switch`.
    Bmv2,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// A pcap or pcapng file.
    pub input: PathBuf,
    pub hook: Hook,
    pub engine: EngineKind,
    /// Parameters; `None` = [`default_config`]. Without `link_rate`, [`DEFAULT_LINK_RATE_BPS`] is used.
    pub config: Option<Config>,
    pub seed: u64,
    /// A pcap file for the packets as they leave.
    pub out: Option<PathBuf>,
    /// End the output with the summary as a line of JSON.
    pub summary_line: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(transparent)]
    Config(#[from] Invalid),
    #[error(transparent)]
    Engine(#[from] crate::Error),
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    #[error("cannot write {}: {reason}", path.display())]
    Out { path: PathBuf, reason: String },
}

/// Default configuration: each hook does everything it can. Egress marks and paces (`fq`), ingress processes CNPs and
/// answers marks.
pub fn default_config() -> Config {
    let mut config = Config::DEFAULT;
    config.scalars.cp_enable = 1;
    config.scalars.pacer = PACER_FQ;
    config.scalars.link_rate_bps = DEFAULT_LINK_RATE_BPS;
    config
}

/// Replays a capture, and writes one line of JSON per packet to `output`.
///
/// A damaged capture is replayed up to the damage; the summary reports where it ended. Packets that were captured with
/// their headers only are padded with zeros.
///
/// # Errors
/// The capture cannot be read at all, the parameters are invalid, the engine does not start, or an output cannot be
/// written.
pub fn run(options: &Options, output: &mut impl Write) -> Result<Summary, Error> {
    let mut config = options.config.unwrap_or_else(default_config);
    if config.scalars.link_rate_bps == 0 {
        config.scalars.link_rate_bps = DEFAULT_LINK_RATE_BPS;
    }
    let sizes = Sizes::default();
    let params = Params::new(&config, Port::new(IFINDEX, sizes.rp_sets(), sizes.np_sets()))?;
    let capture = Capture::open(&options.input)?;
    // The sequence of seed 0 is constant.
    let seed = if options.seed == 0 { u64::MAX } else { options.seed };
    let mut engine: Box<dyn Engine> = match options.engine {
        EngineKind::Reference => Box::new(Reference::new(sizes, &params, seed)),
        EngineKind::Kernel => Box::new(Kernel::new(sizes, &params, seed)?),
        EngineKind::P4 => Box::new(P4::new(&params, DEFAULT_PACKET_BYTES.into(), seed)?),
        EngineKind::Bmv2 => Box::new(Bmv2::new(&params, DEFAULT_PACKET_BYTES.into())?),
    };
    replay(options, capture, &params, engine.as_mut(), output)
}

/// Time of the replay, which never moves backwards.
struct Clock {
    /// Time of the first packet.
    epoch_ns: u64,
    /// Correction for steps of the capture's clock.
    shift_ns: i128,
    now_ns: u64,
    steps: u64,
    /// Packets with an earlier time than one before them, without the steps.
    late: u64,
}

impl Clock {
    const fn new(epoch_ns: u64) -> Self {
        Self { epoch_ns, shift_ns: 0, now_ns: BASE_NS, steps: 0, late: 0 }
    }

    /// The time of a packet that was captured at `time_ns`. Packets that several CPUs captured may be
    /// slightly out of order.
    fn advance(&mut self, time_ns: u64) -> u64 {
        let at_ns = i128::from(BASE_NS) + i128::from(time_ns) - i128::from(self.epoch_ns) + self.shift_ns;
        let behind_ns = i128::from(self.now_ns) - at_ns;
        if behind_ns > MAX_REORDERING_NS {
            self.shift_ns += behind_ns;
            self.steps += 1;
        } else if behind_ns > 0 {
            self.late += 1;
        }
        let at_ns = u64::try_from(at_ns).unwrap_or(if at_ns < 0 { 0 } else { u64::MAX });
        self.now_ns = self.now_ns.max(at_ns);
        self.now_ns
    }
}

fn replay(
    options: &Options,
    mut capture: Capture,
    params: &Params,
    engine: &mut dyn Engine,
    output: &mut impl Write,
) -> Result<Summary, Error> {
    let hook = options.hook;
    let mut summary = Summary::new(options.engine, hook);
    let mut departures = match &options.out {
        Some(path) => Some((Departures::create(path).map_err(out_error(path))?, path)),
        None => None,
    };
    let (mut clock, mut unsupported) = (None, None);
    while let Some(packet) = capture.next_packet() {
        let packet = match packet {
            Err(error @ CaptureError::Damaged { .. }) if summary.packets != 0 => {
                summary.damaged = Some(error.to_string());
                break;
            }
            // A pcapng file may have interfaces of several link types.
            Err(error @ CaptureError::LinkType { .. }) => {
                summary.packets += 1;
                summary.not_run += 1;
                unsupported.get_or_insert(error);
                continue;
            }
            packet => packet?,
        };
        let clock = clock.get_or_insert_with(|| Clock::new(packet.time_ns));
        let now_ns = clock.advance(packet.time_ns);
        let epoch_ns = clock.epoch_ns;
        (summary.clock_steps, summary.late, summary.untimed) = (clock.steps, clock.late, capture.untimed);

        let data = padded(&packet);
        let (outcome, line) = process(engine, params, hook, (summary.packets, now_ns), &packet, &data)?;
        summary.count(&outcome, line.marked, now_ns);
        summary.count_truncated(&packet, &data);
        summary.duration_ns = summary.duration_ns.max(now_ns.saturating_sub(BASE_NS));
        if let Some((departures, path)) = &mut departures {
            let since_1970 = |run_ns: u64| epoch_ns.saturating_add(run_ns).saturating_sub(BASE_NS);
            let cut_off = packet.length.saturating_sub(data.len() as u32);
            // A padded packet is written without its padding, which the hook may have trimmed.
            let captured = if matches!(data, Cow::Owned(_)) { packet.data.len() } else { usize::MAX };
            let emitted = outcome.emitted.iter().map(|sent| (sent, usize::MAX, 0));
            for (outcome, captured, cut_off) in iter::once((&outcome, captured, cut_off)).chain(emitted) {
                if outcome.verdict != Verdict::Drop {
                    let (captured, padding) = outcome.packet.split_at(captured.min(outcome.packet.len()));
                    let cut_off = cut_off + padding.len() as u32;
                    departures.push(since_1970(outcome.departure_ns.max(now_ns)), captured, cut_off);
                }
            }
            departures.flush_until(since_1970(now_ns)).map_err(out_error(path))?;
        }
        write_line(output, &line)?;
    }
    if let Some(error) = unsupported.filter(|_| clock.is_none()) {
        return Err(error.into());
    }
    if let Some((departures, path)) = departures {
        departures.finish().map_err(out_error(path))?;
    }
    summary.set_counters(&engine.counters()?);
    if options.summary_line {
        write_line(output, &summary)?;
    }
    output.flush()?;
    Ok(summary)
}

fn write_line(output: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    output.write_all(&line)
}

fn out_error(path: &Path) -> impl FnOnce(PcapError) -> Error {
    move |error| {
        let reason = match error {
            PcapError::IoError(source) => source.to_string(),
            other => other.to_string(),
        };
        Error::Out { path: path.to_owned(), reason }
    }
}

/// A packet of which the headers were captured, padded with zeros to its length: a switch would not have trimmed it.
/// Other packets are unchanged.
fn padded(packet: &Captured) -> Cow<'_, [u8]> {
    let (captured, length) = (packet.data.len(), packet.length as usize);
    if captured < length && length <= MAX_PACKET {
        let mut data = packet.data.clone();
        data.resize(length, 0);
        let headers_end =
            |roce: &Roce| roce.bth() + Bth::LEN + if roce.class == Class::Datagram { Deth::LEN } else { 0 };
        if classify(&data).is_ok_and(|roce| headers_end(&roce) <= captured) {
            return Cow::Owned(data);
        }
    }
    Cow::Borrowed(&packet.data)
}

/// Runs the hook on a packet: its result, and its line of the output with the table state before and after.
fn process(
    engine: &mut dyn Engine,
    params: &Params,
    hook: Hook,
    (index, now_ns): (u64, u64),
    packet: &Captured,
    data: &[u8],
) -> Result<(Outcome, Line), crate::Error> {
    let roce = classify(data).ok();
    let depth_before_bytes = depth(engine, params, hook, roce.as_ref(), now_ns)?;
    let meta = Meta { ingress_ifindex: IFINDEX, ..Meta::default() };
    let outcome = engine.process(hook, now_ns, data, &meta)?;
    let (parse, left_alone) = line::parse(data, params);
    let line = Line {
        json_version: JSON_VERSION,
        index,
        time_ns: now_ns,
        length: packet.length,
        captured_length: packet.data.len(),
        parse,
        left_alone,
        hook,
        left: PacketResult::new(&outcome),
        marked: is_ce(&outcome.packet) && !is_ce(data),
        depth_before_bytes,
        depth_after_bytes: depth(engine, params, hook, roce.as_ref(), now_ns)?,
        flow: match &roce {
            Some(roce) => flow(engine, params, hook, &data, roce, now_ns)?,
            None => None,
        },
        emitted: outcome.emitted.iter().map(|sent| EmittedPacket::new(sent, params)).collect(),
    };
    Ok((outcome, line))
}

/// Bytes in the virtual queue of a packet's class, where the congestion point runs: at egress.
fn depth(
    engine: &dyn Engine,
    params: &Params,
    hook: Hook,
    roce: Option<&Roce>,
    now_ns: u64,
) -> Result<Option<u64>, crate::Error> {
    let Some(roce) = roce.filter(|_| hook == Hook::Egress && params.config.scalars.cp_enable != 0) else {
        return Ok(None);
    };
    let Some((&tc, drain)) = params
        .config
        .dscp_to_tc
        .get(roce.dscp())
        .and_then(|tc| Some((tc, params.drain.get(usize::from(*tc))?)))
    else {
        return Ok(None);
    };
    Ok(Some(drain.depth_bytes(engine.queue(u32::from(tc))?, now_ns)))
}

/// The flow whose state the hook uses for a packet.
fn flow(
    engine: &dyn Engine,
    params: &Params,
    hook: Hook,
    frame: &&[u8],
    roce: &Roce,
    now_ns: u64,
) -> Result<Option<Flow>, crate::Error> {
    let scalars = &params.config.scalars;
    let rp = match hook {
        Hook::Egress if roce.is_sequenced() => roce.flow(frame),
        Hook::Ingress if roce.is_cnp() => flow_of_cnp(engine, frame, roce)?,
        Hook::Ingress if roce.congests() && roce.ecn().is_ce() => {
            let Some(id) = np_flow_id(frame, scalars.cnp_limit, roce) else { return Ok(None) };
            let hash = id.hash(&params.port.hash_keys);
            let mut set = engine.np_set(set_index(hash, params.port.np_set_mask))?;
            let selection = set.find(&id, hash);
            let flow = set.ways.get(selection.way).filter(|_| !selection.missing);
            return Ok(flow.map(|flow| Flow::Np(NpFlowRow::new(flow, now_ns))));
        }
        _ => None,
    };
    let Some(id) = rp else { return Ok(None) };
    let set = engine.rp_set(id.rp_set_index(&params.port.hash_keys, params.port.rp_set_mask))?;
    Ok(set.find(&id).map(|flow| Flow::Rp(FlowRow::new(&flow, &params.rp, now_ns))))
}

fn flow_of_cnp(engine: &dyn Engine, frame: &&[u8], roce: &Roce) -> Result<Option<FlowId>, crate::Error> {
    use dcqcn_common::classify::Frame as _;
    let cnp = if roce.v6 {
        frame.header(roce.l3).and_then(cnp::parse_v6)
    } else {
        frame.header(roce.l3).and_then(cnp::parse_v4)
    };
    let (Some(cnp), Some((peer, own))) = (cnp, roce.addresses(frame)) else { return Ok(None) };
    let vlan = roce.vlan;
    let qpn = if cnp.hint == cnp::NO_HINT {
        engine.pair(&QpId { addr: own, qpn: cnp.dest_qpn, vlan })?.map(|pair| pair.qpn)
    } else {
        Some(cnp.hint)
    };
    Ok(qpn.map(|qpn| FlowId { src: own, receiver: QpId { addr: peer, qpn, vlan } }))
}

/// Longest packet of the file, bytes: libpcap's limit. Longer ones are cut to it.
const SNAPLEN: u32 = 262_144;
/// Latest time of the file, in 2106; later packets have it too.
const LAST_NS: u64 = u32::MAX as u64 * 1_000_000_000;

/// A pcap file with nanoseconds.
struct Departures {
    writer: PcapWriter<Replacement>,
    /// Earliest first; equal times in order of arrival.
    waiting: BinaryHeap<Reverse<Departure>>,
    count: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Departure {
    time_ns: u64,
    number: u64,
    length: u32,
    data: Vec<u8>,
}

impl Departures {
    fn create(path: &Path) -> PcapResult<Self> {
        let file = Replacement::create(path).map_err(PcapError::IoError)?;
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            endianness: Endianness::native(),
            snaplen: SNAPLEN,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(file, header)?;
        Ok(Self { writer, waiting: BinaryHeap::new(), count: 0 })
    }

    /// A packet departs at `time_ns` since 1970; `cut_off` bytes of it were not captured.
    fn push(&mut self, time_ns: u64, data: &[u8], cut_off: u32) {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX).saturating_add(cut_off);
        let data = &data[..data.len().min(SNAPLEN as usize)];
        self.waiting.push(Reverse(Departure { time_ns, number: self.count, length, data: data.to_vec() }));
        self.count += 1;
    }

    /// Writes all packets that have departed by `now_ns`.
    fn flush_until(&mut self, now_ns: u64) -> PcapResult<()> {
        while self.waiting.peek().is_some_and(|Reverse(next)| next.time_ns <= now_ns) {
            if let Some(Reverse(Departure { time_ns, length, data, .. })) = self.waiting.pop() {
                let time = Duration::from_nanos(time_ns.min(LAST_NS));
                self.writer.write_packet(&PcapPacket::new(time, length, &data))?;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> PcapResult<()> {
        self.flush_until(u64::MAX)?;
        self.writer.into_writer().finish().map_err(PcapError::IoError)
    }
}

#[cfg(test)]
mod tests;
