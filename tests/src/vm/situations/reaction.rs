//! Time from a mark at the bottleneck to the CNP there, and to the first slower packet of the flow.

use super::super::capture::CNP;
use super::Measured;
use crate::vm::prelude::*;

/// Flows, each of which starts at line rate and is halved by its first CNP.
const QPS: u16 = 4;
const SECONDS: u32 = 6;
/// Packets whose mean interval is the rate before a CNP, and after it.
const BEFORE: usize = 32;
const AFTER: usize = 8;
/// Increase of the mean interval that is a lower rate; a first CNP doubles it.
const SLOWER: f64 = 1.5;

pub(super) fn run(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    hosts.attach_both()?;
    let before = hosts.counts()?;
    hosts.host("capture on")?;
    let traffic = hosts.traffic(&hosts.flows(Tool::Write, QPS, SECONDS))?;
    let outcomes = hosts.outcomes(&traffic)?;
    thread::sleep(Duration::from_secs(1));
    let packets = hosts.captured()?;
    let measured = Measured::new(&outcomes, hosts.counts()?.since(before));
    hosts.detach_both()?;
    let (cnps, slower) = (until_cnp(&packets), until_slower(&packets));
    let ms = |times: &[f64], quantile: f64| {
        let index = (times.len() as f64 * quantile) as usize;
        times.get(index).map(|seconds| 1e3 * seconds).with_context(|| format!("{} samples", times.len()))
    };
    let text = format!(
        "{:.1} ms to the CNP (p99 {:.1}, of {}), {:.1} ms to a slower packet (of {})",
        ms(&cnps, 0.5)?,
        ms(&cnps, 0.99)?,
        cnps.len(),
        ms(&slower, 0.5)?,
        slower.len()
    );
    measured.row(report, "reaction", &text);
    report.equals("reaction: QPs that broke", measured.broken, 0);
    report.at_most("reaction: mark to CNP, p50, ms", ms(&cnps, 0.5)?, 20.0);
    report.at_most("reaction: mark to slower packet, p50, ms", ms(&slower, 0.5)?, 200.0);
    Ok(())
}

/// Sorted times from the last mark that left the bottleneck to the CNP of its flow that arrived there.
fn until_cnp(packets: &[Packet]) -> Vec<f64> {
    let cnps = packets.iter().enumerate().filter(|(_, packet)| packet.opcode == CNP && !packet.is_out);
    let mut times: Vec<f64> =
        cnps.filter_map(|(index, cnp)| Some(cnp.at_s - mark_before(packets, index, cnp.port)?)).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Sorted times from the mark before the first CNP of a flow to its first packet at a lower rate.
fn until_slower(packets: &[Packet]) -> Vec<f64> {
    let mut ports: Vec<u16> =
        packets.iter().filter(|packet| packet.opcode == CNP).map(|packet| packet.port).collect();
    ports.sort_unstable();
    ports.dedup();
    let mut times: Vec<f64> = ports.into_iter().filter_map(|port| first_slower(packets, port)).collect();
    times.sort_by(f64::total_cmp);
    times
}

fn first_slower(packets: &[Packet], port: u16) -> Option<f64> {
    let is_of = |packet: &Packet| packet.port == port;
    let arrived =
        packets.iter().position(|packet| is_of(packet) && packet.opcode == CNP && !packet.is_out)?;
    let marked_s = mark_before(packets, arrived, port)?;
    let cnp = packets.iter().find(|packet| is_of(packet) && packet.opcode == CNP && packet.is_out)?;
    let sent_s: Vec<f64> = packets
        .iter()
        .filter(|packet| is_of(packet) && packet.source == SENDER && !packet.is_out)
        .map(|packet| packet.at_s)
        .collect();
    let first = sent_s.partition_point(|at_s| *at_s < cnp.at_s);
    let mean_s = |from: usize, count: usize| {
        let (start, end) = (sent_s.get(from)?, sent_s.get(from + count)?);
        Some((end - start) / count as f64)
    };
    let before_s = mean_s(first.checked_sub(BEFORE + 1)?, BEFORE)?;
    let mut slower = (first..).map_while(|index| Some((index, mean_s(index, AFTER)?)));
    let (index, _) = slower.find(|(_, after_s)| *after_s >= SLOWER * before_s)?;
    Some(sent_s.get(index + 1)? - marked_s)
}

/// Time of the last mark of a flow that left the bottleneck before the packet `index`.
fn mark_before(packets: &[Packet], index: usize, port: u16) -> Option<f64> {
    let mut earlier = packets.get(..index)?.iter().rev();
    let marks = |packet: &&Packet| {
        packet.is_out && packet.source != RECEIVER && packet.is_marked() && packet.port == port
    };
    earlier.find(marks).map(|packet| packet.at_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_packet_after_halved_rate_found() {
        let at = |at_ms: u32, packet: Packet| Packet { at_s: f64::from(at_ms) / 1e3, ..packet };
        let data = |at_ms, is_out, tos| at(at_ms, Packet { is_out, tos, ..Packet::example(SENDER, 7) });
        let cnp = |at_ms, is_out| at(at_ms, Packet { is_out, ..Packet::example(RECEIVER, CNP) });
        // A packet per ms, then one per 2 ms from 110 ms on; the mark is at 99 ms and the CNP at 100 ms.
        let mut packets: Vec<Packet> =
            (0..110).chain((110..200).step_by(2)).map(|at_ms| data(at_ms, false, 0x6a)).collect();
        packets.extend([data(99, true, 0x6b), cnp(100, false), cnp(101, true)]);
        packets.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        let [cnp_s] = until_cnp(&packets)[..] else { panic!("one CNP") };
        let [slower_s] = until_slower(&packets)[..] else { panic!("one flow") };
        assert!((cnp_s - 0.001).abs() < 1e-9, "{cnp_s}");
        assert!((slower_s - 0.011).abs() < 0.005, "{slower_s}");
        assert!(until_cnp(&packets[..90]).is_empty() && until_slower(&packets[..90]).is_empty());
    }
}
