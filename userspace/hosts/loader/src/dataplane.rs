//! Loads the embedded object and provides typed access to its maps.

mod error;
mod lazy;
mod maps;
mod run;

use std::path::Path;
use std::{panic, thread};

use aya::maps::{MapData, MapError};
use aya::programs::{Program, SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader};
use dcqcn_common::layout::{Active, DEFAULT_FLOWS, MAX_FLOWS, Mode, WAYS};

use crate::object::{OBJECT, TRACE_OBJECT};
use crate::soft_roce::SoftRoce;
pub use error::Error;
pub use maps::Maps;
pub use run::{Direction, Expire, Probe};

/// Names of the programs in the object.
pub const PROGRAMS: [&str; 3] = ["dcqcn_xdp", "dcqcn_ingress", "dcqcn_egress"];
/// Names of their hooks in output and files.
pub const HOOKS: [&str; 3] = ["xdp", "ingress", "egress"];
/// Name of the program that removes idle flows, and of its pin.
pub(crate) const EXPIRE: &str = "dcqcn_expire";
/// Name of the program that delivers tail-loss probes, and of its pin.
pub(crate) const PROBE: &str = "dcqcn_probe";
/// Programs that are run, not attached.
pub(crate) const RUN: [&str; 2] = [EXPIRE, PROBE];
/// Names of the maps in the object, and of their pins.
pub const MAPS: [&str; 21] = [
    "PARAMS",
    "ACTIVE",
    "COUNTERS",
    "QUEUE",
    "SHARES",
    "BACKLOG",
    "INGRESS_BYTES",
    "PAIRS",
    "LEARNED",
    "PAIRS_NS",
    "RP",
    "NP",
    "CM",
    "TIMES_NS",
    "CUTS",
    "REQUESTERS",
    "REQUESTS",
    "EVENTS",
    "TEST",
    "SIBLINGS",
    "HANDED",
];
/// The map that programs access as a variable; in the object it is named after its section.
const ACTIVE: &str = "ACTIVE";
const ACTIVE_SECTION: &str = ".bss.active";

/// Name of a map in the object.
fn in_object(name: &str) -> &str {
    if name == ACTIVE { ACTIVE_SECTION } else { name }
}

/// Maps shared by all attachments of a network namespace: QP pairs, and the programs to hand CNPs on to.
pub const SHARED: [&str; 5] = ["LEARNED", "PAIRS_NS", "CM", "SIBLINGS", "HANDED"];

/// Pins the shared maps of one pin directory in another, to be reused by [`load`]; false if one is missing.
pub(crate) fn share(from: &Path, to: &Path) -> Result<bool, Error> {
    for name in SHARED {
        let failed = |source| Error::Map { name, source };
        let (from, to) = (from.join(name), to.join(name));
        if to.exists() {
            continue;
        }
        if !from.exists() {
            return Ok(false);
        }
        let map = MapData::from_pin(from).map_err(failed)?;
        map.pin(to).map_err(|error| failed(MapError::PinError { name: Some(name.to_owned()), error }))?;
    }
    Ok(true)
}

/// Global variable of the trace object: its sampling interval.
const ONE_IN: &str = "ONE_IN";

/// Selects the object to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// Regular programs.
    Plain,
    /// Programs with the packet trace, logged through aya-log.
    PacketTrace {
        /// Sampling interval in packets, at least 1.
        one_in: u32,
    },
}

impl Programs {
    pub(crate) const fn object(self) -> &'static [u8] {
        match self {
            Self::Plain => OBJECT,
            Self::PacketTrace { .. } => TRACE_OBJECT,
        }
    }
}

/// Loads an object, with its programs in `names` (of [`PROGRAMS`]) and in `RUN`.
///
/// With `pins`, maps are pinned there, or reused if already pinned.
pub fn load(
    programs: Programs,
    sizes: Sizes,
    mode: Mode,
    pins: Option<&Path>,
    names: &[&str],
) -> Result<Ebpf, Error> {
    // Opening the map of a variable initialises it, even if programs are using it; so initialise it with
    // its current value. The namespace's lock prevents changes in between.
    let active = pins.map(|pins| pins.join(ACTIVE)).filter(|pin| pin.exists());
    let active = active.map(|pin| maps::active(&pin)).transpose()?;
    let mut loader = EbpfLoader::new();
    let mut ebpf = create_maps(&mut loader, &programs, sizes, mode, pins, active.as_ref())?;
    load_programs(&mut ebpf, programs, names)?;
    Ok(ebpf)
}

