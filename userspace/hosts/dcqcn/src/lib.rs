//! The `dcqcn` command: what an operator types, `dcqcn doctor` and `dcqcn top`.

mod cli;
mod doctor;
mod top;

pub use cli::main;
