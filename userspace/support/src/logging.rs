//! Log filters.

use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};

/// Parses a filter: a level (`debug`), or levels of modules (`dcqcn_netlink=trace,info`). Unspecified modules log
/// errors only.
pub fn filter(text: &str) -> Result<Targets, ParseError> {
    let targets: Targets = text.parse()?;
    let has_default_level = targets.default_level().is_some();
    Ok(if has_default_level { targets } else { targets.with_default(LevelFilter::ERROR) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::filter::LevelFilter;

    #[test]
    fn filter_is_level_or_module_levels() {
        assert_eq!(filter("debug").unwrap().default_level(), Some(LevelFilter::DEBUG));
        let one = filter("dcqcn_netlink=trace").unwrap();
        assert_eq!(one.default_level(), Some(LevelFilter::ERROR));
        assert!(one.would_enable("dcqcn_netlink::tc", &tracing::Level::TRACE));
        assert!(filter("dcqcn_netlink=loud").is_err() && filter("a=b=c").is_err());
    }
}
