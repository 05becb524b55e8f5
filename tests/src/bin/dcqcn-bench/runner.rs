//! Programs run by `BPF_PROG_TEST_RUN`, and their time.

use std::thread::available_parallelism;

use aya::maps::{Array, MapData, ProgramArray};
use aya::programs::{Program, ProgramFd, TestRun as _};
use aya::{Ebpf, Pod, TestRunAttrs, TestRunOptions};
use dcqcn_common::flow::{Cnps, RpHot, RpSet};
use dcqcn_common::layout::{DEFAULT_FLOWS, Mode};
use dcqcn_common::rate::Debt;
use dcqcn_common::wire::ipv4::CHECKSUM_AT;
use dcqcn_loader::dataplane::{self, Maps};
use dcqcn_tests::prelude::*;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};

/// Bytes of `struct __sk_buff`, and the offsets of two fields (include/uapi/linux/bpf.h).
const SKB_LEN: usize = 192;
const SKB_MARK: usize = 8;
const SKB_IFINDEX: usize = 40;

/// CPU time of this thread, which excludes other load.
pub(crate) fn cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Input {
    pub(crate) packet: Vec<u8>,
    /// `skb->mark`; TC only.
    pub(crate) mark: u32,
    /// The interface it is at; 0 = loopback. TC only.
    pub(crate) ifindex: u32,
}

/// Nanoseconds per run of `program` on `input`, by the kernel's own clock. Each run is a separate system call, so
/// caches are as for single packets.
pub(crate) fn alone_ns(program: &Program, input: &Input) -> Result<f64> {
    let options = TestRunOptions { data_in: Some(&input.packet), ..TestRunOptions::new() };
    let result = match program {
        Program::Xdp(xdp) => xdp.test_run(options)?,
        Program::SchedClassifier(tc) => tc.test_run(options)?,
        _ => bail!("neither XDP nor TC"),
    };
    Ok(result.duration.as_nanos() as f64)
}

/// Makes the kernel send `packets` real packets, each as `input`, through an XDP program, and execute its verdict;
/// returns the CPU time of the call.
pub(crate) fn send_live(program: &Program, input: &Input, packets: u32) -> Result<Duration> {
    let Program::Xdp(xdp) = program else {
        bail!("only XDP programs send real packets in a test run");
    };
    // The kernel's default for packets in one go.
    let attrs = TestRunAttrs::new().xdp_live_frames(0);
    let options =
        TestRunOptions { data_in: Some(&input.packet), repeat: packets, attrs, ..TestRunOptions::new() };
    let start = cpu_time()?;
    xdp.test_run(options)?;
    Ok(cpu_time()?.saturating_sub(start))
}

/// Runs `program` `repeat` times on `input`, and returns the CPU time of the whole call.
pub(crate) fn run(program: &Program, input: &Input, repeat: u32) -> Result<Duration> {
    let mut skb = [0; SKB_LEN];
    for (at, value) in [(SKB_MARK, input.mark), (SKB_IFINDEX, input.ifindex)] {
        if let Some(field) = skb.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *field = value.to_ne_bytes();
        }
    }
    let options = TestRunOptions { data_in: Some(&input.packet), repeat, ..TestRunOptions::new() };
    let start = cpu_time()?;
    match program {
        Program::Xdp(xdp) => xdp.test_run(options)?,
        Program::SchedClassifier(tc) => tc.test_run(TestRunOptions { ctx_in: Some(&skb), ..options })?,
        _ => bail!("neither XDP nor TC"),
    };
    Ok(cpu_time()?.saturating_sub(start))
}

/// Runs of the short reference call. Two, because from the second run on the kernel adds an XDP program to its
/// dispatcher and removes it again, which takes some 100 us independent of the packets (net/bpf/test_run.c).
const SHORT: u32 = 2;

/// Nanoseconds per run of `program`: the difference between a call with `repeat` runs and a short one. Another
/// short call precedes both, to warm the caches.
pub(crate) fn ns_per_run(program: &Program, input: &Input, repeat: u32) -> Result<f64> {
    run(program, input, SHORT)?;
    let short = run(program, input, SHORT)?;
    let long = run(program, input, repeat)?;
    Ok((long.as_nanos() as f64 - short.as_nanos() as f64) / f64::from(repeat.saturating_sub(SHORT).max(1)))
}

