//! Loss recovery: announced requesters, delivery of probes to the host's own stack, and of NAKs to the wire.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use aya::TestRunOptions;
use aya::maps::{Map, MapData, RingBuf};
use aya::programs::{SchedClassifier, TestRun as _};
use dcqcn_common::flow::FlowId;

use super::error::at;
use super::{Error, PROBE};

/// The ring of announced requesters, and the program that delivers probes, as pinned with the maps.
pub struct Probe {
    program: SchedClassifier,
    requests: RingBuf<MapData>,
}

impl Probe {
    /// Opens program and ring pinned in `pins`.
    pub(crate) fn pinned(pins: &Path) -> Result<Self, Error> {
        const REQUESTS: &str = "REQUESTS";
        let map =
            MapData::from_pin(pins.join(REQUESTS)).and_then(Map::from_map_data).map_err(at(REQUESTS))?;
        let program = SchedClassifier::from_pin(pins.join(PROBE)).map_err(run_error)?;
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
    ///
    /// # Errors
    /// The kernel cannot run the program, or did not deliver the frame.
    pub fn deliver(&self, direction: Direction, ifindex: u32, mark: u32, frame: &[u8]) -> Result<(), Error> {
        /// `cb` in `struct __sk_buff` (include/uapi/linux/bpf.h).
        const CB: usize = 48;
        let mut ctx = [0; 192];
        let words = [ifindex, mark, direction as u32].map(u32::to_ne_bytes);
        for (at, byte) in ctx.iter_mut().skip(CB).zip(words.as_flattened()) {
            *at = *byte;
        }
        let options = TestRunOptions { data_in: Some(frame), ctx_in: Some(&ctx), ..TestRunOptions::new() };
        match self.program.test_run(options).map_err(run_error)?.return_value.cast_signed() {
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

fn run_error(source: aya::programs::ProgramError) -> Error {
    Error::Program { name: PROBE.to_owned(), source: Box::new(source) }
}
