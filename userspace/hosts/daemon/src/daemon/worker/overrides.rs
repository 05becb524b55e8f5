//! The host's own file, and the override by clients, which is persisted: replaced atomically, and durable
//! across a power cut.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dcqcn_control_api::{CONFIRM_WITHIN_S, Override};
use dcqcn_support::file::existing;
use dcqcn_telemetry::audit;
use serde::{Deserialize, Serialize};
use tempfile::{Builder, NamedTempFile};

use super::Rejection;
use crate::daemon::config::{Config, Interface, parse};
use crate::error::{Error, is_full};
use crate::shared_state::Snapshot;

/// Maximum number of combinations of an override's interfaces with those of the file, each of which is checked: half a
/// second in which the daemon does nothing else.
const MAX_COMBINATIONS: usize = 100_000;

/// The host's own file, and the override on top of it.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    pub(super) own: Config,
    persisted: Persisted,
    pub(super) confirm_until: Option<Instant>,
    lock: Option<File>,
}

impl Overrides {
    /// Locks the persisted state of a file with `[fleet]`, once.
    pub(super) fn lock(&mut self, own: &Config) -> Result<(), Error> {
        if let (None, Some(bounds)) = (&self.lock, &own.fleet) {
            self.lock = lock(&bounds.state)?;
        }
        Ok(())
    }

    /// The state at startup.
    ///
    /// A persisted override that is unreadable or no longer allowed is ignored; the host's own `file` is
    /// active alone then. One that was not confirmed in time is reverted before anything is attached; its
    /// interfaces are returned, as they may still be attached.
    pub(super) fn begin(own: Config, file: &Path) -> Result<(Self, Vec<Interface>), Error> {
        let (mut overrides, mut expired) = (Self::default(), Vec::new());
        overrides.lock(&own)?;
        overrides.own = own;
        let Some(path) = overrides.own.fleet.as_ref().map(|bounds| bounds.state.clone()) else {
            return Ok((overrides, expired));
        };
        let persisted = match read(&path) {
            Ok(persisted) => {
                let persisted = persisted.unwrap_or_default();
                let now = after(persisted.clone(), unix_s());
                if now != persisted {
                    store(&path, &now);
                    expired = persisted.active.as_ref().map(interfaces).unwrap_or_default();
                }
                now
            }
            Err(error) => {
                tracing::error!(%error, "persisted override lost; using the file alone");
                return Ok((overrides, expired));
            }
        };
        let Some(active) = &persisted.active else {
            return Ok((overrides, expired));
        };
        match checked_interfaces(&overrides.own, &active.name, &active.text) {
            Ok(_) => {
                tracing::info!(name = active.name, file = %file.display(), "persisted override applied on top of the file");
                overrides.set_persisted(persisted);
            }
            Err(rejection) => {
                tracing::error!(error = %rejection, "persisted override refused; using the file alone");
                audit::enter_refusal("", &format!("persisted override: {rejection}"));
                // Otherwise a wider range would silently reactivate it.
                store(&path, &Persisted::default());
            }
        }
        Ok((overrides, expired))
    }

    pub(super) fn active(&self) -> Option<Override> {
        self.persisted.active.clone()
    }

    /// The daemon's state with the active override.
    pub(super) fn added_to(&self, published: &Snapshot) -> Snapshot {
        Snapshot { active_override: self.active(), confirm_until: self.confirm_until, ..published.clone() }
    }

    /// Unconfirmed override.
    pub(super) fn trial(&self) -> Option<Trial> {
        self.persisted.trial.clone()
    }

    /// The file with the active override on top.
    pub(super) fn effective(&self) -> Config {
        self.own.with_override(self.persisted.active.as_ref().map(interfaces).unwrap_or_default())
    }

    pub(super) fn set_persisted(&mut self, persisted: Persisted) {
        let left = persisted.trial.as_ref().map(|trial| trial.left(unix_s()));
        self.confirm_until = left.map(|left| Instant::now() + left);
        self.persisted = persisted;
    }
}

fn store(path: &Path, persisted: &Persisted) {
    if let Err(error) = write(path, persisted).and_then(Written::persist) {
        tracing::warn!(%error, "cannot store the configuration for the next start");
    }
}

/// The persisted override that is still valid at a time in seconds since 1970.
fn after(persisted: Persisted, now_s: u64) -> Persisted {
    match persisted {
        Persisted { trial: Some(trial), active } if trial.left(now_s).is_zero() => {
            let name = active.as_ref().map(|active| active.name.as_str());
            tracing::warn!(name, "override not confirmed in time; reverted");
            Persisted { active: trial.former, trial: None }
        }
        persisted => persisted,
    }
}

