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
    ///
    /// # Errors
    /// The switch rejects it, or has exited.
    fn run(&mut self, command: &Command) -> Result<()>;

    /// The entries of a table and its default action.
    ///
    /// # Errors
    /// The table does not exist, or the switch has exited.
    fn table(&mut self, name: &str) -> Result<TableDump>;

    /// All values of a register.
    ///
    /// # Errors
    /// The register does not exist, or the switch has exited.
    fn register(&mut self, name: &str) -> Result<Vec<u64>>;

    /// One value of a register.
    ///
    /// # Errors
    /// The element does not exist, or the switch has exited.
    fn register_at(&mut self, name: &str, index: u64) -> Result<u64>;

    /// Packets and bytes of a counter.
    ///
    /// # Errors
    /// The element does not exist, or the switch has exited.
    fn counter(&mut self, name: &str, index: u64) -> Result<(u64, u64)>;

    /// The switch's clock, ns since it started.
    ///
    /// # Errors
    /// The switch has exited.
    fn now_ns(&mut self) -> Result<u64>;
}
