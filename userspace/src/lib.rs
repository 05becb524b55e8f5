//! The `dcqcn` library: loads, keeps and tunes the DCQCN data plane.

pub mod dataplane;
pub mod lab;
pub mod net;
pub mod object;
