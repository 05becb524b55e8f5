//! Control interface of a switch, for controllers.

use super::entry::{Command, Entry};
use super::error::Result;

/// Contents of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDump {
    /// The entries, each with its handle.
    pub entries: Vec<(u64, Entry)>,
    /// The default action, if any.
    pub default_action: Option<Entry>,
}

/// A switch that a controller configures and reads: a running one, or the interpreter.
pub trait Control {
    /// Executes a command.
    fn run(&mut self, command: &Command) -> Result<()>;

    /// The entries of a table and its default action.
    fn table(&mut self, name: &str) -> Result<TableDump>;

    /// All values of a register.
    fn register(&mut self, name: &str) -> Result<Vec<u64>>;

    /// One value of a register.
    fn register_at(&mut self, name: &str, index: u64) -> Result<u64>;

    /// Packets and bytes of a counter.
    fn counter(&mut self, name: &str, index: u64) -> Result<(u64, u64)>;

    /// The switch's clock, ns since it started.
    fn now_ns(&mut self) -> Result<u64>;
}
