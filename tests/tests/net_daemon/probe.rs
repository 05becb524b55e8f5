//! Loss recovery: the tail-loss probe, as the host's own stack receives it, and the NAK, as the peer does.

use std::io::ErrorKind;

use dcqcn_common::layout::Pair as QpPair;
use dcqcn_common::wire::ext::{Aeth, NakCode, Syndrome};
use dcqcn_common::wire::icrc;
use dcqcn_tests::prelude::*;

/// QPN of the requester on host a; data is for QP 0x11.
const OWN_QPN: u32 = 0x22;

fn request(psn: u32) -> Vec<u8> {
    Roce { opcode: Opcode::RC_SEND_ONLY, psn, ..Roce::default() }.frame()
}

fn ack(psn: u32) -> Vec<u8> {
    let opcode = Opcode::RC_ACKNOWLEDGE;
    Roce { src: 2, dst: 1, opcode, dest_qpn: OWN_QPN, psn, payload: 0, ..Roce::default() }.with_syndrome(0x1f)
}

/// PSN and syndrome of the next packet to the host's UDP port that is not an ACK of the peer.
fn receive(stack: &UdpSocket, patience: Duration) -> Result<Option<(u32, u8)>> {
    let until = Instant::now() + patience;
    let mut bytes = [0; 2_048];
    loop {
        stack.set_read_timeout(Some(Duration::from_millis(20)))?;
        match stack.recv(&mut bytes) {
            Ok(len) => {
                let packet = bytes.get(..len).context("length")?;
                let bth = Bth::new(packet.first_chunk().context("no BTH")?);
                let syndrome = *packet.get(Bth::LEN).context("no AETH")?;
                if len != Bth::LEN + Aeth::LEN + icrc::LEN || bth.dest_qpn() != OWN_QPN {
                    bail!("another packet: {packet:02x?}");
                }
                if syndrome != 0x1f {
                    return Ok(Some((bth.psn(), syndrome)));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

#[test]
fn silent_connection_gets_one_local_nak() -> Result<()> {
    let pair = new_pair!();
    let file = HOST.replace("link_rate = '1gbit'\n", "link_rate = '1gbit'\ntail_loss_probe = 'force'\n");
    let mut daemon = Daemon::start(&pair.a, &file)?;
    daemon.wait_for_log(&["task started", "\"task\":\"probe\""])?;
    let stack = pair.a.roce_socket("a0", 1)?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let own = QpId { addr: mapped(v4(1)), qpn: OWN_QPN, vlan: 0 };
    pair.a.attachment("a0")?.maps.set_pair(&own, &QpPair::new(0x11, PairSource::Static))?;
    // Without a verified acknowledgement nothing is probed.
    a.send(&request(10))?;
    let mut bad = ack(10);
    bad[60] ^= 1;
    b.send(&bad)?;
    assert_eq!(receive(&stack, Duration::from_millis(1_500))?, None);
    b.send(&ack(10))?;
    let requesters = || Ok(pair.a.attachment("a0")?.maps.requesters().collect::<Result<Vec<_>, _>>()?);
    wait_value(requesters, |all| all.iter().any(|(_, one)| one.acknowledged() == Some(11)))?;
    // The second of two requests is lost.
    a.send(&request(11))?;
    a.send(&request(12))?;
    b.send(&ack(11))?;
    let probe = receive(&stack, Duration::from_secs(10))?;
    assert_eq!(probe, Some((12, 0x60)));
    assert_eq!(receive(&stack, Duration::from_secs(1))?, None, "one probe without progress");
    // Progress permits another one.
    a.send(&request(12))?;
    b.send(&ack(12))?;
    a.send(&request(13))?;
    assert_eq!(receive(&stack, Duration::from_secs(10))?, Some((13, 0x60)));
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::TailLossProbe)?, 2);
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::AckInvalid)?, 1);
    // The peer saw this host's requests only.
    assert_eq!(b.drain()?, [10, 11, 12, 12, 13].map(request));
    // Off, live.
    pair.a.set("a0", &["tail_loss_probe=off"])?;
    a.send(&request(14))?;
    assert_eq!(receive(&stack, Duration::from_secs(1))?, None);
    daemon.end()
}

/// The PSN of the next NAK that host b receives, from its QP's peer, and the time it took.
fn nak(b: &RawSocket, patience: Duration) -> Result<Option<(u32, Duration)>> {
    let start = Instant::now();
    while let Some(frame) = b.receive(patience.saturating_sub(start.elapsed()))? {
        let Some(packet) = frame.get(14..).filter(|packet| packet.get(28) == Some(&Opcode::RC_ACKNOWLEDGE.0))
        else {
            continue;
        };
        let bth = Bth::new(packet.get(28..).and_then(<[u8]>::first_chunk).context("no BTH")?);
        if packet.get(40) == Some(&Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR).bits()) {
            let macs = [mac(2), mac(1)].concat();
            if frame.get(..12) != Some(&macs[..]) || bth.dest_qpn() != 0x11 || !icrc::verify(packet) {
                bail!("another packet: {frame:02x?}");
            }
            return Ok(Some((bth.psn(), start.elapsed())));
        }
    }
    Ok(None)
}

