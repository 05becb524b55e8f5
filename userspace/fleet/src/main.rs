//! The `dcqcn-fleet` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    dcqcn_fleet::main()
}
