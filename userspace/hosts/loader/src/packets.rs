//! Packet trace of programs attached with `--log-packets`.

use std::sync::{Arc, Mutex};

use aya_log::EbpfLogger;
use dcqcn_support::sync::lock;
use log::{Log, Metadata, Record};

use crate::Error;
use crate::attach::{self, Info};

/// Logged lines not yet read.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        lock(&self.0).push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Packet trace of an attachment. Each line is delivered to one reader only.
pub struct Packets {
    lines: Lines,
    logger: EbpfLogger<Lines>,
}

impl Packets {
    pub fn open(info: &Info) -> Result<Self, Error> {
        let iface = info.iface.clone();
        if info.log_packets.is_none() {
            return Err(Error::NoPacketLog { iface });
        }
        let program = attach::verify(info)?.into_iter().find_map(|part| part.program_id);
        let Some(program) = program else { return Err(Error::NoPrograms { iface }) };
        let lines = Lines::default();
        let logger = EbpfLogger::init_from_id_with_logger(program, lines.clone())
            .map_err(|source| Error::PacketLog { iface, source: Box::new(source) })?;
        Ok(Self { lines, logger })
    }

    /// Lines logged since the last call, oldest first: `name=value` pairs, as written by
    /// `ebpf/src/trace/packets.rs`.
    pub fn read(&mut self) -> Vec<String> {
        self.logger.flush();
        std::mem::take(&mut *lock(&self.lines.0))
    }
}
