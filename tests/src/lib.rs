//! Helpers for the tests.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

pub mod both;
pub mod bpf;
pub mod browser;
pub mod command;
pub mod daemon;
pub mod fleet;
pub mod host;
pub mod kill;
pub mod lab;
pub mod leftover;
pub mod manifests;
pub mod packets;
pub mod pauses;
pub mod prelude;
pub mod queues;
pub mod repeat;
pub mod retry;
pub mod skip;
pub mod socket;
pub mod tap;
pub mod traffic;
pub mod vectors;
pub mod vm;
