//! Names that most modules use.

pub(crate) use std::collections::BTreeSet;
pub(crate) use std::path::{Path, PathBuf};
pub(crate) use std::process::{Child, Command, Stdio};
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::thread;
pub(crate) use std::time::{Duration, Instant};

pub(crate) use anyhow::{Context as _, Result, anyhow, bail, ensure};
pub(crate) use clap::ValueEnum;
pub(crate) use fs_err as fs;
pub(crate) use serde::{Deserialize, Serialize};

pub(crate) use crate::Finished;
pub(crate) use crate::kernel::Series;
pub(crate) use crate::network::{Network, Nic};
pub(crate) use crate::tree::{Arch, Tree};
pub(crate) use xtask::apt;
pub(crate) use xtask::run::{self, header};
pub(crate) use xtask::workspace::Workspace;
