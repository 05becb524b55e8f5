//! Changes from the page: the token, and changes of parameters in the text of the daemon's override.

use dcqcn_control_api::ClientError;
use dcqcn_params::file::SELECTORS;
use dcqcn_params::{SetError, UnknownKey};
use toml::{Table, Value};

use crate::prelude::*;
use crate::reach::read_secret;

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
        if fs::metadata(&self.path).is_ok_and(|found| !found.is_file()) {
            return Err(Error::TokenFile(self.path.clone()));
        }
        let secret = read_secret(&self.path)?.trim_ascii().to_vec();
        let (length, least) = (secret.len(), MIN_TOKEN_CHARS);
        if length < least {
            return Err(Error::ShortToken { path: self.path.clone(), length, least });
        }
        Ok(secret)
    }

    /// Whether `shown` is the token. Guesses are not slowed down: the minimum length makes them futile.
    pub(super) fn matches(&self, shown: &[u8]) -> bool {
        let secret =
            self.secret().inspect_err(|error| tracing::warn!("change rejected: {}", one_line(error)));
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
    /// Name of the override that was active when the user decided, empty for none. The change is rejected if
    /// another one is active by now. `None` skips the check.
    pub(super) over: Option<String>,
    #[serde(default)]
    pub(super) by: String,
}

