//! Parameters in text form: names, quantities, files, profiles and roles.
//!
//! The tables of [`dcqcn_common::params`] define the parameters; this crate is derived from them.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

mod choice;
mod example;
pub mod file;
pub mod fluid;
mod group;
mod key;
pub mod nvidia;
mod profile;
pub mod qp;
pub mod quantity;
mod save;
mod schema;
mod settings;
pub mod sonic;

pub use choice::{PacerChoice, QueuesChoice, Role, UnknownWord, XdpModeChoice, parse_word, word};
pub use example::{DAEMON_EXAMPLE, ENTRIES, Entry, example};
pub use file::{FileError, FileErrors, parse, parse_flows};
pub use group::{Group, default_of_queues, differing};
pub use key::{Assignment, Key, SetError, UnknownKey, set};
pub use profile::{Profile, ProfileError};
pub use save::{changes_from, to_toml, to_toml_for};
pub use schema::schema;
pub use settings::{DetectedLink, Settings, SettingsError, check_programs};
