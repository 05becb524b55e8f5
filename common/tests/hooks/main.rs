//! Each hook on a mock host whose packets, tables and kernel can be made to fail, unlike those of the reference engine.

mod cp;
mod mock_host;
mod np;
mod packets;
mod pairing;
mod paths;
mod pfc;
mod recovery;
mod rp;
mod tos;

// Every module here imports these by `use super::*`.
use dcqcn_common::classify::{QP_GSI, classify, mapped, words};
use dcqcn_common::events::{EventKind, Table};
use dcqcn_common::flow::{FlowId, HashKeys, NpFlow, QpId, RpFlow, RpHot, RpSet, set_index};
use dcqcn_common::hooks::memory::{Memory, Packet, PacketContext, PacketOutcome};
use dcqcn_common::hooks::{self, Cloned, HTB_FIRST_FLOW, HTB_MAX_FLOWS, LEARNING, RECEIVE_LIMIT};
use dcqcn_common::hooks::{TcVerdict, XdpVerdict, htb_minor, htb_slot};
use dcqcn_common::layout::{BACKLOG_AGE_NS, Backlog, ClassCounters, Cut, Pair, PairSource};
use dcqcn_common::layout::{QUEUES, TIMES, Time, WAYS};
use dcqcn_common::params::{CNP_LIMIT_PEER, CNP_LIMIT_PORT, CNP_LIMIT_QP, NP_WINDOW_START, PACER_FQ};
use dcqcn_common::params::{Config, PACER_HTB, PACER_NONE, Params, Port, QUEUE_SOURCE_BACKLOG, QUEUES_ETS};
use dcqcn_common::params::{Scalars, Switch, TAIL_LOSS_PROBE_FORCE};
use dcqcn_common::pfc::{STORM_AGE_NS, Storms};
use dcqcn_common::rate::RpParams;
use dcqcn_common::recovery::{Action, Sent, Settings};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::{BthRepr, Opcode};
use dcqcn_common::wire::cm::CommIds;
use dcqcn_common::wire::cnp::{self, Cnp, CnpRepr};
use dcqcn_common::wire::ecn::{self, Ecn};
use dcqcn_common::wire::eth::{EtherType, Ethernet, VlanTag, VlanTagRepr};
use dcqcn_common::wire::ext::{Deth, DethRepr};
use dcqcn_common::wire::ipv4::header_checksum;
use dcqcn_common::wire::nak::Macs;
use dcqcn_common::wire::pfc::PfcRepr;
use dcqcn_frames::{self as frames, CmMessage, Dreq, Rep, SPORT, mac, v4, v6};
use mock_host::{HERE, MockHost, PORTS, params, scalars, with_bytes};
use packets::{
    ACK, DATA, DATAGRAM, MARKED, NOT_ECT, OTHER, RECEIVER_QPN, REQUEST, Roce, SECOND_NS, SENDER_QPN,
};
use packets::{addr, cm, qp};
