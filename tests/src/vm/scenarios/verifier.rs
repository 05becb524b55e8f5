//! Every program on this kernel's verifier, attached in every way.

use aya::maps::loaded_maps;
use aya::programs::loaded_programs;

use super::super::command::{json_in, script_in, sh_in};
use crate::vm::prelude::*;

/// Ways to attach, with the options of each.
const WAYS: &[(&str, &str)] = &[
    ("host, fq", "attach v0 --pacer fq"),
    ("host, htb", "attach v0 --pacer htb --set link_rate=100mbit"),
    ("host, no pacer", "attach v0 --pacer none"),
    ("switch", "attach v0 --role switch --set link_rate=100mbit"),
    ("inline", "attach v0 --inline w0 --set link_rate=100mbit"),
];

/// Time for the kernel to free unused objects.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(report: &mut Report) -> Result<()> {
    let netns = Netns::create("verifier")?;
    for link in ["v0 type veth peer name v1", "w0 type veth peer name w1"] {
        sh_in(&netns, &format!("ip link add {link}"))?;
    }
    for iface in ["v0", "v1", "w0", "w1"] {
        sh_in(&netns, &format!("ip link set {iface} up"))?;
    }
    script_in(&netns, "mkdir -p /run/dcqcn")?;
    let before = remaining(&netns)?;
    for (way, line) in WAYS {
        let info = json_in(&netns, &format!("dcqcn --json {line}")).with_context(|| (*way).to_owned())?;
        let loaded = remaining(&netns)?;
        ensure!(loaded.programs > before.programs, "{way}: nothing was loaded");
        let instructions = instructions();
        sh_in(&netns, "dcqcn detach --all")?;
        let after = remaining_after_free(&netns, &before)?;
        let text = |key: &str| info.get(key).and_then(|value| value.as_str()).unwrap_or("-").to_owned();
        let remains = if after == before { "nothing".to_owned() } else { format!("{after:?}") };
        report.record([
            ("attached as", (*way).to_owned()),
            ("XDP", text("xdp_mode")),
            ("TC", text("tc_mode")),
            ("pacer", text("pacer")),
            ("instructions verified: xdp, ingress, egress", instructions),
            ("left behind", remains.clone()),
        ]);
        report.check(way, remains, "loads, attaches, leaves no state", after == before);
    }
    Ok(())
}

/// Instructions processed by the kernel's verifier for each attached program; the limit is a
/// million (`BPF_COMPLEXITY_LIMIT_INSNS`, include/linux/bpf.h).
fn instructions() -> String {
    let verified = |name: &&str| {
        let program = loaded_programs().flatten().find(|program| program.name_as_str() == Some(name));
        let count = program.and_then(|program| program.verified_instruction_count());
        count.map_or_else(|| "-".to_owned(), |count| count.to_string())
    };
    PROGRAMS.iter().map(verified).collect::<Vec<_>>().join(", ")
}

/// Possible leftovers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Removal {
    programs: usize,
    maps: usize,
    qdiscs: String,
    xdp: usize,
    pins: String,
}

fn remaining(netns: &Netns) -> Result<Removal> {
    let (programs, maps) = loaded();
    Ok(Removal {
        programs,
        maps,
        qdiscs: sh_in(netns, "tc qdisc show")?,
        xdp: sh_in(netns, "ip -details link show")?.matches("prog/xdp").count(),
        pins: script_in(netns, "find /run/dcqcn -type f ! -name lock")?,
    })
}

/// State left after the kernel has freed unused objects.
fn remaining_after_free(netns: &Netns, expected: &Removal) -> Result<Removal> {
    let is_free = || (loaded() == (expected.programs, expected.maps)).then_some(()).ok_or_else(String::new);
    // What remains after a time-out is the result.
    let _ = wait_for(TIMEOUT, || Ok(is_free()));
    remaining(netns)
}

fn loaded() -> (usize, usize) {
    (loaded_programs().count(), loaded_maps().count())
}
