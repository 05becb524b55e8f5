//! One flow at the reaction point, in this process or in the kernel.

use dcqcn_common::classify::mapped;
use dcqcn_common::flow::{FlowId, QpId, RpFlow, set_index};
use dcqcn_common::pacing::Departure;
use dcqcn_common::params::{PACER_NONE, Params, Port};
use dcqcn_common::rate::{Debt, RateMachine};
use dcqcn_common::wire::bth::{Bth, BthRepr, Opcode};
use dcqcn_common::wire::ecn::{self, Ecn};
use dcqcn_common::wire::eth::{EtherType, Ethernet, EthernetRepr, MacAddr};
use dcqcn_common::wire::ipv4::{Ipv4, Ipv4Addr, Ipv4Repr};
use dcqcn_common::wire::udp::{self, Udp, UdpRepr};
use dcqcn_common::wire::{cnp, icrc};
use dcqcn_loader::dataplane::Sizes;

use super::Error;
use crate::{Engine as _, Hook, Kernel, MAX_PACKET, Meta, Verdict};

pub(super) trait Flow {
    const MIN_SEND_BYTES: u64;

    fn cnp(&mut self, now_ns: u64) -> Result<(), Error>;

    /// Sends a packet, and returns its departure time.
    fn send(&mut self, now_ns: u64, frame_bytes: u64) -> Result<Departure, Error>;

    /// Rate machine of the flow, as of its last packet.
    fn machine(&self) -> Result<RateMachine, Error>;
}

/// Packet sizes of a message of `bytes`: as few as the kernel engine allows, and as equal as possible.
pub(super) fn packets(bytes: u64) -> impl Iterator<Item = u64> {
    let count = bytes.div_ceil(MAX_PACKET as u64).max(1);
    let (size, longer) = (bytes / count, bytes % count);
    (0..count).map(move |index| size + u64::from(index < longer))
}

/// Addresses of the packets: documentation addresses (RFC 5737), locally administered MAC addresses.
const SENDER: Ipv4Addr = [192, 0, 2, 1];
const RECEIVER: Ipv4Addr = [192, 0, 2, 2];
const SENDER_MAC: MacAddr = [2, 0, 0, 0, 0, 1];
const RECEIVER_MAC: MacAddr = [2, 0, 0, 0, 0, 2];
const QPN: u32 = 0x11;
const UDP_SOURCE_PORT: u16 = 0xc000;
const ID: FlowId =
    FlowId { src: mapped(SENDER), receiver: QpId { addr: mapped(RECEIVER), qpn: QPN, vlan: 0 } };
/// Interface of a trace: the loopback has this index in every network namespace.
pub(super) const IFINDEX: u32 = 1;
const SIZES: Sizes = Sizes { rp_flows: 1, np_flows: 1 };

/// The port of both engines.
pub(super) fn port() -> Port {
    Port::new(IFINDEX, SIZES.rp_sets(), SIZES.np_sets())
}

/// The library, in this process.
pub(super) struct Reference {
    params: Params,
    flow: RpFlow,
    debt: Debt,
}

impl Reference {
    pub(super) fn new(params: &Params) -> Self {
        Self { params: *params, flow: RpFlow::new(ID, &params.rp), debt: Debt::NONE }
    }
}

impl Flow for Reference {
    const MIN_SEND_BYTES: u64 = 1;

    fn cnp(&mut self, now_ns: u64) -> Result<(), Error> {
        // The state shows whether it was within the guard time.
        let _ = self.flow.on_cnp(&self.params.rp, now_ns, &mut self.debt);
        Ok(())
    }

    fn send(&mut self, now_ns: u64, frame_bytes: u64) -> Result<Departure, Error> {
        Ok(self.flow.hot.on_send(&self.params, now_ns, frame_bytes, &mut self.debt))
    }

    fn machine(&self) -> Result<RateMachine, Error> {
        Ok(self.flow.hot.machine)
    }
}

/// The eBPF object, in the running kernel: data packets through its egress hook, CNPs through ingress.
pub(super) struct KernelFlow {
    kernel: Kernel,
    params: Params,
    /// The last data packet, as the next often has the same length.
    packet: Vec<u8>,
    cnp: Vec<u8>,
}

impl KernelFlow {
    /// Loads the object and creates the flow in its initial state.
    ///
    /// A packet without visible effect creates it: the pacer and the byte counter are off, and no timer runs
    /// before the first CNP.
    pub(super) fn new(params: &Params) -> Result<Self, Error> {
        let mut config = params.config;
        config.scalars.pacer = PACER_NONE;
        let mut unseen = Params::new(&config, params.port)?;
        unseen.rp.byte_reset_bytes = 0;
        let kernel = Kernel::new(SIZES, &unseen, 1)?;
        let mut flow = Self { kernel, params: *params, packet: data_packet(MIN_PACKET), cnp: cnp_packet() };
        flow.kernel.process(Hook::Egress, 1, &flow.packet, &Meta::default())?;
        flow.kernel.set_params(params)?;
        Ok(flow)
    }
}

