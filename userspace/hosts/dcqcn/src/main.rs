//! The `dcqcn` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    dcqcn::main()
}
