//! The control interface of a switch: what a controller reads and writes.

use super::entry::{Command, Entry};
use super::error::Result;

/// Contents of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDump {
    /// The entries, each with its handle.
    pub entries: Vec<(u64, Entry)>,
    /// The default action, if there is one.
    pub default_action: Option<Entry>,
}

/// A switch that a controller configures and reads: a running one, or the interpreter.
pub trait Control {
    /// Carries out a command.
    ///
    /// # Errors
    /// The switch refuses it, or is gone.
    fn run(&mut self, command: &Command) -> Result<()>;

    /// The entries of a table and its default action.
    ///
    /// # Errors
    /// There is no such table, or the switch is gone.
    fn table(&mut self, name: &str) -> Result<TableDump>;

    /// All values of a register.
    ///
    /// # Errors
    /// There is no such register, or the switch is gone.
    fn register(&mut self, name: &str) -> Result<Vec<u64>>;

    /// One value of a register.
    ///
    /// # Errors
    /// There is no such element, or the switch is gone.
    fn register_at(&mut self, name: &str, index: u64) -> Result<u64>;

    /// Packets and bytes of a counter.
    ///
    /// # Errors
    /// There is no such element, or the switch is gone.
    fn counter(&mut self, name: &str, index: u64) -> Result<(u64, u64)>;

    /// The switch's clock, ns since it started.
    ///
    /// # Errors
    /// The switch is gone.
    fn now_ns(&mut self) -> Result<u64>;
}
