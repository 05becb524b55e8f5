//! Writing, comparing, changing and reading the configuration of a running switch.

use std::fmt;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_common::params::{Config, Params, Port};
use dcqcn_loader::attach::Change;
use dcqcn_loader::dataplane::Sizes;
use dcqcn_p4::push::{Pushed, push, verify};
use dcqcn_p4::read::Reader;
use dcqcn_p4::{Claim, Plan, Program, Session, StoredConfig, switch};
use dcqcn_params::{Assignment, Key};
use dcqcn_support::cli::{Output, message_lines};
use dcqcn_support::file::read_text;
use dcqcn_support::render::count;
use dcqcn_telemetry::audit;
use dcqcn_telemetry::{ChangeReport, CountersReport, FlowsReport, Parameter, QueuesReport};
use serde::Serialize;
use serde_json::json;

use super::{FileArgs, Ignored, THRIFT_PORT, plan, switch_config};

/// A running switch.
#[derive(Clone, Copy, Debug, Args)]
struct SwitchArgs {
    /// Port of the switch's Thrift server, in this network namespace.
    #[arg(long, value_name = "PORT", default_value_t = THRIFT_PORT)]
    thrift_port: u16,
}

/// Apply a configuration to a running switch: write only differences, then verify all of it.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Rates and depths of queues cannot be read back; they are written every time. Forwarding tables stay unchanged
if the file has neither [[bmv2.route]] nor [[bmv2.mac]]. A change that the switch rejects is reverted.

Examples:
  dcqcn-lab p4 push --config switch.toml --thrift-port 9090
  dcqcn-lab p4 push --config switch.toml --set rpg_ai_rate=200kbit --json")]
pub(crate) struct PushArgs {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    switch: SwitchArgs,
}

impl PushArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let port = self.switch.thrift_port;
        let stored = self.file.read()?;
        let program = Program::embedded()?;
        let plan = Plan::new(&program, &stored.config, &stored.switch)?;
        let _claim = Claim::acquire(port)?;
        let mut session = Session::open(port)?;
        session.require(&program)?;
        let pushed = push(&mut session, &plan)?;
        stored
            .save(port)
            .context("the switch has the new parameters, but they could not be stored; push them again")?;
        let not_in_p4 = Ignored::of(&plan, &stored.config);
        let report = PushReport { thrift_port: port, pushed, queue_commands: plan.blind.len(), not_in_p4 };
        let PushReport { thrift_port, pushed, queue_commands, not_in_p4 } = &report;
        let Pushed { written, modified, deleted, unchanged, cells } = pushed;
        let text = format!(
            "switch at port {thrift_port}: {written} written, {modified} modified, {deleted} deleted, {unchanged} unchanged, \
             {cells} register cells; all verified; {queue_commands} queue settings written\n{not_in_p4}"
        );
        Ok(out.show_as(&report, text)?)
    }
}

#[derive(Serialize)]
struct PushReport {
    thrift_port: u16,
    #[serde(flatten)]
    pushed: Pushed,
    /// Mirror sessions, queue rates and depths, which are always written.
    queue_commands: usize,
    not_in_p4: Ignored,
}

/// Check a configuration file of a switch, and summarise it.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  # exit code 1 if the file is invalid
  dcqcn-lab p4 check switch.toml")]
pub(crate) struct CheckArgs {
    /// Configuration file.
    file: PathBuf,
}

impl CheckArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let file = self.file.display().to_string();
        let text = read_text(&self.file).with_context(|| format!("cannot read {file}"))?;
        let (settings, switch) = switch::parse(&file, &text)?;
        let config = switch_config(settings.clone())?;
        let plan = plan(settings, &switch).with_context(|| format!("{file}: not for a BMv2 switch"))?;
        if !out.is_json() {
            message_lines(Ignored::of(&plan, &config));
        }
        let (ports, entries) = (switch.port.len(), plan.entries.len());
        let text = format!(
            "{file} is valid: a BMv2 switch of {} and {}\n",
            count(ports, "port"),
            count(entries, "table entry")
        );
        Ok(out.show_as(&CheckReport { file, ports, entries }, text)?)
    }
}