fn interfaces(active: &Override) -> Vec<Interface> {
    parse(&active.name, &active.text).map(|config| config.interfaces).unwrap_or_default()
}

/// The interfaces of `text`, if the host's `own` file allows all of it.
pub(super) fn checked_interfaces(own: &Config, name: &str, text: &str) -> Result<Vec<Interface>, Rejection> {
    let Some(bounds) = &own.fleet else {
        let why = "this host accepts no remote configuration; add [fleet] with `allow = [...]` to its file";
        return Err(Rejection::one(why));
    };
    let config = parse(name, text).map_err(|errors| Rejection::one(errors.to_string()))?;
    let interfaces = config.interfaces.clone();
    // Reserved for the host: listening addresses, logging, access.
    if config != (Config { interfaces: config.interfaces.clone(), ..Config::default() }) {
        let why = format!(
            "{name}: only [[interface]] can be set remotely; other sections belong in the host's own file"
        );
        return Err(Rejection::one(why));
    }
    let (ours, theirs) = (own.interfaces.len(), interfaces.len());
    if ours.saturating_mul(theirs) > MAX_COMBINATIONS {
        return Err(Rejection::one(format!(
            "{name}: too many interfaces: {theirs} on top of the {ours} of the host's own file; the limit is \
             {MAX_COMBINATIONS} combinations"
        )));
    }
    let mut violations = bounds.violations(&interfaces);
    // Combined with the file's, values may be inconsistent.
    for Interface { selector, settings, .. } in &interfaces {
        let entries = own.interfaces.iter();
        // Interfaces that the file does not name have its common settings.
        let names_others = !entries.clone().any(|own| own.selector.covers(selector));
        let common = (bounds.may_name_interfaces() && names_others).then_some(&own.common);
        let matching = entries.filter(|own| own.selector.may_overlap(selector)).map(|own| &own.settings);
        for own in matching.chain(common) {
            let error = own.clone().then(settings.clone()).check().err();
            let error = error.map(|error| format!("{selector}: combined with the host's own file: {error}"));
            violations.extend(error);
        }
    }
    if violations.is_empty() { Ok(interfaces) } else { Err(Rejection::all(violations)) }
}

pub(super) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Persisted {
    /// Active override; `None` = the host's own file alone.
    #[serde(alias = "held")]
    pub(super) active: Option<Override>,
    pub(super) trial: Option<Trial>,
}

/// An unconfirmed override.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trial {
    pub(super) former: Option<Override>,
    /// Deadline, in seconds since 1970: only the wall clock advances while the machine is off.
    pub(super) until_unix_s: u64,
    /// Time limit, in seconds.
    pub(super) within_s: u64,
}

/// Time by which the clock may be set back during a trial without ending it.
const MAX_CLOCK_STEP_S: u64 = 60;

