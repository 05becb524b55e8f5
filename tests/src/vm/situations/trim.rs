//! Trimming at the bottleneck instead of dropping, and NAKs of the receiver for trimmed packets.

use super::Measured;
use crate::vm::prelude::*;

const SECONDS: u32 = 12;
/// DSCP of trimmed packets (`tests/vm/src/bottleneck.rs`).
const TRIMMED_DSCP: u8 = 10;
/// Shorter than the QPs' ACK timeout of 1.07 s, longer than any wait without it.
const SILENCE_S: f64 = 0.9;

/// Two QPs with more in flight than the port's queue holds: dropped and trimmed, without and with DCQCN.
pub(super) fn run(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    // With drops: without and with DCQCN.
    let mut dropping = Vec::new();
    for (what, is_trimmed, is_controlled) in [
        ("drops", false, false),
        ("drops, DCQCN", false, true),
        ("trimming and NAKs", true, false),
        ("trimming and NAKs, DCQCN", true, true),
    ] {
        hosts.build(PLAIN)?;
        if is_controlled {
            hosts.attach(SENDER, LINK)?;
        }
        if is_trimmed {
            hosts.attach(RECEIVER, &format!("{LINK} --set trim_nak=on --set tail_loss_probe_limit=0"))?;
            hosts.start(RECEIVER, "dcqcn run eth0")?;
        } else if is_controlled {
            hosts.attach(RECEIVER, LINK)?;
        }
        hosts.host(if is_trimmed { "trimming on" } else { "trimming off" })?;
        hosts.host("capture on")?;
        let before = hosts.counts()?;
        let traffic = hosts.traffic(&hosts.flows(Tool::Write, 2, SECONDS))?;
        let outcomes = hosts.outcomes(&traffic)?;
        let measured = Measured::new(&outcomes, hosts.counts()?.since(before));
        let packets = hosts.captured()?;
        hosts.host("trimming off")?;
        let (timeouts, waits) = (silences(&packets), until_nak(&packets));
        let p50 = waits.get(waits.len() / 2).map_or("-".to_owned(), |wait| format!("{:.1}", 1e3 * wait));
        let text = format!("{what}, {timeouts} timeouts, {} NAKs, p50 {p50} ms after a trim", waits.len());
        measured.row(report, "trim", &text);
        report.equals(&format!("trim, {what}: QPs that broke"), measured.broken, 0);
        if is_trimmed {
            let before = dropping.get(usize::from(is_controlled)).copied().unwrap_or_default();
            report.at_most(&format!("trim, {what}: timeouts, as with drops"), timeouts as f64, before);
        } else {
            dropping.push(timeouts as f64);
        }
    }
    hosts.build(PLAIN)
}

/// Times without a packet of a flow that are as long as the ACK timeout.
fn silences(packets: &[Packet]) -> usize {
    let mut last: BTreeMap<u16, f64> = BTreeMap::new();
    packets
        .iter()
        .filter(|packet| packet.source == SENDER && !packet.is_out)
        .filter(|packet| {
            let before_s = last.insert(packet.port, packet.at_s);
            before_s.is_some_and(|before_s| packet.at_s - before_s >= SILENCE_S)
        })
        .count()
}

/// Sorted times from a trimmed packet that left the bottleneck to the next NAK of its flow.
fn until_nak(packets: &[Packet]) -> Vec<f64> {
    let mut trimmed: BTreeMap<u16, f64> = BTreeMap::new();
    let mut waits = Vec::new();
    for packet in packets {
        if packet.source == SENDER && packet.is_out && packet.tos >> 2 == TRIMMED_DSCP {
            trimmed.entry(packet.port).or_insert(packet.at_s);
        } else if packet.source == RECEIVER && !packet.is_out && packet.is_nak() {
            waits.extend(trimmed.remove(&packet.port).map(|trimmed_s| packet.at_s - trimmed_s));
        }
    }
    waits.sort_by(f64::total_cmp);
    waits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_and_naks_found() {
        let data = |at_s, is_out, tos| Packet { at_s, is_out, tos, ..Packet::example(SENDER, 7) };
        let nak = |at_s| Packet { at_s, ..Packet::nak(RECEIVER) };
        let packets = [
            data(1.0, false, 0x6a),
            data(1.1, true, TRIMMED_DSCP << 2),
            data(1.2, true, TRIMMED_DSCP << 2),
            nak(1.3),
            nak(1.4),
            data(1.5, false, 0x6a),
            data(2.5, false, 0x6a),
        ];
        assert_eq!(silences(&packets), 1);
        let [wait_s] = until_nak(&packets)[..] else { panic!("one trim is answered") };
        assert!((wait_s - 0.2).abs() < 1e-9, "{wait_s}");
    }
}
