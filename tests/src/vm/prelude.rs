//! Names that most scenarios and situations use.

pub use super::capture::Packet;
pub use super::command::{Background, sh};
pub use super::fio::{self, CompletedIo, Job};
pub use super::hosts::{BOTTLENECK_BPS, GUESTS, Hosts, LINK, MIDDLE, PLAIN, RECEIVER, SENDER};
pub use super::lab::{Lab, Options, count, rxe};
pub use super::nvme::{self, Disk, NvmeDisk, Transport};
pub use super::perftest::{self, ECT, Flow, Tool};
pub use super::report::Report;
pub use super::sysfs;
pub use crate::prelude::*;
