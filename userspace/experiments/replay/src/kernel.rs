//! The kernel engine: the eBPF object, loaded in test mode and run by `BPF_PROG_TEST_RUN`.
//!
//! The `TEST` map provides clock and random source. Programs also record their side effects (clone, redirect) there.

use aya::programs::{ProgramError, TestRun as _};
use aya::{Ebpf, TestRunOptions};
use dcqcn_common::flow::{NpSet, QpId, RpSet};
use dcqcn_common::layout::{Backlog, Counters, Mode, Pair, Test};
use dcqcn_common::params::Params;
use dcqcn_common::pfc::Storms;
use dcqcn_loader::dataplane::{self, Maps, PROGRAMS, Programs, Sizes};

use super::{Engine, Error, Hook, MAX_PACKET, Meta, Outcome, Run, State, Verdict};

/// The hooks in the running kernel. Nothing is attached or pinned, so dropping it leaves no state.
pub struct Kernel {
    ebpf: Ebpf,
    maps: Maps,
    random: u64,
    out: Vec<u8>,
}

impl Kernel {
    /// Loads the object with tables of `sizes`, and a random sequence seeded with `seed`.
    ///
    /// # Errors
    /// The kernel rejects the object; loading needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
    pub fn new(sizes: Sizes, params: &Params, seed: u64) -> Result<Self, Error> {
        let mut ebpf = dataplane::load(Programs::Plain, sizes, Mode::Test, None, &PROGRAMS)?;
        let mut maps = Maps::take(&mut ebpf)?;
        maps.set_params(params)?;
        Ok(Self { ebpf, maps, random: seed, out: vec![0; MAX_PACKET] })
    }

    fn run_xdp(&mut self, packet: &[u8], meta: &Meta) -> Result<(u32, u32), Error> {
        let ctx = xdp_context(packet.len() as u32, meta.ingress_ifindex);
        let result = dataplane::xdp(&mut self.ebpf)?
            .test_run(TestRunOptions {
                data_in: Some(packet),
                data_out: Some(&mut self.out),
                ctx_in: Some(&ctx),
                ..TestRunOptions::new()
            })
            .map_err(run_error(Hook::Xdp, packet))?;
        Ok((result.return_value, result.data_size_out))
    }

    /// Runs a TC program: return value, length of the packet in `out`, and the context.
    fn run_tc(&mut self, hook: Hook, packet: &[u8], meta: &Meta) -> Result<(u32, u32, SkbContext), Error> {
        let name = if hook == Hook::Ingress { PROGRAMS[1] } else { PROGRAMS[2] };
        let ctx = SkbContext::new(meta);
        let mut ctx_out = SkbContext::EMPTY;
        let mut padded = [0; TC_MIN_INPUT];
        let data = if let Some(start) = padded.get_mut(..packet.len()) {
            start.copy_from_slice(packet);
            &padded
        } else {
            packet.get(..TC_MAX_INPUT).unwrap_or(packet)
        };
        let result = dataplane::classifier(&mut self.ebpf, name)?
            .test_run(TestRunOptions {
                data_in: Some(data),
                data_out: Some(&mut self.out),
                ctx_in: Some(&ctx.0),
                ctx_out: Some(&mut ctx_out.0),
                ..TestRunOptions::new()
            })
            .map_err(run_error(hook, packet))?;
        Ok((result.return_value, result.data_size_out, ctx_out))
    }
}

fn run_error(hook: Hook, packet: &[u8]) -> impl FnOnce(ProgramError) -> Error {
    let len = packet.len();
    move |source| Error::Refused { hook, len, source: Box::new(source) }
}

/// Range of socket buffer lengths in a test run.
///
/// It rejects IP packets without a whole header, and anything longer than a page less head and tail room
/// (net/bpf/test_run.c of Linux 6.18). The program sets the packet's true length; payload beyond this stays
/// here, so that the ICRC of a longer READ response is wrong.
const TC_MIN_INPUT: usize = 64;
/// See [`TC_MIN_INPUT`].
const TC_MAX_INPUT: usize = 2_048;

impl Engine for Kernel {
    fn run(&mut self, hook: Hook, now_ns: u64, packet: &[u8], meta: &Meta) -> Result<Run, Error> {
        let test = Test {
            now_ns,
            random: self.random,
            frame_len: packet.len() as u32,
            clone_mark: 0,
            redirect_ifindex: 0,
            flow_hash: 0,
        };
        self.maps.set_test(&test)?;
        let (value, len, ctx) = match hook {
            Hook::Xdp => {
                let (value, len) = self.run_xdp(packet, meta)?;
                (value, len, SkbContext::EMPTY)
            }
            Hook::Ingress | Hook::Egress => self.run_tc(hook, packet, meta)?,
        };
        let test = self.maps.test()?;
        self.random = test.random;
        if test.frame_len as usize != packet.len() {
            return Err(Error::Resize { hook, len: packet.len() });
        }
        let verdict = match (hook, value) {
            (Hook::Xdp, xdp_action::PASS) | (Hook::Ingress | Hook::Egress, tc_act::UNSPEC) => Verdict::Pass,
            (Hook::Xdp, xdp_action::DROP) | (Hook::Ingress | Hook::Egress, tc_act::SHOT) => Verdict::Drop,
            (Hook::Xdp, xdp_action::REDIRECT) => Verdict::Redirect { ifindex: test.redirect_ifindex },
            (Hook::Ingress | Hook::Egress, tc_act::REDIRECT) => Verdict::Receive,
            (hook, value) => return Err(Error::UnknownVerdict { hook, value }),
        };
        let mut out = self.out.get(..len as usize).unwrap_or_default().to_vec();
        if hook != Hook::Xdp && out.len() == packet.len() {
            // The program got zeros for these bytes.
            if let (Some(rest), Some(payload)) = (out.get_mut(TC_MAX_INPUT..), packet.get(TC_MAX_INPUT..)) {
                rest.copy_from_slice(payload);
            }
        }
        let outcome = Outcome {
            verdict,
            packet: out,
            mark: ctx.mark(),
            priority: ctx.priority(),
            departure_ns: ctx.tstamp(),
            emitted: Vec::new(),
        };
        Ok(Run { outcome, clone_mark: test.clone_mark, flow_hash: test.flow_hash })
    }

