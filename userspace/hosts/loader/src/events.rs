//! The data plane's event log.

mod log;
mod reader;

pub use log::Log;
pub use reader::{Entry, Reader};
