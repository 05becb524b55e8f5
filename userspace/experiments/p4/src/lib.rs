//! The pipeline in P4, on BMv2's `simple_switch`: the same configuration as the tables of a switch, written to a running
//! one and read back.
//!
//! The program is in `p4/`, and `p4/README.md` is what both sides keep to. A switch is spoken to by its own control
//! program ([`Session`]), so that nothing here depends on a version of its Thrift interface.

pub mod build;
pub mod control;
mod dump;
pub mod entry;
pub mod error;
pub mod interpreter;
pub mod kept;
pub mod plan;
pub mod process;
pub mod program;
pub mod push;
pub mod read;
pub mod session;
pub mod switch;

pub use control::Control;
pub use error::{Error, Result};
pub use interpreter::Interpreter;
pub use kept::{Claim, Kept};
pub use plan::Plan;
pub use process::Process;
pub use program::Program;
pub use session::Session;
pub use switch::Switch;
