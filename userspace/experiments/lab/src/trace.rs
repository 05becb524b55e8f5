//! `trace`: the rate of one flow, event by event.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use dcqcn_common::params::{MAX_RATE_BPS, MIN_RATE_BPS, Unit};
use dcqcn_params::quantity::{in_range, parse_rate_bps};
use dcqcn_params::{Assignment, Settings};
use dcqcn_replay::trace::{self, EngineKind, Format, Options, Picture};
use dcqcn_support::file::{Replacement, compressed, decompressor};

use dcqcn_support::cli::{Output, SettingsArgs};

/// Show the effect of CNPs and packets on the rate of one flow, event by event.
///
/// Reads lines `t_ns,cnp`, `t_ns,send,BYTES` and `t_ns,sample` in chronological order, and prints the flow's state
/// after each: current and target rate, alpha, both stages, and the departure time of a packet.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Input: t_ns is an integer; BYTES is the layer-2 length, 1 to 2^40. A header `t_ns,event,bytes`, blank lines and
comments after `#` are allowed. Output: CSV with the header
  t_ns,event,rate_bps,target_bps,alpha,time_stage,byte_stage,departure_ns
or, with --json, an object per line. departure_ns is the time at which the first byte of a `send` leaves: now, or
when the flow's previous packet has left at its rate.

Defaults differ from an attached data plane. pacing_credit and wire_overhead are 0, so that departures depend on
rates alone. In the variant `paper`, rate_reduce_monitor_period is 0, so that every CNP cuts the rate.
pacing_horizon has no effect.

The engine `kernel` needs root and attaches nothing. It needs complete packets: BYTES must be at least 58.

Examples:
  dcqcn-lab trace events.csv --line-rate 40g
  dcqcn-lab trace events.csv --profile nvidia --line-rate 100g --expand --plot rates.svg
  dcqcn-lab trace events.csv --line-rate 40g --set rpg_hai_rate=400mbit --set rpg_byte_reset=0
  dcqcn-lab trace - --line-rate 25g --json | jq -c 'select(.event == \"cnp\")'
  dcqcn-lab trace events.csv --line-rate 40g --engine kernel > kernel.csv")]
pub(crate) struct TraceArgs {
    /// File of events; `-` reads standard input.
    #[arg(value_name = "EVENTS.csv")]
    input: PathBuf,
    /// Link rate and initial rate of the flow: `40g`, `25gbit`, 100kbit to 800gbit. Short for `--set link_rate=RATE`.
    #[arg(long, value_name = "RATE", value_parser = line_rate)]
    line_rate: Option<Assignment>,
    /// Also show internal events of the rate machine: alpha updates, cuts, increases.
    #[arg(long)]
    expand: bool,
    /// `reference`: the library, in this process. `kernel`: the eBPF object, in the running kernel.
    #[arg(long, value_enum, default_value = "reference")]
    engine: EngineKind,
    /// Write to this file instead of standard output; on failure the file is unchanged.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Plot rates and alpha over time. May be repeated.
    #[arg(long, value_name = "FILE.svg|FILE.png", value_parser = picture)]
    plot: Vec<PathBuf>,
    #[command(flatten)]
    settings: SettingsArgs,
}

fn line_rate(text: &str) -> Result<Assignment, String> {
    let rate_bps = parse_rate_bps(text).map_err(|error| error.to_string())?;
    in_range("line rate", rate_bps, MIN_RATE_BPS..=MAX_RATE_BPS, Unit::BitsPerSecond)
        .map_err(|error| error.to_string())?;
    Assignment::new("link_rate", text).map_err(|error| error.to_string())
}

fn picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg" | "png") => Ok(path),
        _ => Err("the file name must end in .svg or .png".into()),
    }
}

impl TraceArgs {
    pub(crate) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { input, line_rate, expand, engine, out: file, plot, settings } = self;
        let line_rate = Settings { changes: line_rate.into_iter().collect(), ..Settings::default() };
        let config = trace::config(&settings.read()?.then(line_rate))?;
        let format = if out.is_json() { Format::Json } else { Format::Csv };
        let options = Options { engine, config, expand, format };
        let name = if is_stdio(&input) { "standard input".into() } else { input.display().to_string() };
        let events = open(&input).with_context(|| format!("cannot read {name}"))?;
        let mut curves = (!plot.is_empty()).then(Picture::default);
        match &file {
            None => {
                let mut rows = BufWriter::new(out.writer());
                trace::run(&options, &name, events, &mut rows, curves.as_mut())?;
                rows.flush()?;
            }
            Some(path) => {
                let failed = || format!("cannot write {}", path.display());
                let mut rows = Replacement::create(path).with_context(failed)?;
                trace::run(&options, &name, events, &mut rows, curves.as_mut())?;
                rows.finish().with_context(failed)?;
            }
        }
        for file in plot {
            if let Some(curves) = &curves {
                curves.write(&file, &format!("dcqcn-lab trace {name}"))?;
            }
        }
        Ok(())
    }
}

