//! Long-running commands (`coordinate`, `agent`, `serve`), and those that control rollouts and records.

use std::future::pending;

use anyhow::{Result, anyhow, bail, ensure};
use tokio::task::JoinSet;

use super::apply::{execute, interrupted};
use super::{NotCoordinated, author, host, host_name, report_period, step_period};
use crate::agent;
use crate::coordinate::{self, Coordinator, Until};
use crate::prelude::*;
use crate::serve;
use crate::store::last_done;

/// Execute all rollouts, as a service on one or several machines.
///
/// The state is stored in etcd, so any coordinator can continue after another has exited. Between rollouts,
/// coordinators order new hosts to apply the configuration of their group.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet coordinate
  dcqcn-fleet coordinate --metrics 127.0.0.1:9321")]
pub(super) struct CoordinateArgs {
    /// Serve Prometheus metrics at /metrics, and health at /healthz and /readyz.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Step period.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = step_period, hide = true)]
    tick: Duration,
}

impl CoordinateArgs {
    pub(super) async fn run(self, store: Store, reach: &EtcdOptions) -> Result<()> {
        let mut print = |line: &str| message(line);
        let mut coordinator = Coordinator::new(store, self.tick, &mut print);
        let metrics = coordinator.metrics();
        let serving = async {
            match self.metrics {
                Some(listen) => coordinate::serve(listen, metrics).await,
                None => pending().await,
            }
        };
        let ended = tokio::select! {
            ended = coordinator.run(Until::Forever) => ended.map(drop).map_err(Into::into),
            ended = serving => ended.map_err(Into::into),
            ended = interrupted() => ended,
            error = reach.replaced() => Err(error.into()),
        };
        coordinator.unregister().await;
        ended
    }
}

pub(super) async fn resume(mut store: Store, out: &mut Output<'_>) -> Result<()> {
    let rollout = edit(&mut store, out, Event::Resume { by: &author() }).await?;
    ensure_coordinated(&mut store, &rollout, "resume the rollout").await
}

pub(super) async fn abort(mut store: Store, why: &str, wait: bool, out: &mut Output<'_>) -> Result<()> {
    let by = author();
    let event = Event::Abort { by: &by, why };
    if !wait {
        let rollout = edit(&mut store, out, event).await?;
        return ensure_coordinated(&mut store, &rollout, "roll back").await;
    }
    let version = store.edit(event).await?.0.version;
    let outcome = execute(store, version, Duration::from_millis(500), out.is_json()).await?;
    ensure!(!outcome.is_done, "cannot abort: the rollout ended before, and version {version} is active");
    show_edited(version, format!("rolled back: {}", outcome.reason), Vec::new(), out)
}

pub(super) async fn forget(mut store: Store, host: String, out: &mut Output<'_>) -> Result<()> {
    let snapshot = store.snapshot().await?;
    ensure!(snapshot.names.contains(&host), "cannot forget {host}: the fleet has no such host");
    if snapshot.hosts.contains_key(&host) {
        return Err(Error::HostReports(host).into());
    }
    if let Ok(Some((rollout, _))) = snapshot.rollout() {
        let is_free = rollout.is_over() || rollout.steps.iter().all(|step| step.host != host);
        ensure!(is_free, "cannot forget {host}: it is part of the current rollout; wait for its end");
    }
    store.forget(&host, snapshot.revision).await?;
    Ok(out.show_as(&BTreeMap::from([("host", &host)]), format_args!("{host}: records deleted\n"))?)
}