/// Rejection of a change.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChangeError {
    #[error("within_s = {0} is out of range: {low} to {high}", low = WITHIN_S.start(), high = WITHIN_S.end())]
    Within(u64),
    #[error(transparent)]
    Key(#[from] UnknownKey),
    #[error(transparent)]
    Value(#[from] SetError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot change this host: it has version {0} of its fleet; change that with `dcqcn-fleet apply`")]
    OfFleet(String),
    #[error("cannot parse the configuration of the daemon")]
    Parse(#[from] toml::de::Error),
    #[error("cannot change the configuration of the daemon: `interface` is not a list")]
    NotList,
    #[error("cannot change the configuration of the daemon: unknown format")]
    Format,
    #[error(
        "cannot change one parameter: the active configuration selects interfaces by {}; apply a complete text",
        SELECTORS[1..].join(", ")
    )]
    Selectors,
    #[error(transparent)]
    Write(#[from] toml::ser::Error),
}

/// Sets a parameter in the daemon's override. On error nothing changes.
pub(super) async fn change(client: &ControlClient, change: &Change) -> Result<Applied, ChangeError> {
    let Change { interface, key, value, within_s, over, by } = change;
    if !WITHIN_S.contains(within_s) {
        return Err(ChangeError::Within(*within_s));
    }
    let key: Key = key.parse()?;
    key.parse_value(value)?;
    let current: Option<Override> = send(client, Verb::Config {}).await?;
    let found = current.as_ref().map(|current| current.name.clone()).unwrap_or_default();
    let text = match current {
        Some(current) if current.name.starts_with(OVERRIDE_PREFIX) => {
            return Err(ChangeError::OfFleet(current.name.trim_start_matches(OVERRIDE_PREFIX).into()));
        }
        Some(current) => current.text,
        None => String::new(),
    };
    let text = with_parameter(&text, interface, key, value)?;
    let apply = Apply {
        name: format!("page {}", rfc3339(SystemTime::now())),
        text,
        by: by_page(by),
        why: format!("{key} = {value} on {interface}"),
        confirm_within_s: Some(*within_s),
        // Another client may have changed it since the query above.
        over: Some(over.clone().unwrap_or(found)),
    };
    Ok(send(client, Verb::Apply(apply)).await?)
}

/// Author for the log. Users share one token, and connections through a proxy or tunnel come from this
/// machine, so only the name that the user typed is available.
fn by_page(by: &str) -> String {
    let by: String = by.trim().chars().filter(|char| !char.is_control()).take(MAX_NAME_CHARS).collect();
    if by.is_empty() { "the page".into() } else { format!("{by}, by the page") }
}

/// Returns `text` with `key` of `interface` set to `value`.
///
/// The first table whose name matches the interface applies. If that name is a pattern, the change is made in
/// a copy of the table for this interface alone, so other interfaces keep their values.
fn with_parameter(text: &str, interface: &str, key: Key, value: &str) -> Result<String, ChangeError> {
    let mut file: Table = toml::from_str(text)?;
    let tables = file.entry("interface").or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(tables) = tables else {
        return Err(ChangeError::NotList);
    };
    // Without the host's interfaces, whether such a table matches and takes precedence is unknown.
    let has_other = |table: &Value| SELECTORS[1..].iter().any(|key| table.get(key).is_some());
    if tables.iter().any(has_other) {
        return Err(ChangeError::Selectors);
    }
    let name = |table: &Value| table.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let names = |table: &Value| Pattern::new(&name(table)).is_ok_and(|pattern| pattern.matches(interface));
    let at = match tables.iter().position(names) {
        Some(at) if tables.get(at).is_some_and(|table| name(table) == interface) => at,
        Some(at) => {
            let mut own = tables.get(at).cloned().unwrap_or_else(|| Value::Table(Table::new()));
            set(&mut own, &["name"], interface)?;
            tables.insert(at, own);
            at
        }
        None => {
            let own = Table::from_iter([("name".to_owned(), Value::String(interface.to_owned()))]);
            tables.push(Value::Table(own));
            tables.len() - 1
        }
    };
    let key = key.to_string();
    let path: Vec<&str> = match key.contains('.') {
        true => key.split('.').collect(),
        false => vec!["parameters", &key],
    };
    let table = tables.get_mut(at).ok_or(ChangeError::Format)?;
    set(table, &path, value)?;
    Ok(toml::to_string(&file)?)
}

fn set(table: &mut Value, path: &[&str], value: &str) -> Result<(), ChangeError> {
    let (Value::Table(table), [first, rest @ ..]) = (table, path) else {
        return Err(ChangeError::Format);
    };
    if rest.is_empty() {
        table.insert((*first).to_owned(), Value::String(value.to_owned()));
        return Ok(());
    }
    set(table.entry(*first).or_insert_with(|| Value::Table(Table::new())), rest, value)
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
            Token::new(path.clone()).and_then(|token| token.secret()).map_err(|error| error.to_string())
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

    fn key(name: &str) -> Key {
        name.parse().unwrap()
    }

    #[test]
    fn parameter_is_set_in_its_table() {
        let one = with_parameter("", "eth0", key("wred.3.kmin"), "100KB").unwrap();
        assert_eq!(one, "[[interface]]\nname = \"eth0\"\n\n[interface.wred.3]\nkmin = \"100KB\"\n");
        let two = with_parameter(&one, "eth0", key("rpg_gd"), "12").unwrap();
        let two: Table = toml::from_str(&two).unwrap();
        let interface = &two["interface"][0];
        assert_eq!(interface["wred"]["3"]["kmin"].as_str(), Some("100KB"));
        assert_eq!(interface["parameters"]["rpg_gd"].as_str(), Some("12"));
    }

    #[test]
    fn edit_of_one_match_keeps_the_pattern() {
        let text =
            "[[interface]]\nname = 'eth*'\n[interface.parameters]\nrpg_gd = 13\nrpg_ai_rate = '5mbit'\n";
        let changed = with_parameter(text, "eth1", key("rpg_gd"), "12").unwrap();
        let file: Table = toml::from_str(&changed).unwrap();
        let (own, all) = (&file["interface"][0], &file["interface"][1]);
        assert_eq!((own["name"].as_str(), all["name"].as_str()), (Some("eth1"), Some("eth*")));
        assert_eq!(own["parameters"]["rpg_gd"].as_str(), Some("12"));
        assert_eq!(own["parameters"]["rpg_ai_rate"].as_str(), Some("5mbit"));
        assert_eq!(all["parameters"]["rpg_gd"].as_integer(), Some(13));
    }

    #[test]
    fn edit_of_other_selectors_is_rejected() {
        let text = "[[interface]]\nmac = 'd6:*'\n[interface.parameters]\nrpg_gd = 13\n";
        let error = with_parameter(text, "eth0", key("rpg_gd"), "12").unwrap_err().to_string();
        assert!(error.contains("selects interfaces by mac"), "{error}");
    }

    #[test]
    fn edit_of_unknown_format_is_rejected() {
        for text in ["interface = 1", "[[interface]]\nname = 'eth0'\nwred = 1", "x"] {
            assert!(with_parameter(text, "eth0", key("wred.3.kmin"), "1KB").is_err(), "{text}");
        }
    }
}
