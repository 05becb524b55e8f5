//! Packets that the programs do not parse: RoCE inside a tunnel, and transports with their own congestion control.

/// Maximum number of headers; real packets have fewer.
const MAX_DEPTH: u8 = 12;

/// IPsec, whose payload cannot be read.
pub(super) const ESP: &str = "esp";
/// Ultra Ethernet: UDP port 4793, and the reference provider's UDP port 49150 and IP protocol 253.
pub(super) const UET: &str = "uet";

/// Label of the outermost tunnel of a frame with RoCEv2 inside (`vxlan`, `geneve`, `gre`, `ipip`, `mpls`, `srv6`),
/// [`ESP`] or [`UET`]; `None` for all other frames, including RoCEv2 without a tunnel.
pub(super) fn label(frame: &[u8]) -> Option<&'static str> {
    ParsePosition { tunnel: None, depth: MAX_DEPTH }.ethernet(frame)
}

/// A position in a packet: the tunnel around it, and the headers still allowed.
#[derive(Clone, Copy)]
struct ParsePosition {
    tunnel: Option<&'static str>,
    depth: u8,
}

impl ParsePosition {
    /// The position after one more header.
    fn next(self) -> Option<Self> {
        Some(Self { depth: self.depth.checked_sub(1)?, ..self })
    }

    /// Inside a tunnel; the outermost one gives the label.
    fn inside(self, tunnel: &'static str) -> Self {
        Self { tunnel: self.tunnel.or(Some(tunnel)), ..self }
    }

