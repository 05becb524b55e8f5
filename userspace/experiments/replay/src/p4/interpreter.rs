//! The program in the interpreter, in this process.

use std::time::Duration;

use dcqcn_common::params::Params;
use dcqcn_p4::{Control, Error, Interpreter};

use super::{SwitchEngine, Target};

/// The engine `p4`.
pub type P4 = SwitchEngine<Interpreter>;

impl P4 {
    /// Loads the program, with `seed` for its random numbers. `packet_bytes` is the size of a packet where depths are
    /// in packets.
    ///
    /// # Errors
    /// The program lacks something that the parameters need.
    pub fn new(params: &Params, packet_bytes: u64, seed: u64) -> Result<Self, crate::Error> {
        Self::over(Interpreter::embedded(seed)?, params, packet_bytes)
    }
}

impl Target for Interpreter {
    fn control(&mut self) -> &mut dyn Control {
        self
    }

    fn set_time(&mut self, now_us: u64) {
        Interpreter::set_time(self, now_us);
    }

    fn send(&mut self, port: u16, packet: &[u8]) -> Result<(), Error> {
        Interpreter::send(self, port, packet);
        Ok(())
    }

    /// No time passes: it runs until a packet leaves, or a bounded number of passes.
    fn receive(&mut self, port: u16, _: Duration) -> Result<Option<Vec<u8>>, Error> {
        Interpreter::receive(self, port)
    }
}
