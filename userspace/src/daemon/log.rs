//! The daemon's log: to standard error, as text or JSON; what is logged can change while it runs.

use std::env;
use std::io::{self, IsTerminal as _};

use anyhow::{Result, anyhow};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt};

use super::config::LogFormat;

/// Environment variable that says what is logged; it counts over the file.
const VARIABLE: &str = "DCQCN_LOG";
/// What is logged unless something is said.
const DEFAULT: &str = "info";

/// The log, once begun.
pub struct Log {
    filter: Handle<EnvFilter, Registry>,
}

impl Log {
    /// Begins to log.
    ///
    /// # Errors
    /// Something in this process logs already.
    pub fn begin(format: LogFormat, filter: Option<&str>) -> Result<Self> {
        let (filter, handle) = reload::Layer::new(filter_of(filter));
        let text = fmt::layer().with_writer(io::stderr);
        let lines = match format {
            LogFormat::Text => text.with_ansi(io::stderr().is_terminal()).boxed(),
            LogFormat::Json => text.json().flatten_event(true).boxed(),
        };
        let registry = tracing_subscriber::registry().with(filter).with(lines);
        registry.try_init().map_err(|error| anyhow!("cannot begin to log: {error}"))?;
        Ok(Self { filter: handle })
    }

    /// Changes what is logged.
    pub(super) fn set_filter(&self, filter: Option<&str>) {
        if let Err(error) = self.filter.reload(filter_of(filter)) {
            tracing::warn!(%error, "what is logged stays as it was");
        }
    }
}

/// The variable's filter, else the file's, else the default.
fn filter_of(said: Option<&str>) -> EnvFilter {
    let said = env::var(VARIABLE).ok().or_else(|| said.map(str::to_owned));
    said.and_then(|text| EnvFilter::try_new(text).ok()).unwrap_or_else(|| EnvFilter::new(DEFAULT))
}