/// Whether the path is `-`: standard input or output.
pub(crate) fn is_stdio(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut reader: Box<dyn BufRead> = if is_stdio(path) {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(path)?))
    };
    match decompressor(reader.fill_buf()?) {
        Some(tool) => Err(compressed(tool)),
        None => Ok(reader),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;
    use crate::Cli;

    /// Runs `dcqcn-lab trace EVENTS ARGS`: standard output, or the error as text.
    fn run(directory: &Path, events: &str, args: &str) -> Result<String, String> {
        let input = directory.join("events.csv");
        fs::write(&input, events).unwrap();
        let input = input.display().to_string();
        let words = ["dcqcn-lab", "trace", &input].into_iter().chain(args.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let mut stdout = Vec::new();
        let mut out = Output::new(&mut stdout, cli.json);
        let result = cli.run(&mut out);
        let stdout = String::from_utf8(stdout).unwrap();
        result.map(|()| stdout).map_err(|error| dcqcn_support::cli::explain(error.as_ref()))
    }

    #[test]
    fn line_rate_units_parsed() {
        let directory = tempfile::tempdir().unwrap();
        for (rate, bps) in [("40g", 40), ("40gbit", 40), ("40Gb/s", 40), ("800g", 800), ("100000m", 100)] {
            let rows = run(directory.path(), "0,sample\n", &format!("--line-rate {rate}")).unwrap();
            assert!(rows.contains(&format!("0,sample,{bps}000000000,{bps}000000000,1,0,0,\n")), "{rows}");
        }
        let same = run(directory.path(), "0,sample\n", "--set link_rate=40g").unwrap();
        assert_eq!(Ok(same), run(directory.path(), "0,sample\n", "--line-rate 40g"));
        for (args, expected) in [
            ("", "error: the line rate is unknown: set it, as in `--line-rate 40gbit`\n"),
            ("--line-rate 1bit", "line rate = 1bit is out of range: 100kbit to 800gbit"),
            ("--line-rate 40gbps", "`40gbps` is ambiguous"),
            ("--line-rate 801g", "line rate = 801gbit is out of range: 100kbit to 800gbit"),
            ("--line-rate 40g --plot rates.pdf", "the file name must end in .svg or .png"),
            ("--line-rate 40g --profile lab", "profile `lab` is for links up to 1gbit"),
        ] {
            let error = run(directory.path(), "0,sample\n", args).unwrap_err();
            assert!(error.contains(expected), "{args}: {error}");
        }
    }

    #[test]
    fn compressed_events_rejected_with_tool() {
        let directory = tempfile::tempdir().unwrap();
        let error = run(directory.path(), "BZh91AY", "--line-rate 40g").unwrap_err();
        assert!(error.contains("it is compressed; decompress it with `bzcat`"), "{error}");
    }

    #[test]
    fn json_fields_match_columns() {
        let directory = tempfile::tempdir().unwrap();
        let rows = run(directory.path(), "5,cnp\n7,send,1000\n", "--line-rate 40g --json").unwrap();
        let rows: Vec<serde_json::Value> =
            rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 2);
        for column in trace::HEADER.split(',') {
            assert!(rows[0].get(column).is_some(), "{column}");
        }
        assert_eq!((&rows[0]["event"], &rows[0]["departure_ns"]), (&"cnp".into(), &serde_json::Value::Null));
        assert_eq!((&rows[1]["rate_bps"], &rows[1]["departure_ns"]), (&20_000_000_000_u64.into(), &7.into()));
    }

    #[test]
    fn file_written_atomically() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out.csv");
        let link = directory.path().join("link.csv");
        let args = format!("--line-rate 40g --out {}", out.display());
        assert_eq!(run(directory.path(), "0,cnp\n", &args), Ok(String::new()));
        let first = fs::read_to_string(&out).unwrap();
        assert_eq!(first, format!("{}\n0,cnp,20000000000,40000000000,1,0,0,\n", trace::HEADER));
        assert_ne!(fs::metadata(&out).unwrap().permissions().mode() & 0o077, 0, "readable by other users");

        let error = run(directory.path(), "0,cnp\n1,oops\n", &args).unwrap_err();
        assert!(error.contains("events.csv:2: event `oops`: expected `cnp`, `send` or `sample`"), "{error}");
        assert_eq!(fs::read_to_string(&out).unwrap(), first);

        std::os::unix::fs::symlink(&out, &link).unwrap();
        fs::set_permissions(&out, fs::Permissions::from_mode(0o640)).unwrap();
        let through = format!("--line-rate 10g --out {}", link.display());
        assert_eq!(run(directory.path(), "0,sample\n", &through), Ok(String::new()));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&out).unwrap().contains("\n0,sample,10000000000,"));
        assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o640);

        let device = "--line-rate 40g --out /dev/null";
        assert_eq!(run(directory.path(), "0,cnp\n", device), Ok(String::new()));
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let nowhere = format!("--line-rate 40g --out {}/no/out.csv", directory.path().display());
        assert!(run(directory.path(), "0,cnp\n", &nowhere).unwrap_err().contains("cannot write"));
        // No file is left behind.
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
    }

    #[test]
    fn plots_written() {
        let directory = tempfile::tempdir().unwrap();
        let [svg, png] = ["rates.svg", "rates.png"].map(|name| directory.path().join(name));
        let args = format!("--line-rate 40g --plot {} --plot {}", svg.display(), png.display());
        let rows = run(directory.path(), "0,cnp\n500000,sample\n", &args).unwrap();
        assert_eq!(rows.lines().count(), 3, "internal events are plotted, not written");
        let svg = fs::read_to_string(svg).unwrap();
        assert!(svg.contains("target") && svg.contains("alpha") && fs::metadata(png).unwrap().len() > 1_000);
    }
}
