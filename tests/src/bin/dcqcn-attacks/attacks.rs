//! The attacks, with their bounds.

use dcqcn_common::wire::udp;
use dcqcn_tests::packets::Dreq;
use dcqcn_tests::prelude::*;

use crate::testbed::{CNP_RATE, COMM_IDS, FLOOR_BPS, OWN_QPN, Observation, Testbed, Victim};

pub(crate) struct Attack {
    pub(crate) who: &'static str,
    pub(crate) what: &'static str,
    pub(crate) at: Victim,
    pub(crate) send: fn(&Testbed, u32) -> Result<()>,
    /// Effect, bound, and whether it held, from the states before and after and the elapsed seconds.
    pub(crate) verdict: fn(&Observation, &Observation, f64) -> (String, String, bool),
}

const PROCESS: &str = "an unprivileged process, sender's host";
const ROOT: &str = "root, sender's host";
const NEIGHBOUR: &str = "a neighbour";
/// Burst of learned pairs, and their rate per second.
const PAIRS_BURST: f64 = 8_192.0;
const PAIRS_PER_SECOND: f64 = 1_000.0;
/// The first made-up QPN.
const FIRST_FORGED_QPN: u32 = 0x10_0000;

pub(crate) const ATTACKS: &[Attack] = &[
    Attack {
        who: PROCESS,
        what: "datagrams that name the victim's QP",
        at: Victim::Sender,
        send: |testbed, packets| {
            let frame = testbed.data.frame();
            as_process(testbed, packets, |_| frame.clone())
        },
        verdict: not_charged,
    },
    Attack {
        who: PROCESS,
        what: "datagrams, each to a different QP",
        at: Victim::Sender,
        send: |testbed, packets| as_process(testbed, packets, |number| sprayed(number).frame()),
        verdict: not_entered,
    },
    Attack {
        who: PROCESS,
        what: "both halves of made-up connections",
        at: Victim::Sender,
        send: |testbed, packets| as_process(testbed, packets, |number| handshake(1, 2, number)),
        verdict: |before, after, _| {
            let learned = after.pairs.saturating_sub(before.pairs);
            (format!("{learned} pairs learned"), "none".into(), learned == 0)
        },
    },
    Attack {
        who: ROOT,
        what: "packets, each to a different QP, while the victim sends",
        at: Victim::Sender,
        send: |testbed, packets| {
            let socket = testbed.pair.a.socket("a0")?;
            (0..packets).try_for_each(|number| {
                if number % 500 == 0 {
                    socket.send(&testbed.data.frame())?;
                }
                Ok(socket.send(&sprayed(number).frame())?)
            })
        },
        verdict: |before, after, _| {
            let (new, evicted) = (after.new_flows - before.new_flows, after.evicted - before.evicted);
            let effect = format!("{new} flows inserted, {evicted} evicted, a table of {}", after.table_flows);
            (effect, "the victim's flow is present, at its rate".into(), is_unchanged(before, after))
        },
    },
    Attack {
        who: NEIGHBOUR,
        what: "CNPs for the victim with a wrong ICRC",
        at: Victim::Sender,
        send: |testbed, packets| {
            let mut cnp = testbed.data.cnp(None, CNP_TOS);
            if let Some(last) = cnp.last_mut() {
                *last ^= 1;
            }
            as_neighbour(testbed, packets, |_| cnp.clone())
        },
        verdict: rate_stays,
    },
    Attack {
        who: NEIGHBOUR,
        what: "CNPs for QPs that do not exist",
        at: Victim::Sender,
        send: |testbed, packets| as_neighbour(testbed, packets, |number| sprayed(number).cnp(None, CNP_TOS)),
        verdict: rate_stays,
    },
    Attack {
        who: NEIGHBOUR,
        what: "CNPs for the victim, valid in every bit",
        at: Victim::Sender,
        send: |testbed, packets| {
            let cnp = testbed.data.cnp(None, CNP_TOS);
            as_neighbour(testbed, packets, |_| cnp.clone())
        },
        verdict: |before, after, _| {
            let effect =
                format!("rate {} to {} Mbit/s", before.rate_bps / 1_000_000, after.rate_bps / 1_000_000);
            let bound = format!("rpg_min_rate, {} Mbit/s", FLOOR_BPS / 1_000_000);
            (effect, bound, after.rate_bps >= FLOOR_BPS)
        },
    },
    Attack {
        who: NEIGHBOUR,
        what: "REQ and REP of made-up connections",
        at: Victim::Sender,
        send: |testbed, packets| as_neighbour(testbed, packets, |number| handshake(2, 1, number)),
        verdict: |before, after, seconds| {
            let learned = after.pairs.saturating_sub(before.pairs);
            let bound = PAIRS_BURST + PAIRS_PER_SECOND * seconds;
            let state = if after.has_pair { "known" } else { "forgotten" };
            let effect = format!("{learned} ends of pairs learned, the victim's {state}");
            (effect, format!("{bound:.0}: a burst of 8,192, then 1,000 a second"), learned as f64 <= bound)
        },
    },
    Attack {
        who: NEIGHBOUR,
        what: "DREQs for the victim's connection, from a third address",
        at: Victim::Sender,
        send: |testbed, packets| {
            let dreq = Dreq { comm_ids: COMM_IDS, remote_qpn: OWN_QPN };
            let message = cm(3, testbed.data.src, &CmMessage::Dreq(dreq));
            as_neighbour(testbed, packets, |_| message.clone())
        },
        verdict: |_, after, _| {
            let effect = if after.has_pair { "the pair is still known" } else { "the pair is removed" };
            (effect.into(), "known".into(), after.has_pair)
        },
    },
    Attack {
        who: NEIGHBOUR,
        what: "CE-marked packets to made-up QPs",
        at: Victim::Receiver,
        send: |testbed, packets| {
            let socket = testbed.pair.a.socket("a0")?;
            let marked = |number| Roce { ecn: Ecn::CE, src: 9, ..sprayed(number) }.frame();
            Ok((0..packets).try_for_each(|number| socket.send(&marked(number)))?)
        },
        verdict: |before, after, seconds| {
            let sent = after.cnps - before.cnps;
            let bound = CNP_RATE as f64 * (seconds + 1.0);
            let effect = format!("{sent} CNPs sent");
            (effect, format!("{bound:.0}: cnp_rate {CNP_RATE} a second"), sent as f64 <= bound)
        },
    },
    Attack {
        who: NEIGHBOUR,
        what: "CE-marked packets for a multicast group, for broadcast, for another host",
        at: Victim::Receiver,
        send: |testbed, packets| {
            let socket = testbed.pair.a.socket("a0")?;
            let foreign_macs = [[0x01, 0x00, 0x5e, 1, 1, 1], [0xff; 6], [2, 0, 0, 0, 0, 0x77]];
            (0..packets).zip(foreign_macs.into_iter().cycle()).try_for_each(|(number, mac)| {
                let mut frame = Roce { ecn: Ecn::CE, ..sprayed(number) }.frame();
                frame.splice(..mac.len(), mac);
                Ok(socket.send(&frame)?)
            })
        },
        verdict: |before, after, _| {
            let sent = after.cnps - before.cnps;
            (format!("{sent} CNPs sent"), "none".into(), sent == 0)
        },
    },
];

