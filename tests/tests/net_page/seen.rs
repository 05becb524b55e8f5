//! Screenshots of a page, and its accessibility.

use dcqcn_tests::browser::Browser;
use dcqcn_tests::prelude::*;

/// Destination of a picture: the documentation if `DCQCN_PICTURES` has its path.
pub(crate) fn picture(otherwise: &Path, name: &str) -> PathBuf {
    std::env::var_os("DCQCN_PICTURES").map_or_else(|| otherwise.to_owned(), PathBuf::from).join(name)
}

/// Fails on any finding of axe-core.
pub(crate) fn check_accessibility(test: &str, browser: &mut Browser, what: &str) -> Result<()> {
    match browser.faults()? {
        None => eprintln!("SKIPPED {test}, in part: axe-core is not there (`cargo xtask test` gets it)"),
        Some(faults) => ensure!(faults.is_empty(), "{what}: {}", faults.join("\n")),
    }
    Ok(())
}
