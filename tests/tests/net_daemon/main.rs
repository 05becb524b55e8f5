//! `dcqcn run` as used by an operator: a file, changing interfaces, reloads, and crashes.

mod control;
mod flows;
mod host_congestion;
mod probe;
mod repair;
mod reverts;
mod serving;
mod traffic;
