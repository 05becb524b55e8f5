//! The `dcqcn` command; see [`dcqcn::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    dcqcn::cli::main()
}
