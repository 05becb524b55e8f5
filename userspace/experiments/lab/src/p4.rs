//! `p4`: the pipeline in P4 on a BMv2 switch.

mod running;

use std::fmt;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use dcqcn_common::params::{Config, PACER_FQ, PACER_NONE};
use dcqcn_p4::{Plan, Program, StoredConfig, Switch, build, switch};
use dcqcn_params::{Assignment, PacerChoice, Profile, Role, Settings};
use dcqcn_support::cli::{Output, message_lines};
use dcqcn_support::file::read_text;
use running::{CheckArgs, GetArgs, PushArgs, ReadArgs, SetArgs};
use serde::Serialize;
use serde_json::json;

/// Default port of BMv2's Thrift server.
const THRIFT_PORT: u16 = 9_090;

/// Compile, configure and read the pipeline in P4, on BMv2's simple_switch.
#[derive(Debug, Subcommand)]
#[command(after_long_help = "\
The configuration file is that of `dcqcn config example`, plus a section that describes the switch:

  [bmv2]
  packet = \"1082B\"          # packet size, as BMv2 counts queues in packets (64B to 9216B)
  depth = \"dequeue\"         # or \"enqueue\": when the queue depth for marking is sampled
  [[bmv2.port]]
  number = 1                # as in `simple_switch -i 1@veth1`
  host = true               # runs the NP and RP for the host at this port, if np_enable and rp_enable are on
  rate = \"10mbit\"           # drain rate of its queues (default: link_rate)
  [[bmv2.route]]
  to = \"10.0.1.0/24\"
  port = 1
  src_mac = \"02:00:00:00:00:01\"
  dst_mac = \"02:00:00:00:00:02\"
  [[bmv2.mac]]              # by Ethernet address; takes precedence over routes
  address = \"02:00:00:00:00:03\"
  port = 1
  [[bmv2.pair]]             # a QP and its peer
  address = \"10.0.1.2\"
  qpn = 17
  peer_qpn = 529

Default role: the switch marks packets, without CNPs or pacing.

Examples:
  dcqcn-lab p4 build --out /tmp/dcqcn
  dcqcn-lab p4 commands --config switch.toml
  dcqcn-lab p4 push --config switch.toml --thrift-port 9090
  dcqcn-lab p4 read --thrift-port 9090")]
pub(crate) enum P4Command {
    Build(BuildArgs),
    Commands(CommandsArgs),
    Check(CheckArgs),
    Push(PushArgs),
    Get(GetArgs),
    Set(SetArgs),
    Read(ReadArgs),
    Json(JsonArgs),
}

impl P4Command {
    pub(crate) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        match self {
            Self::Build(args) => args.run(out),
            Self::Commands(args) => args.run(out),
            Self::Check(args) => args.run(out),
            Self::Push(args) => args.run(out),
            Self::Get(args) => args.run(out),
            Self::Set(args) => args.run(out),
            Self::Read(args) => args.run(out),
            Self::Json(args) => args.run(out),
        }
    }
}

/// Compile the program with p4c-bm2-ss.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The source is the directory p4/ of the project's repository. Writes dcqcn.json for simple_switch and dcqcn.p4info.txtpb
for P4Runtime. The program compiled for this version is built in (`dcqcn-lab p4 json`), so the compiler is optional.

Examples:
  dcqcn-lab p4 build
  dcqcn-lab p4 build --source p4 --out /tmp/dcqcn")]
pub(crate) struct BuildArgs {
    /// Source directory.
    #[arg(long, value_name = "DIR", default_value = "p4")]
    source: PathBuf,
    /// Output directory [default: `build` in the source directory].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl BuildArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let to = self.out.unwrap_or_else(|| self.source.join("build"));
        let built = build::build(&self.source, &to)?;
        let build::Built { json, p4info, compiler, fits } = &built;
        let mut text = format!("compiled by p4c {compiler}:\n  {}\n  {}\n", json.display(), p4info.display());
        if !fits {
            text += "its tables, registers or counters do not match this version of dcqcn\n";
        }
        Ok(out.show_as(&built, text)?)
    }
}

