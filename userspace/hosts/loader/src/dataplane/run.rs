//! Programs that the daemon runs: removal of idle flows, and delivery of probes and NAKs.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use aya::TestRunOptions;
use aya::maps::{Map, MapData, RingBuf};
use aya::programs::{ProgramError, SchedClassifier, TestRun as _};
use dcqcn_common::events::Table;
use dcqcn_common::flow::FlowId;

use super::error::at;
use super::{EXPIRE, Error, PROBE};

/// A pinned program, by its name and pin.
struct Runnable(SchedClassifier, &'static str);

impl Runnable {
    fn pinned(pins: &Path, name: &'static str) -> Result<Self, Error> {
        let program = SchedClassifier::from_pin(pins.join(name)).map_err(error_of(name))?;
        Ok(Self(program, name))
    }

    /// Runs it on a packet, with `words` in `cb` of the packet's `struct __sk_buff` (include/uapi/linux/bpf.h).
    fn run<const N: usize>(&self, words: [u32; N], packet: &[u8]) -> Result<u32, Error> {
        const CB: usize = 48;
        let mut ctx = [0; 192];
        let words = words.map(u32::to_ne_bytes);
        for (at, byte) in ctx.iter_mut().skip(CB).zip(words.as_flattened()) {
            *at = *byte;
        }
        let options = TestRunOptions { data_in: Some(packet), ctx_in: Some(&ctx), ..TestRunOptions::new() };
        Ok(self.0.test_run(options).map_err(error_of(self.1))?.return_value)
    }
}

fn error_of(name: &str) -> impl FnOnce(ProgramError) -> Error {
    move |source| Error::Program { name: name.to_owned(), source: Box::new(source) }
}

/// The program that removes idle flows, pinned with its maps.
pub struct Expire(Runnable);

impl Expire {
    pub(crate) fn pinned(pins: &Path) -> Result<Self, Error> {
        Runnable::pinned(pins, EXPIRE).map(Self)
    }

    /// Removes the flows of set `index` last used before `before_ns` (CLOCK_MONOTONIC); returns how many.
    ///
    /// Checked under the lock, so a flow that has just become active is not removed.
    pub fn run(&self, table: Table, index: u32, before_ns: u64) -> Result<u32, Error> {
        self.0.run([table as u32, index, before_ns as u32, (before_ns >> 32) as u32], &[0; 64])
    }
}

/// The ring of announced requesters, and the program that delivers probes, as pinned with the maps.
pub struct Probe {
    program: Runnable,
    requests: RingBuf<MapData>,
}

impl Probe {
    /// Opens program and ring pinned in `pins`.
    pub(crate) fn pinned(pins: &Path) -> Result<Self, Error> {
        const REQUESTS: &str = "REQUESTS";
        let map =
            MapData::from_pin(pins.join(REQUESTS)).and_then(Map::from_map_data).map_err(at(REQUESTS))?;
        let program = Runnable::pinned(pins, PROBE)?;
        Ok(Self { program, requests: map.try_into().map_err(at(REQUESTS))? })
    }

    /// Requesters announced since the last call. There is one ring: two readers would share it.
    pub fn announced(&mut self) -> Vec<FlowId> {
        let mut flows = Vec::new();
        while let Some(item) = self.requests.next() {
            if item.len() == size_of::<FlowId>() {
                // SAFETY: of this length, and `FlowId` is a structure of integers, valid whatever the bytes.
                flows.push(unsafe { item.as_ptr().cast::<FlowId>().read_unaligned() });
            }
        }
        flows
    }

    /// A descriptor that polls readable while there are announcements.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.requests.as_fd()
    }

    /// Delivers `frame` as if interface `ifindex` had received it, or sends it there, with this `skb->mark`.
    pub fn deliver(&self, direction: Direction, ifindex: u32, mark: u32, frame: &[u8]) -> Result<(), Error> {
        let result = self.program.run([ifindex, mark, direction as u32], frame)?;
        match result.cast_signed() {
            0 => Ok(()),
            result => Err(Error::NotDelivered { ifindex, result }),
        }
    }
}

/// Direction of a delivered frame: flags of `bpf_clone_redirect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Out of the interface.
    Out = 0,
    /// To the host's own stack (`BPF_F_INGRESS`).
    In = 1,
}
