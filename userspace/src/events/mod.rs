//! What happened, for people and programs that want to know: the data plane's event log, and the changes that were refused.

mod log;
mod reader;
mod row;

pub use log::Log;
pub use reader::{Entry, Reader};
pub use row::{EventRow, Kind};
