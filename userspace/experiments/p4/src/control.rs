//! Control interface of a switch, for controllers.

use super::entry::{Command, Entry};
use super::error::Result;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDump {
    pub entries: Vec<(u64, Entry)>,
    pub default_action: Option<Entry>,
}

/// A switch that a controller configures and reads: a running one, or the interpreter.
pub trait Control {
    fn run(&mut self, command: &Command) -> Result<()>;

    /// The entries of a table and its default action.
    fn table(&mut self, name: &str) -> Result<TableDump>;

    fn register(&mut self, name: &str) -> Result<Vec<u64>>;

    fn register_at(&mut self, name: &str, index: u64) -> Result<u64>;

    /// Packets and bytes of a counter.
    fn counter(&mut self, name: &str, index: u64) -> Result<(u64, u64)>;

    /// The switch's clock, ns since it started.
    fn now_ns(&mut self) -> Result<u64>;
}
