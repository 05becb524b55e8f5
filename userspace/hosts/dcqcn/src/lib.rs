//! The `dcqcn` command: command line, `dcqcn doctor` and `dcqcn top`.

mod cli;
mod doctor;
mod top;

pub use cli::main;
