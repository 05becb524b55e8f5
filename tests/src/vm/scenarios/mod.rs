//! The scenarios, in the order they run.

mod incast;
mod verifier;

use super::Scenario;

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "verifier",
        about: "every program loads, attaches in every way there is, detaches and leaves nothing behind",
        limit_s: 120,
        is_ci: true,
        run: verifier::run,
    },
    Scenario {
        name: "incast",
        about: "four WRITE QPs of two hosts into a port of 10 Mbit/s, without and with dcqcn",
        limit_s: 120,
        is_ci: true,
        run: incast::write,
    },
    Scenario { name: "send", about: "the same with SEND", limit_s: 120, is_ci: false, run: incast::send },
];