    fn set_params(&mut self, params: &Params) -> Result<(), Error> {
        Ok(self.maps.set_params_at_rest(params)?)
    }

    fn set_pair(&mut self, id: &QpId, pair: &Pair) -> Result<(), Error> {
        Ok(self.maps.set_pair(id, pair)?)
    }

    fn set_backlog(&mut self, index: u32, backlog: &Backlog) -> Result<(), Error> {
        Ok(self.maps.set_backlog(index, backlog)?)
    }

    fn set_storms(&mut self, storms: Storms, now_ns: u64) -> Result<(), Error> {
        Ok(self.maps.set_storms(storms, now_ns)?)
    }

    fn set_host_congested_until(&mut self, until_ns: u64) -> Result<(), Error> {
        Ok(self.maps.set_host_congested_until(until_ns)?)
    }

    fn pair(&self, id: &QpId) -> Result<Option<Pair>, Error> {
        Ok(self.maps.pair(id)?)
    }

    fn queue(&self, index: u32) -> Result<u64, Error> {
        Ok(self.maps.queue(index)?)
    }

    fn rp_set(&self, index: u32) -> Result<RpSet, Error> {
        Ok(self.maps.rp_set(index)?)
    }

    fn np_set(&self, index: u32) -> Result<NpSet, Error> {
        Ok(self.maps.np_set(index)?)
    }

    fn counters(&self) -> Result<[Counters; 3], Error> {
        Ok(self.maps.counters()?)
    }

    fn state(&self) -> Result<State, Error> {
        let mut state = State {
            counters: self.maps.counters()?,
            queues: self.maps.queues()?,
            pairs: self.maps.pairs().collect::<Result<_, _>>()?,
            rp: self.maps.rp_sets().collect::<Result<_, _>>()?,
            np: self.maps.np_sets().collect::<Result<_, _>>()?,
            cm: self.maps.connections().collect::<Result<_, _>>()?,
            times_ns: self.maps.times()?,
            events: self.maps.event_log()?.latest(),
            random: self.random,
            requesters: self.maps.requesters().collect::<Result<_, _>>()?,
        };
        state.sort();
        Ok(state)
    }
}

/// Return values of XDP programs (include/uapi/linux/bpf.h).
mod xdp_action {
    pub(super) const DROP: u32 = 1;
    pub(super) const PASS: u32 = 2;
    pub(super) const REDIRECT: u32 = 4;
}

/// Return values of TC programs (include/uapi/linux/pkt_cls.h).
mod tc_act {
    pub(super) const UNSPEC: u32 = u32::MAX;
    pub(super) const SHOT: u32 = 2;
    pub(super) const REDIRECT: u32 = 7;
}

/// `struct xdp_md` (include/uapi/linux/bpf.h): data, data_end, data_meta, ingress_ifindex, rx_queue_index,
/// egress_ifindex.
fn xdp_context(len: u32, ingress_ifindex: u32) -> [u8; 24] {
    let mut ctx = [0; 24];
    put(&mut ctx, 4, len.to_ne_bytes());
    put(&mut ctx, 12, ingress_ifindex.to_ne_bytes());
    ctx
}

/// `struct __sk_buff` (include/uapi/linux/bpf.h) as bytes. A test run copies the few fields named here in and out, and
/// requires zeros in the others.
struct SkbContext([u8; 192]);

impl SkbContext {
    const EMPTY: Self = Self([0; 192]);
    const MARK: usize = 8;
    const PRIORITY: usize = 32;
    const INGRESS_IFINDEX: usize = 36;
    const TSTAMP: usize = 152;
    const GSO_SIZE: usize = 176;

    fn new(meta: &Meta) -> Self {
        let mut ctx = Self::EMPTY;
        put(&mut ctx.0, Self::MARK, meta.mark.to_ne_bytes());
        put(&mut ctx.0, Self::PRIORITY, meta.priority.to_ne_bytes());
        put(&mut ctx.0, Self::INGRESS_IFINDEX, meta.ingress_ifindex.to_ne_bytes());
        put(&mut ctx.0, Self::TSTAMP, meta.departure_ns.to_ne_bytes());
        put(&mut ctx.0, Self::GSO_SIZE, meta.segment_bytes.to_ne_bytes());
        ctx
    }

    fn mark(&self) -> u32 {
        u32::from_ne_bytes(get(&self.0, Self::MARK))
    }

    fn priority(&self) -> u32 {
        u32::from_ne_bytes(get(&self.0, Self::PRIORITY))
    }

    fn tstamp(&self) -> u64 {
        u64::from_ne_bytes(get(&self.0, Self::TSTAMP))
    }
}

fn put<const N: usize, const LEN: usize>(ctx: &mut [u8; N], at: usize, value: [u8; LEN]) {
    if let Some(field) = ctx.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *field = value;
    }
}

fn get<const N: usize, const LEN: usize>(ctx: &[u8; N], at: usize) -> [u8; LEN] {
    ctx.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; LEN])
}
