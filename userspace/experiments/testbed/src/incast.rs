//! Execution of an incast: network, data plane, endpoints, and measurements.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;
use std::{panic, thread};

use bytes::Bytes;
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::interrupt::Interrupt;
use indicatif::{ProgressBar, ProgressStyle};

use super::config::IncastConfig;
use super::control::{AttachedLab, DataPlane};
use super::cpu::CpuMeter;
use super::endpoint::{Flooder, QueuePair, Receiver, Schedule, Sender};
use super::error::{Error, Result, failed};
use super::frame;
use super::host::Host;
use super::rc::{Psn, RequesterConfig};
use super::record::{Answers, Binned, FlowRecord, RunRecord};
use super::report::{IncastReport, RunReport};
use super::topology::{HostSpeed, Topology};
use super::{measure, plot, tcp};

/// Time before traffic starts, in which all threads open their sockets, ns.
const LEAD_TIME_NS: u64 = 300_000_000;
/// Interval between updates of the progress line and checks for Ctrl-C.
const TICK: Duration = Duration::from_millis(100);
/// First QPN at the senders, and at the receiver: different, to detect a confusion.
const FIRST_SENDER_QPN: u32 = 0x0011;
const FIRST_RECEIVER_QPN: u32 = 0x0211;
/// First PSN: it wraps soon, as real ones do.
const FIRST_PSN: u32 = 0x00ff_f000;
/// Memory region that the receiver would advertise. It is not written.
const REMOTE_ADDRESS: u64 = 0x7f00_0000_0000;
const RKEY: u32 = 0x0000_1234;

/// Runs the incast for each entry of `controls`: with that data plane, or without for `None`. Shows a progress line on
/// stderr, ends cleanly on Ctrl-C, and draws plots to the directory `plots`, if given.
pub fn incast(
    config: &IncastConfig,
    controls: &[Option<&DataPlane>],
    plots: Option<&Path>,
) -> Result<IncastReport> {
    if let Some(directory) = plots {
        // Reports an error before the traffic.
        std::fs::create_dir_all(directory).map_err(failed(format!("create {}", directory.display())))?;
    }
    let interrupt = Interrupt::catch()?;
    let mut records = Vec::new();
    for control in controls {
        let progress = progress_line(if control.is_some() { "DCQCN" } else { "off" })?;
        let record = run_incast(config, *control, &interrupt, &progress);
        progress.finish_and_clear();
        records.push(record?);
    }
    if let Some(directory) = plots {
        plot::write(directory, "incast", &config.to_string(), &records)?;
    }
    Ok(IncastReport { config: config.clone(), runs: records.iter().map(RunReport::from).collect() })
}

/// A progress line on stderr, hidden if that is not a terminal.
pub(super) fn progress_line(run: &'static str) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{prefix:>5}  {wide_bar}  {percent:>3} %  {msg}")?;
    Ok(ProgressBar::new(1).with_style(style).with_prefix(run))
}

/// Builds the lab, runs the incast once, with the data plane if `control` is given, and removes the lab.
pub(crate) fn run_incast(
    config: &IncastConfig,
    control: Option<&DataPlane>,
    interrupt: &Interrupt,
    progress: &ProgressBar,
) -> Result<RunRecord> {
    config.validate()?;
    progress.set_message("building the network");
    let network = Topology::build(config, HostSpeed::Link).map_err(failed("build the lab's network"))?;
    run_in(config, &network, control, interrupt, progress)
}

/// Runs the incast once in an existing network.
pub(crate) fn run_in(
    config: &IncastConfig,
    network: &Topology,
    control: Option<&DataPlane>,
    interrupt: &Interrupt,
    progress: &ProgressBar,
) -> Result<RunRecord> {
    let queue_pairs = queue_pairs(config, network);
    let mut attached = match control {
        Some(control) => {
            progress.set_message("attaching the data plane");
            Some(control.attach(network, &queue_pairs).map_err(failed("attach the data plane"))?)
        }
        None => None,
    };
    let record = traffic(config, network, &queue_pairs, attached.as_mut(), interrupt, progress);
    if let Some(attached) = attached {
        progress.set_message("detaching the data plane");
        attached.detach().map_err(failed("detach the data plane"))?;
    }
    record
}

