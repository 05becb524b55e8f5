//! Traces of the machine of NVIDIA's parameters, and of an alpha of 10 bits.

use super::Vector;
use super::parts::vector;
use super::traces::{PACES, REACTS, Timeline};

/// Free-running periods: of 55 us for alpha, of 40 us for cuts.
const FIRMWARE: &str = "rp_variant=firmware rate_reduce_monitor_period=40us";

/// CNPs and packets on both sides of every significant instant, after gaps of this many microseconds.
fn around(trace: &mut Timeline, gaps_us: &[u64]) {
    for &gap_us in gaps_us {
        trace.cnp(gap_us).send(1).cnp(2).send(gap_us).send(gap_us / 2).send(1);
    }
}

/// Gaps about both periods, and their multiples.
const GAPS_US: &[u64] =
    &[1, 12, 37, 39, 40, 41, 52, 54, 55, 56, 79, 80, 81, 109, 110, 120, 200, 275, 276, 330, 440, 1_000];

pub(super) fn firmware() -> Vector {
    let mut trace = Timeline::new();
    trace.roce.payload = 240;
    // An idle flow counts nothing.
    trace.send(0).send(10).send(10).cnp(3).cnp(2).send(20).send(20).send(1);
    around(&mut trace, GAPS_US);
    let more = "link_rate=40gbit rpg_byte_reset=1000B rpg_threshold=3";
    vector("Free-running periods of alpha and of cuts.", &format!("{REACTS} {FIRMWARE} {more}"), trace.steps)
}

pub(super) fn firmware_clamp() -> Vector {
    let mut trace = Timeline::new();
    trace.roce.payload = 200;
    trace.send(0);
    around(&mut trace, GAPS_US);
    let more = "link_rate=100mbit rpg_min_rate=1mbit rpg_ai_rate=1mbit rpg_hai_rate=5mbit \
                rpg_min_dec_fac=60 rpg_gd=10 initial_alpha_value=600 clamp_tgt_rate_after_time_inc=off \
                rpg_byte_reset=1000B rpg_threshold=1";
    let settings = format!("{REACTS} {FIRMWARE} {more}");
    vector("Cuts that keep the target rate unless the byte counter has advanced.", &settings, trace.steps)
}

pub(super) fn firmware_first() -> Vector {
    let mut trace = Timeline::new();
    trace.send(0).cnp(7).send(10).send(100);
    around(&mut trace, &[5, 40, 90, 300, 2_000]);
    let more = "link_rate=25gbit rate_to_set_on_first_cnp=3gbit clamp_tgt_rate=on rpg_byte_reset=0";
    let settings = format!("{REACTS} {FIRMWARE} {more}");
    vector("A rate set at the first CNP, and cuts that always clamp.", &settings, trace.steps)
}

pub(super) fn firmware_gaps() -> Vector {
    let mut trace = Timeline::new();
    trace.send(0).cnp(1);
    around(&mut trace, &[3, 55, 700, 65_535, 65_536, 65_537, 70_000, 200_000, 1_000_000, 3_000_000]);
    let more =
        "link_rate=100gbit rpg_byte_reset=0 dce_tcp_rtt=1us dce_tcp_g=1023 rate_reduce_monitor_period=3us";
    let settings = format!("{REACTS} {FIRMWARE} {more}");
    vector("Gaps of up to three million periods.", &settings, trace.steps)
}

pub(super) fn firmware_order() -> Vector {
    let mut trace = Timeline::new();
    trace.roce.payload = 960;
    trace.send(0);
    for _ in 0..24 {
        trace.cnp(30);
    }
    trace.send(10).send(10).send(1_000);
    for gap_us in [0, 1, 50, 39, 200, 400, 700, 30, 10, 5, 55, 110, 275, 1, 2_000, 20, 3, 300, 5_000, 40] {
        trace.send(gap_us).send(0).cnp(gap_us / 5).send(gap_us / 3).cnp(gap_us / 7).send(1);
    }
    let (about, settings) =
        ("The gap after a packet, with cuts due between packets.", format!("{PACES} {FIRMWARE}"));
    Vector { paces: true, ..vector(about, &settings, trace.steps) }
}

pub(super) fn coarse() -> Vector {
    let mut trace = Timeline::new();
    trace.send(0);
    for periods in
        [0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 64, 100, 128, 255, 256, 300, 511, 512, 700, 1_023, 1_024, 70_000]
    {
        trace.cnp(20).cnp(56).send(periods * 50).cnp(5).cnp(periods * 50).send(1);
    }
    let settings = format!("{REACTS} link_rate=40gbit rpg_byte_reset=0 alpha_bits=10 dce_tcp_rtt=50us");
    vector("An alpha of 10 bits, rounded down at every step.", &settings, trace.steps)
}

pub(super) fn coarse_firmware() -> Vector {
    let mut trace = Timeline::new();
    trace.roce.payload = 240;
    trace.send(0).cnp(3);
    around(&mut trace, GAPS_US);
    around(&mut trace, &[3_000, 20_000, 56_265, 56_320, 100_000]);
    let more = "link_rate=40gbit alpha_bits=10 dce_tcp_g=1019 rpg_byte_reset=1000B";
    let settings = format!("{REACTS} {FIRMWARE} {more}");
    vector("Free-running periods with an alpha of 10 bits.", &settings, trace.steps)
}
