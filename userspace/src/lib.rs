//! The `dcqcn` library: loads, keeps and tunes the DCQCN data plane.

pub mod attach;
pub mod cli;
pub mod clock;
pub mod dataplane;
pub mod engine;
pub mod interrupt;
pub mod lab;
pub mod net;
pub mod object;
pub mod pacer;
pub mod params;
pub mod render;
pub mod replay;
