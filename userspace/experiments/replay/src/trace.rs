//! `dcqcn-lab trace`: one flow through the data plane's rate machine and pacer, event by event.
//!
//! The engine `reference` is the library, the engine `kernel` the loaded eBPF object; both process the same packets,
//! and no rate is computed here: rows show the state of [`RateMachine`]. For an instant without work for the data plane
//! (a `sample`, an internal event of the machine), a copy of the machine is advanced, as in `dcqcn flows`.
//!
//! A `send` longer than [`MAX_PACKET`](crate::MAX_PACKET) becomes several simultaneous packets of equal size (a byte
//! more or less). Unless the byte counter raises the rate in between, that is equivalent to one long packet.

mod flow;
mod input;
mod plot;

use std::fmt;
use std::io::{self, BufRead, Write};

use dcqcn_common::pacing::Departure;
use dcqcn_common::params::{Config, Invalid, PACER_FQ, Params, RP_VARIANT_PAPER};
use dcqcn_common::rate::{RateMachine, RpParams};
use dcqcn_params::{Settings, SettingsError};
use dcqcn_support::JSON_VERSION;
use dcqcn_telemetry::RateRow;
use serde::Serialize;

use flow::{Flow, KernelFlow, Reference};
pub use input::{Event, Events, InputError, Kind, Problem};
pub use plot::Picture;

/// Start of the trace: 0 means "never" in the tables, and pacing credit looks back up to a second.
const EPOCH_NS: u64 = 10_000_000_000;
/// Pacing horizon: unlimited up to the type's range. (A data plane with a delay of seconds is broken; a trace shows the
/// consequence of the rates.)
const HORIZON_NS: u64 = 1 << 62;

/// Engine. (The P4 program keeps time in microseconds: use `dcqcn-lab replay`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineKind {
    /// The library, in this process.
    Reference,
    /// The eBPF object, in the running kernel.
    Kernel,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub engine: EngineKind,
    /// The parameters; [`config`] makes them.
    pub config: Config,
    /// Whether to add rows for internal events of the machine.
    pub expand: bool,
    pub format: Format,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Config(#[from] Invalid),
    #[error("the line rate is unknown: set it, as in `--line-rate 40gbit`")]
    NoLineRate,
    #[error(transparent)]
    Engine(#[from] crate::Error),
    #[error(
        "the data plane has no flow for the packets of the trace: the object belongs to another version of dcqcn"
    )]
    NoFlow,
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Parameters of a trace: a reaction point alone, with departure times determined by the rates.
///
/// Unless set, `pacing_credit` and `wire_overhead` are 0, and so is `rate_reduce_monitor_period` in the
/// paper's variant, which lacks such a guard: every CNP cuts.
pub fn config(settings: &Settings) -> Result<Config, SettingsError> {
    let is_set = |key: &str| settings.changes.iter().any(|change| change.key.to_string() == key);
    let mut config = settings.config(None)?;
    let scalars = &mut config.scalars;
    (scalars.cp_enable, scalars.np_enable, scalars.rp_enable) = (0, 0, 1);
    scalars.pacer = PACER_FQ;
    if !is_set("pacing_credit") {
        scalars.pacing_credit_ns = 0;
    }
    if !is_set("wire_overhead") {
        scalars.wire_overhead_bytes = 0;
    }
    if scalars.rp_variant == RP_VARIANT_PAPER && !is_set("rate_reduce_monitor_period") {
        scalars.rate_reduce_monitor_period_ns = 0;
    }
    Ok(config)
}

/// Runs the events of `input`, called `file` in messages: writes rows to `output`, and to `picture` if given.
pub fn run(
    options: &Options,
    file: &str,
    input: impl BufRead,
    output: &mut impl Write,
    picture: Option<&mut Picture>,
) -> Result<(), Error> {
    let mut config = options.config;
    config.scalars.pacing_horizon_drop = 1;
    let mut params = Params::new(&config, flow::port())?;
    if params.rp.line_rate_bps == 0 {
        return Err(Error::NoLineRate);
    }
    // Beyond the parameter's range, so that no packet passes unpaced.
    params.hot.pacing_horizon_ns = HORIZON_NS;
    let sink = Sink { output, format: options.format, expand: options.expand, picture };
    let events = Events::new(file, input);
    match options.engine {
        EngineKind::Reference => trace(&params.rp, Reference::new(&params), events, sink),
        EngineKind::Kernel => trace(&params.rp, KernelFlow::new(&params)?, events, sink),
    }
}

fn trace<F: Flow, R: BufRead, W: Write>(
    rp: &RpParams,
    mut flow: F,
    mut events: Events<R>,
    mut sink: Sink<'_, W>,
) -> Result<(), Error> {
    sink.format.write_header(sink.output)?;
    let mut view = View { rp, machine: flow.machine()?, now_ns: EPOCH_NS };
    while let Some(Event { time_ns, kind }) = events.next_event()? {
        let now_ns = EPOCH_NS + time_ns;
        if sink.wants_internal() {
            while view.step(now_ns, &mut sink)? {}
        }
        view.advance(now_ns);
        let mut departure = None;
        match kind {
            Kind::Cnp => flow.cnp(now_ns)?,
            Kind::Send { bytes } if bytes < F::MIN_SEND_BYTES => {
                return Err(events.wrong(Problem::TooShort { bytes, min: F::MIN_SEND_BYTES }).into());
            }
            Kind::Send { bytes } => {
                for packet_bytes in flow::packets(bytes) {
                    let leaves = flow.send(now_ns, packet_bytes)?;
                    departure.get_or_insert(leaves);
                }
            }
            Kind::Sample => {}
        }
        let before = std::mem::replace(&mut view.machine, flow.machine()?);
        view.advance(now_ns);
        if matches!(kind, Kind::Send { .. }) && sink.wants_internal() && increased(rp, &before, &view.machine)
        {
            sink.internal(&view.row("increase"))?;
        }
        let departure_ns = match departure {
            Some(Departure::At(departure_ns)) => Some(departure_ns.saturating_sub(EPOCH_NS)),
            Some(Departure::BeyondHorizon) | None => None,
        };
        sink.event(&Row { departure_ns, ..view.row(kind.name()) })?;
    }
    Ok(())
}

