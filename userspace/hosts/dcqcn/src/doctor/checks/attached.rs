//! Attachments, and their programs in the kernel.

use super::{Finding, Snapshot};

/// `nothing-attached`.
pub(super) fn attached(snapshot: &Snapshot) -> Vec<Finding> {
    // A failed reading is a separate finding.
    let unknown = snapshot.unread.iter().any(|unread| unread.what == "the attachments");
    if unknown || !snapshot.attachments.is_empty() {
        return Vec::new();
    }
    let on_rdma = snapshot.rdma.iter().flat_map(|device| &device.ifaces).next();
    let physical = snapshot.links.iter().find(|link| link.kind.is_none()).or(snapshot.links.first());
    let iface = on_rdma.or(physical.map(|link| &link.name)).map_or("IFACE", |name| name);
    let evidence = format!(
        "no attachment in this network namespace; interfaces: {}; RDMA devices: {}",
        list(snapshot.links.iter().map(|link| link.name.as_str())),
        list(snapshot.rdma.iter().map(|device| device.name.as_str())),
    );
    vec![
        Finding::warning(
            "nothing-attached",
            "nothing is attached: nothing is marked, answered or paced",
            evidence,
        )
        .fix(format!("`dcqcn attach {iface}` on a host, `dcqcn attach {iface} --role switch` on a router")),
    ]
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// `interface-gone`.
pub(super) fn alive(snapshot: &Snapshot) -> Vec<Finding> {
    let dead = snapshot.attachments.iter().filter(|attached| !attached.alive);
    dead.map(|attached| {
        let iface = &attached.iface;
        Finding::error(
            "interface-gone",
            format!("{iface} has an attachment, but the interface was removed, or moved to another network namespace"),
            "no interface has its name and index",
        )
        .on(iface)
        .fix("`dcqcn gc`, then attach its replacement")
    })
    .collect()
}

/// `program-missing`, `programs-running`.
pub(super) fn programs(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for attached in snapshot.attachments.iter().filter(|attached| attached.alive) {
        let iface = &attached.iface;
        let gone = attached
            .inline_peer
            .as_ref()
            .filter(|peer| snapshot.links.iter().all(|link| link.name != **peer));
        if let Some(peer) = gone {
            findings.push(
                Finding::error(
                    "interface-gone",
                    format!("{iface} is inline with {peer}, which no longer exists"),
                    format!("no interface is called {peer}"),
                )
                .on(iface)
                .fix(format!("`dcqcn detach {iface}`, then attach it with another peer")),
            );
            continue;
        }
        let queried: Vec<&String> =
            attached.programs.iter().filter(|hook| !attached.unasked.contains(hook)).collect();
        let (there, missing): (Vec<&String>, Vec<&String>) = queried
            .into_iter()
            .partition(|hook| attached.running.iter().any(|program| program.hook == **hook));
        for hook in &missing {
            let again = format!(
                "`dcqcn detach {iface}`, then `dcqcn attach {iface}` with the same options (`dcqcn config show {iface}` \
                 prints them)"
            );
            findings.push(
                Finding::error(
                    "program-missing",
                    format!("the {hook} program of {iface} is no longer on the interface"),
                    format!(
                        "attached with {}; the kernel lists no program of dcqcn at {hook}",
                        attached.programs.join(", ")
                    ),
                )
                .on(iface)
                .fix(again),
            );
        }
        if missing.is_empty() && !there.is_empty() {
            let ids: Vec<String> =
                attached.running.iter().map(|program| format!("{} {}", program.hook, program.id)).collect();
            let evidence = format!("programs that passed the verifier: {}", ids.join(", "));
            findings.push(
                Finding::ok("programs-running", "programs are attached and verified", evidence).on(iface),
            );
        }
    }
    findings
}

/// `others-first`: a program that ends the chain hides packets from those after it.
pub(super) fn earlier_programs(snapshot: &Snapshot) -> Vec<Finding> {
    let preceded = snapshot.attachments.iter().filter(|attached| !attached.before_ours.is_empty());
    preceded
        .map(|attached| {
            let (iface, before) = (&attached.iface, attached.before_ours.join(", "));
            Finding::warning(
                "others-first",
                format!("other programs on {iface} run first and may consume its packets"),
                format!("before dcqcn's: {before}"),
            )
            .on(iface)
            .fix(format!("`dcqcn detach {iface}`, then attach again: dcqcn's programs go first"))
        })
        .collect()
}

/// `interpreted`.
pub(super) fn interpreted(snapshot: &Snapshot) -> Vec<Finding> {
    let slow = snapshot.attachments.iter().filter(|a| a.running.iter().any(|program| !program.jited));
    slow.map(|attached| {
        let hooks: Vec<&str> =
            attached.running.iter().filter(|p| !p.jited).map(|program| program.hook.as_str()).collect();
        Finding::warning(
            "interpreted",
            "the kernel interprets the programs instead of compiling them: ten times slower",
            format!("no machine code for {}", hooks.join(", ")),
        )
        .on(&attached.iface)
        .fix("`sysctl net.core.bpf_jit_enable=1`, then detach and attach again")
    })
    .collect()
}

/// `generic-xdp`.
pub(super) fn generic_xdp(snapshot: &Snapshot) -> Vec<Finding> {
    let generic = snapshot.attachments.iter().filter(|attached| attached.xdp_mode.starts_with("skb"));
    generic
        .map(|attached| {
            let iface = &attached.iface;
            let driver = snapshot.link(iface).and_then(|link| link.driver.clone());
            let evidence =
                format!("xdp mode {}, driver {}", attached.xdp_mode, driver.unwrap_or("none".into()));
            let what = "XDP runs on socket buffers, which is slower";
            Finding::info("generic-xdp", what, evidence).on(iface).fix(format!(
                "`dcqcn detach {iface}`, then attach with `--xdp-mode driver`, which reports why it fails"
            ))
        })
        .collect()
}
