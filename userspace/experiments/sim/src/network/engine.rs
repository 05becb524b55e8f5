//! The engine: independent nodes, window by window, on any number of cores.
//!
//! No action of a node affects another before the shortest link delay has passed. So within a window of that length
//! every node processes its own events, and sent packets are exchanged at the end of the window. The order of a node's
//! events is independent of the exchange ([`crate::network::agenda`]), so the outcome is the same on any number of
//! cores.
//!
//! The end of a window costs a barrier, so the number of threads follows the packets per window.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use dcqcn_support::sync::lock;

use crate::network::barrier::Barrier;
use crate::network::builder::{Node, build, owners};
use crate::network::outcome::{self, Outcome, short_timeout};
use crate::network::scenario::{Scenario, SimError};
use crate::network::wheel::Wheel;
use crate::network::wire::{Message, Outbox};
use crate::network::workload::Edge;

/// Windows between two progress reports.
const REPORT_EVERY: u64 = 256;
/// Windows after which the number of threads is reconsidered.
const MEASURED_WINDOWS: u64 = 32;
/// Hops per window for each thread: some 100 us of work, well above the cost of a barrier. In tests of this crate, all
/// fabrics are large enough for several threads.
const HOPS_PER_THREAD: u64 = if cfg!(test) { 1 } else { 500 };

/// Memory of a flow in all stages, and of both ends of a QP with data in flight.
const FLOW_BYTES: u64 = 150;
const QP_BYTES: u64 = 850;
/// Memory of a dependency: in the scenario, and twice in the nodes' rules.
const EDGE_BYTES: u64 = 3 * size_of::<Edge>() as u64;

/// Number of threads for `hops` in the measured windows, of at most `most`; `now` are running.
fn wanted_threads(hops: u64, hops_per_thread: u64, now: usize, most: usize) -> usize {
    let wanted = usize::try_from(hops / MEASURED_WINDOWS / hops_per_thread).unwrap_or(most).clamp(1, most);
    // A smaller number is not worth the change unless it is much smaller.
    if wanted > now || wanted <= now / 2 { wanted } else { now }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub now_ns: u64,
    /// Completed [steps](Simulation::steps).
    pub done: u64,
}

/// Receives the progress at intervals, and may stop the run.
pub type OnProgress<'p> = dyn FnMut(Progress) -> ControlFlow<()> + Send + 'p;

/// A simulation. Its outcome depends on nothing else.
pub trait Simulation: Sync {
    type Outcome: Send;

    /// Size of the run, in steps of the progress line.
    fn steps(&self) -> u64;

    /// Estimate of the memory that a run needs, B; 0: little.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// Warning that the retransmission timeout is below the round trip of an empty network.
    fn warning(&self) -> Option<String>;

    /// Runs it on up to `threads` cores (0 counts as 1).
    ///
    /// # Errors
    /// The scenario is invalid or measures nothing, or `progress` stopped the run.
    fn run(&self, threads: usize, progress: &mut OnProgress<'_>) -> Result<Self::Outcome, SimError>;
}

impl Simulation for Scenario {
    type Outcome = Outcome;

    fn steps(&self) -> u64 {
        self.workload.flows().len() as u64
    }

    fn memory_bytes(&self) -> u64 {
        let (flows, qps) = (self.workload.flows().len() as u64, self.workload.pairs().len() as u64);
        flows * FLOW_BYTES + qps * QP_BYTES + self.workload.dependencies() * EDGE_BYTES
    }

    fn warning(&self) -> Option<String> {
        short_timeout(self.transport.timeout_ns, self.base_rtt_ns())
    }

    fn run(&self, threads: usize, progress: &mut OnProgress<'_>) -> Result<Outcome, SimError> {
        self.validate()?;
        let (nodes, now_ns) = simulate(self, threads, &mut (), progress)?;
        Ok(outcome::collect(self, &self.topology.ports(), nodes.into_iter(), now_ns))
    }
}

/// Reads nodes at certain times, on one thread.
pub(crate) trait Observer {
    /// The next time; `u64::MAX`: none.
    fn next_ns(&self) -> u64;

