// Trimming: a data packet that its queue cannot take is cut to its headers and goes ahead of data, as `trim` of dcqcn-common.
//
// BMv2 drops from a full queue before egress. The decision is therefore at ingress, by the number of packets that were behind
// the last one to leave the queue.

// Egress port · 8 + queue.
register<bit<32>>(4096) behind_packets;
// By egress port: state of its limit on trimmed packets.
register<bit<64>>(512) trims_used_up_to_ns;

control Trim(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    bit<32> depth_packets = 0;
    bit<32> limit_packets = 0;
    bit<6> trim_dscp = 0;
    bit<3> trim_queue = 0;
    bit<64> gap_ns = 0;
    bit<64> burst_ns = 0;
    bit<16> kept_bytes = 0;
    bool is_within = false;

    action at_last_departure() {
        behind_packets.read(depth_packets, (bit<32>)(standard_metadata.egress_spec ++ standard_metadata.priority));
    }

    action fixed_trim_depth(bit<19> packets) {
        depth_packets = (bit<32>)packets;
    }

    table trim_depth {
        actions = { at_last_departure; fixed_trim_depth; }
        default_action = at_last_departure();
    }

    action set_trim(bit<19> queue_limit_packets, bit<6> dscp_value, bit<3> queue, bit<64> trim_gap_ns, bit<64> trim_burst_ns) {
        limit_packets = (bit<32>)queue_limit_packets;
        trim_dscp = dscp_value;
        trim_queue = queue;
        gap_ns = trim_gap_ns;
        burst_ns = trim_burst_ns;
    }

    table trim {
        key = {
            standard_metadata.egress_spec: exact @name("port");
            meta.tc: exact @name("tc");
        }
        actions = { set_trim; NoAction; }
        default_action = NoAction();
        size = 512;
    }

    // UDP and BTH with their extension headers.
    action measure() {
        kept_bytes = (bit<16>)UDP_AND_BTH_LEN + (bit<16>)meta.ext_bytes;
    }

    action admit() {
        bit<32> port = (bit<32>)standard_metadata.egress_spec;
        WITHIN(trims_used_up_to_ns, port, gap_ns, burst_ns, is_within)
    }

    action cut_ipv4() {
        bit<32> sum;
        bit<16> len = (bit<16>)IPV4_LEN + kept_bytes;
        UPDATE_CHECKSUM(hdr.ipv4.checksum, hdr.ipv4.total_len, len)
        hdr.ipv4.total_len = len;
        bit<16> old = hdr.ipv4.version ++ hdr.ipv4.ihl ++ hdr.ipv4.dscp ++ hdr.ipv4.ecn;
        hdr.ipv4.dscp = trim_dscp;
        UPDATE_CHECKSUM(hdr.ipv4.checksum, old, hdr.ipv4.version ++ hdr.ipv4.ihl ++ hdr.ipv4.dscp ++ hdr.ipv4.ecn)
        meta.trimmed_bytes = (bit<32>)(meta.l3_bytes + len);
    }

    action cut_ipv6() {
        hdr.ipv6.payload_len = kept_bytes;
        hdr.ipv6.dscp = trim_dscp;
        meta.trimmed_bytes = (bit<32>)(meta.l3_bytes + kept_bytes) + IPV6_LEN;
    }

    action go_ahead() {
        standard_metadata.priority = trim_queue;
    }

    apply {
        if (meta.kind == KIND_DATA && standard_metadata.mcast_grp == 0 && trim.apply().hit) {
            trim_depth.apply();
            measure();
            if (depth_packets >= limit_packets && hdr.udp.length > MIN_UDP_LEN + (bit<16>)meta.ext_bytes) {
                admit();
                if (is_within) {
                    if (hdr.ipv6.isValid()) {
                        cut_ipv6();
                    } else {
                        cut_ipv4();
                    }
                    go_ahead();
                    stats.count(STAT_CP_TRIMMED_PACKETS);
                } else {
                    stats.count(STAT_CP_TRIM_LIMITED);
                }
            }
        }
    }
}
