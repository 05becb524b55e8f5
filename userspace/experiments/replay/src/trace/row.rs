//! Output rows of a trace.

use std::fmt;
use std::io::{self, Write};

use dcqcn_common::rate::{RateMachine, RpParams};
use dcqcn_support::JSON_VERSION;
use dcqcn_telemetry::RateRow;
use serde::Serialize;

/// First line of the CSV output.
pub const HEADER: &str = "t_ns,event,rate_bps,target_bps,alpha,time_stage,byte_stage,departure_ns";

/// One line of the output: the flow's state after an event.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Time, ns.
    pub t_ns: u64,
    /// Event: of the input, or internal (`alpha`, `cut`, `increase`).
    pub event: &'static str,
    /// State of the rate machine after it.
    #[serde(flatten)]
    pub rate: RateRow,
    /// Departure of the first byte of a `send`, ns.
    pub departure_ns: Option<u64>,
}

impl Row {
    /// Row for `machine` (advanced to `now_ns`) at `t_ns`, the same instant in the trace's own time.
    pub(super) fn new(
        t_ns: u64,
        event: &'static str,
        machine: &RateMachine,
        rp: &RpParams,
        now_ns: u64,
    ) -> Self {
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

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// [`HEADER`] and a line per row.
    Csv,
    /// An object per line, without a header.
    Json,
}

impl Format {
    /// The header line, if any.
    pub(super) fn write_header(self, output: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Csv => writeln!(output, "{HEADER}"),
            Self::Json => Ok(()),
        }
    }

    pub(super) fn write(self, output: &mut impl Write, row: &Row) -> io::Result<()> {
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
