//! The scenarios, in the order they run.

mod backup;
mod coexistence;
mod faults;
mod fleet;
mod guide;
mod impaired;
mod incast;
mod interrupt;
mod inverse;
mod killed;
mod live;
mod many;
mod markers;
mod mixed;
mod pacing;
mod pairing;
mod pfc;
mod qualify;
mod queues;
mod read;
mod recovery;
mod storage;
mod storage_guide;
mod systemd;
mod tcp;
mod typing;
mod vectors;
mod verifier;

use super::Scenario;

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "verifier",
        about: "every program loads, attaches in every mode, detaches and leaves no state",
        limit_s: 120,
        is_ci: true,
        with_systemd: false,
        two_guests: false,
        run: verifier::run,
    },
    Scenario {
        name: "vectors",
        about: "the packets of tests/vectors give the stored bytes, times and counters",
        limit_s: 180,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: vectors::run,
    },
    Scenario {
        name: "incast",
        about: "four WRITE QPs of two hosts into a port of 20 Mbit/s, without and with dcqcn",
        limit_s: 120,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: incast::write,
    },
    Scenario {
        name: "send",
        about: "the same with SEND",
        limit_s: 120,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: incast::send,
    },
    Scenario {
        name: "read",
        about: "two READs, whose responders are the senders, into that port",
        limit_s: 90,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: read::run,
    },
    Scenario {
        name: "pairing",
        about: "of two QPs between the same hosts only the congested one is cut, for each source of pairs",
        limit_s: 150,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: pairing::run,
    },
    Scenario {
        name: "pairing-bridge",
        about: "the same by the kernel's list of QPs, where soft-RoCE is on a bridge above the interface",
        limit_s: 60,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: pairing::bridged,
    },
    Scenario {
        name: "pacing",
        about: "QPs paced at 10, 40 and 80 Mbit/s, and two at 20 each",
        limit_s: 90,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: pacing::run,
    },
    Scenario {
        name: "live",
        about: "parameters, daemon, interface and programs changed under traffic",
        limit_s: 260,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: live::run,
    },
    Scenario {
        name: "markers",
        about: "the incast with red and fq_codel as markers, next to dcqcn's own",
        limit_s: 150,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: markers::run,
    },
    Scenario {
        name: "queues",
        about: "shares of strict and weighted queues on a port, by ets and by htb",
        limit_s: 150,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: queues::run,
    },
    Scenario {
        name: "pfc",
        about: "PFC frames of the neighbour pause the flows of their queue until they expire or XON arrives",
        limit_s: 60,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: pfc::run,
    },
    Scenario {
        name: "qualify",
        about: "this kernel as a switch under `dcqcn-lab qualify`; and with its watchdog off",
        limit_s: 600,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: qualify::run,
    },
    Scenario {
        name: "storage",
        about: "two NVMe-oF targets into that port, reads and mixes, over TCP, without and with dcqcn",
        limit_s: 300,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: storage::run,
    },
    Scenario {
        name: "backup",
        about: "two NVMe-oF targets read next to TCP through that port: classes, marks, pauses, losses, and NVMe/TCP",
        limit_s: 1_200,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: backup::run_reads,
    },
    Scenario {
        name: "backup-writes",
        about: "the same with two NVMe-oF disks behind that port, written",
        limit_s: 2_400,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: backup::writes,
    },
    Scenario {
        name: "recovery",
        about: "NVMe-oF reads and writes under random loss, with and without the tail-loss probe, and over TCP",
        limit_s: 900,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: recovery::run,
    },
    Scenario {
        name: "mixed",
        about: "random operations of QPs, both ways, into that port: reordering, losses and wrong data",
        limit_s: 240,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: mixed::run,
    },
    Scenario {
        name: "impaired",
        about: "the same over links that lose, duplicate, corrupt and reorder packets, without and with the probe",
        limit_s: 900,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: impaired::run,
    },
    Scenario {
        name: "many",
        about: "700 QPs of a host, half of them cut to 100 kbit/s: no QP delays another, nothing is dropped",
        limit_s: 300,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: many::run,
    },
    Scenario {
        name: "ipv6",
        about: "the incast over IPv6",
        limit_s: 90,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: incast::ipv6,
    },
    Scenario {
        name: "mtu4096",
        about: "the incast with an IB MTU of 4096 bytes",
        limit_s: 90,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: incast::mtu4096,
    },
    Scenario {
        name: "vlan",
        about: "the incast with tags on the way to the receiver",
        limit_s: 90,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: incast::vlan,
    },
    Scenario {
        name: "inverse",
        about: "cost of dcqcn attached and idle",
        limit_s: 150,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: inverse::run,
    },
    Scenario {
        name: "faults",
        about: "forged CNPs, and more flows than the table has slots",
        limit_s: 150,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: faults::run,
    },
    Scenario {
        name: "five-minutes",
        about: "the commands of docs/first-steps/soft-roce.md, from `rdma link add` to `dcqcn top`",
        limit_s: 180,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: guide::five_minutes,
    },
    Scenario {
        name: "guide",
        about: "the commands of docs/how-to/fix-incast.md",
        limit_s: 180,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: guide::collapse,
    },
    Scenario {
        name: "storage-guide",
        about: "the commands of docs/how-to/fix-storage.md, while two disks are read next to a backup",
        limit_s: 460,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: storage_guide::run,
    },
    Scenario {
        name: "killed",
        about: "attach, detach, set and upgrade killed at each step, on this kernel's own hooks",
        limit_s: 1_500,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: killed::run,
    },
    Scenario {
        name: "beside",
        about: "queues, shapers, bonds and programs of other applications on an interface are preserved",
        limit_s: 400,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: coexistence::run,
    },
    Scenario {
        name: "interrupt",
        about: "a mounted NVMe-oF disk and perftest survive each accepted attach and detach",
        limit_s: 700,
        is_ci: false,
        with_systemd: false,
        two_guests: false,
        run: interrupt::run,
    },
    Scenario {
        name: "systemd",
        about: "the package under Debian's systemd: boot, reload, bad file, kill -9, watchdog, upgrade, remove, purge",
        limit_s: 900,
        is_ci: false,
        with_systemd: true,
        two_guests: false,
        run: systemd::run,
    },
    Scenario {
        name: "fleet",
        about: "the fleet's package under Debian's systemd: unprivileged agent, coordinator and page, a rollout, kill -9, purge",
        limit_s: 600,
        is_ci: false,
        with_systemd: true,
        two_guests: false,
        run: fleet::run,
    },
    Scenario {
        name: "tcp",
        about: "TCP over a NIC between two guests: nothing attached, each role attached, detached; offloads compared",
        limit_s: 2_700,
        is_ci: false,
        with_systemd: false,
        two_guests: true,
        run: tcp::run,
    },
];
