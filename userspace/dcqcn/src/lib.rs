//! The `dcqcn` command: what an operator types, `dcqcn doctor` and `dcqcn top`.

pub mod cli;
pub mod doctor;
pub mod top;
