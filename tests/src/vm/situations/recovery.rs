//! NVMe-oF and perftest between the guests with losses at the bottleneck, the tail-loss probe, a stateful
//! firewall and strict reverse path filtering.

use super::super::capture::WRITE_LAST;
use super::super::hosts::Topology;
use super::super::perftest::broken;
use super::note;
use super::storage::{EXPORT, REMOVE, TOS, output};
use super::topologies::{BOND, BRIDGE, VLAN};
use crate::vm::prelude::*;

/// One of so many packets is dropped, in both directions.
const ONE_OF: u32 = 100;
/// Without the probe: seconds.
const LONGEST_MS: f64 = 1_000.0;
/// On Linux 6.1, soft-RoCE's timer, 2.1 s, must restart a READ whose rest is lost twice
/// (docs/explanation/lossy-networks.md).
const LONGEST_READ_MS: f64 = 5_000.0;
/// Time limit of fio, stalls included.
const PATIENCE: Duration = Duration::from_secs(180);
/// NVMe-oF's QPs retry without limit.
const PROBE: &str = "--set tail_loss_probe=force --set tail_loss_probe_limit=0";
/// Tracks connections, drops invalid packets, and checks the path back to their senders.
const STRICT: &str = "
for scope in all $IFACE; do echo 1 > /proc/sys/net/ipv4/conf/$scope/rp_filter; done
nft -f - <<END
table inet strict {
    chain input {
        type filter hook input priority filter; policy drop;
        ct state invalid counter drop
        ct state established,related accept
        udp dport 4791 ct state new accept
        iif != $IFACE accept
        meta l4proto icmp accept
    }
}
END
dmesg --clear";
const LENIENT: &str = "
for scope in all $IFACE; do echo 0 > /proc/sys/net/ipv4/conf/$scope/rp_filter; done
nft delete table inet strict";
/// Without registration of memory, see `scenarios/recovery.rs`.
const CONNECT: &str = "
modprobe nvme-rdma register_always=N
echo transport=rdma,traddr=$NETWORK.$M,trsvcid=4420,nqn=disk,nr_io_queues=1,queue_size=32,keep_alive_tmo=60 > /dev/nvme-fabrics
until [ -b /dev/nvme0n1 ]; do sleep 0.2; done";
const DISCONNECT: &str = "echo 1 > /sys/class/nvme/nvme0/delete_controller; modprobe -r nvme-rdma";
const ERRORS: &str =
    "dmesg | grep -E 'I/O error|reconnecting|failed, error|own address' | sort | uniq -c || true";
const DISK: &str = "/dev/ram0";
const BLOCK_BYTES: u32 = 4_096;

/// The longest time without a packet of a flow that awaits an ACK, below the QPs' ACK timeout of 1.07 s.
const SILENCE_S: f64 = 0.5;
const WRITES_S: u32 = 8;

pub(super) fn run(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    for (name, topology) in [("plain", PLAIN), ("bridge port", BRIDGE), ("bond", BOND), ("VLAN", VLAN)] {
        hosts.build(topology)?;
        hosts.both(&script(topology, STRICT))?;
        // The kernel's connection manager does not answer requests that arrive there, without `dcqcn` either.
        if name == "VLAN" { writes(hosts, report, name) } else { nvme(hosts, report, name, topology) }?;
        for guest in GUESTS {
            let errors = hosts.sh(guest, ERRORS)?;
            let (what, errors) = (format!("recovery, {name}: guest {guest}'s log"), errors.trim());
            report.check(&what, errors, "none", errors.is_empty());
        }
        hosts.both(&script(topology, LENIENT))?;
    }
    hosts.build(PLAIN)
}

/// A script with the interface and network of a topology.
fn script(topology: Topology, script: &str) -> String {
    format!("IFACE={}; NETWORK={}\n{script}", topology.rdma, topology.network)
}

/// WRITEs and SENDs of the target for reads, and its READs for writes.
fn nvme(hosts: &mut Hosts, report: &mut Report, name: &str, topology: Topology) -> Result<()> {
    // READ also what the initiator would send in its command.
    let export = EXPORT.replace("ln -s", "echo 0 > ports/1/param_inline_data_size\nln -s");
    hosts.both(TOS)?;
    hosts.sh(RECEIVER, &export.replace("10.9.0", topology.network))?;
    hosts.sh(RECEIVER, &fio::fill_command(DISK, BLOCK_BYTES))?;
    hosts.sh(SENDER, &script(topology, CONNECT))?;
    if name == "plain" {
        disk(hosts, report, "plain, no probe, randread", "randread")?;
    }
    attach(hosts)?;
    let mut captured = Vec::new();
    let before = probes(hosts)?;
    for pattern in ["randread", "randwrite"] {
        let name = format!("{name}, {pattern}");
        let (done, packets) = disk(hosts, report, &name, pattern)?;
        captured.extend(packets);
        report.equals(&format!("recovery, {name}: fio with crc32c failed"), done.failed, false);
        let bound_ms = match pattern {
            "randwrite" if sysfs::kernel_is("6.1.")? => LONGEST_READ_MS,
            _ => LONGEST_MS,
        };
        report.at_most(&format!("recovery, {name}: longest, ms"), done.max_ms, bound_ms);
    }
    // Few losses of READ responses need a probe: most are followed by others.
    check(hosts, report, name, before, &captured)?;
    hosts.sh(SENDER, DISCONNECT)?;
    hosts.sh(RECEIVER, REMOVE).map(drop)
}