/// Whether the byte counter expired between two states of one instant; not at the line rate, where it has no effect.
fn increased(rp: &RpParams, before: &RateMachine, after: &RateMachine) -> bool {
    let is_at_line = before.rate_bps == rp.line_rate_bps && before.target_bps == rp.line_rate_bps;
    before.byte_stage != after.byte_stage && !is_at_line
}

/// The flow's machine as shown in rows: advanced to an instant, independent of the data plane's progress.
struct View<'a> {
    rp: &'a RpParams,
    machine: RateMachine,
    now_ns: u64,
}

impl View<'_> {
    fn advance(&mut self, now_ns: u64) {
        self.machine.advance(self.rp, now_ns);
        self.now_ns = now_ns;
    }

    /// Advances to the next internal event, at `until_ns` at the latest, and writes its row; `false` if there is none.
    fn step(&mut self, until_ns: u64, sink: &mut Sink<'_, impl Write>) -> Result<bool, Error> {
        let due = self.machine.due(self.rp, self.now_ns);
        // In the order in which they happen at one instant.
        let kinds = [("alpha", due.alpha_ns), ("cut", due.cut_ns), ("increase", due.increase_ns)];
        let next_ns = kinds.iter().filter_map(|(_, due_ns)| *due_ns).min();
        let Some(next_ns) = next_ns.filter(|next_ns| (self.now_ns + 1..=until_ns).contains(next_ns)) else {
            return Ok(false);
        };
        self.advance(next_ns);
        for (event, _) in kinds.iter().filter(|(_, due_ns)| *due_ns == Some(next_ns)) {
            sink.internal(&self.row(event))?;
        }
        Ok(true)
    }

    fn row(&self, event: &'static str) -> Row {
        Row::new(self.now_ns.saturating_sub(EPOCH_NS), event, &self.machine, self.rp, self.now_ns)
    }
}

/// Destination of rows.
struct Sink<'a, W> {
    output: &'a mut W,
    format: Format,
    expand: bool,
    picture: Option<&'a mut Picture>,
}

impl<W: Write> Sink<'_, W> {
    const fn wants_internal(&self) -> bool {
        self.expand || self.picture.is_some()
    }

    fn internal(&mut self, row: &Row) -> io::Result<()> {
        self.draw(row);
        if self.expand { self.format.write(self.output, row) } else { Ok(()) }
    }

    fn event(&mut self, row: &Row) -> io::Result<()> {
        self.draw(row);
        self.format.write(self.output, row)
    }

    fn draw(&mut self, row: &Row) {
        if let Some(picture) = &mut self.picture {
            picture.push(row);
        }
    }
}

/// First line of the CSV output.
pub const HEADER: &str = "t_ns,event,rate_bps,target_bps,alpha,time_stage,byte_stage,departure_ns";

/// One line of the output: the flow's state after an event.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    pub t_ns: u64,
    /// Event: of the input, or internal (`alpha`, `cut`, `increase`).
    pub event: &'static str,
    #[serde(flatten)]
    pub rate: RateRow,
    /// Departure of the first byte of a `send`, ns.
    pub departure_ns: Option<u64>,
}

impl Row {
    /// Row for `machine` (advanced to `now_ns`) at `t_ns`, the same instant in the trace's own time.
    fn new(t_ns: u64, event: &'static str, machine: &RateMachine, rp: &RpParams, now_ns: u64) -> Self {
        Self { t_ns, event, rate: RateRow::new(machine, rp, now_ns), departure_ns: None }
    }
}

/// A line of CSV. Alpha has enough decimals to distinguish all values of the machine.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { t_ns, event, rate, departure_ns } = self;
        let RateRow { rate_bps, target_bps, alpha, time_stage, byte_stage } = rate;
        write!(f, "{t_ns},{event},{rate_bps},{target_bps},{alpha},{time_stage},{byte_stage},")?;
        departure_ns.map_or(Ok(()), |departure_ns| write!(f, "{departure_ns}"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// [`HEADER`] and a line per row.
    Csv,
    /// An object per line, without a header.
    Json,
}

impl Format {
    fn write_header(self, output: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Csv => writeln!(output, "{HEADER}"),
            Self::Json => Ok(()),
        }
    }

    fn write(self, output: &mut impl Write, row: &Row) -> io::Result<()> {
        match self {
            Self::Csv => writeln!(output, "{row}"),
            Self::Json => {
                #[derive(Serialize)]
                struct Versioned<'a> {
                    json_version: u32,
                    #[serde(flatten)]
                    row: &'a Row,
                }
                serde_json::to_writer(&mut *output, &Versioned { json_version: JSON_VERSION, row })?;
                output.write_all(b"\n")
            }
        }
    }
}

#[cfg(test)]
mod tests;
