//! The maintainer scripts of the packages, with mocks of the commands that they run.

use std::fs::Permissions;

use dcqcn_tests::prelude::*;

/// A root directory with systemd, a journal, and mock commands that record their calls.
struct Root(TempDir);

impl Root {
    /// `dcqcn` is the body of its mock.
    fn new(dcqcn: &str) -> Result<Self> {
        Self::with_systemctl("", dcqcn)
    }

    fn with_systemctl(systemctl: &str, dcqcn: &str) -> Result<Self> {
        let root = Self(tempfile::tempdir()?);
        for dir in ["bin", "run/systemd/system", "run/dcqcn/ns-7"] {
            fs::create_dir_all(root.path(dir))?;
        }
        fs::write(root.journal(), "{}")?;
        for (name, body) in [
            ("systemctl", systemctl),
            ("dcqcn", dcqcn),
            // One namespace is enough, another one than that of the script.
            ("nsenter", "shift; exec \"$@\""),
            ("stat", "case $3 in /proc/self/*) echo 2 ;; *) echo 1 ;; esac"),
        ] {
            root.mock(name, body)?;
        }
        Ok(root)
    }

    fn mock(&self, name: &str, body: &str) -> Result<()> {
        let (path, calls) = (self.path("bin").join(name), self.path("calls"));
        fs::write(&path, format!("#!/bin/sh\necho {name} \"$@\" >>{}\n{body}\n", calls.display()))?;
        Ok(fs::set_permissions(&path, Permissions::from_mode(0o755))?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn journal(&self) -> PathBuf {
        self.path("run/dcqcn/ns-7/3.json")
    }

    fn run(&self, script: &str, action: &str) -> Result<Output> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/packages/dcqcn").join(script);
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH")?);
        Ok(Command::new("sh")
            .arg(script)
            .arg(action)
            .env("DPKG_ROOT", self.0.path())
            .env("PATH", path)
            .output()?)
    }

    fn calls(&self) -> Result<String> {
        Ok(fs::read_to_string(self.path("calls"))?)
    }
}

/// `remove` is dpkg's argument, 0 rpm's.
#[test]
fn removal_detaches_and_ends_the_mount() -> Result<()> {
    for action in ["remove", "0"] {
        let root = Root::new("rm -f \"$DPKG_ROOT/run/dcqcn/ns-7/3.json\"")?;
        let output = root.run("prerm", action)?;
        assert!(output.status.success(), "{output:?}");
        let calls = root.calls()?;
        assert!(calls.contains("dcqcn detach --all --interrupt"), "{calls}");
        assert!(calls.contains("systemctl stop run-dcqcn-bpf.mount"), "{calls}");
        assert!(root.run("postrm", "purge")?.status.success());
        assert!(!root.path("run/dcqcn").exists());
    }
    Ok(())
}

/// As in the build of an image, without CAP_SYS_ADMIN.
#[test]
fn removal_enters_no_namespace_for_its_own() -> Result<()> {
    let root = Root::new("rm -f \"$DPKG_ROOT/run/dcqcn/ns-7/3.json\"")?;
    root.mock("nsenter", "exit 1")?;
    root.mock("stat", "echo 1")?;
    let output = root.run("prerm", "remove")?;
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(!root.journal().exists() && !root.calls()?.contains("nsenter"), "{}", root.calls()?);
    Ok(())
}

#[test]
fn purge_empties_a_mount_point() -> Result<()> {
    let root = Root::new("")?;
    fs::create_dir_all(root.path("var/log/dcqcn"))?;
    root.mock("rm", "case $* in *var/log*) exit 1 ;; esac")?;
    assert!(root.run("postrm", "purge")?.status.success());
    assert!(root.calls()?.contains("systemctl daemon-reload"), "{}", root.calls()?);
    Ok(())
}

/// `upgrade` is dpkg's argument, 1 rpm's.
#[test]
fn upgrade_detaches_nothing() -> Result<()> {
    for action in ["upgrade", "1"] {
        let root = Root::new("")?;
        assert!(root.run("prerm", action)?.status.success());
        assert!(!root.path("calls").exists() && root.journal().exists(), "{action}");
    }
    Ok(())
}

#[test]
fn failed_removal_reports_and_keeps_mount() -> Result<()> {
    let root = Root::new("exit 1")?;
    let output = root.run("prerm", "remove")?;
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8(output.stderr)?;
    assert!(errors.contains("not undone") && errors.contains("ns-7/3.json"), "{errors}");
    let calls = root.calls()?;
    assert!(!calls.contains("run-dcqcn-bpf.mount"), "{calls}");
    assert!(root.run("postrm", "purge")?.status.success());
    assert!(root.journal().exists());
    Ok(())
}

/// The daemon before the upgrade keeps running if the new one would not start, and dpkg completes in any case.
#[test]
fn upgrade_keeps_a_daemon_it_cannot_replace() -> Result<()> {
    const SHOW: &str = "[ $1 != show ] || echo 'ExecStart={ argv[]=dcqcn run --config /a.toml ; }'";
    const BAD_FILE: &str = "[ \"$1 $2 $3\" != 'config check /a.toml' ] || { echo bad file; exit 1; }";
    for (systemctl, dcqcn, restarts, message) in [
        ("", "", true, ""),
        (SHOW, BAD_FILE, false, "bad file"),
        // A drop-in that serves interfaces without a file.
        ("", "[ $1 != config ] || { echo bad file; exit 1; }", true, ""),
        ("", "[ $1 != upgrade ] || { echo other layout; exit 1; }", false, "other layout"),
        ("[ $1 = is-active ]", "", true, "does not start"),
    ] {
        let root = Root::with_systemctl(systemctl, dcqcn)?;
        // rpm's argument; dpkg's are `configure` and a version.
        let output = root.run("postinst", "2")?;
        let (errors, calls) = (String::from_utf8(output.stderr)?, root.calls()?);
        assert!(output.status.success() && errors.contains(message), "{systemctl:?} {dcqcn:?}: {errors}");
        assert_eq!(errors.is_empty(), message.is_empty(), "{errors}");
        assert_eq!(calls.contains("systemctl restart dcqcn.service"), restarts, "{calls}");
    }
    Ok(())
}