/// WRITEs of perftest, few in flight, so that many packets have none behind them.
fn writes(hosts: &mut Hosts, report: &mut Report, name: &str) -> Result<()> {
    attach(hosts)?;
    let flows: Vec<Flow> =
        hosts.flows(Tool::Write, 2, WRITES_S).into_iter().map(|flow| Flow { depth: 4, ..flow }).collect();
    let before = probes(hosts)?;
    hosts.host(&format!("loss {ONE_OF}"))?;
    hosts.host("capture on")?;
    let traffic = hosts.traffic(&flows)?;
    let outcomes = hosts.outcomes(&traffic)?;
    let packets = hosts.captured()?;
    hosts.host("loss 0")?;
    check(hosts, report, name, before, &packets)?;
    report.equals(&format!("recovery, {name}: QPs that broke"), broken(&outcomes), 0);
    report.at_most(&format!("recovery, {name}: longest silence, s"), silence_s(&packets), SILENCE_S);
    Ok(())
}

fn attach(hosts: &mut Hosts) -> Result<()> {
    for guest in GUESTS {
        hosts.attach(guest, &format!("{LINK} {PROBE}"))?;
        hosts.start(guest, &format!("dcqcn run {}", hosts.iface()))?;
    }
    Ok(())
}

fn check(hosts: &mut Hosts, report: &mut Report, name: &str, before: u64, packets: &[Packet]) -> Result<()> {
    let (probes, naks) = (probes(hosts)? - before, naks(packets));
    note(report, "recovery", format!("{name}: {probes} probes, {naks} NAKs of responders"));
    report.at_least(&format!("recovery, {name}: probes"), probes as f64, 1.0);
    report.at_least(&format!("recovery, {name}: NAKs captured"), naks as f64, 1.0);
    report.equals(&format!("recovery, {name}: packets from the wrong guest"), stray(packets), 0);
    Ok(())
}

/// fio on the disk under loss, and the packets at the bridge's ports.
fn disk(
    hosts: &mut Hosts,
    report: &mut Report,
    name: &str,
    pattern: &'static str,
) -> Result<(CompletedIo, Vec<Packet>)> {
    let job = Job { pattern, block_bytes: BLOCK_BYTES, depth: 4, settling_s: 1, length_s: 6 };
    hosts.host(&format!("loss {ONE_OF}"))?;
    hosts.host("capture on")?;
    let program = hosts.start(SENDER, &job.command(&["/dev/nvme0n1"]))?;
    let (ok, printed) = hosts.finish(&program, PATIENCE)?;
    let packets = hosts.captured()?;
    hosts.host("loss 0")?;
    let done = if ok {
        fio::done(output(&printed))?
    } else {
        println!("{printed}");
        CompletedIo { failed: true, ..CompletedIo::default() }
    };
    let kb_per_s = (done.read_bps + done.written_bps) / 8e3;
    note(report, "recovery", format!("{name}: {kb_per_s:.0} KB/s, longest {:.0} ms", done.max_ms));
    Ok((done, packets))
}

fn probes(hosts: &mut Hosts) -> Result<u64> {
    let script = format!("dcqcn --json counters {}", hosts.iface());
    let mut sum = 0;
    for guest in GUESTS {
        let counters: Value = serde_json::from_str(&hosts.sh(guest, &script)?)?;
        sum += count(&counters, "tail_loss_probes")?;
    }
    Ok(sum)
}

/// NAKs at the ports by which they enter the bridge.
fn naks(packets: &[Packet]) -> usize {
    packets.iter().filter(|packet| !packet.is_out && packet.is_nak()).count()
}

/// Longest time between a message of the sender, if its ACK does not reach it, and the next packet of that flow.
fn silence_s(packets: &[Packet]) -> f64 {
    let mut longest_s: f64 = 0.0;
    let mut unanswered: BTreeMap<u16, (f64, u32)> = BTreeMap::new();
    for packet in packets {
        if packet.source == SENDER && !packet.is_out {
            if let Some((since_s, _)) = unanswered.remove(&packet.port) {
                longest_s = longest_s.max(packet.at_s - since_s);
            }
            if packet.opcode == WRITE_LAST {
                unanswered.insert(packet.port, (packet.at_s, packet.psn));
            }
        } else if packet.source == RECEIVER && packet.is_out && packet.is_ack() {
            unanswered.retain(|port, (_, psn)| (*port, *psn) != (packet.port, packet.psn));
        }
    }
    longest_s
}

/// Packets that entered the bridge by a port of the other guest. A probe has the peer's address.
fn stray(packets: &[Packet]) -> u64 {
    let mut ports: BTreeMap<u32, u8> = BTreeMap::new();
    let entering = packets.iter().filter(|packet| !packet.is_out);
    entering.filter(|packet| *ports.entry(packet.iface).or_insert(packet.source) != packet.source).count()
        as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaked_probe_found() {
        let of = |source, iface, is_out| Packet { iface, is_out, ..Packet::example(source, 4) };
        let mut packets =
            vec![of(1, 3, false), of(1, 4, true), of(2, 4, false), of(2, 3, true), of(2, 5, false)];
        assert_eq!(stray(&packets), 0);
        packets.push(Packet { iface: 3, ..Packet::nak(2) });
        assert_eq!((stray(&packets), naks(&packets)), (1, 1));
    }

    #[test]
    fn longest_silence_without_ack_found() {
        let sent = |at_s, psn| Packet { at_s, psn, ..Packet::example(SENDER, WRITE_LAST) };
        let ack = |at_s, psn, is_out| Packet {
            is_out,
            syndrome: Some(0x1f),
            ..Packet { source: RECEIVER, ..sent(at_s, psn) }
        };
        // The first ACK arrives; the second one is lost behind the bridge.
        let first = [sent(1.0, 1), ack(1.1, 1, false), ack(1.1, 1, true)];
        let second = [sent(2.0, 2), ack(2.1, 2, false), sent(2.75, 3)];
        assert!((silence_s(&[first, second].concat()) - 0.75).abs() < 1e-9);
    }
}
