//! Log filters and colours.

use std::env;
use std::ffi::OsStr;
use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};

const VARIABLE: &str = "DCQCN_LOG";

#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A word that is neither a level nor one of this project's modules.
    #[error("`{0}` is neither a level (off, error, warn, info, debug, trace) nor MODULE=LEVEL")]
    Word(String),
}

/// Whether `output` may have colours: it is a terminal that supports them, and `NO_COLOR` is unset or empty.
pub fn has_colours(output: &impl IsTerminal) -> bool {
    let [no_color, terminal] = ["NO_COLOR", "TERM"].map(env::var_os);
    output.is_terminal() && allows_colours(no_color.as_deref(), terminal.as_deref())
}

fn allows_colours(no_color: Option<&OsStr>, terminal: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && terminal.is_some_and(|terminal| terminal != "dumb")
}

/// Parses a filter: a level (`debug`), or levels of modules (`dcqcn_netlink=trace,info`). Unspecified modules log
/// errors only.
pub fn filter(text: &str) -> Result<Targets, FilterError> {
    let is_unknown = |word: &&str| {
        !word.is_empty()
            && !word.contains('=')
            && !word.starts_with("dcqcn")
            && word.parse::<LevelFilter>().is_err()
    };
    if let Some(word) = text.split(',').map(str::trim).find(is_unknown) {
        return Err(FilterError::Word(word.to_owned()));
    }
    let targets: Targets = text.parse()?;
    let has_default_level = targets.default_level().is_some();
    Ok(if has_default_level { targets } else { targets.with_default(LevelFilter::ERROR) })
}

/// The filter of `DCQCN_LOG`, or `otherwise` if it is unset or invalid; and a warning if it is invalid.
pub fn from_environment(otherwise: impl FnOnce() -> Targets) -> (Targets, Option<String>) {
    let text = env::var_os(VARIABLE).filter(|text| !text.is_empty());
    let text = text.map(|text| text.to_string_lossy().into_owned());
    match text.map(|text| (filter(&text), text)) {
        None => (otherwise(), None),
        Some((Ok(filter), _)) => (filter, None),
        Some((Err(error), text)) => {
            let ignored = format!("{VARIABLE}={text} is ignored: {error}; write, for example, `debug`");
            (otherwise(), Some(ignored))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::filter::LevelFilter;

    #[test]
    fn colours_follow_no_color_and_term() {
        let allowed = |no_color: Option<&'static str>, terminal: Option<&'static str>| {
            allows_colours(no_color.map(OsStr::new), terminal.map(OsStr::new))
        };
        assert!(allowed(None, Some("xterm")) && allowed(Some(""), Some("xterm")));
        assert!(!allowed(Some("1"), Some("xterm")) && !allowed(None, Some("dumb")) && !allowed(None, None));
    }

    #[test]
    fn filter_is_level_or_module_levels() {
        assert_eq!(filter("debug").unwrap().default_level(), Some(LevelFilter::DEBUG));
        let one = filter("dcqcn_netlink=trace").unwrap();
        assert_eq!(one.default_level(), Some(LevelFilter::ERROR));
        assert!(one.would_enable("dcqcn_netlink::tc", &tracing::Level::TRACE));
        assert!(filter("dcqcn").is_ok() && filter("info,hyper=off").is_ok());
        assert!(filter("wran").unwrap_err().to_string().starts_with("`wran` is neither a level"));
        assert!(filter("info,wran").is_err());
        assert!(filter("dcqcn_netlink=loud").is_err() && filter("a=b=c").is_err());
    }
}
