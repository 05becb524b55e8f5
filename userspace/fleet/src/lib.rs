//! Fleet management. The desired state of each host is in etcd, and an agent on the host forwards it to the daemon
//! (`dcqcn run`). A change is rolled out to canaries, then in waves, and rolled back if metrics degrade.
//!
//! No code in this crate runs as root, and no program that runs as root depends on it.

// `print!` and `eprint!` panic if the output cannot be written, which would end a rollout half-way.
#![warn(clippy::print_stderr, clippy::print_stdout)]

mod agent;
mod cli;
mod coordinate;
mod error;
mod file;
mod measure;
mod prelude;
mod reach;
mod record;
mod rollout;
mod serve;
#[cfg(test)]
mod simulation;
mod status;
mod store;

pub use cli::main;
