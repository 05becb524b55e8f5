//! Engines that run the pipeline on given packets, and the tools based on them: [`replay`] and [`trace`].
//!
//! One interface to everything that can run the three hooks: [`Reference`] is `dcqcn-common` compiled for the host,
//! [`Kernel`] the real eBPF object through `BPF_PROG_TEST_RUN`, [`Bmv2`] the P4 program in `simple_switch`, [`P4`] the
//! same compiled program in an interpreter.
//!
//! Inputs are time, randomness and packets; outputs are packets, verdicts and the whole state of the maps, byte for
//! byte equal for the first two. `docs/explanation/p4.md` lists the differences of P4.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

pub mod frames;
mod kernel;
mod p4;
mod reference;
pub mod replay;
pub mod trace;
pub mod wire;

use aya::programs::ProgramError;
use dcqcn_common::classify::{self, Roce};
use dcqcn_common::events::Event;
use dcqcn_common::flow::{FlowId, NpSet, QpId, RpSet};
use dcqcn_common::hooks::{TcVerdict, XdpVerdict};
use dcqcn_common::layout::{Backlog, Counters, Pair, QUEUES, TIMES};
use dcqcn_common::params::Params;
use dcqcn_common::pfc::Storms;
use dcqcn_common::recovery::Requester;
use dcqcn_common::stats::Stat;
use dcqcn_loader::dataplane;
use serde::Serialize;

pub use kernel::Kernel;
pub use p4::{Bmv2, P4};
pub use reference::Reference;

/// Shortest packet an engine takes, in bytes: an Ethernet header.
pub const MIN_PACKET: usize = 14;
/// Longest packet of an engine, in bytes: any Ethernet frame. (A TC program can resize its packet to four pages less
/// overhead; longer ones are in captures of hosts whose NIC merges and splits TCP segments.)
pub const MAX_PACKET: usize = 16_000;

/// Hook that a packet enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// XDP, on arrival.
    #[default]
    Xdp,
    /// TC ingress.
    Ingress,
    /// TC egress.
    Egress,
}

impl Hook {
    /// Index of its counters.
    pub const fn slot(self) -> usize {
        self as usize
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Ingress interface; 0 = sent by this host. XDP in the kernel engine requires an existing one.
    pub ingress_ifindex: u32,
    /// `skb->mark`; TC only.
    pub mark: u32,
    /// `skb->priority`; TC only.
    pub priority: u32,
    /// `skb->tstamp`: departure time set before the hook, 0 = none; TC only.
    pub departure_ns: u64,
    /// Payload bytes of each segment of a GSO super-packet, 0 = not one; TC only.
    pub segment_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Drop,
    Redirect {
        ifindex: u32,
    },
    /// Received on the same interface.
    Receive,
    /// Not run: shorter than [`MIN_PACKET`] or longer than [`MAX_PACKET`]. The packet passes and is not counted.
    NotRun,
}

/// Classification of a packet, or the counter if it is not processed.
fn classify(mut packet: &[u8]) -> Result<Roce, Stat> {
    classify::classify(&mut packet)
}

/// Whether the packet is RoCEv2 and carries CE.
fn is_ce(packet: &[u8]) -> bool {
    classify(packet).is_ok_and(|roce| roce.ecn().is_ce())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    pub packet: Vec<u8>,
    /// `skb->mark`; 0 after XDP.
    pub mark: u32,
    /// `skb->priority`; 0 after XDP.
    pub priority: u32,
    /// Earliest departure time, in the time of the run; 0 = immediately.
    pub departure_ns: u64,
    /// Packets emitted with it, after the egress hook.
    pub emitted: Vec<Outcome>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Result for its packet; `emitted` is empty.
    pub outcome: Outcome,
    /// Mark of the clone sent to the same device; 0 = none.
    pub clone_mark: u32,
    /// New value of `skb->hash`; 0 = unchanged.
    pub flow_hash: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// By [`Hook::slot`].
    pub counters: [Counters; 3],
    /// "Empty at" of every virtual queue, in the ticks of `dcqcn_common::vqueue`.
    pub queues: [u64; QUEUES as usize],
    pub pairs: Vec<(QpId, Pair)>,
    pub rp: Vec<RpSet>,
    pub np: Vec<NpSet>,
    /// Connections being set up: an endpoint, with its connection identifier as number, and its QPN; sorted.
    pub cm: Vec<(QpId, u32)>,
    /// Timestamps shared by all CPUs, by `Time`.
    pub times_ns: [u64; TIMES],
    /// The event log, oldest first.
    pub events: Vec<Event>,
    pub random: u64,
    /// Requesters of the tail-loss probe.
    pub requesters: Vec<(FlowId, Requester)>,
}

/// Error of an engine; the reference engine never fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Bmv2(#[from] dcqcn_p4::Error),
    #[error(transparent)]
    Dataplane(#[from] dataplane::Error),
    #[error("the kernel cannot run the {hook:?} program on a packet of {len} bytes: {}", root(.source))]
    Refused { hook: Hook, len: usize, source: Box<ProgramError> },
    #[error("the kernel cannot make a packet of {len} bytes for the {hook:?} program")]
    Resize { hook: Hook, len: usize },
    #[error("the {hook:?} program returned {value}: the object belongs to another version of dcqcn")]
    UnknownVerdict { hook: Hook, value: u32 },
}

/// The innermost cause: aya's outer errors contain only the name of the system call.
fn root(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root)
}

