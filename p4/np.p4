// Notification point: a CE-marked data packet on its way to a host is answered with a CNP, at most one per interval. Marks
// within an interval are answered after it, with the flow's next packet. A fast CNP answers a packet that this switch has
// marked, whatever its destination.
//
// The CNP is a clone of the packet, rewritten in the egress pipeline and recirculated, so it is forwarded, classified and
// queued like any other packet.

// The group bit of a MAC address.
#define GROUP_BIT 40

// Ports inside the switch, and the mirror session that leads to the first.
const bit<9> CNP_PORT = 509;
const bit<9> WAIT_PORT = 510;
const bit<32> CNP_SESSION = 1;

// The input of the ICRC (IBTA Annex A17): ones for the fields that a router may change. The hash is the CRC-32 of Ethernet, but
// the ICRC is stored with its least significant byte first.
#define ICRC_TRANSPORT(hdr)                                                                                     \
    hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.length, 16w0xffff,                                              \
    hdr.bth.opcode, hdr.bth.solicited, hdr.bth.migrated, hdr.bth.pad_count, hdr.bth.tver, hdr.bth.p_key,        \
    8w0xff, hdr.bth.dest_qpn, hdr.bth.ack_request, hdr.bth.reserved_psn, hdr.bth.psn,                           \
    hdr.cnp.hint_magic, hdr.cnp.hint_version, hdr.cnp.hint_qpn, hdr.cnp.reserved

#define CNP_ICRC(crc, hdr)                                                                                      \
    if (hdr.ipv6.isValid()) {                                                                                   \
        hash(crc, HashAlgorithm.crc32, 32w0, {                                                                  \
            64w0xffffffffffffffff,                                                                              \
            hdr.ipv6.version, 28w0xfffffff, hdr.ipv6.payload_len, hdr.ipv6.next_header, 8w0xff,                 \
            hdr.ipv6.src, hdr.ipv6.dst,                                                                         \
            ICRC_TRANSPORT(hdr)                                                                                 \
        }, 64w0x100000000);                                                                                     \
    } else {                                                                                                    \
        hash(crc, HashAlgorithm.crc32, 32w0, {                                                                  \
            64w0xffffffffffffffff,                                                                              \
            hdr.ipv4.version, hdr.ipv4.ihl, 8w0xff, hdr.ipv4.total_len,                                         \
            hdr.ipv4.id, hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments,                    \
            hdr.ipv4.fragment_offset, 8w0xff, hdr.ipv4.protocol, 16w0xffff, hdr.ipv4.src, hdr.ipv4.dst,         \
            ICRC_TRANSPORT(hdr)                                                                                 \
        }, 64w0x100000000);                                                                                     \
    }                                                                                                           \
    crc = crc[7:0] ++ crc[15:8] ++ crc[23:16] ++ crc[31:24];

#define IPV4_CHECKSUM(sum, hdr)                                                                                 \
    hash(sum, HashAlgorithm.csum16, 16w0, {                                                                     \
        hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len,                        \
        hdr.ipv4.id, hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments,                        \
        hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst                   \
    }, 32w0x10000);

register<bit<32>>(FLOWS) np_src_0;
register<bit<32>>(FLOWS) np_src_1;
register<bit<32>>(FLOWS) np_src_2;
register<bit<32>>(FLOWS) np_src_3;
register<bit<32>>(FLOWS) np_addr_0;
register<bit<32>>(FLOWS) np_addr_1;
register<bit<32>>(FLOWS) np_addr_2;
register<bit<32>>(FLOWS) np_addr_3;
register<bit<32>>(FLOWS) np_qpn;
register<bit<32>>(FLOWS) np_vlan;
register<bit<1>>(FLOWS)  np_pending;
register<bit<64>>(FLOWS) np_last_seen_ns;
register<bit<64>>(FLOWS) np_last_cnp_ns;
register<bit<64>>(FLOWS) np_ecn_marked_packets;
register<bit<64>>(FLOWS) np_cnp_sent;

