//! Many hosts: what they are to have is in etcd, an agent on each has its controller do it, and a change is rolled out in steps
//! that are reverted when things get worse.
//!
//! Nothing here runs as root, and nothing that runs as root depends on it.

mod agent;
mod ask;
mod cli;
mod coordinate;
mod file;
mod history;
mod measure;
mod reach;
mod record;
mod rollout;
mod secret;
mod serve;
#[cfg(test)]
mod simulation;
mod status;
mod store;

pub use cli::main;
