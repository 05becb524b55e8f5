// Kind, class and queue of a packet.

// Addresses as in the keys of flows. IPv4 addresses are mapped into IPv6.
#define READ_ADDRESSES(meta, hdr)                                  \
    if (hdr.ipv6.isValid()) {                                      \
        meta.src_addr = hdr.ipv6.src;                              \
        meta.dst_addr = hdr.ipv6.dst;                              \
    } else {                                                       \
        meta.src_addr = 80w0 ++ 16w0xffff ++ hdr.ipv4.src;         \
        meta.dst_addr = 80w0 ++ 16w0xffff ++ hdr.ipv4.dst;         \
    }

// The IDs of a packet's VLANs, the inner one in the lowest 12 bits. ID 0 carries a priority only (802.1Q).
#define READ_VLANS(meta, hdr)                                      \
    meta.vlan = 0;                                                 \
    if (hdr.vlan[0].isValid()) {                                   \
        meta.vlan = (bit<32>)hdr.vlan[0].vid;                      \
    }                                                              \
    if (hdr.vlan[1].isValid() && hdr.vlan[1].vid != 0) {           \
        meta.vlan = (meta.vlan << 12) | (bit<32>)hdr.vlan[1].vid;  \
    }

// The clock counts microseconds, everything else nanoseconds.
const bit<64> NS_PER_US = 1000;

// BMv2's `instance_type`.
const bit<32> INSTANCE_RECIRCULATED = 4;
const bit<32> INSTANCE_REPLICATED = 5;

control Classify(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action real_time() {
        // A recirculated packet has no time of arrival.
        if (standard_metadata.instance_type == INSTANCE_RECIRCULATED) {
            meta.now_ns = (bit<64>)meta.left_us * NS_PER_US;
        } else {
            meta.now_ns = (bit<64>)standard_metadata.ingress_global_timestamp * NS_PER_US;
        }
    }

    action fixed_time(bit<48> now_us) {
        meta.is_fixed_time = 1;
        meta.fixed_us = now_us;
        meta.now_ns = (bit<64>)now_us * NS_PER_US;
    }

    table clock {
        actions = { real_time; fixed_time; }
        default_action = real_time();
    }

    action set_class(bit<3> tc, bit<3> queue) {
        meta.tc = tc;
        standard_metadata.priority = queue;
    }

    bit<6> dscp = 0;

    table dscp_class {
        key = { dscp: exact; }
        actions = { set_class; }
        default_action = set_class(0, 0);
        size = 64;
    }

    action unknown() {
        meta.stat = STAT_UNKNOWN_BTH;
    }

    action set_kind(bit<2> kind, bit<1> is_datagram, bit<1> is_sequenced, bit<1> stream,
                    bit<8> ext_bytes) {
        meta.kind = kind;
        meta.is_datagram = is_datagram;
        meta.is_sequenced = is_sequenced;
        meta.stream = stream;
        meta.ext_bytes = ext_bytes;
    }

    table opcode_kind {
        key = { hdr.bth.opcode: exact; }
        actions = { set_kind; unknown; }
        const default_action = unknown();
        const entries = { OPCODE_KINDS }
    }

    action read_lengths() {
        meta.l3_bytes = ETHERNET_LEN;
        if (hdr.vlan[0].isValid()) {
            meta.l3_bytes = meta.l3_bytes + VLAN_LEN;
        }
        if (hdr.vlan[1].isValid()) {
            meta.l3_bytes = meta.l3_bytes + VLAN_LEN;
        }
    }

    // The IP length is that of headers and UDP, and the packet has it. In 32 bits nothing here overflows.
    bool is_length_right = false;
    // Or it is cut behind its headers, with or without an adjusted IP length: trimmed.
    bool is_cut = false;

    action check_lengths() {
        bit<32> udp_start;
        bit<32> udp_end;
        bit<32> ip_end;
        if (hdr.ipv6.isValid()) {
            udp_start = IPV6_LEN;
            ip_end = IPV6_LEN + (bit<32>)hdr.ipv6.payload_len;
        } else {
            udp_start = IPV4_LEN;
            ip_end = (bit<32>)hdr.ipv4.total_len;
        }
        udp_end = udp_start + (bit<32>)hdr.udp.length;
        is_length_right = hdr.udp.length >= MIN_UDP_LEN && udp_end == ip_end
            && (bit<32>)meta.l3_bytes + ip_end <= standard_metadata.packet_length;
        is_cut = !is_length_right && hdr.udp.length >= MIN_UDP_LEN && udp_end >= ip_end
            && ip_end >= udp_start + UDP_AND_BTH_LEN;
    }

    // Not valid on the wire (RFC 4291, 2.5.5.2); in keys they identify IPv4 flows.
    bool is_mapped = false;

    action check_addresses() {
        is_mapped = hdr.ipv6.isValid()
            && (hdr.ipv6.src[127:32] == 96w0xffff || hdr.ipv6.dst[127:32] == 96w0xffff);
    }

    apply {
        clock.apply();
        if (hdr.ipv4.isValid() || hdr.ipv6.isValid()) {
            dscp = hdr.ipv6.isValid() ? hdr.ipv6.dscp : hdr.ipv4.dscp;
            dscp_class.apply();
            READ_ADDRESSES(meta, hdr)
            READ_VLANS(meta, hdr)
        }
        if (hdr.bth.isValid()) {
            read_lengths();
            check_lengths();
            check_addresses();
            if (is_cut && !is_mapped) {
                meta.stat = STAT_TRIMMED_PACKETS;
            } else if (!is_length_right || is_mapped) {
                meta.stat = STAT_MALFORMED;
            } else if (hdr.bth.tver != 0) {
                meta.stat = STAT_UNKNOWN_BTH;
            } else if (opcode_kind.apply().hit) {
                if (meta.is_datagram == 1 && hdr.udp.length < MIN_UD_UDP_LEN) {
                    meta.kind = KIND_OTHER;
                    meta.is_sequenced = 0;
                    meta.stat = STAT_MALFORMED;
                } else if (meta.kind == KIND_CNP) {
                    meta.stat = STAT_ROCE_CNP_PACKETS;
                } else if (meta.kind == KIND_DATA && hdr.bth.dest_qpn > QP_GSI) {
                    meta.stat = STAT_ROCE_DATA_PACKETS;
                } else {
                    meta.kind = KIND_CONTROL;
                    meta.stat = STAT_ROCE_CONTROL_PACKETS;
                    if (hdr.bth.dest_qpn <= QP_GSI) {
                        meta.is_sequenced = 0;
                    }
                }
            } else if (hdr.bth.opcode >= OPCODE_FIRST_OF_MANUFACTURERS) {
                meta.stat = STAT_VENDOR_BTH;
            }
        } else if (standard_metadata.parser_error != error.NoError) {
            meta.stat = STAT_MALFORMED;
        }
        // Once per packet: not again for recirculated packets, nor for the CNPs made here.
        if (standard_metadata.instance_type != INSTANCE_RECIRCULATED) {
            stats.count(meta.stat);
        } else if (meta.kind == KIND_CNP) {
            meta.is_own_cnp = 1;
        }
    }
}