// When a mark of any flow last became pending, and how long unmarked packets then look for one of their own flow.
register<bit<64>>(1) np_pending_ns;
const bit<64> PENDING_NS = 5000000000;
// A flow's own mark expires after 2^this CNP intervals: `PENDING_INTERVALS` of dcqcn-common.
const bit<8> PENDING_INTERVALS_SHIFT = 2;
// The state of each port's limit on CNPs.
register<bit<64>>(512) cnps_used_up_to_ns;

// Whether a host can have this address towards others: `is_of_one_host` of dcqcn-common.
#define IS_OF_ONE_HOST(addr, is_it)                                                                             \
    if (addr[127:32] == 96w0xffff) {                                                                            \
        is_it = addr[31:24] != 0 && addr[31:24] != 127 && addr[31:24] < 224;                                    \
    } else {                                                                                                    \
        is_it = addr[127:120] != 0xff && addr > 1;                                                              \
    }

// Whether a packet is answered: for its own mark, or for marks before it.
control CnpLimiter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata,
                   out bool is_answered) {
    bit<64> min_time_between_cnps_ns = 0;
    bit<2> limit = 0;
    bit<1> is_np = 0;
    bit<1> is_fast = 0;
    bit<1> window = NP_WINDOW_START;
    bit<1> other_host = 0;
    bit<64> gap_ns = 0;
    bit<64> burst_ns = 0;
    bool is_marked = false;
    bool may_be_pending = false;
    bool is_between_hosts = false;
    bool is_answerable = false;
    bool is_limited = false;
    bool is_evicting = false;

    action set_np(bit<64> min_time_between_cnps_ns_, bit<2> cnp_limit, bit<6> cnp_dscp, bit<3> cnp_802p_prio,
                  bit<1> np_enable, bit<1> fast_cnp, bit<1> np_window, bit<1> np_other_host, bit<64> cnp_gap_ns,
                  bit<64> cnp_burst_ns) {
        min_time_between_cnps_ns = min_time_between_cnps_ns_;
        limit = cnp_limit;
        is_np = np_enable;
        is_fast = fast_cnp & meta.is_marked;
        window = np_window;
        other_host = np_other_host;
        gap_ns = cnp_gap_ns;
        burst_ns = cnp_burst_ns;
        meta.cnp_dscp = cnp_dscp;
        meta.cnp_802p_prio = cnp_802p_prio;
    }

    table np {
        key = { standard_metadata.egress_port: exact @name("port"); }
        actions = { set_np; NoAction; }
        default_action = NoAction();
        size = 512;
    }

    action look() {
        bit<2> ecn = hdr.ipv6.isValid() ? hdr.ipv6.ecn : hdr.ipv4.ecn;
        bit<64> pending_ns;
        np_pending_ns.read(pending_ns, 0);
        // A trimmed packet counts as marked.
        is_marked = ecn == ECN_CE || meta.is_marked == 1;
        // The CNP has the packet's addresses, the other way round: it comes from one host and reaches one. An unknown host
        // answers on its own.
        bool is_from_host;
        IS_OF_ONE_HOST(meta.src_addr, is_from_host)
        IS_OF_ONE_HOST(meta.dst_addr, is_between_hosts)
        is_between_hosts = is_between_hosts && is_from_host && hdr.ethernet.dst[GROUP_BIT:GROUP_BIT] == 0
            && hdr.ethernet.src[GROUP_BIT:GROUP_BIT] == 0;
        is_answerable = is_between_hosts && (other_host == 1 || meta.is_to_station == 1);
        may_be_pending = pending_ns != 0 && window != NP_WINDOW_START && (meta.now_ns |-| pending_ns) < PENDING_NS;
    }

    // Egress pipelines of different ports run at the same time: all that reads and writes a flow is one action.
    action answer() {
        bit<128> src = meta.src_addr;
        bit<128> addr = meta.dst_addr;
        bit<32> qpn = (bit<32>)hdr.bth.dest_qpn;
        bit<32> vlan = meta.vlan;
        if (limit == CNP_LIMIT_QP) {
            // A datagram QP receives from many senders, so the sender's QP is used.
            if (meta.is_datagram == 1) {
                src = meta.dst_addr;
                addr = meta.src_addr;
                qpn = (bit<32>)hdr.deth.src_qpn;
            }
        } else if (limit == CNP_LIMIT_PEER) {
            addr = 0;
            qpn = 0;
        } else {
            src = 0;
            addr = 0;
            qpn = (bit<32>)standard_metadata.egress_port;
            vlan = 0;
        }
        bit<32> place;
        bool is_found;
        FIND_FLOW(np, src, addr, qpn, vlan, vlan, place, is_found)

        bit<64> last_cnp_ns;
        bit<64> marked;
        bit<64> sent;
        bit<1> pending;
        np_last_cnp_ns.read(last_cnp_ns, place);
        np_ecn_marked_packets.read(marked, place);
        np_cnp_sent.read(sent, place);
        np_pending.read(pending, place);
        // Every flow of the set was answered within this interval: a CNP without an entry would not be the only one.
        bool is_live = oldest_ns != 0 && sent != 0 && (meta.now_ns |-| last_cnp_ns) < min_time_between_cnps_ns;
        bool has_entry = is_found || (is_marked && !is_live);
        if (has_entry && !is_found) {
            is_evicting = oldest_ns != 0;
            WRITE_FLOW(np, src, addr, qpn, vlan, place)
            last_cnp_ns = 0;
            marked = 0;
            sent = 0;
            pending = 0;
        }
        bool is_over = (meta.now_ns |-| last_cnp_ns) >= min_time_between_cnps_ns;
        if (is_marked && has_entry) {
            is_answered = sent == 0 || is_over;
            marked = marked + 1;
            pending = 1;
            np_last_seen_ns.write(place, meta.now_ns);
        } else {
            // The congestion that an old mark reported may have passed.
            bit<64> marked_ns;
            np_last_seen_ns.read(marked_ns, place);
            if ((meta.now_ns |-| marked_ns) >= (min_time_between_cnps_ns << PENDING_INTERVALS_SHIFT)) {
                pending = 0;
            }
            is_answered = is_found && pending == 1 && is_over;
        }
        if (is_answered) {
            // A CNP over the limit does not use up an interval.
            bit<32> port = (bit<32>)standard_metadata.egress_port;
            bool is_within;
            WITHIN(cnps_used_up_to_ns, port, gap_ns, burst_ns, is_within)
            is_limited = !is_within;
        }
        if (is_answered && !is_limited) {
            last_cnp_ns = meta.now_ns;
            sent = sent + 1;
            pending = 0;
        }
        if (has_entry) {
            np_last_cnp_ns.write(place, last_cnp_ns);
            np_ecn_marked_packets.write(place, marked);
            np_cnp_sent.write(place, sent);
            np_pending.write(place, pending);
        }
        if (is_limited || (is_marked && !is_answered)) {
            np_pending_ns.write(0, meta.now_ns);
        }
    }

    apply {
        is_answered = false;
        np.apply();
        look();
        if (is_np == 1 && is_marked) {
            stats.count(STAT_NP_ECN_MARKED_ROCE_PACKETS);
        }
        if ((is_fast == 1 && is_between_hosts) || (is_np == 1 && is_answerable && (is_marked || may_be_pending))) {
            answer();
            if (is_evicting) {
                stats.count(STAT_NP_FLOW_EVICTED);
            }
            if (is_limited) {
                is_answered = false;
                stats.count(STAT_NP_CNP_LIMITED);
            } else if (is_answered && !is_marked) {
                stats.count(STAT_NP_CNP_WINDOW_END);
            } else if (!is_answered && is_marked) {
                stats.count(STAT_NP_CNP_SUPPRESSED);
            }
        } else if (is_np == 1 && is_marked) {
            stats.count(STAT_NP_NOT_FOR_HOST);
        }
    }
}

