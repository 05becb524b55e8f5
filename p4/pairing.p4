// Pairs of QPs, learned from the messages that connect them, and from datagrams, which name both.
//
// Pairs that a controller enters are in tables and take precedence; these are in registers, because packets cannot write
// tables.

// Ends of connections being set up, and the QP that each has named. `cm_qpn` is its communication identifier.
register<bit<32>>(FLOWS) cm_addr_0;
register<bit<32>>(FLOWS) cm_addr_1;
register<bit<32>>(FLOWS) cm_addr_2;
register<bit<32>>(FLOWS) cm_addr_3;
register<bit<32>>(FLOWS) cm_qpn;
register<bit<32>>(FLOWS) cm_vlan;
register<bit<64>>(FLOWS) cm_last_seen_ns;
register<bit<32>>(FLOWS) cm_named_qpn;

// The QP at the other end of each QP, and a `PairSource`.
register<bit<32>>(FLOWS) pair_addr_0;
register<bit<32>>(FLOWS) pair_addr_1;
register<bit<32>>(FLOWS) pair_addr_2;
register<bit<32>>(FLOWS) pair_addr_3;
register<bit<32>>(FLOWS) pair_qpn;
register<bit<32>>(FLOWS) pair_vlan;
register<bit<64>>(FLOWS) pair_last_seen_ns;
register<bit<32>>(FLOWS) pair_other_qpn;
register<bit<8>>(FLOWS)  pair_source;
register<bit<32>>(FLOWS) pair_other_addr_0;
register<bit<32>>(FLOWS) pair_other_addr_1;
register<bit<32>>(FLOWS) pair_other_addr_2;
register<bit<32>>(FLOWS) pair_other_addr_3;

// The state of the limit on learned pairs.
register<bit<64>>(1) pairs_used_up_to_ns;

// Adds a pair, unless too many were added recently; a time of 0 is an empty slot.
#define ENTER_PAIR(addr, qpn, other_addr, other_qpn, source, place)                                             \
    {                                                                                                           \
        bool is_within;                                                                                         \
        WITHIN(pairs_used_up_to_ns, 0, PAIRS_GAP_NS, PAIRS_BURST_NS, is_within)                                 \
        if (is_within) {                                                                                        \
            WRITE_QP(pair, addr, qpn, meta.vlan, place)                                                         \
            pair_other_qpn.write(place, other_qpn);                                                             \
            WRITE_ADDRESS(pair_other_addr, place, other_addr)                                                   \
            pair_source.write(place, source);                                                                   \
            pair_last_seen_ns.write(place, meta.now_ns |+| 1);                                                  \
        } else {                                                                                                \
            stats.count(STAT_PAIRS_LIMITED);                                                                    \
        }                                                                                                       \
    }

// Enters the other end of a QP from messages, which take precedence over datagrams.
#define LEARN_PAIR(addr, qpn, other_addr, other_qpn, place, is_found)                                           \
    {                                                                                                           \
        bool is_same = false;                                                                                   \
        if (is_found) {                                                                                         \
            bit<32> known_qpn;                                                                                  \
            bit<8> source;                                                                                      \
            pair_other_qpn.read(known_qpn, place);                                                              \
            pair_source.read(source, place);                                                                    \
            if (source == PAIR_SOURCE_CM) {                                                                     \
                IS_ADDRESS(pair_other_addr, place, other_addr, is_same)                                         \
                is_same = is_same && known_qpn == other_qpn;                                                    \
            } else if (known_qpn != other_qpn) {                                                                \
                stats.count(STAT_PAIR_CONFLICTS);                                                               \
            }                                                                                                   \
        }                                                                                                       \
        if (!is_same) {                                                                                         \
            ENTER_PAIR(addr, qpn, other_addr, other_qpn, PAIR_SOURCE_CM, place)                                 \
        }                                                                                                       \
    }

