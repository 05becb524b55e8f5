//! Files with secrets.

use std::os::unix::fs::PermissionsExt as _;

use crate::prelude::*;

/// Maximum size: a key with its certificates has some kilobytes.
pub(crate) const MAX_BYTES: u64 = 1 << 20;

/// Reads a file that other users cannot access.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let failed = || format!("cannot read {shown}");
    let mode = fs::metadata(path).with_context(failed)?.permissions().mode() & 0o777;
    ensure!(
        mode & 0o007 == 0,
        "cannot use {shown}: mode {mode:o} gives other users access to a secret; run `chmod 600 {shown}`"
    );
    read_limited(path, MAX_BYTES).with_context(failed)
}
