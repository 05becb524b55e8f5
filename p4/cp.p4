// Congestion point: random early marking by queue depth (DCQCN, SIGCOMM'15, 3.1), as `congestion_point` of dcqcn-common.

counter(4096, CounterType.packets_and_bytes) class_packets;
counter(4096, CounterType.packets) class_ect_packets;
counter(4096, CounterType.packets) class_ecn_marked_packets;
// A controller cannot read the depth of a queue; this is the depth at its last packet.
register<bit<32>>(4096) last_depth_packets;

control CongestionPoint(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    // The published rule uses the queue as the packet leaves it: the packets behind it.
    action at_dequeue() {
        meta.depth_packets = standard_metadata.deq_qdepth;
    }

    // The packets in front of it at its arrival.
    action at_enqueue() {
        meta.depth_packets = standard_metadata.enq_qdepth;
    }

    action fixed_depth(bit<19> packets) {
        meta.depth_packets = packets;
    }

    table queue_depth {
        actions = { at_dequeue; at_enqueue; fixed_depth; }
        default_action = at_dequeue();
    }

    bool is_chosen = false;
    bool is_above_kmax = false;
    bool drops_not_ect = false;

    // 0 up to Kmin, the slope up to Kmax, 1 above: `Wred::certain` and `Wred::draw`. (depth − Kmin) · slope ≤ 2^48.
    action set_wred(bit<1> ecn, bit<19> kmin_packets, bit<19> kmax_packets, bit<64> slope_q48, bit<1> drop_not_ect) {
        bit<32> draw;
        random<bit<32>>(draw, 0, 0xffffffff);
        bit<64> probability_q32 = ((bit<64>)(meta.depth_packets - kmin_packets) * slope_q48) >> 16;
        is_above_kmax = meta.depth_packets > kmax_packets;
        is_chosen = ecn == 1 && meta.depth_packets > kmin_packets
            && (is_above_kmax || (bit<64>)draw < probability_q32);
        drops_not_ect = drop_not_ect == 1;
    }

    table wred {
        key = {
            standard_metadata.egress_port: exact @name("port");
            meta.tc: exact @name("tc");
        }
        actions = { set_wred; NoAction; }
        default_action = NoAction();
        size = 512;
    }

    // The ICRC covers neither the ECN bits nor the checksum.
    action mark_ipv4() {
        bit<16> old = hdr.ipv4.version ++ hdr.ipv4.ihl ++ hdr.ipv4.dscp ++ hdr.ipv4.ecn;
        hdr.ipv4.ecn = ECN_CE;
        bit<32> sum;
        UPDATE_CHECKSUM(hdr.ipv4.checksum, old, hdr.ipv4.version ++ hdr.ipv4.ihl ++ hdr.ipv4.dscp ++ hdr.ipv4.ecn)
    }

    action mark_ipv6() {
        hdr.ipv6.ecn = ECN_CE;
    }

    apply {
        queue_depth.apply();
        if (wred.apply().hit) {
            bit<2> ecn = hdr.ipv6.isValid() ? hdr.ipv6.ecn : hdr.ipv4.ecn;
            bit<32> queue = (bit<32>)(standard_metadata.egress_port ++ meta.tc);
            class_packets.count(queue);
            if (meta.trimmed_bytes == 0) {
                last_depth_packets.write(queue, (bit<32>)meta.depth_packets);
            }
            if (ecn != ECN_NOT_ECT) {
                class_ect_packets.count(queue);
            }
            if (meta.trimmed_bytes != 0) {
                meta.is_marked = 1;
            } else if (meta.kind != KIND_CNP && is_chosen && ecn != ECN_CE) {
                if (ecn != ECN_NOT_ECT) {
                    if (hdr.ipv6.isValid()) {
                        mark_ipv6();
                    } else {
                        mark_ipv4();
                    }
                    meta.is_marked = 1;
                    stats.count(STAT_CP_ECN_MARKED_PACKETS);
                    class_ecn_marked_packets.count(queue);
                } else {
                    stats.count(STAT_CP_NOT_ECT_PACKETS);
                    if (drops_not_ect && is_above_kmax) {
                        stats.count(STAT_CP_NOT_ECT_DROPPED);
                        mark_to_drop(standard_metadata);
                    }
                }
            }
        }
    }
}
