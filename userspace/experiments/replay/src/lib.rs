//! The engines that run the pipeline on packets handed in, and what is made with them: [`replay`] and [`trace`].
//!
//! One interface over everything that can run the three hooks: [`Reference`] is `dcqcn-common` compiled for the host,
//! [`Kernel`] the real eBPF object through `BPF_PROG_TEST_RUN`, [`Bmv2`] the P4 program in `simple_switch`, [`P4`] the same
//! compiled program in an interpreter.
//!
//! Time, randomness and packets are handed in; packets, verdicts and the whole state of the maps come out, the same
//! from the first two to the last byte. What is different in P4 is in `docs/explanation/p4.md`.

pub mod frames;
mod kernel;
mod p4;
mod reference;
pub mod replay;
pub mod trace;
pub mod wire;

use aya::programs::ProgramError;
use dcqcn_common::events::Event;
use dcqcn_common::flow::{NpSet, QpId, RpSet};
use dcqcn_common::hooks::{TcVerdict, XdpVerdict};
use dcqcn_common::layout::{Backlog, Counters, Pair, QUEUES, TIMES};
use dcqcn_common::params::Params;
use dcqcn_common::pfc::Storms;
use dcqcn_loader::dataplane;
use serde::Serialize;

pub use kernel::Kernel;
pub use p4::{Bmv2, P4};
pub use reference::Reference;

/// Shortest packet an engine takes, in bytes: an Ethernet header.
pub const MIN_PACKET: usize = 14;
/// Longest packet an engine takes, in bytes: any Ethernet frame. (A TC program can make its packet as long as four pages
/// less overhead; longer ones are in captures of hosts whose NIC cuts and joins TCP segments.)
pub const MAX_PACKET: usize = 16_000;

/// Where a packet meets the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// XDP, as it arrives.
    Xdp,
    /// TC, as it arrives.
    Ingress,
    /// TC, as it leaves.
    Egress,
}

impl Hook {
    /// Its slot among the counters.
    #[must_use]
    pub const fn slot(self) -> usize {
        match self {
            Self::Xdp => 0,
            Self::Ingress => 1,
            Self::Egress => 2,
        }
    }
}

/// What a packet carries next to its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The interface it came in on; 0 = this host made it. The kernel engine's XDP wants one that exists.
    pub ingress_ifindex: u32,
    /// `skb->mark`; TC only.
    pub mark: u32,
    /// `skb->priority`; TC only.
    pub priority: u32,
    /// `skb->tstamp`, the departure time it has before the hook, 0 = none; TC only.
    pub departure_ns: u64,
    /// Bytes behind the UDP header of each segment of a GSO super-packet, 0 = it is none; TC only.
    pub segment_bytes: u32,
}

/// What a hook decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On its way.
    Pass,
    /// Gone.
    Drop,
    /// Out of another interface.
    Redirect {
        /// Which.
        ifindex: u32,
        /// To the neighbour the routes say, not to the layer 2 address it carries.
        neighbour: bool,
    },
    /// No engine ran on it: shorter than [`MIN_PACKET`] or longer than [`MAX_PACKET`]. It passes and is not counted.
    NotRun,
}

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The decision.
    pub verdict: Verdict,
    /// Its bytes.
    pub packet: Vec<u8>,
    /// `skb->mark`; 0 after XDP.
    pub mark: u32,
    /// `skb->priority`; 0 after XDP.
    pub priority: u32,
    /// Earliest departure time, in the time of the run; 0 = at once.
    pub departure_ns: u64,
    /// Packets sent next to it, as the egress hook let them go.
    pub emitted: Vec<Outcome>,
}

/// What one run of one program did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What became of its packet; `emitted` is empty.
    pub outcome: Outcome,
    /// The mark of the clone it sent to the own device; 0 = none.
    pub clone_mark: u32,
    /// `skb->hash` as it set it; 0 = it did not.
    pub flow_hash: u32,
}

/// Everything an engine keeps from packet to packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// By [`Hook::slot`].
    pub counters: [Counters; 3],
    /// "Empty at" of every virtual queue, in the ticks of `dcqcn_common::vqueue`.
    pub queues: [u64; QUEUES as usize],
    /// Who is at the other end of whom, in the order of address and number.
    pub pairs: Vec<(QpId, Pair)>,
    /// The flow table of the reaction point.
    pub rp: Vec<RpSet>,
    /// The flow table of the notification point.
    pub np: Vec<NpSet>,
    /// Connections in the making: an end, with its own name for the connection as number, and the QPN it named for itself; sorted.
    pub cm: Vec<(QpId, u32)>,
    /// The times that all CPUs share, by `Time`.
    pub times_ns: [u64; TIMES as usize],
    /// The event log, oldest first.
    pub events: Vec<Event>,
    /// State of the random sequence.
    pub random: u64,
}

