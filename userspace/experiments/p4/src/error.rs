//! Errors between this command and a BMv2 switch.

use std::io;
use std::path::PathBuf;

/// Source of the tools, which no distribution packages.
pub(crate) const TOOLS: &str =
    "the p4lang packages `p4lang-p4c` and `p4lang-bmv2` for Debian and Ubuntu have it (docs/how-to/bmv2.md)";

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{tool}` is not on PATH: {TOOLS}")]
    Missing { tool: &'static str },
    #[error("cannot run `{tool}`: {source}")]
    Run { tool: &'static str, source: io::Error },
    #[error(
        "no program at {}: compile it in the project's repository, or specify the directory of `dcqcn.p4` with \
         --source DIR; `dcqcn-lab p4 json` prints the program compiled for this version, without a compiler",
        path.display()
    )]
    NoSource { path: PathBuf },
    #[error("p4c-bm2-ss rejects {}:\n{}", path.display(), text.trim_end())]
    Compile { path: PathBuf, text: String },
    #[error("{what} is not a program for BMv2: {reason}")]
    Json { what: String, reason: String },
    #[error(
        "{what} does not match this version of dcqcn: {difference}; it was compiled from another version of p4/: \
         `dcqcn-lab p4 build` compiles this one's, and the switch must be started with the result"
    )]
    Stale { what: String, difference: String },
    #[error(
        "cannot use simple_switch {version}: set_queue_rate and set_queue_depth change the queue of the inverse priority; \
         install BMv2 1.15.5 or later"
    )]
    Inverted { version: String },
    #[error(
        "no switch answers at Thrift port {port} in this network namespace; start `simple_switch --thrift-port {port}`, \
         or run this command in its namespace (`ip netns exec NAME dcqcn-lab ...`)"
    )]
    NoSwitch { port: u16 },
    #[error(
        "another dcqcn-lab has been changing the switch at port {port} for 30 s; wait for it, or stop it (`fuser {}` shows its process)",
        path.display()
    )]
    Busy { port: u16, path: PathBuf },
    #[error("the process on port {port} is not simple_switch's Thrift server: {reason}")]
    NotASwitch { port: u16, reason: String },
    #[error("lost connection to the switch at Thrift port {port}: {reason}")]
    Gone { port: u16, reason: String },
    #[error("the switch rejects `{command}`: {answer}")]
    Refused { command: String, answer: String },
    #[error(
        "cannot read the answer to `{command}`: {answer}; this dcqcn supports simple_switch_CLI of BMv2 1.15"
    )]
    Answer { command: String, answer: String },
    #[error(
        "{table} of the switch differs from the value written: {difference}; does another controller write to it?"
    )]
    NotTaken { table: String, difference: String },
    #[error(
        "no configuration was pushed to the switch at Thrift port {port}; run `dcqcn-lab p4 push --config FILE --thrift-port {port}`"
    )]
    NothingPushed { port: u16 },
    #[error("table `{table}` has {size} entries and this configuration needs {needed}: {advice}")]
    Full { table: String, size: u64, needed: usize, advice: String },
    #[error("{what} = {value} does not fit {bits} bits: the largest is {max}")]
    TooWide { what: String, value: u128, bits: u32, max: u128 },
    #[error("{message}")]
    Config { message: String },
    #[error("simple_switch did not start: {reason}")]
    Start { reason: String },
    #[error("the switch's ports: {reason}")]
    Ports { reason: String },
    #[error(
        "cannot interpret the program: {location} has {what}, which the interpreter does not support; run it in simple_switch \
         (`--engine bmv2`)"
    )]
    NotInterpreted { location: String, what: String },
    #[error("the interpreter of the P4 program stops: {reason}")]
    Interpreter { reason: String },
    #[error("the switch lost a packet of {len} bytes that arrived at port {port}")]
    Lost { len: usize, port: u16 },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}