pub(crate) fn runs(repeat: u32) -> u64 {
    u64::from(repeat) + 2 * u64::from(SHORT)
}

pub(crate) fn program<'a>(ebpf: &'a Ebpf, name: &str) -> Result<&'a Program> {
    ebpf.program(name).with_context(|| format!("no program {name}"))
}

pub(crate) const fn program_of(hook: Hook) -> &'static str {
    PROGRAMS[hook.slot()]
}

/// The data plane, loaded for production without being attached.
pub(crate) struct Instance {
    pub(crate) ebpf: Ebpf,
    pub(crate) maps: Maps,
    /// A second handle on the RP table, to set the state of flows.
    rp: Array<MapData, RpSet>,
    pub(crate) params: Params,
}

impl Instance {
    pub(crate) fn load(config: &Config, flows: u32, port: impl FnOnce(Port) -> Port) -> Result<Self> {
        let sizes = Sizes { rp_flows: flows, np_flows: flows };
        let cpus = available_parallelism()?.get() as u32;
        let port = port(Port { cpus, ..Port::new(LO, sizes.rp_sets(), sizes.np_sets()) });
        let mode = if port.ifindex[1] == 0 { Mode::Host } else { Mode::Inline };
        let mut ebpf = dataplane::load(Programs::Plain, sizes, mode, None, &PROGRAMS)?;
        let id = match ebpf.map("RP").context("no map RP")? {
            aya::maps::Map::Array(data) => data.info()?.id(),
            _ => bail!("RP is not an array"),
        };
        let rp = aya::maps::Map::from_map_data(MapData::from_id(id)?)?.try_into()?;
        let mut maps = Maps::take(&mut ebpf)?;
        let params = Params::new(config, port)?;
        maps.set_params(&params)?;
        Ok(Self { ebpf, maps, rp, params })
    }

    pub(crate) fn of(config: &Config) -> Result<Self> {
        Self::load(config, DEFAULT_FLOWS, |port| port)
    }

    /// Cuts each flow of these sets of the RP table by a CNP at `at_ns`, regardless of locks.
    ///
    /// `last_ns` replaces the time of their last packet, if given.
    pub(crate) fn cut(&mut self, sets: &[RpSet], at_ns: u64, last_ns: Option<u64>) -> Result<()> {
        let rp = &self.params.rp;
        for (index, set) in (0..).zip(sets) {
            let mut set = *set;
            for flow in set.hot.iter_mut().filter(|flow| flow.last_seen_ns() != 0) {
                let last_ns = last_ns.map_or(flow.last_ns, |last_ns| [last_ns, 0]);
                *flow = RpHot { last_ns, lock: flow.lock, ..RpHot::new(flow.fingerprint, rp) };
                flow.on_cnp(&mut { Cnps::NONE }, rp, at_ns, &mut { Debt::NONE });
            }
            self.rp.set(index, set, 0)?;
        }
        Ok(())
    }

    pub(crate) fn count(&self, hook: Hook, stat: Stat) -> Result<u64> {
        Ok(self.maps.counters()?[hook.slot()].stat[stat as usize])
    }

    /// Runs `work`, and checks that `stat` increased by `packets`, so that the metric measures what its name states.
    pub(crate) fn check_counted<T>(
        &self,
        hook: Hook,
        stat: Stat,
        packets: u64,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let before = self.count(hook, stat)?;
        let result = work()?;
        let counted = self.count(hook, stat)? - before;
        let is_near = counted.abs_diff(packets) <= packets / 100 + 1;
        ensure!(is_near, "{counted} of {packets} packets were counted as {}", stat.label());
        Ok(result)
    }
}

/// A host's configuration on a link of `link_rate_bps`, paced by fq.
pub(crate) fn host(link_rate_bps: u64) -> Config {
    let mut config = Config::DEFAULT;
    config.scalars.link_rate_bps = link_rate_bps;
    config.scalars.wire_overhead_bytes = 24;
    config.scalars.pacer = PACER_FQ;
    // Packets of a test run are addressed to no interface of this machine.
    config.scalars.np_other_host = 1;
    config
}