/// What goes wrong in an engine; the reference engine never fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The switch, or what it is configured with.
    #[error(transparent)]
    Bmv2(#[from] dcqcn_p4::Error),
    /// Loading the object, or reading its maps.
    #[error(transparent)]
    Dataplane(#[from] dataplane::Error),
    /// The kernel would not run a program.
    #[error("the kernel refuses to run the {hook:?} program on a packet of {len} bytes: {}", root(.source))]
    Refused {
        /// Which program.
        hook: Hook,
        /// The packet's length.
        len: usize,
        /// Why.
        source: Box<ProgramError>,
    },
    /// A test run could not be given the packet as it is.
    #[error("the kernel cannot make a packet of {len} bytes for the {hook:?} program")]
    Resize {
        /// Which program.
        hook: Hook,
        /// The packet's length.
        len: usize,
    },
    /// A program returned something it never returns.
    #[error("the {hook:?} program returned {value}: the object belongs to another version of dcqcn")]
    UnknownVerdict {
        /// Which program.
        hook: Hook,
        /// What it returned.
        value: u32,
    },
}

/// The innermost cause: aya's outer errors only say which system call it was.
fn root(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root)
}

impl From<XdpVerdict> for Verdict {
    fn from(verdict: XdpVerdict) -> Self {
        match verdict {
            XdpVerdict::Pass => Self::Pass,
            XdpVerdict::Drop => Self::Drop,
            XdpVerdict::Redirect(ifindex) => Self::Redirect { ifindex, neighbour: false },
        }
    }
}

impl From<TcVerdict> for Verdict {
    fn from(verdict: TcVerdict) -> Self {
        match verdict {
            // An engine has one interface.
            TcVerdict::Pass | TcVerdict::HandOn => Self::Pass,
            TcVerdict::Drop => Self::Drop,
            TcVerdict::Redirect(ifindex) => Self::Redirect { ifindex, neighbour: false },
            TcVerdict::RedirectNeigh(ifindex) => Self::Redirect { ifindex, neighbour: true },
        }
    }
}

/// Something that runs the hooks.
pub trait Engine {
    /// Runs one program on one packet of [`MIN_PACKET`] to [`MAX_PACKET`] bytes at `now_ns`.
    ///
    /// # Errors
    /// What the kernel says.
    fn run(&mut self, hook: Hook, now_ns: u64, packet: &[u8], meta: &Meta) -> Result<Run, Error>;

    /// Puts other parameters active.
    ///
    /// # Errors
    /// What the kernel says.
    fn set_params(&mut self, params: &Params) -> Result<(), Error>;

    /// Enters a pair, as an operator would.
    ///
    /// # Errors
    /// What the kernel says.
    fn set_pair(&mut self, id: &QpId, pair: &Pair) -> Result<(), Error>;

    /// Tells what really waits in the queue `index`, below [`QUEUES`].
    ///
    /// # Errors
    /// There is no such queue, or what the kernel says.
    fn set_backlog(&mut self, index: u32, backlog: &Backlog) -> Result<(), Error>;

    /// Says at `now_ns` which priorities are in a storm of pauses, as the watchdog does.
    ///
    /// # Errors
    /// What the kernel says.
    fn set_storms(&mut self, storms: Storms, now_ns: u64) -> Result<(), Error>;

    /// The QPN at the other end of `id`, where it is known.
    ///
    /// # Errors
    /// What the kernel says.
    fn pair(&self, id: &QpId) -> Result<Option<Pair>, Error>;

    /// "Empty at" of the virtual queue `index`, below [`QUEUES`].
    ///
    /// # Errors
    /// There is no such queue, or what the kernel says.
    fn queue(&self, index: u32) -> Result<u64, Error>;

    /// A set of the RP table.
    ///
    /// # Errors
    /// There is no such set, or what the kernel says.
    fn rp_set(&self, index: u32) -> Result<RpSet, Error>;

    /// A set of the NP table.
    ///
    /// # Errors
    /// There is no such set, or what the kernel says.
    fn np_set(&self, index: u32) -> Result<NpSet, Error>;

    /// The counters, by [`Hook::slot`].
    ///
    /// # Errors
    /// What the kernel says.
    fn counters(&self) -> Result<[Counters; 3], Error>;

    /// All of the state.
    ///
    /// # Errors
    /// What the kernel says.
    fn state(&self) -> Result<State, Error>;

    /// Has a packet meet a hook at `now_ns`; what the hook sends next to it goes through the egress hook at once, as it
    /// does in the kernel.
    ///
    /// # Errors
    /// What the kernel says.
    fn process(&mut self, hook: Hook, now_ns: u64, packet: &[u8], meta: &Meta) -> Result<Outcome, Error> {
        if !(MIN_PACKET..=MAX_PACKET).contains(&packet.len()) {
            let &Meta { mark, priority, departure_ns, .. } = meta;
            let packet = packet.to_vec();
            let verdict = Verdict::NotRun;
            return Ok(Outcome { verdict, packet, mark, priority, departure_ns, emitted: Vec::new() });
        }
        let Run { mut outcome, clone_mark, .. } = self.run(hook, now_ns, packet, meta)?;
        if clone_mark != 0 {
            let clone = Meta { mark: clone_mark, priority: outcome.priority, ..*meta };
            outcome.emitted.push(self.run(Hook::Egress, now_ns, &outcome.packet, &clone)?.outcome);
        }
        Ok(outcome)
    }
}

impl State {
    /// What hash tables give in any order.
    fn sort(&mut self) {
        self.pairs.sort_unstable_by_key(|(id, _)| (id.addr, id.qpn, id.vlan));
        self.cm.sort_unstable_by_key(|(id, _)| (id.addr, id.qpn, id.vlan));
    }
}