fn sprayed(number: u32) -> Roce {
    Roce { dest_qpn: FIRST_FORGED_QPN + number % FIRST_FORGED_QPN, ..Roce::default() }
}

/// One half of the handshake of a made-up connection: `from` sends requests in even numbers, `to` replies in odd ones.
fn handshake(from: u8, to: u8, number: u32) -> Vec<u8> {
    let connection = number / 2;
    if number.is_multiple_of(2) {
        return cm(from, to, &CmMessage::Req(req(FIRST_FORGED_QPN + connection, connection)));
    }
    let comm_ids = CommIds { local: connection, remote: FIRST_FORGED_QPN + connection };
    cm(to, from, &CmMessage::Rep(Rep { comm_ids, local_qpn: connection, starting_psn: 1 }))
}

/// Sends a UDP payload through a socket of the sender's host.
fn as_process(testbed: &Testbed, packets: u32, frame: impl Fn(u32) -> Vec<u8>) -> Result<()> {
    let socket = testbed.pair.a.run(|| UdpSocket::bind((Ipv4Addr::from(v4(1)), 0)))??;
    let payload = testbed.data.bth();
    for number in 0..packets {
        let frame = frame(number);
        let datagram = frame.get(payload..).unwrap_or_default();
        socket.send_to(datagram, (Ipv4Addr::from(v4(2)), udp::ROCE_V2_PORT))?;
    }
    Ok(())
}

/// Sends frames to the sender's host.
fn as_neighbour(testbed: &Testbed, packets: u32, frame: impl Fn(u32) -> Vec<u8>) -> Result<()> {
    let socket: RawSocket = testbed.pair.b.socket("b0")?;
    Ok((0..packets).try_for_each(|number| socket.send(&frame(number)))?)
}

fn is_unchanged(before: &Observation, after: &Observation) -> bool {
    after.charged.is_some() && after.rate_bps == before.rate_bps
}

fn rate_stays(before: &Observation, after: &Observation, _: f64) -> (String, String, bool) {
    let effect = format!("rate {} to {} Mbit/s", before.rate_bps / 1_000_000, after.rate_bps / 1_000_000);
    (effect, "unchanged".into(), is_unchanged(before, after))
}

fn not_charged(before: &Observation, after: &Observation, _: f64) -> (String, String, bool) {
    let charged = after.charged.zip(before.charged).map(|(after, before)| after - before);
    let effect =
        charged.map_or("the flow was evicted".into(), |charged| format!("{charged} packets charged"));
    (effect, "none".into(), charged == Some(0))
}

fn not_entered(before: &Observation, after: &Observation, _: f64) -> (String, String, bool) {
    let new = after.new_flows - before.new_flows;
    (format!("{new} flows inserted"), "none".into(), new == 0 && is_unchanged(before, after))
}
