//! Bottleneck between two guests: the bridge's ports towards the second one are shaped, and `dcqcn` marks there.

use super::network;
use crate::prelude::*;

/// The shaper of `tests/src/vm/lab.rs`.
const SHAPER: [&str; 7] = ["tbf", "rate", "20mbit", "burst", "64000", "limit", "102400"];
/// Packets of an emulated machine arrive in bursts that are not congestion.
const KMIN: &str = "wred.3.kmin=10KB";

/// The virtual queue does not have the shaper's burst, so its limit is that of the shaper's queue plus the burst.
const TRIM: [&str; 2] = ["wred.3.queue_limit=160KB", "trim_dscp_value=10"];
const NO_TRIM: [&str; 2] = ["wred.3.queue_limit=0", "trim_dscp_value=64"];

pub(super) struct Bottleneck {
    binary: PathBuf,
    netns: String,
    taps: [String; 2],
}

impl Bottleneck {
    pub(super) fn new(workspace: &Workspace, network: &Network) -> Result<Self> {
        let tap = network::tap(2);
        let taps = [tap.clone(), format!("{tap}b")];
        let bottleneck = Self { binary: workspace.binary(), netns: network.netns.clone(), taps };
        for tap in &bottleneck.taps {
            let mut shape = Command::new("tc");
            shape.args(["-n", &network.netns, "qdisc", "add", "dev", tap, "root", "handle", "1:"]);
            run::capture(shape.args(SHAPER))?;
            bottleneck
                .dcqcn(&["attach", tap, "--role", "switch", "--profile", "lab", "--set", KMIN])
                .context("cannot attach dcqcn to the bridge's port")?;
        }
        Ok(bottleneck)
    }

    pub(super) fn mark(&self, is_on: bool) -> Result<()> {
        self.set(&[&format!("cp_enable={is_on}")])
    }

    /// Enables or disables trimming, shortly before the shaper's queue is full.
    pub(super) fn trim(&self, is_on: bool) -> Result<()> {
        self.set(if is_on { &TRIM } else { &NO_TRIM })
    }

    fn set(&self, values: &[&str]) -> Result<()> {
        self.taps.iter().try_for_each(|tap| self.dcqcn(&[&["set", tap], values].concat()))
    }

    fn dcqcn(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.binary);
        run::capture(command.args(["-n", &self.netns]).args(arguments)).map(drop)
    }
}

impl Drop for Bottleneck {
    fn drop(&mut self) {
        for tap in &self.taps {
            if let Err(error) = self.dcqcn(&["detach", tap]) {
                eprintln!("cannot detach dcqcn from {tap}: {error:#}");
            }
        }
    }
}