#[test]
fn trimmed_request_gets_one_nak() -> Result<()> {
    let pair = new_pair!();
    let file = HOST.replace("link_rate = '1gbit'\n", "link_rate = '1gbit'\ntrim_nak = true\n");
    let mut daemon = Daemon::start(&pair.a, &file)?;
    daemon.wait_for_log(&["task started", "\"task\":\"probe\""])?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let own = QpId { addr: mapped(v4(1)), qpn: OWN_QPN, vlan: 0 };
    pair.a.attachment("a0")?.maps.set_pair(&own, &QpPair::new(0x11, PairSource::Static))?;
    let (opcode, dest_qpn) = (Opcode::RC_SEND_ONLY, OWN_QPN);
    let request = |psn| Roce { src: 2, dst: 1, opcode, dest_qpn, psn, ..Roce::default() };
    let acknowledge = |psn| {
        let ack = Roce { opcode: Opcode::RC_ACKNOWLEDGE, psn, payload: 0, ..Roce::default() };
        a.send(&ack.with_syndrome(0x1f))
    };
    // Nothing is known of the responder.
    b.send(&request(10).trimmed(false))?;
    assert_eq!(nak(&b, Duration::from_millis(100))?, None);
    acknowledge(9)?;
    b.send(&request(10).frame())?;
    acknowledge(10)?;
    for (keeps_lengths, next) in [(false, 11), (true, 12)] {
        b.send(&request(14).trimmed(keeps_lengths))?;
        let (psn, after) = nak(&b, Duration::from_secs(10))?.context("no NAK")?;
        assert_eq!(psn, next);
        eprintln!("NAK after {after:?}");
        assert_eq!(nak(&b, Duration::from_millis(200))?, None, "one NAK");
        acknowledge(next)?;
    }
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::NpTrimNak)?, 2);
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::Trimmed)?, 3);
    // The responder's own NAK of the gap.
    pair.a.set("a0", &["tail_loss_probe_floor=1s"])?;
    let own_nak = Roce { opcode: Opcode::RC_ACKNOWLEDGE, psn: 13, payload: 0, ..Roce::default() };
    a.send(&own_nak.with_syndrome(0x60))?;
    assert_eq!(nak(&b, Duration::from_secs(10))?.map(|(psn, _)| psn), Some(13));
    b.send(&request(14).trimmed(false))?;
    assert_eq!(nak(&b, Duration::from_millis(200))?, None);
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::NpTrimNak)?, 2);
    // Off, live.
    pair.a.set("a0", &["trim_nak=off"])?;
    b.send(&request(15).trimmed(false))?;
    assert_eq!(nak(&b, Duration::from_millis(200))?, None);
    daemon.end()
}