/// A switch port's configuration on a link of `link_rate_bps`.
pub(crate) fn switch(link_rate_bps: u64) -> Config {
    let mut config = host(link_rate_bps);
    config.scalars.cp_enable = 1;
    config.scalars.np_enable = 0;
    config.scalars.rp_enable = 0;
    config
}

/// Restricts the calling thread to one CPU: the one with this index among those that it may use.
pub(crate) fn pin(index: usize) -> Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let mut cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let cpu = cpus.nth(index).with_context(|| format!("fewer than {} CPUs", index + 1))?;
    let mut only = CpuSet::new();
    only.set(cpu)?;
    sched_setaffinity(this, &only).with_context(|| format!("cannot run on CPU {cpu}"))
}

pub(crate) struct Baselines {
    pub(crate) ebpf: Ebpf,
}

/// `struct Feed` of the object.
#[repr(C)]
#[derive(Clone, Copy)]
struct Feed {
    tos: u8,
    _pad: u8,
    checksum: [u8; 2],
}

// SAFETY: `repr(C)`, no hidden padding, every bit pattern is valid.
unsafe impl Pod for Feed {}

/// Entries of the map ORDER.
pub(crate) const ORDER_LEN: u32 = 1 << 20;

impl Baselines {
    /// Loads the object that `cargo xtask build` creates next to the data plane's; its redirecting program
    /// sends to the interface of this index.
    pub(crate) fn load(redirect_to: u32) -> Result<Self> {
        let mut ebpf = dcqcn_tests::bpf::baselines_with(redirect_to, DEFAULT_FLOWS)?;
        for (name, program) in ebpf.programs_mut() {
            match program {
                Program::Xdp(xdp) => xdp.load(),
                Program::SchedClassifier(tc) => tc.load(),
                _ => continue,
            }
            .with_context(|| format!("cannot load {name}"))?;
        }
        Ok(Self { ebpf })
    }

    /// Restarts with packets to the QPs that `qpn` gives for their numbers.
    pub(crate) fn order(&mut self, qpn: impl FnMut(u32) -> u32) -> Result<()> {
        let mut order: Array<_, u32> = self.ebpf.map_mut("ORDER").context("no map ORDER")?.try_into()?;
        for (index, qpn) in (0..ORDER_LEN).zip((0..ORDER_LEN).map(qpn)) {
            order.set(index, qpn, 0)?;
        }
        Ok(())
    }

    /// Makes the feeding program of `next`'s kind pass its packets, with TOS and checksum of `packet`, on to `next`.
    pub(crate) fn feed(&mut self, packet: &[u8], next: &Target) -> Result<()> {
        const L3: usize = 14;
        let at = |at: usize| packet.get(at).copied().unwrap_or_default();
        let feed =
            Feed { tos: at(L3 + 1), _pad: 0, checksum: [at(L3 + CHECKSUM_AT), at(L3 + CHECKSUM_AT + 1)] };
        let mut map: Array<_, Feed> = self.ebpf.map_mut("FEED").context("no map FEED")?.try_into()?;
        map.set(0, feed, 0)?;
        let name = if next.is_xdp { "NEXT_XDP" } else { "NEXT_TC" };
        let mut array: ProgramArray<_> = self.ebpf.map_mut(name).context("no program array")?.try_into()?;
        Ok(array.set(0, &next.fd, 0)?)
    }

    pub(crate) fn feeder(&self, hook: Hook) -> Result<&Program> {
        program(&self.ebpf, if hook == Hook::Xdp { "feed_xdp" } else { "feed_tc" })
    }

    pub(crate) fn empty(&self, hook: Hook) -> Result<&Program> {
        program(&self.ebpf, if hook == Hook::Xdp { "empty_xdp" } else { "empty_tc" })
    }
}

pub(crate) struct Target {
    is_xdp: bool,
    fd: ProgramFd,
}

impl Target {
    /// `program`, kept loaded.
    pub(crate) fn new(program: &Program) -> Result<Self> {
        let (is_xdp, fd) = match program {
            Program::Xdp(xdp) => (true, xdp.fd()?),
            Program::SchedClassifier(tc) => (false, tc.fd()?),
            _ => bail!("neither XDP nor TC"),
        };
        Ok(Self { is_xdp, fd: fd.try_clone()? })
    }
}
