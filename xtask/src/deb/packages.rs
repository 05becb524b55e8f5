//! Contents of the packages. `dcqcn-fleet` is separate, so that hosts outside a fleet need not install a network
//! client, and machines that only roll out need no daemon. `dcqcn-lab` is separate because no host needs it.

use crate::build;

/// A package.
pub(crate) struct Package {
    /// Binary.
    pub(crate) binary: build::Binary,
    /// Files of the repository: source and destination.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// Configuration files among them.
    pub(crate) conffiles: &'static [&'static str],
    /// Directory of its maintainer scripts, if any.
    pub(crate) scripts: Option<&'static str>,
    /// Dependencies other than the C library.
    pub(crate) depends: &'static str,
    /// Weak dependencies, as a line of the control file.
    pub(crate) beside: &'static str,
    /// Description, as in the control file.
    pub(crate) description: &'static str,
}

/// The operator's command and the daemon.
pub(crate) const DCQCN: Package = Package {
    binary: build::COMMAND,
    files: &[
        ("dist/dcqcn.toml", "etc/dcqcn/dcqcn.toml"),
        ("dist/logrotate.d/dcqcn", "etc/logrotate.d/dcqcn"),
        ("dist/systemd/dcqcn.service", "usr/lib/systemd/system/dcqcn.service"),
        ("dist/systemd/run-dcqcn-bpf.mount", "usr/lib/systemd/system/run-dcqcn-bpf.mount"),
        ("dist/systemd/dcqcn-soft-roce@.service", "usr/lib/systemd/system/dcqcn-soft-roce@.service"),
        ("README.md", "usr/share/doc/dcqcn/README.md"),
        ("docs", "usr/share/doc/dcqcn/docs"),
        ("CHANGELOG.md", "usr/share/doc/dcqcn/changelog"),
        ("CONTRIBUTING.md", "usr/share/doc/dcqcn/CONTRIBUTING.md"),
        ("SECURITY.md", "usr/share/doc/dcqcn/SECURITY.md"),
        ("dist/debian/copyright", "usr/share/doc/dcqcn/copyright"),
    ],
    conffiles: &["/etc/dcqcn/dcqcn.toml", "/etc/logrotate.d/dcqcn"],
    scripts: Some("dist/debian"),
    depends: "",
    beside: "Suggests: iproute2",
    description: "\
RoCEv2 congestion control (DCQCN) in eBPF
 Marks RoCEv2 packets by WRED, answers marked packets with CNPs, and paces each
 queue pair at its DCQCN rate, on hosts and software switches without RoCE
 hardware. The data plane keeps running in the kernel when the command exits.
 .
 Requires Linux 6.1 or later. Installing attaches nothing: name interfaces in
 /etc/dcqcn/dcqcn.toml, then run `systemctl enable --now dcqcn`.
",
};

/// The command for many hosts, and the page.
pub(crate) const FLEET: Package = Package {
    binary: build::FLEET,
    files: &[
        ("dist/default/dcqcn-fleet", "etc/default/dcqcn-fleet"),
        ("dist/systemd/dcqcn-fleet-agent.service", "usr/lib/systemd/system/dcqcn-fleet-agent.service"),
        (
            "dist/systemd/dcqcn-fleet-coordinate.service",
            "usr/lib/systemd/system/dcqcn-fleet-coordinate.service",
        ),
        ("dist/systemd/dcqcn-fleet-serve.service", "usr/lib/systemd/system/dcqcn-fleet-serve.service"),
        ("dist/systemd/dcqcn.service.d/fleet.conf", "usr/lib/systemd/system/dcqcn.service.d/fleet.conf"),
        ("docs/how-to/fleet.md", "usr/share/doc/dcqcn-fleet/fleet.md"),
        ("docs/how-to/page.md", "usr/share/doc/dcqcn-fleet/page.md"),
        ("docs/how-to/secure-a-fleet.md", "usr/share/doc/dcqcn-fleet/secure-a-fleet.md"),
        ("CHANGELOG.md", "usr/share/doc/dcqcn-fleet/changelog"),
        ("dist/debian/copyright", "usr/share/doc/dcqcn-fleet/copyright"),
    ],
    conffiles: &["/etc/default/dcqcn-fleet"],
    scripts: Some("dist/debian-fleet"),
    depends: ", adduser",
    beside: "Recommends: dcqcn\nSuggests: etcd-client",
    description: "\
staged rollouts of DCQCN parameters to many hosts, and a web page
 A change goes to canaries first, then to waves of hosts, and is rolled back
 automatically if their metrics degrade; etcd stores the desired state. The web
 page shows a host or a fleet: queues, marks, CNPs, rates and changes.
 .
 Runs unprivileged and connects to the dcqcn daemon through its control socket.
 Installing starts no service: edit /etc/default/dcqcn-fleet, then run
 `systemctl enable --now dcqcn-fleet-agent` or `dcqcn-fleet-serve`.
",
};

/// The command for experiments: it has no service and no configuration.
pub(crate) const LAB: Package = Package {
    binary: build::LAB,
    files: &[
        ("docs/first-steps/simulate.md", "usr/share/doc/dcqcn-lab/simulate.md"),
        ("docs/how-to/find-parameters.md", "usr/share/doc/dcqcn-lab/find-parameters.md"),
        ("docs/how-to/qualify.md", "usr/share/doc/dcqcn-lab/qualify.md"),
        ("CHANGELOG.md", "usr/share/doc/dcqcn-lab/changelog"),
        ("dist/debian/copyright", "usr/share/doc/dcqcn-lab/copyright"),
    ],
    conffiles: &[],
    scripts: None,
    depends: "",
    beside: "Suggests: dcqcn, p4lang-bmv2",
    description: "\
experiments with RoCEv2 congestion control (DCQCN)
 Qualifies switches against test plans for RoCEv2, searches for parameters in a
 simulated fabric, simulates DCQCN packet by packet, replays captures, and runs
 the pipeline in P4, all with the code of the dcqcn data plane.
 .
 Experiments run in their own network namespaces. The host's network is not
 changed unless a command requests it.
",
};