/// First half of [`load`]: creates and pins the maps, or reuses pinned ones, with the value of `ACTIVE` if
/// that is pinned.
///
/// Reuse the loader: creating one parses the kernel's types, which takes an eighth of the time of an attach.
pub(crate) fn create_maps<'a>(
    loader: &mut EbpfLoader<'a>,
    programs: &'a Programs,
    sizes: Sizes,
    mode: Mode,
    pins: Option<&Path>,
    active: Option<&'a Active>,
) -> Result<Ebpf, Error> {
    loader
        .override_global("MODE", number(mode), true)
        .override_global("STALE_ACKS", flag(SoftRoce::current().ends_at_stale_acks()), true)
        .override_global("NAKS_IN_READS", flag(SoftRoce::current().takes_naks_in_reads()), true)
        .map_max_entries("RP", sizes.rp_sets())
        .map_max_entries("NP", sizes.np_sets())
        .map_max_entries("PAIRS", sizes.pairs())
        .map_max_entries("REQUESTERS", sizes.pairs());
    if let Programs::PacketTrace { one_in } = programs {
        loader.override_global(ONE_IN, one_in, true);
    }
    if let Some(active) = active {
        loader.override_global(ACTIVE, active, true);
    }
    for (name, pins) in MAPS.into_iter().filter_map(|name| Some((name, pins?))) {
        loader.map_pin_path(in_object(name), pins.join(name));
    }
    loader.load(programs.object()).map_err(|source| Error::Load { source: Box::new(source) })
}

/// The value of the mode's variable, for a loader of any lifetime.
const fn number(mode: Mode) -> &'static u32 {
    match mode {
        Mode::Host => &(Mode::Host as u32),
        Mode::Inline => &(Mode::Inline as u32),
        Mode::Marking => &(Mode::Marking as u32),
        Mode::Test => &(Mode::Test as u32),
    }
}

/// The value of a variable that is 0 or 1, for a loader of any lifetime.
const fn flag(is_on: bool) -> &'static u32 {
    if is_on { &1 } else { &0 }
}

/// Second half of [`load`]: loads the programs.
pub(crate) fn load_programs(ebpf: &mut Ebpf, programs: Programs, names: &[&str]) -> Result<(), Error> {
    verify(ebpf, names).map_err(|error| match (programs, error) {
        (Programs::PacketTrace { .. }, Error::Program { name, source }) => {
            Error::PacketTrace { name, source }
        }
        (_, error) => error,
    })?;
    for (program, info) in ebpf.programs().filter_map(|(name, program)| Some((name, program.info().ok()?))) {
        // Available since Linux 5.16.
        let instructions = info.verified_instruction_count();
        tracing::debug!(program, instructions, "program verified");
    }
    Ok(())
}

/// Loads the programs in parallel, because verification takes nearly all of the time.
fn verify(ebpf: &mut Ebpf, names: &[&str]) -> Result<(), Error> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (name, program) in
            ebpf.programs_mut().filter(|(name, _)| names.contains(name) || RUN.contains(name))
        {
            let verify = move || {
                match program {
                    Program::Xdp(program) => program.load(),
                    Program::SchedClassifier(program) => program.load(),
                    // The object has no other program types.
                    _ => Ok(()),
                }
                .map_err(|source| Error::Program { name: name.to_owned(), source: Box::new(source) })
            };
            let thread = thread::Builder::new().spawn_scoped(scope, verify);
            threads.push(thread.map_err(|source| Error::Thread { source })?);
        }
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })
}

pub fn xdp(ebpf: &mut Ebpf) -> Result<&mut Xdp, Error> {
    let program = ebpf.program_mut(PROGRAMS[0]).ok_or(Error::Missing(PROGRAMS[0]))?;
    program.try_into().map_err(|_| Error::Missing(PROGRAMS[0]))
}

/// TC program of a loaded object.
pub fn classifier<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut SchedClassifier, Error> {
    ebpf.program_mut(name).ok_or(Error::Missing(name))?.try_into().map_err(|_| Error::Missing(name))
}

/// Table sizes in flows; tables are rounded up to a power of two of sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub rp_flows: u32,
    /// NP flows, configured pairs, and requesters.
    pub np_flows: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { rp_flows: DEFAULT_FLOWS, np_flows: DEFAULT_FLOWS }
    }
}

impl Sizes {
    pub fn rp_sets(&self) -> u32 {
        sets(self.rp_flows)
    }

    pub fn np_sets(&self) -> u32 {
        sets(self.np_flows)
    }

    /// Entries of the tables with one per QP of this host: configured pairs, and requesters.
    pub(crate) fn pairs(&self) -> u32 {
        self.np_flows.clamp(WAYS as u32, MAX_FLOWS)
    }
}

fn sets(flows: u32) -> u32 {
    flows.clamp(WAYS as u32, MAX_FLOWS).div_ceil(WAYS as u32).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_powers_of_two_of_sets() {
        assert_eq!([1, 8, 9, 65_536, u32::MAX].map(sets), [1, 1, 2, 8_192, 131_072]);
    }
}