control ConnectionManagement(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    // Only messages within one packet are read.
    bool is_message = false;

    action look() {
        bit<16> attribute = hdr.cm.attribute;
        bit<32> ip_len = hdr.ipv6.isValid() ? IPV6_LEN : IPV4_LEN;
        is_message = hdr.cm.base_version == CM_BASE_VERSION && hdr.cm.mgmt_class == CM_CLASS
            && hdr.cm.class_version == CM_CLASS_VERSION && hdr.cm.method == CM_METHOD_SEND
            && (attribute == CM_REQ || attribute == CM_REP || attribute == CM_RTU || attribute == CM_MRA
                || attribute == CM_DREQ || attribute == CM_DREP || attribute == CM_REJ)
            && standard_metadata.packet_length >= (bit<32>)meta.l3_bytes + ip_len + CM_IP_LEN;
    }

    // REQ and REP name their sender's QP. DREQ, DREP and REJ of the other end end the connection.
    action learn() {
        bit<16> attribute = hdr.cm.attribute;
        bool is_reply = attribute == CM_REP;
        bool is_end = attribute == CM_DREQ || attribute == CM_DREP || attribute == CM_REJ;
        if (attribute == CM_REQ || is_reply) {
            bit<32> comm_id = hdr.cm.local_comm_id;
            bit<32> own;
            bool is_known;
            FIND_QP(cm, meta.src_addr, comm_id, own, is_known)
            WRITE_QP(cm, meta.src_addr, comm_id, meta.vlan, own)
            cm_named_qpn.write(own, is_reply ? (bit<32>)hdr.cm.rep_qpn : (bit<32>)hdr.cm.req_qpn);
            cm_last_seen_ns.write(own, meta.now_ns |+| 1);
        }
        // The QP at the message's receiver. DREQ names it itself; the others name only the connection.
        bit<32> named_qpn = (bit<32>)hdr.cm.dreq_qpn;
        bool is_named = attribute == CM_DREQ;
        if (is_reply || (is_end && !is_named)) {
            bit<32> comm_id = hdr.cm.remote_comm_id;
            bit<32> other;
            FIND_QP(cm, meta.dst_addr, comm_id, other, is_named)
            cm_named_qpn.read(named_qpn, other);
        }
        if (is_named) {
            // Entering one end of a reply may evict the other, so that one is searched afterwards.
            bit<32> replied_qpn = (bit<32>)hdr.cm.rep_qpn;
            bit<128> addr = is_reply ? meta.src_addr : meta.dst_addr;
            bit<32> qpn = is_reply ? replied_qpn : named_qpn;
            bit<32> place;
            bool is_known;
            FIND_QP(pair, addr, qpn, place, is_known)
            bit<32> other_qpn = named_qpn;
            bit<128> other_addr = is_reply ? meta.dst_addr : meta.src_addr;
            if (is_reply) {
                stats.count(STAT_PAIRS_FROM_CM);
                LEARN_PAIR(addr, qpn, other_addr, other_qpn, place, is_known)
            } else {
                bit<8> source;
                bool is_from_other_end;
                pair_source.read(source, place);
                pair_other_qpn.read(other_qpn, place);
                IS_ADDRESS(pair_other_addr, place, other_addr, is_from_other_end)
                is_known = is_known && source == PAIR_SOURCE_CM && is_from_other_end;
            }
            bit<32> other_place;
            bool is_other_known;
            FIND_QP(pair, other_addr, other_qpn, other_place, is_other_known)
            if (is_reply) {
                LEARN_PAIR(other_addr, other_qpn, addr, qpn, other_place, is_other_known)
            } else if (is_known) {
                bit<32> back_qpn;
                bit<8> source;
                pair_other_qpn.read(back_qpn, other_place);
                pair_source.read(source, other_place);
                pair_last_seen_ns.write(place, 0);
                if (is_other_known && source == PAIR_SOURCE_CM && back_qpn == qpn) {
                    pair_last_seen_ns.write(other_place, 0);
                }
            }
        }
    }

    apply {
        if (hdr.cm.isValid() && meta.kind == KIND_CONTROL
            && standard_metadata.instance_type != INSTANCE_RECIRCULATED) {
            look();
            if (is_message) {
                stats.count(STAT_CM_MESSAGES);
                learn();
            }
        }
    }
}