impl Trial {
    /// Time left at a time in seconds since 1970. None at a time before the trial, as after a boot without a
    /// clock: at each start, the deadline would begin again.
    pub(super) fn left(&self, now_s: u64) -> Duration {
        let left_s = self.until_unix_s.saturating_sub(now_s);
        let is_before = left_s > self.within_s.saturating_add(MAX_CLOCK_STEP_S);
        // The file may be damaged, and a deadline must be representable.
        let within_s = self.within_s.min(*CONFIRM_WITHIN_S.end());
        Duration::from_secs(if is_before { 0 } else { left_s.min(within_s) })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub(super) struct PersistError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl PersistError {
    /// The disk or the quota is full, which is temporary.
    pub(super) fn is_full(&self) -> bool {
        is_full(&self.source)
    }
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> PersistError {
    move |source| PersistError { action, path: path.to_owned(), source }
}

/// A temporary file next to the one it will replace.
pub(super) struct Written {
    file: NamedTempFile,
    path: PathBuf,
}

impl Written {
    pub(super) fn persist(self) -> Result<(), PersistError> {
        let Self { file, path } = self;
        file.persist(&path).map_err(|error| failed("write", &path)(error.error))?;
        let dir = path.parent().unwrap_or(&path);
        if let Err(error) = File::open(dir).and_then(|dir| dir.sync_all()) {
            // The file is replaced all the same, so this is not a failure to report to the client.
            tracing::warn!(%error, path = %path.display(), "a power cut may revert the persisted override");
        }
        Ok(())
    }
}

/// Writes `persisted` next to the file at `path`. The name is fixed: a file of a killed daemon is replaced,
/// and an error has the same text at each retry.
pub(super) fn write(path: &Path, persisted: &Persisted) -> Result<Written, PersistError> {
    let dir = path.parent().unwrap_or(path);
    let new = path.with_added_extension("new");
    let write = || {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        existing(fs::remove_file(&new))?;
        let name = new.file_name().unwrap_or_default();
        let mut file = Builder::new().prefix(name).rand_bytes(0).tempfile_in(dir)?;
        let mut text = serde_json::to_vec(persisted)?;
        text.push(b'\n');
        file.write_all(&text)?;
        file.as_file().sync_all()?;
        Ok(file)
    };
    Ok(Written { file: write().map_err(failed("write", path))?, path: path.to_owned() })
}

/// Locks the file at `path` for as long as the result exists, as its former content would be lost to another daemon;
/// `None` if the directory is not writable.
fn lock(path: &Path) -> Result<Option<File>, Error> {
    let open = || {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        File::options().create(true).append(true).open(path.with_extension("lock"))
    };
    match open().map(|file| (file.try_lock(), file)) {
        Ok((Ok(()), file)) => Ok(Some(file)),
        Ok((Err(TryLockError::WouldBlock), _)) => Err(Error::StateInUse(path.to_owned())),
        Ok((Err(TryLockError::Error(error)), _)) | Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot lock the persisted override");
            Ok(None)
        }
    }
}

/// Content of the file at `path`; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Persisted>, PersistError> {
    let Some(text) = existing(fs::read(path)).map_err(failed("read", path))? else { return Ok(None) };
    serde_json::from_slice(&text).map(Some).map_err(|error| failed("read", path)(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "\
[[interface]]
name = 'eth*'
[interface.wred.3]
kmin = '100KB'
[fleet]
allow = ['wred.*.kmin', 'wred.*.kmax = 100KB..1MB']
";

    fn own(state: &Path) -> Config {
        parse("own", &format!("{OWN}state = '{}'\n", state.display())).unwrap()
    }

    fn override_named(name: &str) -> Override {
        let text = format!("[[interface]]\nname = 'eth0'\n[interface.wred.3]\nkmax = '{name}KB'\n");
        Override { name: name.into(), text, ..Override::default() }
    }

    fn begin(own: Config) -> (Overrides, Vec<Interface>) {
        Overrides::begin(own, Path::new("own")).unwrap()
    }

    fn kmax(overrides: &Overrides) -> u64 {
        overrides.effective().request("eth0").unwrap().settings.config(None).unwrap().wred[3].kmax_bytes
    }

    #[test]
    fn override_applied_on_restart_if_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/fleet.json");
        assert_eq!(read(&path).unwrap(), None);
        let persisted = Persisted { active: Some(override_named("700")), trial: None };
        let written = write(&path, &persisted).unwrap();
        assert_eq!(read(&path).unwrap(), None, "not before it is active");
        written.persist().unwrap();
        let own = own(&path);
        let overrides = begin(own.clone()).0;
        assert_eq!((overrides.active(), kmax(&overrides)), (Some(override_named("700")), 700_000));
        let error = Overrides::begin(own.clone(), Path::new("own")).unwrap_err().to_string();
        assert!(error.contains("in use by another daemon"), "{error}");
        drop(overrides);
        // Neither values outside the ranges, nor any without [fleet].
        for less in [OWN.replace("1MB", "600KB"), OWN.replace("[fleet]\nallow", "[log]\nfilter = 'info' #")] {
            let less = parse("own", &less).unwrap();
            let error =
                checked_interfaces(&less, "700", &override_named("700").text).unwrap_err().to_string();
            let reasons = ["does not allow", "bounds", "accepts no remote"];
            assert!(reasons.iter().any(|reason| error.contains(reason)), "{error}");
        }
        fs::write(&path, "{").unwrap();
        assert_eq!(begin(own).0.active(), None);
    }

    #[test]
    fn killed_write_leaves_at_most_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.json");
        let files = || fs::read_dir(dir.path()).unwrap().count();
        // Without its destructor, as if the daemon was killed.
        for _ in 0..3 {
            std::mem::forget(write(&path, &Persisted::default()).unwrap());
        }
        assert_eq!(files(), 1);
        write(&path, &Persisted::default()).unwrap().persist().unwrap();
        assert_eq!((files(), read(&path).unwrap()), (1, Some(Persisted::default())));
    }

    #[test]
    fn failed_write_has_one_text() {
        // A directory in which no file can be created, not even by root.
        let path = Path::new("/proc/self/fleet.json");
        let fails = || write(path, &Persisted::default()).err().unwrap().to_string();
        assert_eq!(fails(), fails());
    }

    #[test]
    fn start_drops_an_override_no_longer_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.json");
        store(&path, &Persisted { active: Some(override_named("2000")), trial: None });
        assert_eq!(begin(own(&path)).0.active(), None);
        assert_eq!(read(&path).unwrap(), Some(Persisted::default()));
    }