impl From<XdpVerdict> for Verdict {
    fn from(verdict: XdpVerdict) -> Self {
        match verdict {
            XdpVerdict::Pass => Self::Pass,
            XdpVerdict::Drop => Self::Drop,
            XdpVerdict::Redirect(ifindex) => Self::Redirect { ifindex },
        }
    }
}

impl From<TcVerdict> for Verdict {
    fn from(verdict: TcVerdict) -> Self {
        match verdict {
            // An engine has one interface, and no qdisc.
            TcVerdict::Pass | TcVerdict::TrySiblings | TcVerdict::EnqueueAgain => Self::Pass,
            TcVerdict::Drop => Self::Drop,
            TcVerdict::Receive => Self::Receive,
        }
    }
}

pub trait Engine {
    /// Runs one program on one packet of [`MIN_PACKET`] to [`MAX_PACKET`] bytes at `now_ns`.
    fn run(&mut self, hook: Hook, now_ns: u64, packet: &[u8], meta: &Meta) -> Result<Run, Error>;

    /// Activates other parameters.
    fn set_params(&mut self, params: &Params) -> Result<(), Error>;

    /// Adds a pair, as an operator would.
    fn set_pair(&mut self, id: &QpId, pair: &Pair) -> Result<(), Error>;

    /// Sets the real backlog of the queue `index`, below [`QUEUES`].
    fn set_backlog(&mut self, index: u32, backlog: &Backlog) -> Result<(), Error>;

    /// Reports at `now_ns` the priorities in a pause storm, as the watchdog does.
    fn set_storms(&mut self, storms: Storms, now_ns: u64) -> Result<(), Error>;

    /// Reports until when the host counts as congested, as the daemon does.
    fn set_host_congested_until(&mut self, until_ns: u64) -> Result<(), Error>;

    /// The QPN at the other end of `id`, if known.
    fn pair(&self, id: &QpId) -> Result<Option<Pair>, Error>;

    /// "Empty at" of the virtual queue `index`, below [`QUEUES`].
    fn queue(&self, index: u32) -> Result<u64, Error>;

    fn rp_set(&self, index: u32) -> Result<RpSet, Error>;

    fn np_set(&self, index: u32) -> Result<NpSet, Error>;

    /// The counters, by [`Hook::slot`].
    fn counters(&self) -> Result<[Counters; 3], Error>;

    fn state(&self) -> Result<State, Error>;

    /// Runs a hook on a packet at `now_ns`; packets that the hook emits pass the egress hook immediately, as in the
    /// kernel.
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
            // Of the packet before the hook could trim it. The mark that it lacks is not part of a CNP.
            outcome.emitted.push(self.run(Hook::Egress, now_ns, packet, &clone)?.outcome);
        }
        Ok(outcome)
    }
}

impl State {
    /// Sorts the contents of hash tables, whose order is arbitrary.
    fn sort(&mut self) {
        self.pairs.sort_unstable_by_key(|(id, _)| (id.addr, id.qpn, id.vlan));
        self.cm.sort_unstable_by_key(|(id, _)| (id.addr, id.qpn, id.vlan));
        self.requesters
            .sort_unstable_by_key(|(id, _)| (id.src, id.receiver.addr, id.receiver.qpn, id.receiver.vlan));
    }
}
