//! The exercises of `p4/exercises` in the interpreter: the solutions pass, the starting points do not.

use dcqcn_common::classify::classify;
use dcqcn_common::wire::bth::{BthRepr, Opcode};
use dcqcn_common::wire::cnp::{self, Cnp, CnpRepr};
use dcqcn_common::wire::ecn::{self, Ecn};
use dcqcn_common::wire::eth::{EtherType, Ethernet, EthernetRepr};
use dcqcn_common::wire::ipv4::{Ipv4, Ipv4Repr, header_checksum};
use dcqcn_common::wire::udp::{self, UdpRepr};
use dcqcn_p4::entry::Command;
use dcqcn_p4::{Control, Interpreter};

/// The starting point and the solution of an exercise.
macro_rules! exercise {
    ($name:literal) => {
        [
            include_str!(concat!("../../../../p4/build/start-", $name, ".json")),
            include_str!(concat!("../../../../p4/build/solutions-", $name, ".json")),
        ]
    };
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SENDER: u16 = 1;
const RECEIVER: u16 = 2;
const QPN: u32 = 0x11;
const TOP_US: u64 = 1_000_000;
const DATA_BYTES: usize = 1_024;
/// The fastest rate of exercise 3, for a data packet.
const FASTEST_US: u64 = 819;

fn address(host: u16) -> [u8; 4] {
    [10, 0, 0, host as u8]
}

fn ethernet(from: u16, to: u16) -> Vec<u8> {
    let mac = |host: u16| [2, 0, 0, 0, 0, host as u8];
    EthernetRepr { dst: mac(to), src: mac(from), ethertype: EtherType::IPV4 }.bytes().to_vec()
}

fn data(ecn: Ecn) -> Vec<u8> {
    let mut packet = ethernet(SENDER, RECEIVER);
    let udp_len = (DATA_BYTES - Ethernet::LEN - Ipv4::LEN) as u16;
    packet.extend(Ipv4Repr::of_udp(ecn::tos(26, ecn), address(SENDER), address(RECEIVER), udp_len).bytes());
    let (src_port, dst_port) = (0xc123, udp::ROCE_V2_PORT);
    packet.extend(UdpRepr { src_port, dst_port, length: udp_len, checksum: 0 }.bytes());
    packet.extend(BthRepr::new(Opcode::RC_RDMA_WRITE_MIDDLE, QPN, 7).bytes());
    packet.resize(DATA_BYTES, 0x5a);
    packet
}

fn cnp() -> Vec<u8> {
    let mut packet = [0; cnp::V4_LEN];
    let tos = ecn::tos(48, Ecn::NOT_ECT);
    let repr = CnpRepr { udp_sport: 0xc123, dest_qpn: QPN, hint: cnp::NO_HINT, tos };
    cnp::emit_v4(&mut packet, address(RECEIVER), address(SENDER), &repr);
    [ethernet(RECEIVER, SENDER), packet.to_vec()].concat()
}

fn is_marked(packet: &[u8]) -> Result<bool> {
    let ip = packet.get(Ethernet::LEN..).and_then(<[u8]>::first_chunk::<{ Ipv4::LEN }>);
    let is_right = ip.is_some_and(|ip| header_checksum(ip).to_be_bytes() == ip[10..12]);
    assert!(is_right, "the checksum of the IP header");
    let roce = classify(&mut { packet });
    roce.map(|roce| roce.ecn().is_ce()).map_err(|stat| format!("counts as {}", stat.label()).into())
}

fn switch(json: &str) -> Result<Interpreter> {
    let mut switch = Interpreter::new(json, 1)?;
    Control::run(&mut switch, &Command::Mirror { session: 1, port: 509 })?;
    switch.set_time(TOP_US);
    Ok(switch)
}

fn drain_port(switch: &mut Interpreter, port: u16) -> Result<Vec<Vec<u8>>> {
    let mut packets = Vec::new();
    while let Some(packet) = switch.receive(port)? {
        packets.push(packet);
    }
    Ok(packets)
}

/// Whether deep queues mark ECN-capable data, and shallow ones do not.
fn marks_by_depth(json: &str) -> Result<bool> {
    let mut switch = switch(json)?;
    let ecns = [Ecn::ECT0, Ecn::ECT1, Ecn::NOT_ECT];
    for n in 0..60 {
        switch.send(SENDER, &data(ecns[n % 3]));
    }
    let packets = drain_port(&mut switch, RECEIVER)?;
    let marked = packets.iter().map(|packet| is_marked(packet)).collect::<Result<Vec<bool>>>()?;
    assert_eq!(marked.len(), 60);
    let between = marked[36..51].iter().filter(|marked| **marked).count();
    // Packet n leaves 59 - n behind.
    Ok(marked.iter().enumerate().all(|(n, marked)| match 59 - n {
        _ if n % 3 == 2 => !marked,
        behind if behind > 24 => *marked,
        behind => behind > 8 || !marked,
    }) && (1..10).contains(&between))
}

/// Whether marked data is answered by a CNP as the library builds it, at most once per 50 us.
fn answers_marks(json: &str) -> Result<bool> {
    let mut switch = switch(json)?;
    let mut passes = true;
    for (after_us, ecn, is_answered) in
        [(0, Ecn::ECT0, false), (1, Ecn::CE, true), (40, Ecn::CE, false), (51, Ecn::CE, true)]
    {
        switch.set_time(TOP_US + after_us);
        switch.send(SENDER, &data(ecn));
        assert_eq!(drain_port(&mut switch, RECEIVER)?, [data(ecn)]);
        let answers = drain_port(&mut switch, SENDER)?;
        for answer in &answers {
            let packet = answer.get(Ethernet::LEN..).and_then(<[u8]>::first_chunk);
            passes &= packet.and_then(cnp::parse_v4) == Some(Cnp { dest_qpn: QPN, hint: cnp::NO_HINT });
            passes &= answer.len() == cnp().len() && answer[..Ethernet::LEN] == cnp()[..Ethernet::LEN];
        }
        passes &= answers.len() == usize::from(is_answered);
    }
    Ok(passes)
}

/// Times between departures of data that arrives at once, in steps of 10 us.
fn departures_us(switch: &mut Interpreter, now_us: u64, packets: u64) -> Result<Vec<u64>> {
    let mut left_us = Vec::new();
    switch.set_time(now_us);
    for _ in 0..packets {
        switch.send(SENDER, &data(Ecn::ECT0));
    }
    for at_us in (now_us..now_us + 20_000).step_by(10) {
        switch.set_time(at_us);
        left_us.extend(drain_port(switch, RECEIVER)?.iter().map(|_| at_us));
    }
    Ok(left_us.windows(2).map(|pair| pair[1] - pair[0]).collect())
}

/// Whether a CNP halves the rate of data, which recovers later.
fn slows_down(json: &str) -> Result<bool> {
    let mut switch = switch(json)?;
    let is_about = |gaps: &[u64], us: u64| gaps.len() == 2 && gaps.iter().all(|gap| gap.abs_diff(us) <= 10);
    let mut passes = is_about(&departures_us(&mut switch, TOP_US, 3)?, FASTEST_US);
    let later_us = TOP_US + 100_000;
    switch.set_time(later_us);
    switch.send(RECEIVER, &cnp());
    assert_eq!(drain_port(&mut switch, SENDER)?, [cnp()]);
    passes &= is_about(&departures_us(&mut switch, later_us + 10, 3)?, 2 * FASTEST_US);
    passes &= is_about(&departures_us(&mut switch, later_us + 50_000, 3)?, 2 * FASTEST_US * 7 / 8);
    Ok(passes)
}

#[test]
fn only_solution_marks_by_depth() -> Result<()> {
    let [start, solution] = exercise!("mark");
    assert_eq!([marks_by_depth(start)?, marks_by_depth(solution)?], [false, true]);
    Ok(())
}

#[test]
fn only_solution_answers_marks() -> Result<()> {
    let [start, solution] = exercise!("answer");
    assert_eq!([answers_marks(start)?, answers_marks(solution)?], [false, true]);
    Ok(())
}

#[test]
fn only_solution_slows_down() -> Result<()> {
    let [start, solution] = exercise!("slow");
    assert_eq!([slows_down(start)?, slows_down(solution)?], [false, true]);
    Ok(())
}