pub(super) async fn prune(mut store: Store, keep: usize, out: &mut Output<'_>) -> Result<()> {
    let (numbers, outcomes) = (store.version_numbers().await?, store.outcomes().await?);
    let snapshot = store.snapshot().await?;
    let mut used: BTreeSet<u64> =
        snapshot.desired_configs.values().map(|desired| desired.target.version).collect();
    let tried = snapshot.hosts.values().filter_map(|seen| seen.report.tried.as_ref());
    used.extend(tried.map(|tried| tried.target.version));
    used.extend(last_done(&outcomes));
    if let Some((rollout, _)) = snapshot.rollout()? {
        used.insert(rollout.version);
        // A rollout that has ended cannot be rolled back.
        let former = rollout.steps.iter().filter(|_| !rollout.is_over());
        used.extend(former.map(|step| step.former.version));
    }
    if let Some((host, bad)) = snapshot.unreadable.iter().find(|(_, bad)| bad.contains_key("want")) {
        let error = bad.get("want").map_or("", String::as_str);
        bail!("cannot prune: the order of {host} is unreadable, and may refer to any version: {error}");
    }
    // Include outcomes whose version was deleted by hand.
    let known: BTreeSet<u64> = numbers.iter().chain(outcomes.keys()).copied().collect();
    // Always keep the latest number: the next one is derived from it.
    let old = known.iter().rev().skip(keep.max(1));
    let pruned: Vec<u64> = old.filter(|version| !used.contains(version)).copied().collect();
    store.prune(&pruned, snapshot.revision).await?;
    let kept = known.len() - pruned.len();
    let text = format!("{} deleted, {kept} kept\n", count(pruned.len(), "version"));
    Ok(out.show_as(&Pruned { pruned, kept }, text)?)
}

#[derive(Serialize)]
struct Edited {
    version: u64,
    status: String,
}

/// `messages`: effects of the request, such as a wave that it approves.
fn show_edited(version: u64, status: String, messages: Vec<String>, out: &mut Output<'_>) -> Result<()> {
    let text = format!("version {version}: {}\n", [messages, vec![status.clone()]].concat().join("; "));
    Ok(out.show_as(&Edited { version, status }, text)?)
}

#[derive(Serialize)]
struct Pruned {
    pruned: Vec<u64>,
    kept: usize,
}

pub(super) async fn edit(store: &mut Store, out: &mut Output<'_>, event: Event<'_>) -> Result<Rollout> {
    let (edited, messages) = store.edit(event).await?;
    show_edited(edited.version, edited.status(), messages, out)?;
    out.finish()?;
    Ok(edited)
}

/// The request itself may have ended the rollout: the approval of its last wave does.
async fn ensure_coordinated(store: &mut Store, rollout: &Rollout, what: &'static str) -> Result<()> {
    let is_executed = rollout.is_over() || store.is_coordinated().await?;
    if is_executed { Ok(()) } else { Err(NotCoordinated(what).into()) }
}

/// Serve a web page with live metrics, changes and parameters of this host and, with --fleet, of all hosts.
///
/// For each interface the page shows the last ten minutes: queues, marks, CNPs, pauses, the rates of the busiest queue
/// pairs, and changes of parameters.
///
/// Requires only access to the daemon's socket (`[control]` in its file). Any client that reaches the address can read
/// the page.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet serve
  dcqcn-fleet serve --fleet --etcd http://127.0.0.1:2379
  ssh -L 9320:127.0.0.1:9320 host      # from elsewhere, then open http://127.0.0.1:9320/
  (umask 077; openssl rand -hex 16 > token); dcqcn-fleet serve --allow-write token")]
pub(super) struct ServeArgs {
    /// Address to listen on. Port 0 selects a free port and prints it.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9320")]
    listen: SocketAddr,
    /// Also show the fleet from etcd: hosts, their health, the current rollout, and versions.
    #[arg(long)]
    pub(super) fleet: bool,
    /// Socket of the daemon.
    #[arg(long, value_name = "PATH", default_value = dcqcn_control_api::PATH)]
    control: PathBuf,
    /// Allow clients with the token in FILE to change parameters (within `[fleet] allow`, reverted unless
    /// confirmed in time), and to pause, resume and abort rollouts. Requires a loopback address.
    #[arg(long, value_name = "FILE")]
    allow_write: Option<PathBuf>,
    /// Accepted host name of the page, in addition to addresses and localhost. May be repeated.
    #[arg(long = "host-name", value_name = "NAME")]
    names: Vec<String>,
}

