//! The stored vectors, through the programs in this kernel.

use crate::vectors;
use crate::vm::prelude::*;

const DIRECTORY: &str = "/share/vectors";

pub(super) fn run(report: &mut Report) -> Result<()> {
    report.columns("vector | packets | differences");
    for (name, _) in vectors::scenarios() {
        let vector = vectors::read(&Path::new(DIRECTORY).join(name).with_extension("json"))?;
        let differences = vector.kernel_differences().with_context(|| name.to_owned())?;
        report.row([name.to_owned(), vector.steps.len().to_string(), differences.len().to_string()]);
        let first = differences.first().map_or("none", String::as_str);
        report.check(&format!("{name}: first difference"), first, "none", differences.is_empty());
    }
    Ok(())
}
