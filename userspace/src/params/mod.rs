//! Parameters as people write them: names, quantities, files, profiles and roles.
//!
//! What a parameter is stands in the tables of [`dcqcn_common::params`]; everything here is made from them.

mod choice;
mod example;
mod file;
mod key;
mod profile;
pub mod quantity;
mod schema;
mod settings;

pub use choice::{PacerChoice, Role, UnknownWord, XdpModeChoice, parse_word, word, words};
pub use example::{ENTRIES, Entry, example, example_json};
pub use file::{FileError, FileErrors, parse, parse_flows};
pub use key::{Assignment, Key, SetError, UnknownKey, get, set};
pub use profile::{Profile, ProfileError};
pub use schema::schema;
pub use settings::{Settings, SettingsError};
