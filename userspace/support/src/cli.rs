//! Shared parts of the commands: output as text or JSON, exit codes, settings, manual pages and completions.

mod complete;
#[cfg(any(test, feature = "testing"))]
mod documented;
mod output;
mod package;
mod settings;
mod start;

pub use complete::{iface, iface_or_key, iface_or_key_value, key_value};
#[cfg(any(test, feature = "testing"))]
pub use documented::refused;
pub use output::{Output, explain};
pub use package::{GenerateCommand, Page};
pub use settings::SettingsArgs;
pub use start::{log_to_stderr, run};
