//! The kernel's programs compared with the reference, packet by packet.

use std::cell::RefCell;

use dcqcn_tests::both::Both;

use crate::cursor::{Cursor, Step, config};

/// Both engines, their current time, and the number of inputs so far.
struct Engines {
    both: Both,
    now_ns: u64,
    inputs: u64,
}

/// Interval, in inputs, of comparing all tables; bytes, verdict and marks are compared for each packet.
const STATE_EVERY: u64 = 32;

thread_local! {
    /// Loaded once, as the verifier takes a second; tables keep their state between inputs.
    static ENGINES: RefCell<Option<Engines>> = RefCell::new(
        Both::load("differential", 64, &config(0)).map(|both| Engines { both, now_ns: 1_000_000_000, inputs: 0 }),
    );
}

/// Runs a history through both; skipped without the privilege to load programs.
pub(crate) fn run(bytes: &[u8]) {
    ENGINES.with_borrow_mut(|engines| {
        let Some(Engines { both, now_ns, inputs }) = engines else { return };
        both.set_config(&config(bytes.first().copied().unwrap_or(0)));
        let mut cursor = Cursor::new(bytes, *now_ns);
        while let Some(step) = cursor.next() {
            match step {
                Step::Params(config) => both.set_config(&config),
                Step::Packet { hook, frame, meta } => drop(both.process(hook, cursor.now_ns, &frame, &meta)),
            }
        }
        *now_ns = cursor.now_ns;
        *inputs += 1;
        if inputs.is_multiple_of(STATE_EVERY) {
            both.state();
        }
    });
}