#[derive(Serialize)]
struct CheckReport {
    file: String,
    ports: usize,
    entries: usize,
}

/// Show the parameters of a running switch, as last pushed or set.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-lab p4 get --thrift-port 9090
  dcqcn-lab p4 get wred.3.kmax rpg_ai_rate")]
pub(crate) struct GetArgs {
    /// Parameters [default: all].
    #[arg(value_name = "KEY")]
    keys: Vec<Key>,
    #[command(flatten)]
    switch: SwitchArgs,
}

impl GetArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let (iface, config) = self.switch.config()?;
        let is_shown = |key: &Key| !matches!(key, Key::DscpToTc(_)) || key.get(&config) != 0;
        let keys = if self.keys.is_empty() { Key::all().filter(is_shown).collect() } else { self.keys };
        let parameters: Vec<_> = keys.into_iter().map(|key| Parameter::new(key, &config)).collect();
        let text = Parameter::table(&parameters);
        Ok(out.show_as(&GetReport { iface, parameters }, text)?)
    }
}

#[derive(Serialize)]
struct GetReport {
    iface: String,
    parameters: Vec<Parameter>,
}

/// Change parameters of a running switch, atomically.
#[derive(Debug, Args)]
#[command(after_long_help = "\
A change that the switch rejects is reverted. Changes are recorded in the audit log.

Examples:
  dcqcn-lab p4 set wred.3.kmax=60KB --thrift-port 9090")]
pub(crate) struct SetArgs {
    /// Assignments.
    #[arg(value_name = "KEY=VALUE", required = true, add = ArgValueCompleter::new(dcqcn_support::cli::key_value))]
    changes: Vec<Assignment>,
    #[command(flatten)]
    switch: SwitchArgs,
}

impl SetArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        self.switch.set(out, &self.changes)
    }
}

/// Show flows, queues and counters of a running switch, like `dcqcn flows`, `queues` and `counters`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
DEPTH is the number of packets queued behind the last departure, times the packet size. Parameters are those of
the last push, if the switch still has them; with --config, those of the file.

Examples:
  dcqcn-lab p4 read --thrift-port 9090
  dcqcn-lab p4 read --config switch.toml
  dcqcn-lab p4 read --json | jq '.flows.rp[] | .rate_bps'")]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    switch: SwitchArgs,
    /// Configuration of a switch that `p4 push` did not configure.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Include zero counters.
    #[arg(long)]
    all: bool,
}

impl ReadArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let port = self.switch.thrift_port;
        let program = Program::embedded()?;
        let mut session = Session::open(port)?;
        // Another switch may have used this port, in this namespace or in one with a reused number.
        let stored = match self.config {
            Some(config) => {
                session.require(&program)?;
                FileArgs { config, profile: None, changes: Vec::new() }.read()?
            }
            None => {
                let stored = StoredConfig::load(port)?;
                self.switch.check(&mut session, &program, &stored).context(
                    "the stored configuration of the switch is stale; specify its current one with `--config FILE`",
                )?;
                stored
            }
        };
        let report = SwitchReport::read(&mut session, &program, &stored, port, self.all)?;
        Ok(out.show_as(&report.to_json(), &report)?)
    }
}

struct SwitchReport {
    flows: FlowsReport,
    queues: Vec<QueuesReport>,
    counters: CountersReport,
}

