//! Changes from the page: the token, and changes of parameters.

use super::edit;
use crate::prelude::*;
use crate::record::OVERRIDE_PREFIX;
use crate::request::send;
use crate::secret;

const MIN_TOKEN_CHARS: usize = 16;
const MAX_NAME_CHARS: usize = 100;
const WITHIN_S: std::ops::RangeInclusive<u64> = 10..=3_600;

/// The token required for changes. Its file is read for each request, so that a leaked token can be replaced.
pub(super) struct Token {
    path: PathBuf,
}

impl Token {
    pub(super) fn new(path: PathBuf) -> Result<Self> {
        let token = Self { path };
        token.secret()?;
        Ok(token)
    }

    fn secret(&self) -> Result<Vec<u8>> {
        let shown = self.path.display();
        let is_other = fs::metadata(&self.path).is_ok_and(|found| !found.is_file());
        ensure!(!is_other, "cannot use {shown}: a token is read for each change, from a regular file");
        let secret = secret::read(&self.path)?.trim_ascii().to_vec();
        ensure!(
            secret.len() >= MIN_TOKEN_CHARS,
            "cannot use {shown}: the token has {} characters, at least {MIN_TOKEN_CHARS} are required; `openssl rand \
             -hex 16` creates one",
            secret.len()
        );
        Ok(secret)
    }

    /// Whether `shown` is the token. Guesses are not slowed down: the minimum length makes them futile.
    pub(super) fn matches(&self, shown: &[u8]) -> bool {
        let secret = self.secret().inspect_err(|error| tracing::warn!("change rejected: {error:#}"));
        secret.is_ok_and(|secret| is_same(&secret, shown))
    }
}

/// Compares in constant time for texts of equal length.
fn is_same(secret: &[u8], shown: &[u8]) -> bool {
    let differing = secret.iter().zip(shown).fold(0, |sum, (a, b)| sum | (a ^ b));
    differing == 0 && secret.len() == shown.len()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    pub(super) interface: String,
    pub(super) key: String,
    pub(super) value: String,
    /// Confirmation time in seconds, after which the change reverts.
    pub(super) within_s: u64,
    /// Name of the override that was active when the user decided, empty for none. The change is rejected if another one is
    /// active by now. `None` skips the check.
    #[serde(default)]
    pub(super) over: Option<String>,
    /// Name of the user, not verified.
    #[serde(default)]
    pub(super) by: String,
}

/// Sets a parameter in the daemon's override. On error nothing changes.
pub(super) async fn change(client: &ControlClient, change: &Change) -> Result<Applied, String> {
    let Change { interface, key, value, within_s, over, by } = change;
    if !WITHIN_S.contains(within_s) {
        let (low, high) = WITHIN_S.into_inner();
        return Err(format!("within_s = {within_s} is out of range: {low} to {high}"));
    }
    let key: Key = key.parse().map_err(|error: dcqcn_params::UnknownKey| error.to_string())?;
    key.parse_value(value).map_err(|error| error.to_string())?;
    let current: Option<Override> = send(client, Verb::Config {}).await.map_err(|error| error.to_string())?;
    let found = current.as_ref().map(|current| current.name.clone()).unwrap_or_default();
    let text = match current {
        Some(current) if current.name.starts_with(OVERRIDE_PREFIX) => {
            return Err(format!(
                "cannot change this host: it has version {} of its fleet; change that with `dcqcn-fleet apply`",
                current.name.trim_start_matches(OVERRIDE_PREFIX)
            ));
        }
        Some(current) => current.text,
        None => String::new(),
    };
    let text = edit::with(&text, interface, key, value).map_err(|error| format!("{error:#}"))?;
    let apply = Apply {
        name: format!("page {}", rfc3339(SystemTime::now())),
        text,
        by: by_page(by),
        why: format!("{key} = {value} on {interface}"),
        confirm_within_s: Some(*within_s),
        // Another client may have changed it since the query above.
        over: Some(over.clone().unwrap_or(found)),
    };
    send(client, Verb::Apply(apply)).await.map_err(|error| error.to_string())
}

/// Author for the log. Users share one token, and connections through a proxy or tunnel come from this machine, so only the
/// name that the user typed is available.
fn by_page(by: &str) -> String {
    let by: String = by.trim().chars().filter(|char| !char.is_control()).take(MAX_NAME_CHARS).collect();
    if by.is_empty() { "the page".into() } else { format!("{by}, by the page") }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn token_must_be_long_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::new(path.clone()).and_then(|token| token.secret()).map_err(|error| format!("{error:#}"))
        };
        let token = "0123456789abcdef";
        assert_eq!(read(&format!("{token}\n"), 0o640).unwrap(), token.as_bytes());
        assert!(read(token, 0o644).unwrap_err().contains("chmod 600"));
        assert!(read("short", 0o600).unwrap_err().contains("openssl rand"));
    }

    const SECRET: &[u8] = b"0123456789abcdef";

    fn token() -> (tempfile::NamedTempFile, Token) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, SECRET).unwrap();
        let token = Token::new(file.path().to_owned()).unwrap();
        (file, token)
    }

    #[test]
    fn replaced_token_is_used_at_once() {
        let (file, token) = token();
        assert!(token.matches(SECRET) && !token.matches(&SECRET[1..]));
        fs::write(&file, "another token 123").unwrap();
        assert!(token.matches(b"another token 123") && !token.matches(SECRET));
        drop(file);
        assert!(!token.matches(b"another token 123"));
    }

    #[test]
    fn author_comes_from_the_request() {
        assert_eq!(by_page(" "), "the page");
        assert_eq!(by_page("ada\n\u{7}"), "ada, by the page");
        assert_eq!(by_page(&"x".repeat(500)).len(), 100 + ", by the page".len());
    }

    #[test]
    fn only_exact_token_is_accepted() {
        let secret = b"0123456789abcdef";
        assert!(is_same(secret, secret));
        for wrong in [&b""[..], b"0123456789abcdeg", b"0123456789abcdef0", b"0123456789abcde"] {
            assert!(!is_same(secret, wrong));
        }
    }
}