/// All QPs, sender by sender.
fn queue_pairs(config: &IncastConfig, network: &Topology) -> Vec<QueuePair> {
    let pair = |host: &Host, flow: u32| QueuePair {
        sender_qpn: FIRST_SENDER_QPN + flow,
        receiver_qpn: FIRST_RECEIVER_QPN + flow,
        sender_address: host.address,
        receiver_address: network.receiver.address,
        reply_mac: if host.is_port_of_machine() { host.mac } else { network.receiver.gateway_mac },
        first_psn: Psn::new(FIRST_PSN + flow),
        // The upper quarter of the ports, as used by RoCE NICs.
        udp_src_port: 0xc000 | (flow.wrapping_mul(0x0d0d) & 0x3fff) as u16,
    };
    let qps = u32::from(config.qps_per_sender);
    let per_host = |(host, first)| (0..qps).map(move |qp| pair(host, first * qps + qp));
    network.senders.iter().zip(0..).flat_map(per_host).collect()
}

/// Configuration of the requesters, without their first PSN.
fn requester(config: &IncastConfig) -> RequesterConfig {
    RequesterConfig {
        mtu_bytes: config.mtu_bytes,
        window_packets: config.window_packets,
        ack_every_packets: config.ack_every_packets,
        timeout_ns: config.timeout_ns,
        first_psn: Psn::default(),
        remote_address: REMOTE_ADDRESS,
        rkey: RKEY,
        messages: None,
    }
}

fn traffic(
    config: &IncastConfig,
    network: &Topology,
    queue_pairs: &[QueuePair],
    attached: Option<&mut AttachedLab>,
    interrupt: &Interrupt,
    progress: &ProgressBar,
) -> Result<RunRecord> {
    let stop = AtomicBool::new(false);
    let schedule = Schedule {
        start_ns: monotonic_ns() + LEAD_TIME_NS,
        duration_ns: config.duration_ns,
        warm_up_ns: config.warm_up_ns,
        stop: &stop,
    };
    let template = requester(config);
    let message: Bytes = frame::message(config.message_bytes as usize);
    let (schedule, template, message) = (&schedule, &template, &message);
    let thresholds = attached.as_ref().map(|attached| attached.thresholds());

    thread::scope(|scope| {
        // Threads end whenever this closure does: the scope waits for them.
        let _end = StopOnDrop(&stop);
        let crew = LabThreads { scope, schedule };
        let host = &network.receiver;
        let receiver = crew.start("lab-receiver", Some(host), move || {
            Receiver::open(host, queue_pairs, config.mtu_bytes, config.duration_ns)?.run(schedule)
        })?;
        let limits = (config.link_bps, config.duration_ns);
        let start = |(host, qps)| {
            let run = move || Sender::open(host, qps, template, message, limits)?.run(schedule);
            crew.start("lab-sender", Some(host), run)
        };
        let qps = queue_pairs.chunks(config.qps_per_sender.into());
        let senders = network.senders.iter().zip(qps).map(start).collect::<Result<Vec<_>>>()?;
        let start = |(host, pair)| {
            crew.start("lab-flooder", Some(host), move || Flooder::open(host, pair)?.run(schedule))
        };
        let flooder = network.flooder.as_ref().zip(queue_pairs.first()).map(start).transpose()?;
        let tcp = crew.start_tcp(config, network)?;
        let watch = crew
            .start("lab-watch", None, move || measure::watch(network.switch.as_ref(), schedule, attached))?;

        let cpu = CpuMeter::start();
        let interrupted = show_progress(schedule, interrupt, progress);
        let cpu_share = cpu.share();
        if !matches!(interrupted, Ok(false)) {
            stop.store(true, Ordering::Relaxed);
        }

        let seen = join(receiver)?;
        let sent: Vec<_> = senders.into_iter().map(join).collect::<Result<_>>()?;
        flooder.map(join).transpose()?;
        let (tcp_senders, tcp_receivers): (Vec<_>, Vec<_>) = tcp.into_iter().unzip();
        let tcp_bytes = tcp_receivers.into_iter().map(join).collect::<Result<_>>()?;
        tcp_senders.into_iter().try_for_each(join)?;
        let samples = join(watch)?;
        if interrupted? {
            return Err(Error::Interrupted);
        }
        let mut answers = Answers::NONE;
        sent.iter().for_each(|sent| answers.add(&sent.answers));
        let sent = sent.into_iter().flat_map(|sent| sent.flows);
        let flows = seen.flows.into_iter().zip(sent).enumerate();
        let switch = network.switch.as_ref();
        Ok(RunRecord {
            control: thresholds,
            senders: network.senders.len(),
            link_bps: config.link_bps,
            roce_bps: switch.map_or(config.link_bps, |switch| switch.roce_bps),
            buffer_bytes: config.buffer_bytes.into(),
            duration_ns: config.duration_ns,
            warm_up_ns: config.warm_up_ns,
            flows: flows
                .map(|(flow, (received, sent))| FlowRecord { name: flow_name(config, flow), received, sent })
                .collect(),
            tcp_bytes,
            roce_bytes: seen.roce_bytes,
            flood_bytes: seen.other_bytes,
            answers,
            samples,
            cpu_share,
        })
    })
}

