//! Attachments, and their programs in the kernel.

use std::collections::BTreeSet;

use super::{Finding, Snapshot, reattach};
use crate::doctor::snapshot::{ATTACHMENTS, Attached};

pub(super) fn attached(snapshot: &Snapshot) -> Option<Finding> {
    // A failed reading is a separate finding.
    let unknown = snapshot.unread.iter().any(|unread| unread.what == ATTACHMENTS);
    if unknown || !snapshot.attachments.is_empty() {
        return None;
    }
    let on_rdma = snapshot.rdma.iter().flat_map(|device| &device.ifaces).next();
    // A device may have several ports.
    let devices: BTreeSet<&str> = snapshot.rdma.iter().map(|port| port.name.as_str()).collect();
    let physical = snapshot.links.iter().find(|link| link.kind.is_none()).or(snapshot.links.first());
    let iface = on_rdma.or(physical.map(|link| &link.name)).map_or("IFACE", |name| name);
    let what = "nothing is attached: nothing is marked, answered or paced";
    let evidence = format!(
        "no attachment in this network namespace; interfaces: {}; RDMA devices: {}",
        list(snapshot.links.iter().map(|link| link.name.as_str())),
        list(devices.into_iter()),
    );
    let fix = format!("`dcqcn attach {iface}` on a host, `dcqcn attach {iface} --role switch` on a router");
    Some(Finding::warning("nothing-attached", what, evidence).fix(fix))
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

pub(super) fn programs(snapshot: &Snapshot, attached: &Attached) -> Option<Finding> {
    let iface = &attached.iface;
    if !attached.alive {
        let what = format!("{iface} is attached, but was removed or moved to another network namespace");
        let evidence = "no interface has its name and index";
        let fix = "`dcqcn gc`, then attach its replacement";
        return Some(Finding::error("interface-gone", what, evidence).fix(fix));
    }
    if let Some(peer) = attached.inline_peer.as_ref().filter(|peer| snapshot.link(peer).is_none()) {
        let what = format!("{iface} is inline with {peer}, which no longer exists");
        let evidence = format!("no interface is called {peer}");
        let fix = format!("`dcqcn detach {iface}`, then attach it with another peer");
        return Some(Finding::error("interface-gone", what, evidence).fix(fix));
    }
    let queried = attached.programs.iter().map(String::as_str);
    let queried = queried.filter(|hook| !attached.unasked.iter().any(|unasked| unasked == hook));
    let (there, missing): (Vec<&str>, Vec<&str>) =
        queried.partition(|hook| attached.running.iter().any(|program| program.hook == *hook));
    if !missing.is_empty() {
        let missing = missing.join(", ");
        let what = format!("programs are no longer on {iface}: {missing}");
        let programs = attached.programs.join(", ");
        let evidence = format!("attached with {programs}; the kernel lists no program of dcqcn at {missing}");
        let fix = format!(
            "`dcqcn config show {iface} --out {iface}.toml`, `dcqcn detach {iface}`, \
             `dcqcn attach {iface} --config {iface}.toml`"
        );
        return Some(Finding::error("program-missing", what, evidence).fix(fix));
    }
    let ids = attached.running.iter().map(|program| format!("{} {}", program.hook, program.id));
    let evidence = format!("programs that passed the verifier: {}", ids.collect::<Vec<_>>().join(", "));
    (!there.is_empty())
        .then(|| Finding::ok("programs-running", "programs are attached and verified", evidence))
}

/// `others-first`: a program that ends the chain hides packets from those after it.
pub(super) fn earlier_programs(_: &Snapshot, attached: &Attached) -> Option<Finding> {
    let iface = &attached.iface;
    let what = format!("other programs on {iface} run first and may consume its packets");
    let evidence = format!("before dcqcn's: {}", attached.before_ours.join(", "));
    let fix = format!("{}: dcqcn's programs go first", reattach(iface));
    (!attached.before_ours.is_empty()).then(|| Finding::warning("others-first", what, evidence).fix(fix))
}

pub(super) fn interpreted(_: &Snapshot, attached: &Attached) -> Option<Finding> {
    let slow = attached.running.iter().filter(|program| !program.jited);
    let hooks: Vec<&str> = slow.map(|program| program.hook.as_str()).collect();
    let what = "the kernel interprets the programs instead of compiling them: ten times slower";
    let evidence = format!("no machine code for {}", hooks.join(", "));
    let fix = format!("`sysctl net.core.bpf_jit_enable=1`, {}", reattach(&attached.iface));
    (!hooks.is_empty()).then(|| Finding::warning("interpreted", what, evidence).fix(fix))
}

pub(super) fn generic_xdp(snapshot: &Snapshot, attached: &Attached) -> Option<Finding> {
    if !attached.xdp_mode.starts_with("skb") {
        return None;
    }
    let driver = snapshot.link(&attached.iface).and_then(|link| link.driver.as_deref());
    let what = "XDP runs on socket buffers, which is slower";
    let evidence = format!("xdp mode {}, driver {}", attached.xdp_mode, driver.unwrap_or("none"));
    let fix = format!("{} with `--xdp-mode driver`, which reports why it fails", reattach(&attached.iface));
    Some(Finding::info("generic-xdp", what, evidence).fix(fix))
}
