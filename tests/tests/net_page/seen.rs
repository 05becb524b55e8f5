//! What is seen of a page: pictures of it, and what keeps people from using it.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use dcqcn_tests::browser::Browser;

/// Where a picture goes: into the documentation if `DCQCN_PICTURES` says where that is.
pub(crate) fn picture(otherwise: &Path, name: &str) -> PathBuf {
    std::env::var_os("DCQCN_PICTURES").map_or_else(|| otherwise.to_owned(), PathBuf::from).join(name)
}

/// Fails with what axe-core finds.
pub(crate) fn is_accessible(test: &str, browser: &mut Browser, what: &str) -> Result<()> {
    match browser.faults()? {
        None => eprintln!("SKIPPED {test}, in part: axe-core is not there (`cargo xtask test` gets it)"),
        Some(faults) => ensure!(faults.is_empty(), "{what}: {}", faults.join("\n")),
    }
    Ok(())
}
