//! Experiments: the engines that run the pipeline on packets, replay and trace on top of them, and the closed loop in network
//! namespaces.

pub mod engine;
pub mod frames;
pub mod replay;
pub mod testbed;
pub mod trace;
pub mod wire;
