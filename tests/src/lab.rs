//! A veth pair and the command, as used by an operator.

use std::os::unix::fs::symlink;

use crate::prelude::*;

/// A host with the veth pair `a0`, `b0`, and a directory with the audit log; removed at the end of its test.
pub struct Lab {
    pub host: Host,
    directory: TempDir,
}

impl Lab {
    /// Builds it; its name is unique to this process and `test`.
    pub fn new(test: &str) -> Result<Self> {
        let lab = Self { host: Host::new(test, "lab")?, directory: tempfile::tempdir()? };
        add_veth(&lab.host.netlink()?, "a0", "b0")?;
        for name in ["a0", "b0"] {
            lab.host.set_up(name, true)?;
        }
        symlink(binary()?, lab.path("ecnconfig"))?;
        Ok(lab)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs the command with its audit log in `audit`, with sudo's variables for `ada`. A line that starts with
    /// `ecnconfig` runs the command under that name, as a SONiC script would.
    pub fn run_with(&self, audit: &Path, line: &str) -> Result<Output> {
        let mut command = match line.strip_prefix("ecnconfig ") {
            Some(flags) => {
                let mut command = Command::new(self.path("ecnconfig"));
                command.args(flags.split_whitespace());
                command
            }
            None => dcqcn(line)?,
        };
        // Tests expect the defaults' values, on slow links too.
        let names_profile = ["--profile", "--config"].iter().any(|option| line.contains(option));
        if line.starts_with("attach ") && !names_profile {
            command.args(["--profile", "paper"]);
        }
        command.env("DCQCN_AUDIT", audit).env("SUDO_USER", "ada");
        self.host.output(command)
    }

    pub fn run(&self, line: &str) -> Result<Output> {
        self.run_with(self.directory.path(), line)
    }

    /// Runs a command that succeeds, and returns its output.
    pub fn ok(&self, line: &str) -> Result<String> {
        let output = self.run(line)?;
        ensure!(output.status.success(), "dcqcn {line}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Attaches to interfaces, with small tables and no pacer.
    pub fn attach(&self, ifaces: &[&str]) -> Result<()> {
        let options = "--pacer none --flows 64 --set link_rate=1gbit";
        ifaces.iter().try_for_each(|iface| self.ok(&format!("attach {iface} {options}")).map(drop))
    }

    /// Runs a command that succeeds with `--json`, and returns its output.
    pub fn json(&self, line: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.ok(&format!("{line} --json"))?)?)
    }

    /// Runs a command that fails with `code`, and returns its error output.
    pub fn expect_error(&self, code: i32, line: &str) -> Result<String> {
        let output = self.run(line)?;
        let message = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(code), "dcqcn {line}: {}, {message}", output.status);
        Ok(message)
    }

    /// As [`Self::ok`]; panics unless the output contains `what`.
    #[track_caller]
    pub fn prints(&self, line: &str, what: &str) -> Result<()> {
        assert_contains(&self.ok(line)?, what);
        Ok(())
    }

    /// As [`Self::expect_error`]; panics unless the error output contains `what`.
    #[track_caller]
    pub fn fails(&self, code: i32, line: &str, what: &str) -> Result<()> {
        assert_contains(&self.expect_error(code, line)?, what);
        Ok(())
    }
}

/// Panics unless `text` contains `what`.
///
/// # Panics
/// See above.
#[track_caller]
pub fn assert_contains(text: &str, what: &str) {
    assert!(text.contains(what), "`{what}` is not in:\n{text}");
}