/// Name of a flow in tables and plots: its host, and its QP if the host has several.
fn flow_name(config: &IncastConfig, flow: usize) -> String {
    let qps = usize::from(config.qps_per_sender);
    match qps {
        1 => format!("s{flow}"),
        _ => format!("s{}.{}", flow / qps, flow % qps),
    }
}

/// Updates the progress line until the schedule ends. Returns whether Ctrl-C ended it.
fn show_progress(schedule: &Schedule<'_>, interrupt: &Interrupt, progress: &ProgressBar) -> Result<bool> {
    progress.set_length(schedule.duration_ns / 1_000_000);
    progress.set_message("traffic");
    while !schedule.is_over() {
        if interrupt.sleep(TICK)? {
            return Ok(true);
        }
        progress.set_position(schedule.elapsed_ns() / 1_000_000);
    }
    Ok(false)
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts the lab's threads. A failing one ends the run for all.
#[derive(Clone, Copy)]
struct LabThreads<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    schedule: &'scope Schedule<'scope>,
}

impl<'scope> LabThreads<'scope, '_> {
    /// Runs `work` on a new thread, inside the namespace of `host` if given.
    fn start<T: Send + 'scope>(
        &self,
        name: &str,
        host: Option<&'scope Host>,
        work: impl FnOnce() -> Result<T> + Send + 'scope,
    ) -> Result<ScopedJoinHandle<'scope, Result<T>>> {
        let schedule = self.schedule;
        let thread = move || {
            let result = (|| {
                let _inside = host.map(|host| host.netns.enter()).transpose()?;
                work()
            })();
            if result.is_err() {
                schedule.stop.store(true, Ordering::Relaxed);
            }
            result
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(self.scope, thread)
            .map_err(failed(format!("start the thread {name}")))
    }

    /// Starts both ends of each TCP flow: sender and receiver.
    fn start_tcp(&self, config: &IncastConfig, network: &'scope Topology) -> Result<Vec<TcpEnds<'scope>>> {
        let (schedule, receiver) = (self.schedule, &network.receiver);
        let start = |(flow, host)| {
            let address = receiver.address;
            let listener = receiver.netns.run(|| tcp::listen(address, flow))??;
            let sender = self.start("lab-tcp", Some(host), move || tcp::send(address, flow, schedule))?;
            let receiver = self.start("lab-tcp", None, move || tcp::receive(&listener, schedule))?;
            Ok((sender, receiver))
        };
        (0..config.tcp_flows).zip(network.senders.iter().cycle()).map(start).collect()
    }
}

type TcpEnds<'scope> = (ScopedJoinHandle<'scope, Result<()>>, ScopedJoinHandle<'scope, Result<Binned>>);

fn join<T>(handle: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    handle.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
}