impl Flow for KernelFlow {
    const MIN_SEND_BYTES: u64 = MIN_PACKET as u64;

    fn cnp(&mut self, now_ns: u64) -> Result<(), Error> {
        let meta = Meta { ingress_ifindex: IFINDEX, ..Meta::default() };
        self.kernel.process(Hook::Ingress, now_ns, &self.cnp, &meta)?;
        Ok(())
    }

    fn send(&mut self, now_ns: u64, frame_bytes: u64) -> Result<Departure, Error> {
        if self.packet.len() as u64 != frame_bytes {
            // `packets` makes none longer than MAX_PACKET.
            self.packet = data_packet(frame_bytes as usize);
        }
        let sent = self.kernel.process(Hook::Egress, now_ns, &self.packet, &Meta::default())?;
        Ok(match sent.verdict {
            Verdict::Pass => Departure::At(sent.departure_ns.max(now_ns)),
            _ => Departure::BeyondHorizon,
        })
    }

    fn machine(&self) -> Result<RateMachine, Error> {
        let hash = ID.hash(&self.params.port.hash_keys);
        let set = self.kernel.rp_set(set_index(hash, self.params.port.rp_set_mask))?;
        set.find(&ID).map(|flow| flow.hot.machine).ok_or(Error::NoFlow)
    }
}

/// Length of a data packet without payload, bytes.
const MIN_PACKET: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN + Bth::LEN + icrc::LEN;

fn ethernet(dst: MacAddr, src: MacAddr) -> Vec<u8> {
    EthernetRepr { dst, src, ethertype: EtherType::IPV4 }.bytes().to_vec()
}

/// A data packet of `len` bytes, [`MIN_PACKET`] to [`MAX_PACKET`]. Its payload is not rounded up to words, as no hook
/// reads it.
fn data_packet(len: usize) -> Vec<u8> {
    let mut packet = ethernet(RECEIVER_MAC, SENDER_MAC);
    let udp_len = len.saturating_sub(Ethernet::LEN + Ipv4::LEN) as u16;
    packet.extend(Ipv4Repr::of_udp(ecn::tos(0, Ecn::ECT0), SENDER, RECEIVER, udp_len).bytes());
    let (src_port, dst_port) = (UDP_SOURCE_PORT, udp::ROCE_V2_PORT);
    packet.extend(UdpRepr { src_port, dst_port, length: udp_len, checksum: 0 }.bytes());
    packet.extend(BthRepr::new(Opcode::RC_RDMA_WRITE_MIDDLE, QPN, 0).bytes());
    packet.resize(len, 0);
    if let Some(ip) = packet.get_mut(Ethernet::LEN..) {
        let sealed = icrc::seal(ip);
        debug_assert!(sealed.is_some(), "the headers above make a packet that has an ICRC");
    }
    packet
}

fn cnp_packet() -> Vec<u8> {
    let mut packet = ethernet(SENDER_MAC, RECEIVER_MAC);
    let mut ip = [0; cnp::V4_LEN];
    // The sender's own QPN is unknown: the hint names the receiver's.
    let tos = ecn::tos(0, Ecn::NOT_ECT);
    let repr = cnp::CnpRepr { udp_sport: UDP_SOURCE_PORT, dest_qpn: 0, hint: QPN, tos };
    cnp::emit_v4(&mut ip, RECEIVER, SENDER, &repr);
    packet.extend(ip);
    packet
}

#[cfg(test)]
mod tests {
    use dcqcn_common::wire::icrc;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn packets_have_requested_length_and_icrc() {
        for len in [MIN_PACKET, MIN_PACKET + 1, 1_024, MAX_PACKET] {
            let packet = data_packet(len);
            assert_eq!(packet.len(), len);
            assert!(icrc::verify(&packet[Ethernet::LEN..]));
        }
        assert_eq!(MIN_PACKET, 58);
        assert!(icrc::verify(&cnp_packet()[Ethernet::LEN..]));
    }

    proptest! {
        #[test]
        fn message_equals_sum_of_packets(bytes in 1u64..10_000_000) {
            let sizes: Vec<u64> = packets(bytes).collect();
            prop_assert_eq!(sizes.iter().sum::<u64>(), bytes);
            let (min, max) = (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap());
            prop_assert!(max <= MAX_PACKET as u64 && max - min <= 1);
            // One packet fewer would not do; and each of several is at least the minimum length.
            prop_assert!((sizes.len() as u64 - 1) * (MAX_PACKET as u64) < bytes);
            prop_assert!(sizes.len() == 1 || min >= MIN_PACKET as u64);
        }
    }
}
