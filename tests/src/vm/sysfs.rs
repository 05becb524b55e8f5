//! Single values in `/sys` and `/proc/sys`.

use crate::vm::prelude::*;

pub fn write(path: &str, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("{path} = {value}"))
}

pub fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    Ok(fs::read_to_string(path).with_context(|| path.display().to_string())?.trim().to_owned())
}

/// Whether the running kernel's release starts with this.
pub fn kernel_is(release: &str) -> Result<bool> {
    Ok(read("/proc/sys/kernel/osrelease")?.starts_with(release))
}
