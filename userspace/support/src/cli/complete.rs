//! Shell completion of interfaces and parameters.

use std::ffi::OsStr;
use std::fs;

use clap::builder::StyledStr;
use clap_complete::CompletionCandidate;
use dcqcn_params::Key;

/// Directory of the interfaces in this network namespace.
const INTERFACES: &str = "/sys/class/net";

/// Interfaces. A list that has been started, as in `eth0,`, continues.
pub fn iface(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let (before, last) = current
        .rsplit_once(',')
        .map_or(("", &*current), |(_, last)| (&current[..current.len() - last.len()], last));
    let Ok(entries) = fs::read_dir(INTERFACES) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(last)).collect();
    names.sort_unstable();
    names.into_iter().map(|name| CompletionCandidate::new(format!("{before}{name}"))).collect()
}

/// Parameters by name.
fn key(current: &OsStr) -> Vec<CompletionCandidate> {
    keys(current, "")
}

/// Parameters by name, followed by `=`.
pub fn key_value(current: &OsStr) -> Vec<CompletionCandidate> {
    keys(current, "=")
}

/// Interfaces, then parameters.
pub fn iface_or_key(current: &OsStr) -> Vec<CompletionCandidate> {
    iface(current).into_iter().chain(key(current)).collect()
}

/// Interfaces, then parameters followed by `=`.
pub fn iface_or_key_value(current: &OsStr) -> Vec<CompletionCandidate> {
    iface(current).into_iter().chain(key_value(current)).collect()
}

fn keys(current: &OsStr, suffix: &str) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let candidate = |key: Key| {
        let help = key.doc().split('.').next().unwrap_or_default().trim().to_owned();
        (key.to_string(), help)
    };
    let fits = |(name, _): &(String, String)| name.starts_with(&*current);
    Key::all()
        .map(candidate)
        .filter(fits)
        .map(|(name, help)| CompletionCandidate::new(name + suffix).help(Some(StyledStr::from(help))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(candidates: &[CompletionCandidate]) -> Vec<String> {
        candidates.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn parameters_completed_by_prefix() {
        assert_eq!(texts(&key_value(OsStr::new("rpg_ai"))), ["rpg_ai_rate="]);
        assert_eq!(texts(&key(OsStr::new("wred.3.km"))), ["wred.3.kmin", "wred.3.kmax"]);
        assert!(key(OsStr::new("nothing")).is_empty());
    }

    #[test]
    fn interface_list_completes() {
        // Every network namespace has it.
        assert!(texts(&iface(OsStr::new("l"))).contains(&"lo".to_owned()));
        assert!(texts(&iface(OsStr::new("eth9,l"))).contains(&"eth9,lo".to_owned()));
    }
}
