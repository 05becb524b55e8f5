//! `dcqcn-lab trace`: CNPs and packets of one flow, event by event, through the rate machine and the pacer of the data plane.
//!
//! The engine `reference` is the library, the engine `kernel` the loaded eBPF object; both are given the same packets,
//! and nothing here computes a rate: rows show what [`RateMachine`] says. Where a row tells of an instant at which the
//! data plane has nothing to do (a `sample`, an event inside the machine), a copy of the machine is advanced to it, as
//! `dcqcn flows` does.
//!
//! A `send` longer than [`MAX_PACKET`](crate::MAX_PACKET) is sent as several packets of equal size (a byte more
//! or less) at one instant. Unless the byte counter raises the rate in between, that is the same as one long packet.

mod flow;
mod input;
mod plot;
mod row;

use std::io::{self, BufRead, Write};

use dcqcn_common::pacing::Departure;
use dcqcn_common::params::{Config, Invalid, PACER_FQ, Params, RP_VARIANT_PAPER};
use dcqcn_common::rate::{RateMachine, RpParams};
use dcqcn_params::{Settings, SettingsError};

use flow::{Flow, InKernel, Reference};
pub use input::{Event, Events, InputError, Kind, Problem};
pub use plot::Picture;
pub use row::{Format, HEADER, Row};

/// When the trace begins, in the time of the run: 0 means "never" in the tables, and pacing looks back by up to a second.
const EPOCH_NS: u64 = 10_000_000_000;
/// How far ahead packets may leave: no bound, but for what fits. (A data plane that lets packets wait for seconds has
/// lost its way; a trace asks what the rates come to.)
const HORIZON_NS: u64 = 1 << 62;

/// What runs the machine. (The P4 program keeps time in microseconds: `dcqcn-lab replay` has it.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineKind {
    /// The library, in this process.
    Reference,
    /// The eBPF object, in the running kernel.
    Kernel,
}

/// What to trace, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// What runs the flow.
    pub engine: EngineKind,
    /// The parameters; [`config`] makes them.
    pub config: Config,
    /// A row for each event inside the machine, too.
    pub expand: bool,
    /// How rows are written.
    pub format: Format,
}

/// Why a trace fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The events.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The parameters.
    #[error(transparent)]
    Config(#[from] Invalid),
    /// The parameters do not tell the line rate.
    #[error("the line rate is not known: give it, as in `--line-rate 40gbit`")]
    NoLineRate,
    /// The engine.
    #[error(transparent)]
    Engine(#[from] crate::Error),
    /// The kernel did not make the flow.
    #[error(
        "the data plane keeps no flow for the packets of the trace: the object belongs to another version of dcqcn"
    )]
    NoFlow,
    /// The rows cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// The parameters of a trace: a lone reaction point, with departure times that follow from the rates alone. Unless they
/// are set, `pacing_credit` and `wire_overhead` are 0, and so is `rate_reduce_monitor_period` in the paper's variant,
/// which has no such guard: every CNP cuts.
///
/// # Errors
/// The settings make no configuration.
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

/// Runs the events of `input`, which messages call `file`: rows go to `output`, and into `picture` if there is one.
///
/// # Errors
/// A line is wrong, the parameters are invalid, the engine does not start, or the output cannot be written.
pub fn run(
    options: &Options,
    file: &str,
    input: impl BufRead,
    output: &mut impl Write,
    picture: Option<&mut Picture>,
) -> Result<(), Error> {
    let mut params = Params::new(&options.config, flow::port())?;
    if params.rp.line_rate_bps == 0 {
        return Err(Error::NoLineRate);
    }
    // Beyond what can be set, and with it no packet passes unpaced.
    params.config.scalars.pacing_horizon_ns = HORIZON_NS;
    params.config.scalars.pacing_horizon_drop = 1;
    let sink = Sink { output, format: options.format, expand: options.expand, picture };
    let events = Events::new(file, input);
    match options.engine {
        EngineKind::Reference => trace(&params.rp, Reference::new(&params), events, sink),
        EngineKind::Kernel => trace(&params.rp, InKernel::new(&params)?, events, sink),
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

/// Whether the byte counter expired between two states of one instant, and not at the line rate, where that is no news.
fn increased(rp: &RpParams, before: &RateMachine, after: &RateMachine) -> bool {
    let is_at_line = before.rate_bps == rp.line_rate_bps && before.target_bps == rp.line_rate_bps;
    before.byte_stage != after.byte_stage && !is_at_line
}

/// The flow's machine as rows show it: advanced to an instant, whatever the data plane has done yet.
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

    /// Goes to the next instant, `until_ns` at the latest, at which something happens inside the machine, and tells; false
    /// if there is none.
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

/// Where rows go.
struct Sink<'a, W> {
    output: &'a mut W,
    format: Format,
    expand: bool,
    picture: Option<&'a mut Picture>,
}

impl<W: Write> Sink<'_, W> {
    /// Whether anybody wants to know what happens inside the machine.
    const fn wants_internal(&self) -> bool {
        self.expand || self.picture.is_some()
    }

    /// A row of an event inside the machine.
    fn internal(&mut self, row: &Row) -> io::Result<()> {
        self.draw(row);
        if self.expand { self.format.write(self.output, row) } else { Ok(()) }
    }

    /// A row of an event of the input.
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

#[cfg(test)]
mod tests;
