//! Files with results.

use std::io::Write;
use std::path::Path;

use anyhow::Context as _;
use dcqcn_support::file::Replacement;

/// Replaces the file at `path` by what `write` produces.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut file = Replacement::create(path).with_context(failed)?;
    write(&mut file).with_context(failed)?;
    file.finish().with_context(failed)
}
