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
mod replay;

use dcqcn_replay::Hook;

const HOOKS: [Hook; 3] = [Hook::Xdp, Hook::Ingress, Hook::Egress];
const CAPTURES: [&str; 4] = ["rc_cm_rping.pcap", "rc_read.pcap", "rc_write.pcap", "ud_send.pcap"];
