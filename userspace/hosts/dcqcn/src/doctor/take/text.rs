//! Small text files of procfs and sysfs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// A file with one value.
pub(super) fn value<T: FromStr>(path: impl AsRef<Path>) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Names in a directory; empty if it does not exist.
pub(super) fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Last component of a symbolic link's target.
pub(super) fn target(link: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

/// All files in a directory that contain a number, by name.
pub(super) fn values(dir: &Path) -> BTreeMap<String, u64> {
    names(dir).into_iter().filter_map(|name| value(dir.join(&name)).map(|value| (name, value))).collect()
}

/// A list of CPUs, as in `0-3,8`, of at most 4096.
pub(super) fn cpus(list: &str) -> Vec<u32> {
    const MAX_CPUS: usize = 4096;
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    });
    ranges.flatten().take(MAX_CPUS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_parsed() {
        assert_eq!(cpus("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(cpus("5"), [5]);
        for none in ["", "\n", "a-b", "3-", "4-1"] {
            assert_eq!(cpus(none), [] as [u32; 0], "{none}");
        }
        assert_eq!(cpus("0-4294967295").len(), 4096);
    }
}
