//! Disk space.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::run;

/// Fails if the file system of `dir`, which is created, has less than `need_mb` left for `what`.
pub(super) fn require(dir: &Path, need_mb: u64, what: &str) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let table = run::capture(Command::new("df").args(["--block-size=1M", "--output=avail"]).arg(dir))?;
    let left_mb =
        available(&table).with_context(|| format!("cannot parse the output of `df`: {}", table.trim()))?;
    ensure!(
        left_mb >= need_mb,
        "{what} needs {need_mb} MB in {}, and {left_mb} MB are free; free disk space, or set CARGO_TARGET_DIR",
        dir.display()
    );
    Ok(())
}

fn available(table: &str) -> Option<u64> {
    table.lines().nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_disk_space_reports_both_values() {
        assert_eq!(available(" Avail\n 78112\n"), Some(78_112));
        let dir = std::env::temp_dir();
        require(&dir, 0, "nothing").unwrap();
        let error = require(&dir, u64::MAX, "the image").unwrap_err().to_string();
        assert!(
            error.starts_with("the image needs 18446744073709551615 MB in ") && error.contains("are free"),
            "{error}"
        );
    }
}
