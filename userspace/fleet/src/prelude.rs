//! Names that several files of this crate use.

pub(crate) use std::collections::{BTreeMap, BTreeSet, VecDeque};
pub(crate) use std::fmt;
pub(crate) use std::fs;
pub(crate) use std::net::SocketAddr;
pub(crate) use std::path::{Path, PathBuf};
pub(crate) use std::sync::Arc;
pub(crate) use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use axum::Router;
pub(crate) use axum::http::header;
pub(crate) use axum::response::IntoResponse as _;
pub(crate) use axum::routing::get;
pub(crate) use clap::Args;
pub(crate) use dcqcn_control_api::{Applied, Apply, ControlClient, Counts, Health, Override, Verb};
pub(crate) use dcqcn_params::Key;
pub(crate) use dcqcn_params::quantity::parse_time_ns;
pub(crate) use dcqcn_support::causes::one_line;
pub(crate) use dcqcn_support::cli::{Output, message};
pub(crate) use dcqcn_support::file::read_limited;
pub(crate) use dcqcn_support::http::{Limits, Server};
pub(crate) use dcqcn_support::render::{count, printable};
pub(crate) use dcqcn_support::time::rfc3339;
pub(crate) use glob::Pattern;
pub(crate) use serde::de::DeserializeOwned;
pub(crate) use serde::{Deserialize, Serialize};
pub(crate) use serde_json::json;
pub(crate) use tokio::net::TcpListener;
pub(crate) use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

pub(crate) use crate::agent::daemon::send;
pub(crate) use crate::error::{Error, Result};
pub(crate) use crate::file::{Difference, Gate, Group, Labels, Policy, differences};
pub(crate) use crate::measure::{MEASURES, Reading, Source, THROUGHPUT, UNKNOWN_SPREAD};
pub(crate) use crate::reach::EtcdOptions;
pub(crate) use crate::record::{
    DesiredConfig, Member, OVERRIDE_PREFIX, Outcome, Rates, Report, Target, Tried, Version,
};
pub(crate) use crate::rollout::{Effect, Event, Hosts, Phase, ReceivedReport, Rollout, Step};
pub(crate) use crate::store::{EtcdError, Mirror, Snapshot, Store};
