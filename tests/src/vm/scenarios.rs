//! The scenarios, in the order they run.

mod backup;
mod coexistence;
mod faults;
mod fleet;
mod guide;
mod impaired;
mod incast;
mod interrupt;
mod killed;
mod live;
mod many;
mod mixed;
mod pacing;
mod pairing;
mod pfc;
mod qualify;
mod queues;
mod recovery;
mod storage;
mod storage_guide;
mod systemd;
mod tcp;
mod typing;
mod vectors;
mod verifier;

use super::Scenario;

/// The list: name, time limit in s, function and flags, and the description of each.
macro_rules! scenarios {
    ($($name:literal, $limit_s:literal, $run:path $(, $flag:ident)*; $about:literal;)+) => {
        &[$(Scenario { $($flag: true,)* ..Scenario::new($name, $about, $limit_s, $run) }),+]
    };
}

pub const SCENARIOS: &[Scenario] = scenarios! {
    "verifier", 120, verifier::run, is_ci;
        "every program loads, attaches in every mode, detaches and leaves no state";
    "vectors", 480, vectors::run;
        "the packets of tests/vectors give the stored bytes, times and counters";
    "incast", 120, incast::write;
        "four WRITE QPs of two hosts into a port of 20 Mbit/s, without and with dcqcn";
    "send", 120, incast::send;
        "the same with SEND";
    "read", 90, incast::read;
        "two READs, whose responders are the senders, into that port";
    "pairing", 150, pairing::run;
        "of two QPs between the same hosts only the congested one is cut, for each source of pairs";
    "pairing-bridge", 60, pairing::bridged;
        "the same by the kernel's list of QPs, where soft-RoCE is on a bridge above the interface";
    "pacing", 90, pacing::run;
        "QPs paced at 10, 40 and 80 Mbit/s, and two at 20 each";
    "live", 260, live::run;
        "parameters, daemon, interface and programs changed under traffic";
    "markers", 150, incast::markers;
        "the incast with red and fq_codel as markers, next to dcqcn's own";
    "queues", 150, queues::run;
        "shares of strict and weighted queues on a port, by ets and by htb";
    "pfc", 60, pfc::run;
        "PFC frames of the neighbour pause the flows of their queue until they expire or XON arrives";
    "qualify", 600, qualify::run;
        "this kernel as a switch under `dcqcn-lab qualify`; and with its watchdog off";
    "storage", 300, storage::run;
        "two NVMe-oF targets into that port, reads and mixes, over TCP, without and with dcqcn";
    "backup", 1_200, backup::run_reads;
        "two NVMe-oF targets read next to TCP through that port: classes, marks, pauses, losses, and NVMe/TCP";
    "backup-writes", 2_400, backup::writes;
        "the same with two NVMe-oF disks behind that port, written";
    "recovery", 900, recovery::run;
        "NVMe-oF reads and writes under random loss, with and without the tail-loss probe, and over TCP";
    "patterns", 1_500, recovery::patterns;
        "NVMe-oF under losses of one kind of packets each, and in bursts, without and with the probe";
    "mixed", 240, mixed::run;
        "random operations of QPs, both ways, into that port: reordering, losses and wrong data";
    "impaired", 900, impaired::run;
        "the same over links that lose, duplicate, corrupt and reorder packets, without and with the probe";
    "many", 300, many::run;
        "700 QPs of a host, half of them cut to 100 kbit/s: no QP delays another, nothing is dropped";
    "ipv6", 90, incast::ipv6;
        "the incast over IPv6";
    "mtu4096", 90, incast::mtu4096;
        "the incast with an IB MTU of 4096 bytes";
    "vlan", 90, incast::vlan;
        "the incast with tags on the way to the receiver";
    "faults", 150, faults::run;
        "forged CNPs, and more flows than the table has slots";
    "five-minutes", 180, guide::five_minutes;
        "the commands of docs/first-steps/soft-roce.md, from `rdma link add` to `dcqcn top`";
    "guide", 180, guide::collapse;
        "the commands of docs/how-to/fix-incast.md";
    "storage-guide", 460, storage_guide::run;
        "the commands of docs/how-to/fix-storage.md, while two disks are read next to a backup";
    "killed", 1_500, killed::run;
        "attach, detach, set and upgrade killed at each step, on this kernel's own hooks";
    "coexistence", 400, coexistence::run;
        "queues, shapers, bonds and programs of other applications on an interface are preserved";
    "interrupt", 700, interrupt::run;
        "a mounted NVMe-oF disk and perftest survive each accepted attach and detach, and the package's removal";
    "systemd", 900, systemd::run, with_systemd;
        "the package under Debian's systemd: boot, reload, bad file, kill -9, watchdog, upgrade, remove, purge";
    "fleet", 600, fleet::run, with_systemd;
        "the fleet's package under Debian's systemd: unprivileged agent, coordinator and page, a rollout, kill -9, purge";
    "tcp", 2_700, tcp::run, two_guests;
        "TCP over a NIC between two guests: nothing attached, each role attached, detached; offloads compared";
};
