//! Library and kernel agree: packets run through the library in this process and the eBPF object in the running kernel.
//!
//! Bytes, verdicts, departure times and the whole state of the tables must be equal to the last bit.

/// Both engines under the name of the test, which ends without them: `load!(flows, config)`.
macro_rules! load {
    ($flows:expr, $config:expr) => {
        match Both::load(dcqcn_tests::test_name!(), $flows, $config) {
            Some(both) => both,
            None => return,
        }
    };
}

mod agreement;
mod mutation;

use dcqcn_replay::replay::{self, EngineKind, Options, Summary};
use dcqcn_tests::both::Both;
use dcqcn_tests::prelude::*;

const HOOKS: [Hook; 3] = [Hook::Xdp, Hook::Ingress, Hook::Egress];
const CAPTURES: [&str; 4] = ["rc_cm_rping.pcap", "rc_read.pcap", "rc_write.pcap", "ud_send.pcap"];

fn replay(input: &Path, hook: Hook, engine: EngineKind, out: &Path) -> (String, Summary, Vec<u8>) {
    let options = Options {
        input: input.to_owned(),
        hook,
        engine,
        config: None,
        seed: 42,
        out: Some(out.to_owned()),
        summary_line: false,
    };
    let mut lines = Vec::new();
    let summary = replay::run(&options, &mut lines).unwrap_or_else(|error| panic!("{error}"));
    (String::from_utf8(lines).expect("JSON"), summary, fs::read(out).expect("what left"))
}

/// `dcqcn-lab replay` gives the same output with every engine.
#[test]
fn engines_report_identically() {
    if Both::load("engines_report_identically", 8, &Config::DEFAULT).is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out.pcap");
    for name in CAPTURES {
        let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures").join(name);
        for hook in HOOKS {
            let (reference, summary, left) = replay(&input, hook, EngineKind::Reference, &out);
            let (kernel, kernel_summary, kernel_left) = replay(&input, hook, EngineKind::Kernel, &out);
            assert!(reference.lines().eq(kernel.lines()), "{name} {hook:?}");
            assert_eq!(summary, Summary { engine: EngineKind::Reference, ..kernel_summary });
            assert!(left == kernel_left, "{name} {hook:?}: what left");
            assert_eq!(reference.lines().count() as u64, summary.packets);
        }
    }
}
