//! The `dcqcn` library: loads, keeps and tunes the DCQCN data plane.

pub mod attach;
pub mod audit;
pub mod backlog;
pub mod cli;
pub mod clock;
pub mod daemon;
pub mod dataplane;
pub mod doctor;
pub mod engine;
pub mod interrupt;
pub mod lab;
pub mod metrics;
pub mod net;
pub mod object;
pub mod p4;
pub mod pacer;
pub mod pairing;
pub mod params;
pub mod plot;
pub mod render;
pub mod replay;
pub mod sim;
pub mod sonic;
pub mod top;
pub mod trace;
pub mod watch;
