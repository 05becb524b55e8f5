//! The corpus of findings and examples, run as regular tests.

use std::fs;
use std::path::Path;

use dcqcn_fuzz::TARGETS;

#[test]
fn corpus_of_every_target_passes() {
    for target in TARGETS.iter().filter(|target| !target.needs_kernel) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut count = 0;
        for entry in entries {
            let path = entry.expect("a folder that can be read").path();
            let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (target.run)(&bytes);
            count += 1;
        }
        assert!(count > 0, "{}: no example", folder.display());
    }
}

/// Every byte value at every position of a short history, without coverage.
#[test]
fn targets_accept_simple_patterns() {
    for target in TARGETS.iter().filter(|target| !target.needs_kernel) {
        for fill in 0..=u8::MAX {
            (target.run)(&[fill; 96]);
            let ramp: Vec<u8> = (0..96).map(|at: u8| at.wrapping_mul(fill)).collect();
            (target.run)(&ramp);
        }
        (target.run)(&[]);
    }
}
