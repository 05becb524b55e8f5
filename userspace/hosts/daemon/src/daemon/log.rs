//! The daemon's log to standard error, as text or JSON; format and filter can change at runtime.

use std::io;

use dcqcn_support::logging::{self, has_colours};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layered, SubscriberExt as _};
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt};

use super::config::LogFormat;
use crate::error::{Context as _, Result};

type Filtered = Layered<reload::Layer<Targets, Registry>, Registry>;
type Lines = Box<dyn Layer<Filtered> + Send + Sync>;

pub struct Log {
    filter: Handle<Targets, Registry>,
    lines: Handle<Lines, Filtered>,
    /// Format on the command line, which overrides the file.
    from_flag: Option<LogFormat>,
}

impl Log {
    /// Initialises the log, in the format of the command line or else the file.
    pub fn begin(flag: Option<LogFormat>, file: Option<LogFormat>, filter: Option<&str>) -> Result<Self> {
        let (initial_filter, ignored) = filter_of(filter);
        let (filter_layer, filter) = reload::Layer::new(initial_filter);
        let (lines_layer, lines) = reload::Layer::new(lines_of(flag.or(file)));
        let registry = tracing_subscriber::registry().with(filter_layer).with(lines_layer);
        registry.try_init().context("cannot initialise the log")?;
        warn_ignored(ignored);
        Ok(Self { filter, lines, from_flag: flag })
    }

    pub(super) fn set(&self, from_file: Option<LogFormat>, filter: Option<&str>) {
        let (filter, ignored) = filter_of(filter);
        let set = self.filter.reload(filter);
        warn_ignored(ignored);
        if let Err(error) = set.and_then(|()| self.lines.reload(lines_of(self.from_flag.or(from_file)))) {
            tracing::warn!(%error, "cannot change the log settings");
        }
    }
}

fn lines_of(format: Option<LogFormat>) -> Lines {
    // Lines that cannot be written are lost without a message.
    let text = fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    match format.unwrap_or_default() {
        LogFormat::Text => text.with_ansi(has_colours(&io::stderr())).boxed(),
        LogFormat::Json => text.json().flatten_event(true).boxed(),
    }
}

/// The filter of the variable, the file, or the default; and an error if the variable is invalid.
fn filter_of(from_file: Option<&str>) -> (Targets, Option<String>) {
    logging::from_environment(|| {
        let from_file = from_file.and_then(|text| logging::filter(text).ok());
        from_file.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO))
    })
}

fn warn_ignored(ignored: Option<String>) {
    if let Some(ignored) = ignored {
        tracing::warn!("{ignored}");
    }
}
