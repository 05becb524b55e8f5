//! Errors between this command and a BMv2 switch.

use std::io;
use std::path::PathBuf;

/// Source of the tools, which no distribution packages.
pub(crate) const TOOLS: &str =
    "the p4lang packages `p4lang-p4c` and `p4lang-bmv2` for Debian and Ubuntu have it (docs/how-to/bmv2.md)";

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// An error concerning P4 or BMv2.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program of p4c or BMv2 is not installed.
    #[error("`{tool}` is not on PATH: {TOOLS}")]
    Missing {
        /// Tool.
        tool: &'static str,
    },
    /// A tool cannot be started, or communication with it failed.
    #[error("cannot run `{tool}`: {source}")]
    Run {
        /// Tool.
        tool: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The source of the program is missing.
    #[error(
        "no program at {}: compile it in the project's repository, or specify the directory of `dcqcn.p4` with \
         --source DIR; `dcqcn-lab p4 json` prints the program compiled for this version, without a compiler",
        path.display()
    )]
    NoSource {
        /// Expected path.
        path: PathBuf,
    },
    /// The compiler rejects the program.
    #[error("p4c-bm2-ss rejects {}:\n{}", path.display(), text.trim_end())]
    Compile {
        /// The source.
        path: PathBuf,
        /// Output of the compiler.
        text: String,
    },
    /// A compiled program has the wrong format.
    #[error("{what} is not a program for BMv2: {reason}")]
    Json {
        /// Program.
        what: String,
        /// Cause.
        reason: String,
    },
    /// The compiled program lacks something that this command writes.
    #[error(
        "{what} does not match this version of dcqcn: {difference}; it was compiled from another version of p4/: \
         `dcqcn-lab p4 build` compiles this one's, and the switch must be started with the result"
    )]
    Stale {
        /// Program.
        what: String,
        /// The first difference.
        difference: String,
    },
    /// The switch applies rates and depths to the wrong queues.
    #[error(
        "cannot use simple_switch {version}: set_queue_rate and set_queue_depth change the queue of the inverse priority; \
         install BMv2 1.15.5 or later"
    )]
    Inverted {
        /// Version of the switch.
        version: String,
    },
    /// No process listens on the port.
    #[error(
        "no switch answers at Thrift port {port} in this network namespace; start `simple_switch --thrift-port {port}`, \
         or run this command in its namespace (`ip netns exec NAME dcqcn-lab ...`)"
    )]
    NoSwitch {
        /// The port.
        port: u16,
    },
    /// Another process is changing the switch.
    #[error(
        "another dcqcn-lab has been changing the switch at port {port} for 30 s; wait for it, or stop it (`fuser {}` shows its process)",
        path.display()
    )]
    Busy {
        /// Port of the switch.
        port: u16,
        /// Lock file.
        path: PathBuf,
    },
    /// The process on the port is not a switch.
    #[error("the process on port {port} is not simple_switch's Thrift server: {reason}")]
    NotASwitch {
        /// The port.
        port: u16,
        /// Output of simple_switch_CLI.
        reason: String,
    },
    /// The switch exited, or does not answer.
    #[error("lost connection to the switch at Thrift port {port}: {reason}")]
    Gone {
        /// The port.
        port: u16,
        /// Request, and the unexpected answer.
        reason: String,
    },
    /// The switch rejects a command.
    #[error("the switch rejects `{command}`: {answer}")]
    Refused {
        /// The command.
        command: String,
        /// Answer.
        answer: String,
    },
    /// The answer of the switch is malformed.
    #[error(
        "cannot read the answer to `{command}`: {answer}; this dcqcn supports simple_switch_CLI of BMv2 1.15"
    )]
    Answer {
        /// The command.
        command: String,
        /// Answer.
        answer: String,
    },
    /// The value read back differs.
    #[error(
        "{table} of the switch differs from the value written: {difference}; does another controller write to it?"
    )]
    NotTaken {
        /// Table or register.
        table: String,
        /// Difference.
        difference: String,
    },
    /// The switch was never configured by this command.
    #[error(
        "no configuration was pushed to the switch at Thrift port {port}; run `dcqcn-lab p4 push --config FILE --thrift-port {port}`"
    )]
    NothingPushed {
        /// The port.
        port: u16,
    },
    /// A table is too small.
    #[error("table `{table}` has {size} entries and this configuration needs {needed}: {advice}")]
    Full {
        /// Table.
        table: String,
        /// Size.
        size: u64,
        /// Entries of the configuration.
        needed: usize,
        /// Advice on the maximum.
        advice: String,
    },
    /// A value is too large for the program.
    #[error("{what} = {value} does not fit {bits} bits: the largest is {max}")]
    TooWide {
        /// Name of the value.
        what: String,
        /// The value.
        value: u128,
        /// Width in bits.
        bits: u32,
        /// Largest value.
        max: u128,
    },
    /// The configuration needs a feature that the program lacks.
    #[error("{message}")]
    Config {
        /// Feature, and an alternative.
        message: String,
    },
    /// The switch does not start.
    #[error("simple_switch did not start: {reason}")]
    Start {
        /// Output, or missing part.
        reason: String,
    },
    /// The switch's ports cannot be created or used.
    #[error("the switch's ports: {reason}")]
    Ports {
        /// Cause.
        reason: String,
    },
    /// The interpreter does not support a feature of a compiled program.
    #[error(
        "cannot interpret the program: {location} has {what}, which the interpreter does not support; run it in simple_switch \
         (`--engine bmv2`)"
    )]
    NotInterpreted {
        /// Part of the program.
        location: String,
        /// Unsupported feature.
        what: String,
    },
    /// The program, or a controller, violates a rule.
    #[error("the interpreter of the P4 program stops: {reason}")]
    Interpreter {
        /// Violation.
        reason: String,
    },
    /// A packet neither left the switch nor was counted as dropped.
    #[error("the switch lost a packet of {len} bytes that arrived at port {port}")]
    Lost {
        /// Length.
        len: usize,
        /// The port.
        port: u16,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}
