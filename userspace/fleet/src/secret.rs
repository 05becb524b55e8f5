//! Files that are somebody's secret.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// Reads a file, unless everybody may.
///
/// # Errors
/// It cannot be read, or everybody may read it.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let failed = || format!("cannot read {shown}");
    let mode = fs::metadata(path).with_context(failed)?.permissions().mode() & 0o777;
    ensure!(
        mode & 0o007 == 0,
        "cannot read {shown}: everybody may read it (mode {mode:o}), and it is a secret: chmod 600 {shown}"
    );
    fs::read(path).with_context(failed)
}