/// Print the compiled program of this version, for simple_switch.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-lab p4 json > dcqcn.json")]
pub(crate) struct JsonArgs {}

impl JsonArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        Ok(out.writer().write_all(dcqcn_p4::program::JSON.as_bytes())?)
    }
}

/// Sources of a switch's configuration, in ascending precedence: the profile, the file, single settings.
#[derive(Debug, Args)]
struct FileArgs {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Profile to start from.
    #[arg(long, value_enum)]
    profile: Option<Profile>,
    /// Set a parameter; overrides profile and file. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<Assignment>,
}

impl FileArgs {
    fn read(self) -> anyhow::Result<StoredConfig> {
        let Self { config, profile, changes } = self;
        let name = config.display().to_string();
        let text = read_text(&config).with_context(|| format!("cannot read {name}"))?;
        let (settings, switch) = switch::parse(&name, &text)?;
        let settings = settings.then(Settings { profile, changes, ..Settings::default() });
        Ok(StoredConfig { config: switch_config(settings)?, switch })
    }
}

/// Parameters of a switch: by default, its role is switch and it paces.
fn switch_config(mut settings: Settings) -> anyhow::Result<Config> {
    settings.role.get_or_insert(Role::Switch);
    let pacer = settings.pacer.take().unwrap_or_default();
    let mut config = settings.config(None)?;
    config.scalars.pacer = if pacer == PacerChoice::None { PACER_NONE } else { PACER_FQ };
    Ok(config)
}

/// Plan of the switch that `settings` and `switch` describe.
fn plan(settings: Settings, switch: &Switch) -> anyhow::Result<Plan> {
    Ok(Plan::new(&Program::embedded()?, &switch_config(settings)?, switch)?)
}

/// Print a complete configuration as commands for simple_switch_CLI.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The commands configure a newly started switch. Parameters without a counterpart in P4 are listed on standard
error.

Examples:
  dcqcn-lab p4 commands --config switch.toml
  dcqcn-lab p4 commands --config switch.toml | simple_switch_CLI --thrift-port 9090
  dcqcn-lab p4 commands --config switch.toml --set wred.3.kmax=60KB --json")]
pub(crate) struct CommandsArgs {
    #[command(flatten)]
    file: FileArgs,
}

impl CommandsArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let StoredConfig { config, switch } = self.file.read()?;
        let plan = Plan::new(&Program::embedded()?, &config, &switch)?;
        let not_in_p4 = Ignored::of(&plan, &config);
        if out.is_json() {
            let commands: Vec<String> = plan.commands().map(|command| command.to_string()).collect();
            return Ok(out.json(&json!({ "commands": commands, "not_in_p4": not_in_p4.0 }))?);
        }
        for command in plan.commands() {
            writeln!(out.writer(), "{command}")?;
        }
        message_lines(not_in_p4);
        Ok(())
    }
}

/// Parameters that were set but have no counterpart in P4.
#[derive(Serialize)]
struct Ignored(Vec<String>);

impl Ignored {
    fn of(plan: &Plan, config: &Config) -> Self {
        Self(plan.not_in_p4.iter().map(|key| format!("{key}={}", key.text(config))).collect())
    }
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|setting| writeln!(f, "not in P4: {setting}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switch_marks_and_paces_by_default() {
        let config = switch_config(Settings::default()).unwrap().scalars;
        assert_eq!((config.cp_enable, config.np_enable, config.rp_enable, config.pacer), (1, 0, 0, PACER_FQ));
        let unpaced =
            Settings { pacer: Some(PacerChoice::None), role: Some(Role::Host), ..Settings::default() };
        let config = switch_config(unpaced).unwrap().scalars;
        assert_eq!((config.cp_enable, config.rp_enable, config.pacer), (0, 1, PACER_NONE));
    }
}