    fn ethernet(self, bytes: &[u8]) -> Option<&'static str> {
        self.next()?.network(be16(bytes, 12)?, bytes.get(14..)?)
    }

    fn network(self, ethertype: u16, bytes: &[u8]) -> Option<&'static str> {
        let walk = self.next()?;
        match ethertype {
            0x8100 | 0x88a8 => walk.network(be16(bytes, 2)?, bytes.get(4..)?),
            0x0800 | 0x86dd => walk.ip(bytes),
            0x8847 | 0x8848 => walk.inside("mpls").mpls(bytes),
            0x6558 => walk.ethernet(bytes),
            _ => None,
        }
    }

    fn ip(self, bytes: &[u8]) -> Option<&'static str> {
        let walk = self.next()?;
        let first = *bytes.first()?;
        match first >> 4 {
            4 => {
                let is_later_fragment = be16(bytes, 6)? & 0x1fff != 0;
                let header = usize::from(first & 0x0f) * 4;
                if is_later_fragment || header < 20 {
                    return None;
                }
                walk.transport(*bytes.get(9)?, bytes.get(header..)?)
            }
            6 => walk.transport(*bytes.get(6)?, bytes.get(40..)?),
            _ => None,
        }
    }

    fn transport(self, protocol: u8, bytes: &[u8]) -> Option<&'static str> {
        let walk = self.next()?;
        match protocol {
            17 => walk.udp(bytes),
            4 | 41 => walk.inside("ipip").ip(bytes),
            47 => walk.inside("gre").gre(bytes),
            50 => Some(ESP),
            51 => walk.transport(*bytes.first()?, bytes.get((usize::from(*bytes.get(1)?) + 2) * 4..)?),
            137 => walk.inside("mpls").mpls(bytes),
            143 => walk.inside("srv6").ethernet(bytes),
            253 => Some(UET),
            // Extension headers of IPv6; routing type 4 is segment routing.
            0 | 43 | 60 => {
                let is_segment_routing = protocol == 43 && *bytes.get(2)? == 4;
                let walk = if is_segment_routing { walk.inside("srv6") } else { walk };
                walk.transport(*bytes.first()?, bytes.get((usize::from(*bytes.get(1)?) + 1) * 8..)?)
            }
            _ => None,
        }
    }

    fn udp(self, bytes: &[u8]) -> Option<&'static str> {
        let (port, body) = (be16(bytes, 2)?, bytes.get(8..)?);
        match port {
            4791 => self.tunnel,
            4789 | 8472 => self.inside("vxlan").ethernet(body.get(8..)?),
            6081 => {
                let options = usize::from(*body.first()? & 0x3f) * 4;
                self.inside("geneve").network(be16(body, 2)?, body.get(8 + options..)?)
            }
            6635 => self.inside("mpls").mpls(body),
            // IKE uses the same port, and starts with four zeros.
            4500 => body.get(..4).filter(|marker| *marker != [0; 4]).map(|_| ESP),
            4793 | 49150 => Some(UET),
            _ => None,
        }
    }

    fn gre(self, bytes: &[u8]) -> Option<&'static str> {
        let flags = be16(bytes, 0)?;
        // Checksum, key and sequence number.
        let optional = [0x8000, 0x2000, 0x1000].iter().filter(|flag| flags & **flag != 0).count() * 4;
        self.network(be16(bytes, 2)?, bytes.get(4 + optional..)?)
    }

    fn mpls(self, bytes: &[u8]) -> Option<&'static str> {
        let walk = self.next()?;
        let rest = bytes.get(4..)?;
        if bytes.get(2)? & 1 == 0 {
            return walk.mpls(rest);
        }
        match rest.first()? >> 4 {
            4 | 6 => walk.ip(rest),
            // A pseudowire with its control word.
            0 => walk.ethernet(rest.get(4..)?),
            _ => None,
        }
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ethernet(ethertype: u16, body: &[u8]) -> Vec<u8> {
        [&[2; 12], &ethertype.to_be_bytes()[..], body].concat()
    }

    fn v4(protocol: u8, body: &[u8]) -> Vec<u8> {
        let mut header = [0; 20];
        (header[0], header[9]) = (0x45, protocol);
        [&header, body].concat()
    }

    fn v6(next: u8, body: &[u8]) -> Vec<u8> {
        let mut header = [0; 40];
        (header[0], header[6]) = (0x60, next);
        [&header, body].concat()
    }

    fn udp(port: u16, body: &[u8]) -> Vec<u8> {
        [&[0xc0, 0], &port.to_be_bytes()[..], &[0; 4], body].concat()
    }

    /// RoCEv2 in IPv4.
    fn roce() -> Vec<u8> {
        v4(17, &udp(4791, &[0; 16]))
    }

    #[test]
    fn roce_inside_a_tunnel_is_found() {
        let frame = ethernet(0x0800, &roce());
        let tagged = [&[2; 12], &[0x81, 0, 0, 5][..], &frame[12..]].concat();
        let vxlan = |inner: &[u8]| udp(4789, &[&[8, 0, 0, 0, 0, 0, 7, 0], inner].concat());
        let geneve = [&[1, 0, 0x65, 0x58, 0, 0, 7, 0], &[9; 4][..], &frame].concat();
        let srh = [17, 2, 4, 0].into_iter().chain([0; 20]).collect::<Vec<u8>>();
        for (name, packet, expected) in [
            ("plain", frame.clone(), None),
            ("tagged", tagged.clone(), None),
            ("vxlan", ethernet(0x0800, &v4(17, &vxlan(&frame))), Some("vxlan")),
            ("vxlan over IPv6, tagged inside", ethernet(0x86dd, &v6(17, &vxlan(&tagged))), Some("vxlan")),
            ("vxlan with TCP", ethernet(0x0800, &v4(17, &vxlan(&ethernet(0x0800, &v4(6, &[0; 20]))))), None),
            ("geneve", ethernet(0x0800, &v4(17, &udp(6081, &geneve))), Some("geneve")),
            ("gre", ethernet(0x0800, &v4(47, &[&[0, 0, 8, 0], &roce()[..]].concat())), Some("gre")),
            (
                "gre with a key",
                ethernet(0x0800, &v4(47, &[&[0x20, 0, 0x65, 0x58, 0, 0, 0, 1], &frame[..]].concat())),
                Some("gre"),
            ),
            ("ipip", ethernet(0x0800, &v4(4, &roce())), Some("ipip")),
            ("6in4", ethernet(0x86dd, &v6(41, &v6(17, &udp(4791, &[0; 16])))), Some("ipip")),
            ("mpls", ethernet(0x8847, &[&[0, 1, 0, 9, 0, 2, 1, 9], &roce()[..]].concat()), Some("mpls")),
            ("pseudowire", ethernet(0x8847, &[&[0, 2, 1, 9, 0, 0, 0, 0], &frame[..]].concat()), Some("mpls")),
            ("srv6", ethernet(0x86dd, &v6(43, &[&srh, &udp(4791, &[0; 16])[..]].concat())), Some("srv6")),
            ("esp", ethernet(0x0800, &v4(50, &[0; 40])), Some(ESP)),
            ("esp in UDP", ethernet(0x0800, &v4(17, &udp(4500, &[0, 0, 0, 1, 0, 0]))), Some(ESP)),
            ("IKE", ethernet(0x0800, &v4(17, &udp(4500, &[0; 8]))), None),
            ("uet", ethernet(0x0800, &v4(17, &udp(4793, &[0; 8]))), Some(UET)),
            ("uet of the reference provider", ethernet(0x0800, &v4(17, &udp(49150, &[0; 8]))), Some(UET)),
            ("uet over IP", ethernet(0x86dd, &v6(253, &[0; 8])), Some(UET)),
            ("vxlan in ipip: the outermost", ethernet(0x0800, &v4(4, &v4(17, &vxlan(&frame)))), Some("ipip")),
        ] {
            assert_eq!(label(&packet), expected, "{name}");
            for len in 0..packet.len() {
                let _ = label(&packet[..len]);
            }
        }
        let mut nested = roce();
        for _ in 0..40 {
            nested = v4(4, &nested);
        }
        assert_eq!(label(&ethernet(0x0800, &nested)), None, "bounded");
    }
}
