//! Names that most files of this crate use.

pub use std::collections::BTreeMap;
pub use std::fs::{self, File};
pub use std::io::{BufRead as _, BufReader, Read as _, Write as _};
pub use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
pub use std::os::unix::fs::PermissionsExt as _;
pub use std::path::{Path, PathBuf};
pub use std::process::{Command, Output, Stdio};
pub use std::sync::Arc;
pub use std::sync::atomic::{AtomicBool, Ordering};
pub use std::thread;
pub use std::time::{Duration, Instant};

pub use anyhow::{Context as _, Result, anyhow, bail, ensure};
pub use aya::programs::SchedClassifier;
pub use dcqcn_common::classify::mapped;
pub use dcqcn_common::flow::QpId;
pub use dcqcn_common::layout::PairSource;
pub use dcqcn_common::params::{Config, PACER_FQ, Params, Port};
pub use dcqcn_common::stats::Stat;
pub use dcqcn_common::wire::bth::{Bth, Opcode};
pub use dcqcn_common::wire::cm::CommIds;
pub use dcqcn_common::wire::ecn::Ecn;
pub use dcqcn_common::wire::eth::{EtherType, Ethernet};
pub use dcqcn_loader::attach;
pub use dcqcn_loader::dataplane::{PROGRAMS, Programs, Sizes};
pub use dcqcn_netlink::tc::{Handle, QdiscSpec, kernel_has_qdisc};
pub use dcqcn_netlink::{Netlink, Netns};
pub use dcqcn_params::{Key, PacerChoice, Role};
pub use dcqcn_replay::{Hook, Meta};
pub use nix::sys::signal::Signal;
pub use nix::unistd::Pid;
pub use serde::{Deserialize, Serialize};
pub use serde_json::{Value, json};
pub use tempfile::TempDir;

pub use crate::bpf::{LO, LoadedObjects};
pub use crate::command::{
    Running, binary, cpu_time, dcqcn, dcqcn_fleet, dcqcn_lab, dcqcn_with, error_of, find_program, memory_kb,
    output_of, status_field, words,
};
pub use crate::daemon::{CONTROL, Daemon, HOST, METRICS, get, scrape};
pub use crate::fleet::{Etcd, FleetFixture};
pub use crate::host::{Host, Pair, add_veth, join, request};
pub use crate::kill::Tc;
pub use crate::lab::{Lab, assert_contains};
pub use crate::leftover::{complete, freed, has_problem, problems, state, tables};
pub use crate::packets::{CNP_TOS, CmMessage, Rep, Roce, cm, mac, req, v4, v6};
pub use crate::repeat::while_repeating;
pub use crate::retry::{wait, wait_for, wait_until, wait_value, while_busy};
pub use crate::socket::{RawSocket, SILENCE, TIMEOUT};
pub use crate::{new_lab, new_pair, require, require_bmv2, require_installed, require_that, test_name};