impl SwitchReport {
    fn read(
        session: &mut Session,
        program: &Program,
        StoredConfig { config, switch }: &StoredConfig,
        port: u16,
        all: bool,
    ) -> anyhow::Result<Self> {
        let name = target_name(port);
        let sizes = Sizes::default();
        let params = Params::new(config, Port::new(1, sizes.rp_sets(), sizes.np_sets()))?;
        let mut reader = Reader::new(session, program);
        let (rp, np) = (reader.rp_flows()?, reader.np_flows()?);
        let now_ns = reader.now_ns()?;
        let pairs = switch.pair.iter().map(|pair| pair.known()).collect();
        let mut queues = Vec::new();
        for one in &switch.port {
            let mut counters = dcqcn_common::layout::Counters::ZERO;
            let mut depth_bytes = Vec::new();
            for (tc, class) in counters.class.iter_mut().enumerate() {
                *class = reader.class(one.number, tc)?;
                depth_bytes.push(vec![reader.depth_packets(one.number, tc)? * switch.packet.0]);
            }
            let ports = vec![format!("port {}", one.number)];
            queues.push(QueuesReport::of_depths(ports, &params.config, &[counters], &depth_bytes, all));
        }
        let counters =
            CountersReport::single_hook(name.clone(), "switch", reader.counters(std::iter::empty())?, all);
        Ok(Self { flows: FlowsReport::new(name, &params, now_ns, rp, np, pairs), queues, counters })
    }

    fn to_json(&self) -> serde_json::Value {
        json!({ "flows": self.flows, "queues": self.queues, "counters": self.counters.to_json() })
    }
}

impl fmt::Display for SwitchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.flows)?;
        for queues in &self.queues {
            write!(f, "\n{}:\n{queues}", queues.ports().join(" / "))?;
        }
        write!(f, "\n{}", self.counters)
    }
}

/// Name of a switch in place of an interface name.
fn target_name(port: u16) -> String {
    format!("bmv2:{port}")
}

impl SwitchArgs {
    /// Name and parameters of the switch, if it still has the pushed configuration.
    fn config(self) -> anyhow::Result<(String, Config)> {
        let stored = StoredConfig::load(self.thrift_port)?;
        let program = Program::embedded()?;
        let mut session = Session::open(self.thrift_port)?;
        self.check(&mut session, &program, &stored)?;
        Ok((target_name(self.thrift_port), stored.config))
    }

    fn set(self, out: &mut Output<'_>, changes: &[Assignment]) -> anyhow::Result<()> {
        let _claim = Claim::acquire(self.thrift_port)?;
        let mut stored = StoredConfig::load(self.thrift_port)?;
        let program = Program::embedded()?;
        let old = stored.config;
        changes.iter().try_for_each(|change| change.apply(&mut stored.config))?;
        stored.config.validate()?;
        let plan = Plan::new(&program, &stored.config, &stored.switch)?;
        let mut session = Session::open(self.thrift_port)?;
        self.check(&mut session, &program, &StoredConfig { config: old, switch: stored.switch.clone() })?;
        push(&mut session, &plan)?;
        let keys: Vec<Key> = changes.iter().map(|change| change.key).collect();
        let change = [Change { iface: target_name(self.thrift_port), old, new: stored.config }];
        if let Err(error) = audit::Log::here().append(&change) {
            tracing::warn!(%error, "change applied but not recorded in the audit log");
        }
        stored.save(self.thrift_port).context(
            "the switch has the new values, but they could not be stored; add them to the file, and push it",
        )?;
        out.show(&ChangeReport::of_keys(&change, &keys))?;
        let ignored =
            Ignored(keys.iter().filter(|key| plan.not_in_p4.contains(key)).map(Key::to_string).collect());
        if !ignored.0.is_empty() {
            message_lines(ignored);
        }
        Ok(())
    }

    fn check(self, session: &mut Session, program: &Program, stored: &StoredConfig) -> anyhow::Result<()> {
        session.require(program)?;
        let plan = Plan::new(program, &stored.config, &stored.switch)?;
        verify(session, &plan).with_context(|| {
            format!(
                "the switch at port {0} differs from the last push; run `dcqcn-lab p4 push --config FILE --thrift-port {0}` \
                 to update it",
                self.thrift_port
            )
        })
    }
}