// Turns the clone into the CNP.
control BecomeCnp(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    bool is_known = false;
    bool is_of_other_host = false;
    bit<24> sender_qpn = 0;

    action sender(bit<24> qpn) {
        is_known = true;
        sender_qpn = qpn;
    }

    // Not `sender`: the compiler would make a second action of that name, without the table's parameter, and simple_switch_CLI
    // finds actions by their names.
    action datagram_sender() {
        is_known = true;
        sender_qpn = hdr.deth.src_qpn;
    }

    table np_pair {
        key = {
            meta.dst_addr: exact @name("addr");
            hdr.bth.dest_qpn: exact @name("qpn");
        }
        actions = { sender; NoAction; }
        default_action = NoAction();
        size = 4096;
    }

    action known_sender() {
        bit<32> qpn = (bit<32>)hdr.bth.dest_qpn;
        bit<32> place;
        FIND_QP(pair, meta.dst_addr, qpn, place, is_known)
        bit<32> other_qpn;
        pair_other_qpn.read(other_qpn, place);
        sender_qpn = other_qpn[23:0];
        // A reused QPN may have a pair with another host, to which the sender's number means nothing.
        bool is_of_sender;
        IS_ADDRESS(pair_other_addr, place, meta.src_addr, is_of_sender)
        is_of_other_host = is_known && !is_of_sender;
        is_known = is_known && is_of_sender;
    }

    action turn_round() {
        bit<48> mac = hdr.ethernet.dst;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        hdr.vlan[0].pcp = meta.cnp_802p_prio;
    }

    action write_ipv4() {
        hdr.ipv4.dscp = meta.cnp_dscp;
        hdr.ipv4.ecn = ECN_NOT_ECT;
        hdr.ipv4.total_len = (bit<16>)IPV4_LEN + CNP_UDP_LEN;
        hdr.ipv4.id = 0;
        hdr.ipv4.reserved = 0;
        hdr.ipv4.dont_fragment = 1;
        hdr.ipv4.ttl = CNP_TTL;
        hdr.ipv4.src = meta.dst_addr[31:0];
        hdr.ipv4.dst = meta.src_addr[31:0];
        bit<16> sum;
        IPV4_CHECKSUM(sum, hdr)
        hdr.ipv4.checksum = sum;
    }

    action write_ipv6() {
        hdr.ipv6.dscp = meta.cnp_dscp;
        hdr.ipv6.ecn = ECN_NOT_ECT;
        hdr.ipv6.flow_label = 0;
        hdr.ipv6.payload_len = CNP_UDP_LEN;
        hdr.ipv6.hop_limit = CNP_TTL;
        hdr.ipv6.src = meta.dst_addr;
        hdr.ipv6.dst = meta.src_addr;
    }

    action write_transport() {
        bit<24> receiver_qpn = hdr.bth.dest_qpn;
        hdr.udp.length = CNP_UDP_LEN;
        hdr.udp.checksum = 0;
        hdr.bth = { OPCODE_CNP, 0, 0, 0, 0, DEFAULT_P_KEY, 0, 1, 0, is_known ? sender_qpn : 0, 0, 0, 0 };
        hdr.deth.setInvalid();
        hdr.aeth.setInvalid();
        hdr.cnp.setValid();
        hdr.cnp = { 0, 0, 0, 0, 0 };
        if (!is_known) {
            hdr.cnp.hint_magic = CNP_HINT_MAGIC;
            hdr.cnp.hint_version = CNP_HINT_VERSION;
            hdr.cnp.hint_qpn = receiver_qpn;
        }
    }

    action seal() {
        bit<32> crc;
        CNP_ICRC(crc, hdr)
        hdr.cnp.icrc = crc;
    }

    apply {
        READ_ADDRESSES(meta, hdr)
        READ_VLANS(meta, hdr)
        if (hdr.deth.isValid()) {
            datagram_sender();
        } else if (!np_pair.apply().hit) {
            known_sender();
        }
        if (is_of_other_host) {
            stats.count(STAT_PAIR_CONFLICTS);
        }
        if (!is_known) {
            stats.count(STAT_NP_CNP_HINTED);
        }
        turn_round();
        if (hdr.ipv6.isValid()) {
            write_ipv6();
        } else {
            write_ipv4();
        }
        write_transport();
        seal();
        stats.count(STAT_NP_CNP_SENT);
    }
}

// Removes the payload of the original packet as the CNP leaves. (BMv2 drops a truncation when the packet is recirculated.)
control CutShort(inout headers_t hdr, inout metadata_t meta) {
    action cut_short() {
        bit<32> ip_len = hdr.ipv6.isValid() ? IPV6_LEN : IPV4_LEN;
        truncate((bit<32>)meta.l3_bytes + ip_len + (bit<32>)CNP_UDP_LEN);
    }

    apply {
        cut_short();
    }
}
