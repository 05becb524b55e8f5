//! What goes wrong between this command and a BMv2 switch.

use std::io;
use std::path::PathBuf;

/// Where people get the tools from: no distribution carries them.
pub(crate) const TOOLS: &str =
    "the p4lang packages `p4lang-p4c` and `p4lang-bmv2` for Debian and Ubuntu have it (docs/how-to/bmv2.md)";

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something about P4 or BMv2 failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program of p4c or BMv2 is not installed.
    #[error("`{tool}` is not on PATH: {TOOLS}")]
    Missing {
        /// Which.
        tool: &'static str,
    },
    /// A program cannot be started or spoken to.
    #[error("cannot run `{tool}`: {source}")]
    Run {
        /// Which.
        tool: &'static str,
        /// Why.
        source: io::Error,
    },
    /// There is nothing to compile.
    #[error(
        "no program at {}: compile it in the project's repository, or name the directory of `dcqcn.p4` with \
         --source DIR; `dcqcn-lab p4 json` prints the program compiled for this version, without a compiler",
        path.display()
    )]
    NoSource {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The compiler refuses the program.
    #[error("p4c-bm2-ss refuses {}:\n{}", path.display(), text.trim_end())]
    Compile {
        /// The source.
        path: PathBuf,
        /// What it says.
        text: String,
    },
    /// A compiled program is not what BMv2 reads.
    #[error("{what} is not a program for BMv2: {reason}")]
    Json {
        /// Which.
        what: String,
        /// Why.
        reason: String,
    },
    /// The compiled program does not have what this command writes.
    #[error(
        "{what} does not fit this dcqcn: {difference}; it was compiled from another version of p4/: \
         `dcqcn-lab p4 build` compiles this one's, and the switch must be started with the result"
    )]
    Stale {
        /// Which compiled program.
        what: String,
        /// The first difference.
        difference: String,
    },
    /// Nobody listens at the port.
    #[error(
        "no switch answers at Thrift port {port} of this network namespace: start `simple_switch --thrift-port {port}`, \
         or go where it runs (`ip netns exec NAME dcqcn ...`)"
    )]
    NoSwitch {
        /// The port.
        port: u16,
    },
    /// Somebody else is changing it.
    #[error(
        "another dcqcn-lab has been changing the switch at port {port} for 30 s: wait for its end, or end it (`fuser {}` names it)",
        path.display()
    )]
    Busy {
        /// Its port.
        port: u16,
        /// The lock.
        path: PathBuf,
    },
    /// Somebody listens, who is not a switch.
    #[error("what listens at port {port} is not simple_switch's Thrift server: {reason}")]
    NotASwitch {
        /// The port.
        port: u16,
        /// What simple_switch_CLI says.
        reason: String,
    },
    /// The switch ended, or stopped answering.
    #[error("the switch at Thrift port {port} is gone: {reason}")]
    Gone {
        /// The port.
        port: u16,
        /// What was asked, and what came instead of an answer.
        reason: String,
    },
    /// The switch refuses a command.
    #[error("the switch refuses `{command}`: {answer}")]
    Refused {
        /// The command.
        command: String,
        /// Its answer.
        answer: String,
    },
    /// The switch answers what cannot be read.
    #[error(
        "cannot read the answer to `{command}`: {answer}; this dcqcn knows simple_switch_CLI of BMv2 1.15"
    )]
    Answer {
        /// The command.
        command: String,
        /// Its answer.
        answer: String,
    },
    /// What was written is not there.
    #[error(
        "{table} of the switch is not what was written: {difference}; does another controller write to it?"
    )]
    NotTaken {
        /// Which table or register.
        table: String,
        /// What differs.
        difference: String,
    },
    /// Nothing is known of the switch.
    #[error(
        "nothing was pushed to the switch at Thrift port {port}: `dcqcn-lab p4 push --config FILE --thrift-port {port}` does"
    )]
    NothingPushed {
        /// The port.
        port: u16,
    },
    /// A table has too few places.
    #[error("table `{table}` has {size} places and this configuration needs {needed}: {advice}")]
    Full {
        /// Which.
        table: String,
        /// Its places.
        size: u64,
        /// Entries of the configuration.
        needed: usize,
        /// What there may be at most.
        advice: String,
    },
    /// A value has no place in the program.
    #[error("{what} = {value} does not fit {bits} bits: the largest is {max}")]
    TooWide {
        /// What it is.
        what: String,
        /// The value.
        value: u128,
        /// Bits it has.
        bits: u32,
        /// The largest value.
        max: u128,
    },
    /// The configuration asks for what the program has not.
    #[error("{message}")]
    Config {
        /// What, and what to do instead.
        message: String,
    },
    /// The switch does not start.
    #[error("simple_switch did not start: {reason}")]
    Start {
        /// What it says, or what is missing.
        reason: String,
    },
    /// Its ports cannot be made or used.
    #[error("the switch's ports: {reason}")]
    Ports {
        /// Why.
        reason: String,
    },
    /// The interpreter does not know something that a compiled program has.
    #[error(
        "cannot interpret the program: {place} has {what}, which the interpreter does not know; run it in simple_switch \
         (`--engine bmv2`)"
    )]
    NotInterpreted {
        /// The part of the program.
        place: String,
        /// The thing that is not known.
        what: String,
    },
    /// The program, or a controller, does what it must not.
    #[error("the interpreter of the P4 program stops: {reason}")]
    Interpreter {
        /// The mistake.
        reason: String,
    },
    /// A packet neither left the switch nor was counted as dropped.
    #[error("the switch lost a packet of {len} bytes that came in by port {port}")]
    Lost {
        /// Its length.
        len: usize,
        /// The port.
        port: u16,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}