    /// Reads the nodes at that time, before its events.
    fn observe(&mut self, nodes: &mut [Node]);
}

/// Observes nothing.
impl Observer for () {
    fn next_ns(&self) -> u64 {
        u64::MAX
    }

    fn observe(&mut self, _nodes: &mut [Node]) {}
}

/// The nodes and the time at the end of `scenario`, which is valid.
///
/// `observer` observes the nodes of the first thread.
pub(crate) fn simulate(
    scenario: &Scenario,
    threads: usize,
    observer: &mut dyn Observer,
    progress: &mut OnProgress<'_>,
) -> Result<(Vec<Node>, u64), SimError> {
    let ports = scenario.topology.ports();
    let mut nodes = build(scenario, &ports)?;
    let most = threads.clamp(1, scenario.topology.switches as usize);
    let flows = scenario.workload.flows().len() as u64;
    let (mut threads, mut now_ns, mut windows) = (1, 0, 0);
    loop {
        let owners = owners(&scenario.topology, &ports, threads);
        let mut shared = Shared::new(scenario, threads, owners, flows);
        (shared.most_threads, shared.windows) = (most, windows);
        *shared.now_ns.get_mut() = now_ns;
        nodes = run_phase(&shared, nodes, observer, progress);
        now_ns = shared.now_ns.into_inner();
        if shared.stop.into_inner() {
            return Err(SimError::Stopped { now_ns });
        }
        match shared.next_threads.into_inner() {
            0 => return Ok((nodes, now_ns)),
            next => threads = next,
        }
        windows += MEASURED_WINDOWS;
    }
}

/// Ends the process if its thread panics: the others would wait at the barrier for good.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

/// Runs `nodes` until the end or until another number of threads is better, and returns them.
fn run_phase(
    shared: &Shared,
    nodes: Vec<Node>,
    observer: &mut dyn Observer,
    progress: &mut OnProgress<'_>,
) -> Vec<Node> {
    let count = nodes.len();
    let mut groups: Vec<NodeGroup> =
        (0..shared.done.len()).map(|number| NodeGroup::new(number, shared)).collect();
    for (node, thread) in nodes.into_iter().zip(&shared.owner) {
        groups[*thread as usize].add(node);
    }
    let mut first = groups.remove(0);
    thread::scope(|scope| {
        let _guard = (!groups.is_empty()).then_some(AbortOnPanic);
        for group in &mut groups {
            scope.spawn(|| {
                let _guard = AbortOnPanic;
                group.run(shared, &mut (), &mut |_| ControlFlow::Continue(()));
            });
        }
        first.run(shared, observer, progress);
    });
    groups.insert(0, first);
    let mut nodes: Vec<Option<Node>> = (0..count).map(|_| None).collect();
    for group in groups {
        for (number, node) in group.numbers.into_iter().zip(group.nodes) {
            nodes[number as usize] = Some(node);
        }
    }
    nodes.into_iter().flatten().collect()
}

struct Shared {
    /// Thread of every node, and the node's index there.
    owner: Vec<u32>,
    index_in_thread: Vec<u32>,
    window_ns: u64,
    duration_ns: u64,
    flows: u64,
    barrier: Barrier,
    /// By thread: time of its next event, flows completed there, and hops since the last measurement.
    next_ns: Vec<AtomicU64>,
    done: Vec<AtomicU64>,
    hops: Vec<AtomicU64>,
    /// From each thread to each, packets in transit.
    mail: Vec<Mutex<Outbox>>,
    stop: AtomicBool,
    now_ns: AtomicU64,
    /// Windows before this phase.
    windows: u64,
    most_threads: usize,
    /// Number of threads of the next phase; 0: this is the last.
    next_threads: AtomicUsize,
}

impl Shared {
    fn new(scenario: &Scenario, threads: usize, owner: Vec<u32>, flows: u64) -> Self {
        let mut counts = vec![0; threads];
        let index_in_thread = owner.iter().map(|&thread| {
            let count: &mut u32 = &mut counts[thread as usize];
            *count += 1;
            *count - 1
        });
        Self {
            index_in_thread: index_in_thread.collect(),
            owner,
            // Without any delay, the events of one time.
            window_ns: scenario.topology.lookahead_ns().max(1),
            duration_ns: scenario.duration_ns,
            flows,
            barrier: Barrier::new(threads),
            next_ns: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            done: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            hops: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            mail: (0..threads * threads).map(|_| Mutex::new(Vec::new())).collect(),
            stop: AtomicBool::new(false),
            now_ns: AtomicU64::new(0),
            windows: 0,
            most_threads: threads,
            next_threads: AtomicUsize::new(0),
        }
    }

