//! Files of a package generated from the command line's description: manual pages and completions.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Command, Subcommand};
use clap_complete::env::Shells;

use crate::cli::{Error, Output, OutputError};

/// Environment variable by which completion scripts query the command, as clap defines it.
const COMPLETE_VARIABLE: &str = "COMPLETE";

/// A manual page other than those of commands.
#[derive(Clone, Debug)]
pub struct Page {
    /// Topic; its file is `NAME.SECTION`.
    pub name: &'static str,
    /// 5 for files, 7 for concepts.
    pub section: u8,
    pub roff: String,
}

/// Generate manual pages and completions.
#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// Write the manual pages into DIR/man1, DIR/man5 and DIR/man7.
    Man {
        /// Output directory; created if necessary.
        dir: PathBuf,
    },
    /// Print the completion script of a shell.
    Completions {
        /// bash, elvish, fish, powershell or zsh.
        shell: String,
    },
}

impl GenerateCommand {
    pub fn run(self, out: &mut Output<'_>, command: Command, pages: &[Page]) -> Result<(), Error> {
        match self {
            Self::Man { dir } => {
                let text = format!("manual pages written to {}\n", dir.display());
                write_pages(&dir, command, pages).map_err(|source| Error::Pages { dir, source })?;
                Ok(out.text(&text)?)
            }
            Self::Completions { shell } => {
                let name = command.get_name();
                let shells = Shells::builtins();
                let Some(completer) = shells.completer(&shell) else {
                    let supported = shells.names().collect::<Vec<_>>().join(", ");
                    return Err(Error::Shell { shell, supported });
                };
                let mut script = Vec::new();
                completer
                    .write_registration(COMPLETE_VARIABLE, name, name, name, &mut script)
                    .map_err(OutputError)?;
                Ok(out.text(&String::from_utf8_lossy(&script))?)
            }
        }
    }
}

fn write_pages(dir: &Path, command: Command, pages: &[Page]) -> io::Result<()> {
    let commands = dir.join("man1");
    fs::create_dir_all(&commands)?;
    clap_mangen::generate_to(command, &commands)?;
    for Page { name, section, roff } in pages {
        let dir = dir.join(format!("man{section}"));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(format!("{name}.{section}")), roff)?;
    }
    Ok(())
}
