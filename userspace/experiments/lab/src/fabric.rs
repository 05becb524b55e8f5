//! `sim fabric`: leaf-spine, fat-tree or any graph, with PFC, ECMP and imported workloads.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use dcqcn_sim::fabric::{FabricReport, FabricSetup, write_flows, write_picture};
use dcqcn_sim::network::TOPOLOGY_EXAMPLE;
use dcqcn_sim::plot;
use dcqcn_sim::sweep::{Axis, SweptRun, sweep};
use dcqcn_sim::sweep_report::{SweepReport, SweepRun};

use dcqcn_support::cli::Output;
use dcqcn_support::number::number;

use crate::files::{INTERRUPTED, ensure_complete, refuse_in_sweep, refuse_two_outputs, show, write_file};

/// Simulate a whole fabric: switches with shared buffers, PFC and ECMP, and finite flows.
///
/// Every packet, ACKs and CNPs included, queues at every port. Flow completion times are reported by size, with
/// slowdown: the time relative to an empty fabric. Equal settings and seeds give bit-identical results, on any number
/// of cores.
#[derive(Debug, Args)]
#[command(after_long_help = "\
CSV: a line per flow, flow,src,dst,bytes,start_ns,fct_ns,ideal_ns; fct_ns is empty if the flow
is incomplete, start_ns too if it has not started.

Examples:
  # 32 hosts at 50 % load, flows of 1 MB
  dcqcn-lab sim fabric
  # 16 hosts send 500 KB to one host, with and without DCQCN
  dcqcn-lab sim fabric --workload incast:16 --size 500KB --sweep control=on,off
  # lossy, with selective retransmission
  dcqcn-lab sim fabric --workload permutation --size 2MB --pfc off --recovery selective
  # a collective on a fat tree
  dcqcn-lab sim fabric --topology fat-tree:4x2x2 --workload all-reduce --sweep balance=ecmp,spray
  # UEC's NSCC, on switches that trim
  dcqcn-lab sim fabric --workload incast:16 --size 2MB --control nscc --pfc off --threshold 100KB --trim 6
  # DCQCN and NSCC, each packet on its own path
  dcqcn-lab sim fabric --workload permutation --size 2MB --balance spray --recovery selective --sweep control=dcqcn,nscc
  # receiver-driven admission, with and without DCQCN
  dcqcn-lab sim fabric --workload incast:16 --admission 400KB --sweep control=on,off
  # plots of slowdown, queues and pauses
  dcqcn-lab sim fabric --load 80% --plot fabric
  # a pause storm, and the watchdog
  dcqcn-lab sim fabric --fault 100us,storm,host3 --watchdog 1ms,2ms,drop --duration 20ms
  # flow sizes, flows and topologies in HPCC's formats; a line per flow
  dcqcn-lab sim fabric --topology file:fat.txt --sizes WebSearch_distribution.txt --csv flows.csv
  # a custom topology
  dcqcn-lab sim fabric --example > mine.toml && dcqcn-lab sim fabric --topology file:mine.toml")]
pub(crate) struct FabricArgs {
    #[command(flatten)]
    setup: FabricSetup,
    /// Run with each value of a flag, of a DCQCN parameter, or of kmin, kmax and pmax, on all cores. May be
    /// repeated: all combinations.
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = FabricSetup::axis)]
    sweep: Vec<Axis>,
    /// Maximum number of cores; a small fabric runs on fewer [default: all].
    #[arg(long, value_name = "N", value_parser = number("threads", 1u16..=1024))]
    threads: Option<u16>,
    /// Write a CSV line per flow to this file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Plot slowdown by size, queues and pauses to PATH (.svg or .png); without such an extension, to
    /// PATH.svg and PATH.png.
    #[arg(long, value_name = "PATH", value_parser = plot::path)]
    plot: Option<PathBuf>,
    /// Print a topology file.
    #[arg(long, exclusive = true)]
    example: bool,
}

impl FabricArgs {
    pub(crate) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        if self.example {
            return Ok(out.text(&TOPOLOGY_EXAMPLE)?);
        }
        refuse_two_outputs(out, self.csv.as_deref())?;
        for (path, flag) in [(&self.plot, "--plot"), (&self.csv, "--csv")] {
            refuse_in_sweep(path.as_deref(), flag, &self.sweep)?;
        }
        let base = FabricSetup { is_plotted: self.plot.is_some(), ..self.setup.clone() };
        let report = |completed: SweptRun<FabricSetup>| {
            let SweptRun { settings, setup, simulation, run } = completed;
            SweepRun::new(settings, FabricReport::new(&setup, &simulation, run.outcome, run.wall))
        };
        let mut runs: Vec<_> = sweep(&base, &self.sweep, self.threads)?.into_iter().map(report).collect();
        if self.sweep.is_empty() {
            let SweepRun { mut report, .. } = runs.pop().context(INTERRUPTED)?;
            // First, as a file may fail; the samples may be only for the plot.
            let samples = report.outcome.samples.take_if(|_| self.setup.sample.is_none());
            show(out, &report, self.csv.as_deref())?;
            if let Some(path) = &self.csv {
                write_file(path, |file| write_flows(file, &report.outcome.flows))?;
            }
            if let Some(path) = &self.plot {
                report.outcome.samples = report.outcome.samples.or(samples);
                write_picture(path, &report)?;
            }
            return Ok(());
        }
        let completed = runs.len();
        out.show(&SweepReport { runs })?;
        ensure_complete(completed, &self.sweep)
    }
}
