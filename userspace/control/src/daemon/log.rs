//! The daemon's log: to standard error, as text or JSON; both the form and what is logged can change while it runs.

use std::env;
use std::io::{self, IsTerminal as _};

use anyhow::{Result, anyhow};
use tracing_subscriber::layer::{Layered, SubscriberExt as _};
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use super::config::LogFormat;

/// Environment variable that says what is logged; it overrides the file.
const VARIABLE: &str = "DCQCN_LOG";
/// What is logged unless something is said.
const DEFAULT: &str = "info";

/// What is let through.
type Filtered = Layered<reload::Layer<EnvFilter, Registry>, Registry>;
type Lines = Box<dyn Layer<Filtered> + Send + Sync>;

/// The log, once begun.
pub struct Log {
    filter: Handle<EnvFilter, Registry>,
    lines: Handle<Lines, Filtered>,
    /// The form the command line asks for, whatever the file says.
    asked: Option<LogFormat>,
}

impl Log {
    /// Begins to log, in the form that the command line asks for or else the file.
    ///
    /// # Errors
    /// Something in this process logs already.
    pub fn begin(asked: Option<LogFormat>, said: Option<LogFormat>, filter: Option<&str>) -> Result<Self> {
        let (filter_layer, filter) = reload::Layer::new(filter_of(filter));
        let (lines_layer, lines) = reload::Layer::new(lines_of(asked.or(said)));
        let registry = tracing_subscriber::registry().with(filter_layer).with(lines_layer);
        registry.try_init().map_err(|error| anyhow!("cannot begin to log: {error}"))?;
        Ok(Self { filter, lines, asked })
    }

    /// Changes to what the file says now.
    pub(super) fn set(&self, said: Option<LogFormat>, filter: Option<&str>) {
        let set = self.filter.reload(filter_of(filter));
        if let Err(error) = set.and_then(|()| self.lines.reload(lines_of(self.asked.or(said)))) {
            tracing::warn!(%error, "the log stays as it was");
        }
    }
}

fn lines_of(format: Option<LogFormat>) -> Lines {
    let text = fmt::layer().with_writer(io::stderr);
    match format.unwrap_or_default() {
        LogFormat::Text => text.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => text.json().flatten_event(true).boxed(),
    }
}

/// The variable's filter, else the file's, else the default.
fn filter_of(said: Option<&str>) -> EnvFilter {
    let said = env::var(VARIABLE).ok().or_else(|| said.map(str::to_owned));
    said.and_then(|text| EnvFilter::try_new(text).ok()).unwrap_or_else(|| EnvFilter::new(DEFAULT))
}
