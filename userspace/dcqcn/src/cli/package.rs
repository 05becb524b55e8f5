//! `man` and `completions`: what a package of dcqcn has beside the command, made from the command line's own description.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;
use super::output::Output;

/// Write the manual pages of dcqcn and of every command into a directory.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn man /usr/local/share/man/man1")]
pub(super) struct ManArgs {
    /// The directory; made if it is not there.
    dir: PathBuf,
}

impl ManArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let dir = self.dir.display();
        fs::create_dir_all(&self.dir).with_context(|| format!("cannot make {dir}"))?;
        clap_mangen::generate_to(Cli::command(), &self.dir)
            .with_context(|| format!("cannot write the manual pages into {dir}"))?;
        out.text(&format_args!("manual pages are in {dir}\n"))
    }
}

/// Print the completion script of a shell.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn completions bash > /etc/bash_completion.d/dcqcn
  dcqcn completions zsh > ~/.zfunc/_dcqcn")]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "dcqcn", &mut script);
        Ok(out.writer().write_all(&script)?)
    }
}