    fn mail(&self, from: usize, to: usize) -> &Mutex<Outbox> {
        &self.mail[from * self.done.len() + to]
    }
}

struct NodeGroup {
    number: usize,
    numbers: Vec<u32>,
    nodes: Vec<Node>,
    next_ns: Vec<u64>,
    /// The nodes by that time; an entry with another time is outdated.
    queue: Wheel<u32>,
    /// Completed flows.
    done: u64,
    /// Sent packets since the last measurement.
    hops: u64,
    out: Outbox,
    outgoing: Vec<Outbox>,
}

impl NodeGroup {
    fn new(number: usize, shared: &Shared) -> Self {
        let own = (0..).zip(&shared.owner).filter(|(_, owner)| **owner as usize == number);
        Self {
            number,
            numbers: own.map(|(node, _)| node).collect(),
            nodes: Vec::new(),
            next_ns: Vec::new(),
            queue: Wheel::new(shared.duration_ns),
            done: 0,
            hops: 0,
            out: Vec::new(),
            outgoing: shared.done.iter().map(|_| Vec::new()).collect(),
        }
    }

    fn add(&mut self, node: Node) {
        let next_ns = node.next_ns();
        self.done += node.done();
        self.queue.at(next_ns, self.nodes.len() as u32);
        self.next_ns.push(next_ns);
        self.nodes.push(node);
    }

