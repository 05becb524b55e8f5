//! The reference engine and the kernel engine in lockstep, with equal results required.

use dcqcn_common::layout::{Backlog, Counters, Pair};
use dcqcn_common::pfc::Storms;
use dcqcn_replay::{Engine, Error, Kernel, Outcome, Reference, State};

use crate::prelude::*;

pub use crate::bpf::LO;

const SEED: u64 = 0x0dc9_c0de;

pub struct Both {
    reference: Reference,
    kernel: Kernel,
    pub params: Params,
}

impl Both {
    /// Loads the object and creates the reference engine; `None`, with a message, if capabilities are missing.
    pub fn load(test: &str, flows: u32, config: &Config) -> Option<Self> {
        let sizes = Sizes { rp_flows: flows, np_flows: flows };
        // XDP in the kernel engine requires an existing interface.
        let port = Port::new(LO, sizes.rp_sets(), sizes.np_sets());
        let params = Params::new(config, port).unwrap_or_else(|error| panic!("{error}"));
        match Kernel::new(sizes, &params, SEED) {
            Ok(kernel) => Some(Self { reference: Reference::new(sizes, &params, SEED), kernel, params }),
            Err(error) if error.to_string().contains("run it as root") => {
                eprintln!("SKIPPED {test}: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub fn set_config(&mut self, config: &Config) {
        let params = Params::new(config, self.params.port).unwrap_or_else(|error| panic!("{error}"));
        self.set_params(&params);
    }

    pub fn set_params(&mut self, params: &Params) {
        self.params = *params;
        self.each(|engine| engine.set_params(params));
    }

    pub fn set_pair(&mut self, id: &QpId, pair: &Pair) {
        self.each(|engine| engine.set_pair(id, pair));
    }

    pub fn set_backlog(&mut self, index: u32, backlog: &Backlog) {
        self.each(|engine| engine.set_backlog(index, backlog));
    }

    /// Reports the priorities in a pause storm.
    pub fn set_storms(&mut self, storms: Storms, now_ns: u64) {
        self.each(|engine| engine.set_storms(storms, now_ns));
    }

    /// Reports until when the host counts as congested.
    pub fn set_host_congested_until(&mut self, until_ns: u64) {
        self.each(|engine| engine.set_host_congested_until(until_ns));
    }

    fn each(&mut self, set: impl Fn(&mut dyn Engine) -> Result<(), Error>) {
        for engine in [&mut self.reference as &mut dyn Engine, &mut self.kernel] {
            set(engine).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Processes a packet with both; panics unless they agree to the last byte.
    pub fn process(&mut self, hook: Hook, now_ns: u64, packet: &[u8], meta: &Meta) -> Outcome {
        let reference = self.reference.process(hook, now_ns, packet, meta);
        let kernel = self.kernel.process(hook, now_ns, packet, meta);
        let reference = reference.unwrap_or_else(|error| panic!("reference: {error}"));
        let kernel = kernel.unwrap_or_else(|error| panic!("kernel: {error}; packet {packet:02x?}"));
        assert!(
            reference == kernel,
            "{hook:?} at {now_ns} with {meta:?}\npacket    {packet:02x?}\nreference {reference:02x?}\nkernel    {kernel:02x?}"
        );
        reference
    }

    /// The counters; panics unless both engines agree.
    pub fn counters(&self) -> [Counters; 3] {
        let reference = self.reference.counters().unwrap_or_else(|error| panic!("reference: {error}"));
        let kernel = self.kernel.counters().unwrap_or_else(|error| panic!("kernel: {error}"));
        assert_eq!(reference, kernel, "counters");
        reference
    }

    /// The complete state; panics unless both engines agree.
    pub fn state(&self) -> State {
        let reference = self.reference.state().unwrap_or_else(|error| panic!("reference: {error}"));
        let kernel = self.kernel.state().unwrap_or_else(|error| panic!("kernel: {error}"));
        assert_eq!(reference.counters, kernel.counters, "counters");
        assert_eq!(reference.queues, kernel.queues, "queues");
        assert_eq!(reference.pairs, kernel.pairs, "pairs");
        assert_eq!(reference.random, kernel.random, "random sequence");
        for (index, (reference, kernel)) in reference.rp.iter().zip(&kernel.rp).enumerate() {
            assert_eq!(reference, kernel, "RP set {index}");
        }
        for (index, (reference, kernel)) in reference.np.iter().zip(&kernel.np).enumerate() {
            assert_eq!(reference, kernel, "NP set {index}");
        }
        assert!(reference == kernel);
        reference
    }
}

pub fn count(state: &State, hook: Hook, stat: Stat) -> u64 {
    state.counters[hook.slot()].stat[stat as usize]
}
