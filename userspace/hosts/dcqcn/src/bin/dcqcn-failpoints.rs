//! The `dcqcn` command with failpoints, for tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    dcqcn::main()
}
