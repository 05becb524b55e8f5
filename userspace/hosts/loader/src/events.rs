//! What happened, for whoever wants to know: the data plane's event log.

mod log;
mod reader;

pub use log::Log;
pub use reader::{Entry, Reader};