    fn run(&mut self, shared: &Shared, observer: &mut dyn Observer, progress: &mut OnProgress<'_>) {
        let mut watch_ns = observer.next_ns();
        for window in shared.windows + 1.. {
            shared.next_ns[self.number].store(self.queue.next_ns(), Ordering::Relaxed);
            shared.done[self.number].store(self.done, Ordering::Relaxed);
            shared.hops[self.number].store(self.hops, Ordering::Relaxed);
            shared.barrier.wait();
            let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
            let begin_ns = shared.next_ns.iter().map(read).min().unwrap_or(u64::MAX);
            let done: u64 = shared.done.iter().map(read).sum();
            while done != shared.flows && watch_ns <= begin_ns.min(shared.duration_ns) {
                observer.observe(&mut self.nodes);
                watch_ns = observer.next_ns();
            }
            if done == shared.flows || begin_ns > shared.duration_ns || shared.stop.load(Ordering::Relaxed) {
                if self.number == 0 {
                    let now_ns = if begin_ns <= shared.duration_ns || done == shared.flows {
                        shared.now_ns.load(Ordering::Relaxed)
                    } else {
                        shared.duration_ns
                    };
                    shared.now_ns.store(now_ns, Ordering::Relaxed);
                }
                return;
            }
            if window % MEASURED_WINDOWS == 1 && window != shared.windows + 1 {
                let hops = shared.hops.iter().map(read).sum();
                let now = shared.done.len();
                let wanted = wanted_threads(hops, HOPS_PER_THREAD, now, shared.most_threads);
                if wanted != now {
                    if self.number == 0 {
                        shared.next_threads.store(wanted, Ordering::Relaxed);
                    }
                    return;
                }
                self.hops = 0;
            }
            let end_ns = (begin_ns + shared.window_ns).min(shared.duration_ns + 1).min(watch_ns);
            self.window(shared, end_ns);
            shared.barrier.wait();
            self.receive(shared);
            if self.number == 0 {
                shared.now_ns.store(end_ns, Ordering::Relaxed);
                let now = Progress { now_ns: end_ns, done };
                if window % REPORT_EVERY == 0 && progress(now).is_break() {
                    // Other threads read it after the next barrier.
                    shared.stop.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn window(&mut self, shared: &Shared, end_ns: u64) {
        let Self { number, nodes, next_ns, queue, done, hops, out, outgoing, .. } = self;
        while queue.next_ns() < end_ns {
            let at_ns = queue.next_ns();
            let Some(index) = queue.take().map(|index| index as usize) else { break };
            if next_ns[index] != at_ns {
                continue;
            }
            let node = &mut nodes[index];
            let before = node.done();
            node.run(end_ns, out);
            *done += node.done() - before;
            next_ns[index] = node.next_ns();
            queue.at(next_ns[index], index as u32);
            *hops += out.len() as u64;
            for message in out.drain(..) {
                let (owner, index_in_thread) = (
                    shared.owner[message.node as usize] as usize,
                    shared.index_in_thread[message.node as usize] as usize,
                );
                if owner == *number {
                    nodes[index_in_thread].enter(message.at_ns, message.what);
                    if message.at_ns < next_ns[index_in_thread] {
                        next_ns[index_in_thread] = message.at_ns;
                        queue.at(message.at_ns, index_in_thread as u32);
                    }
                } else {
                    outgoing[owner].push(message);
                }
            }
        }
        for (to, messages) in outgoing.iter_mut().enumerate().filter(|(_, messages)| !messages.is_empty()) {
            let mut mail = lock(shared.mail(*number, to));
            std::mem::swap(&mut *mail, messages);
        }
    }

    fn receive(&mut self, shared: &Shared) {
        for from in 0..shared.done.len() {
            let mut messages = lock(shared.mail(from, self.number));
            for Message { at_ns, node, what } in messages.drain(..) {
                let index_in_thread = shared.index_in_thread[node as usize] as usize;
                self.nodes[index_in_thread].enter(at_ns, what);
                if at_ns < self.next_ns[index_in_thread] {
                    self.next_ns[index_in_thread] = at_ns;
                    self.queue.at(at_ns, index_in_thread as u32);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::Config;

    use super::*;
    use crate::network::topology::{Cables, Topology};
    use crate::network::workload::{Wait, Workload};

    #[test]
    fn dependencies_counted_as_memory() {
        let bps = 100_000_000_000;
        let cables = Cables { host_rate_bps: bps, switch_rate_bps: bps, delay_ns: 1_000 };
        let topology = Topology::leaf_spine(1, 0, 4, cables).unwrap();
        let mut scenario = Scenario::new(topology, Workload::incast(3, 1_000, 3), Config::DEFAULT);
        let without_bytes = scenario.memory_bytes();
        scenario.workload.after(1, 0, Wait::Delivered);
        assert_eq!(scenario.memory_bytes() - without_bytes, 36);
    }

    #[test]
    fn threads_follow_hops_per_window() {
        let wanted =
            |hops_per_window: u64, now| wanted_threads(hops_per_window * MEASURED_WINDOWS, 500, now, 8);
        assert_eq!([wanted(0, 1), wanted(999, 1), wanted(1_000, 1), wanted(2_600, 2)], [1, 1, 2, 5]);
        assert_eq!([wanted(90_000, 1), wanted(3_500, 8), wanted(2_000, 8), wanted(999, 2)], [8, 8, 4, 1]);
    }
}