    #[test]
    fn override_expired_at_start_is_reverted_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.json");
        let trial = Trial { former: Some(override_named("500")), until_unix_s: 1_000, within_s: 60 };
        store(&path, &Persisted { active: Some(override_named("700")), trial: Some(trial.clone()) });
        let (overrides, expired) = begin(own(&path));
        assert_eq!((kmax(&overrides), overrides.confirm_until, expired.len()), (500_000, None, 1));
        let reverted = Persisted { active: Some(override_named("500")), trial: None };
        assert_eq!(read(&path).unwrap(), Some(reverted));
        assert_eq!(trial.left(990), Duration::from_secs(10));
        assert_eq!(trial.left(900), Duration::from_secs(60), "the clock was adjusted");
        assert_eq!(trial.left(0), Duration::ZERO, "the clock lost the time of the trial");
    }

    #[test]
    fn deadline_of_a_damaged_file_is_limited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.json");
        let trial = Trial { former: None, until_unix_s: u64::MAX, within_s: u64::MAX };
        store(&path, &Persisted { active: Some(override_named("700")), trial: Some(trial) });
        let left = begin(own(&path)).0.confirm_until.unwrap() - Instant::now();
        assert!(left <= Duration::from_secs(*CONFIRM_WITHIN_S.end()), "{left:?}");
    }

    #[test]
    fn override_limited_to_interfaces() {
        let own = own(Path::new("/x"));
        let error = |text: &str| checked_interfaces(&own, "7", text).unwrap_err().to_string();
        let interface = "[[interface]]\nname = 'eth*'\n[interface.wred.3]\n";
        for text in [
            "[metrics]\nlisten = '0.0.0.0:1'",
            "[fleet]\nallow = ['*']",
            "[control]",
            "[log]\nfilter = 'info'",
        ] {
            assert!(error(&format!("{interface}{text}\n")).contains("only [[interface]]"), "{text}");
        }
        assert!(error("[[interface]\n").contains("7:1: "), "{}", error("[[interface]\n"));
        let both = error(&format!("{interface}kmin = '2MB'\nkmax = '1MB'\n"));
        assert!(both.contains("7:1: "), "{both}");
        // Valid alone, but not with Kmin of the file.
        let both = error(&format!("{interface}kmin = '5KB'\nkmax = '50KB'\n"));
        assert!(both.contains("own bounds"), "{both}");
        checked_interfaces(&own, "7", &format!("{interface}kmin = '50KB'\nkmax = '150KB'\n")).unwrap();
    }

    #[test]
    fn override_of_others_checked_with_common() {
        let own = |allow: &str| {
            let text =
                "[wred.3]\nkmin = '150KB'\n[[interface]]\nname = 'eth0'\n[interface.wred.3]\nkmin = '5KB'\n";
            parse("own", &format!("{text}[fleet]\nallow = ['wred.*'{allow}]\n")).unwrap()
        };
        let over =
            |name: &str| format!("[[interface]]\nname = '{name}'\n[interface.wred.3]\nkmax = '100KB'\n");
        for (allow, name, is_allowed) in
            [("", "eth9", true), (", 'interface'", "eth0", true), (", 'interface'", "eth9", false)]
        {
            let checked = checked_interfaces(&own(allow), "7", &over(name));
            assert_eq!(checked.is_ok(), is_allowed, "{allow} {name}: {checked:?}");
        }
    }

    #[test]
    fn override_with_too_many_combinations_refused() {
        let interfaces = |count| "[[interface]]\nname = 'eth*'\n".repeat(count);
        let own = parse("own", &format!("{}[fleet]\nallow = ['*']\n", interfaces(25))).unwrap();
        checked_interfaces(&own, "7", &interfaces(40)).unwrap();
        let error = checked_interfaces(&own, "7", &interfaces(4_096)).unwrap_err().to_string();
        assert!(error.contains("too many interfaces: 4096 on top of the 25"), "{error}");
    }
}
