//! The pipeline in P4, on BMv2's `simple_switch`: converts a configuration to a switch's tables, writes them to a
//! running switch, and reads them back.
//!
//! The program is in `p4/`, and `p4/README.md` is the contract of both sides. A switch is controlled through its own
//! CLI ([`Session`]), so that nothing here depends on a version of its Thrift interface.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

pub mod build;
pub mod control;
pub mod entry;
pub mod error;
pub mod interpreter;
pub mod plan;
pub mod process;
pub mod program;
pub mod push;
pub mod read;
pub mod session;
pub mod stored;
pub mod switch;

pub use control::Control;
pub use error::{Error, Result};
pub use interpreter::Interpreter;
pub use plan::Plan;
pub use process::Process;
pub use program::Program;
pub use session::Session;
pub use stored::{Claim, StoredConfig};
pub use switch::Switch;