impl ServeArgs {
    pub(super) async fn run(self, store: Option<Store>) -> Result<()> {
        let Self { listen, control, allow_write, names, .. } = self;
        let author = format!("{}, by the page", author());
        let options = serve::Options { listen, control, allow_write, names, host: host(), author };
        Ok(serve::run(options, store).await?)
    }
}

/// Forward the configuration in etcd to this host's daemon, and report the host's state to etcd.
///
/// Requires only access to the daemon's socket (`[control]` in its file). Without etcd the configuration
/// remains active.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet agent --label rack=a --label role=storage
  dcqcn-fleet agent --etcd https://etcd1:2379 --etcd-ca ca.pem --etcd-cert h1.pem --etcd-key h1.key")]
pub(super) struct AgentArgs {
    /// Name of this host in the fleet [default: the machine's].
    #[arg(long, value_name = "HOST", value_parser = host_name)]
    name: Option<String>,
    /// Label of this host. May be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Socket of the daemon.
    #[arg(long, value_name = "PATH", default_value = dcqcn_control_api::PATH)]
    control: PathBuf,
    /// Reporting period of metrics (1s to 20s); other changes are reported immediately.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = report_period)]
    every: Duration,
    /// Time until etcd removes the report of an agent that has exited, in whole seconds (3s to 10min).
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = ttl_s)]
    ttl: i64,
    /// Sampling period of the daemon's counters.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = step_period, hide = true)]
    look: Duration,
    /// Run this many agents in one process, for measurements. Each appends its number to the name, has its
    /// own connection, and replaces `%` in the socket's path by its name.
    #[arg(long, value_name = "AGENTS", hide = true)]
    copies: Option<u32>,
}

/// Parses the time to live of a lease, which etcd counts in seconds.
fn ttl_s(text: &str) -> Result<i64, String> {
    let time = parse_time_ns(text).map(Duration::from_nanos).map_err(|error| error.to_string())?;
    let seconds = i64::try_from(time.as_secs()).ok().filter(|_| time.subsec_nanos() == 0);
    seconds
        .filter(|seconds| (3..=600).contains(seconds))
        .ok_or_else(|| format!("`{text}` is not a number of whole seconds from 3s to 10min"))
}

fn label(text: &str) -> Result<(String, String), String> {
    let label = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = label.ok_or("a label is KEY=VALUE, for example rack=a")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl AgentArgs {
    pub(super) async fn run(self, reach: &EtcdOptions) -> Result<()> {
        let Self { name, labels, control, every, ttl, look, copies } = self;
        let is_named = name.is_some();
        let host = name.unwrap_or_else(host);
        let mut keys = BTreeSet::new();
        if let Some((key, _)) = labels.iter().find(|(key, _)| !keys.insert(key)) {
            bail!("label `{key}` is given twice; a host has one value of each");
        }
        // Every machine has this name until DHCP or cloud-init has set another one.
        ensure!(
            is_named || host.split('.').next() != Some("localhost"),
            "cannot use `{host}`, the machine's name, as the name of a host: it is not unique; set another one with --name"
        );
        // The machine's may be invalid.
        host_name(&host).map_err(|error| anyhow!("{error}; set another one with --name"))?;
        let options =
            agent::Options { host, labels: labels.into_iter().collect(), control, every, ttl_s: ttl, look };
        let Some(copies) = copies else {
            return Ok(agent::run(reach.store().await?, options).await?);
        };
        let mut agents = JoinSet::new();
        for number in 0..copies {
            let host = format!("{}{number:04}", options.host);
            let control = options.control.to_string_lossy().replace('%', &host).into();
            let store = reach.store().await?;
            agents.spawn(agent::run(store, agent::Options { host, control, ..options.clone() }));
        }
        while let Some(ended) = agents.join_next().await {
            ended??;
        }
        Ok(())
    }
}
