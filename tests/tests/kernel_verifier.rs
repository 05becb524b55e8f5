//! The programs in the kernel: instructions processed by the verifier, for every object and mode, and the test vectors.

use dcqcn_common::layout::Mode;
use dcqcn_loader::dataplane;
use dcqcn_tests::prelude::*;
use dcqcn_tests::vectors;

/// Limit of a program. The verifier gives up after a million (BPF_COMPLEXITY_LIMIT_INSNS). Linux 6.1
/// processes 2.6 times as many of ingress as 6.18, and half as many of egress.
fn max_insns(program: &str) -> u32 {
    if program == "dcqcn_ingress" { 330_000 } else { 450_000 }
}

#[test]
fn programs_verify_with_a_margin() -> Result<()> {
    require!();
    let sizes = Sizes { rp_flows: 8, np_flows: 8 };
    for programs in [Programs::Plain, Programs::PacketTrace { one_in: 1 }] {
        for (mode, programs_to_load) in [
            (Mode::Host, &PROGRAMS[1..]),
            (Mode::Inline, &PROGRAMS[..1]),
            (Mode::Marking, &PROGRAMS[2..]),
            (Mode::Test, &PROGRAMS[..]),
        ] {
            let ebpf = dataplane::load(programs, sizes, mode, None, programs_to_load)?;
            for name in programs_to_load {
                let info = ebpf.program(name).context("no such program")?.info()?;
                let walked = info.verified_instruction_count().context("not counted before Linux 5.16")?;
                eprintln!("{programs:?} {mode:?} {name}: {walked} instructions");
                let limit = max_insns(name);
                ensure!(walked <= limit, "{programs:?} {mode:?} {name}: {walked} instructions > {limit}");
            }
        }
    }
    Ok(())
}

/// The vectors of `tests/vectors/`.
#[test]
fn kernel_engine_passes_vectors() -> Result<()> {
    require!();
    for (name, _) in vectors::scenarios() {
        let differences = vectors::load(name)?.kernel_differences()?;
        ensure!(differences.is_empty(), "{name}: {}", differences.join("\n"));
    }
    Ok(())
}
