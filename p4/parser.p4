// Ethernet, up to two VLAN tags, IPv4 without options or IPv6 without extension headers, UDP 4791, BTH; as `classify` of
// dcqcn-common. `meta.stat` is the reason why a packet is left unchanged; a truncated one ends with a parser error.

parser Headers(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        meta.stat = STAT_NOT_ROCE;
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_VLAN: outer_tag;
            ETHERTYPE_QINQ: outer_tag;
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_IPV6: ipv6;
            ETHERTYPE_ROCE_V1: roce_v1;
            default: accept;
        }
    }

    state outer_tag {
        packet.extract(hdr.vlan[0]);
        transition select(hdr.vlan[0].ethertype) {
            ETHERTYPE_VLAN: inner_tag;
            ETHERTYPE_QINQ: inner_tag;
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_IPV6: ipv6;
            ETHERTYPE_ROCE_V1: roce_v1;
            default: accept;
        }
    }

    state inner_tag {
        packet.extract(hdr.vlan[1]);
        transition select(hdr.vlan[1].ethertype) {
            ETHERTYPE_VLAN: too_deep;
            ETHERTYPE_QINQ: too_deep;
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_IPV6: ipv6;
            ETHERTYPE_ROCE_V1: roce_v1;
            default: accept;
        }
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.protocol, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
                          hdr.ipv4.version, hdr.ipv4.ihl) {
            (IP_PROTOCOL_UDP, 0, 0, 4, 5): udp;
            (IP_PROTOCOL_UDP, 0, 0, 4, 6 &&& 0xe): options;
            (IP_PROTOCOL_UDP, 0, 0, 4, 8 &&& 0x8): options;
            (IP_PROTOCOL_UDP, 0, 0, _, _): malformed;
            (IP_PROTOCOL_UDP, _, _, _, _): fragment;
            default: accept;
        }
    }

    state ipv6 {
        packet.extract(hdr.ipv6);
        transition select(hdr.ipv6.next_header, hdr.ipv6.version) {
            (IP_PROTOCOL_UDP, 6): udp;
            (IP_PROTOCOL_UDP, _): malformed;
            IPV6_EXTENSION_HEADERS(extensions)
            default: accept;
        }
    }

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            ROCE_V2_PORT: bth;
            UET_PORT: uet;
            default: accept;
        }
    }

    state bth {
        packet.extract(hdr.bth);
        transition select(hdr.bth.opcode, hdr.udp.length) {
            (OPCODE_CNP, CNP_UDP_LEN): cnp;
            OPCODES_WITH_DETH(deth)
            OPCODES_WITH_AETH(aeth)
            default: accept;
        }
    }

    state deth {
        packet.extract(hdr.deth);
        transition select(hdr.bth.opcode, hdr.bth.dest_qpn) {
            (OPCODE_UD_SEND_ONLY, QP_GSI): cm;
            default: accept;
        }
    }

    state cm {
        packet.extract(hdr.cm);
        transition accept;
    }

    state aeth {
        packet.extract(hdr.aeth);
        transition accept;
    }

    state cnp {
        packet.extract(hdr.cnp);
        transition accept;
    }

    state uet {
        meta.stat = STAT_UET_PACKETS;
        transition accept;
    }

    state roce_v1 {
        meta.stat = STAT_ROCE_V1;
        transition accept;
    }

    state too_deep {
        meta.stat = STAT_VLAN_TOO_DEEP;
        transition accept;
    }

    state options {
        meta.stat = STAT_IPV4_OPTIONS;
        transition accept;
    }

    state fragment {
        meta.stat = STAT_IPV4_FRAGMENTS;
        transition accept;
    }

    state extensions {
        meta.stat = STAT_IPV6_EXTENSION_HEADERS;
        transition accept;
    }

    state malformed {
        meta.stat = STAT_MALFORMED;
        transition accept;
    }
}
