// Wire formats. RoCEv2 is a base transport header (BTH) behind UDP port 4791 (IBTA Annex A17).

header ethernet_h {
    bit<48> dst;
    bit<48> src;
    bit<16> ethertype;
}

header vlan_h {
    bit<3>  pcp;
    bit<1>  dei;
    bit<12> vid;
    bit<16> ethertype;
}

// Without options: a packet with options is recognised by its first 20 bytes and left unchanged.
header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<6>  dscp;
    bit<2>  ecn;
    bit<16> total_len;
    bit<16> id;
    bit<1>  reserved;
    bit<1>  dont_fragment;
    bit<1>  more_fragments;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header ipv6_h {
    bit<4>   version;
    bit<6>   dscp;
    bit<2>   ecn;
    bit<20>  flow_label;
    bit<16>  payload_len;
    bit<8>   next_header;
    bit<8>   hop_limit;
    bit<128> src;
    bit<128> dst;
}

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

header bth_h {
    bit<8>  opcode;
    bit<1>  solicited;
    bit<1>  migrated;
    bit<2>  pad_count;
    bit<4>  tver;
    bit<16> p_key;
    bit<1>  fecn;
    bit<1>  becn;
    bit<6>  reserved;
    bit<24> dest_qpn;
    bit<1>  ack_request;
    bit<7>  reserved_psn;
    bit<24> psn;
}

// Datagrams: the sender's QPN.
header deth_h {
    bit<32> q_key;
    bit<8>  reserved;
    bit<24> src_qpn;
}

// The beginning of a management datagram (MAD), if it is one of connection management: which QP its sender names, in a request
// (REQ), a reply (REP) or a request to disconnect (DREQ). IBTA vol. 1, 12.6; common/src/wire/cm.rs.
header cm_h {
    bit<8>   base_version;
    bit<8>   mgmt_class;
    bit<8>   class_version;
    bit<8>   method;
    bit<32>  status;
    bit<64>  transaction_id;
    bit<16>  attribute;
    bit<16>  reserved;
    bit<32>  attribute_modifier;
    bit<32>  local_comm_id;
    bit<32>  remote_comm_id;
    bit<24>  dreq_qpn;
    bit<8>   after_dreq_qpn;
    bit<24>  rep_qpn;
    bit<8>   after_rep_qpn;
    bit<128> before_req_qpn;
    bit<24>  req_qpn;
    bit<8>   after_req_qpn;
}

// Acknowledgements and READ responses.
header aeth_h {
    bit<8>  syndrome;
    bit<24> msn;
}

// The rest of a CNP after the BTH: 16 reserved bytes, zero in the standard, and the ICRC. This project writes the receiver's
// QPN into them where the sender's is unknown (common/src/wire/cnp.rs).
header cnp_h {
    bit<32> hint_magic;
    bit<8>  hint_version;
    bit<24> hint_qpn;
    bit<64> reserved;
    bit<32> icrc;
}

struct headers_t {
    ethernet_h ethernet;
    vlan_h[2]  vlan;
    ipv4_h     ipv4;
    ipv6_h     ipv6;
    udp_h      udp;
    bth_h      bth;
    deth_h     deth;
    cm_h       cm;
    aeth_h     aeth;
    cnp_h      cnp;
}

// Kinds of packets, as the hooks of dcqcn-common distinguish them.
const bit<2> KIND_OTHER = 0;
const bit<2> KIND_DATA = 1;
const bit<2> KIND_CONTROL = 2;
const bit<2> KIND_CNP = 3;

// The reaction point's parameters of a port: fields of `RpParams`.
struct rate_params_t {
    bit<64> line_rate_bps;
    bit<64> ai_rate_bps;
    bit<64> hai_rate_bps;
    bit<64> time_reset_ns;
    bit<64> byte_reset_bytes;
    bit<64> cut_period_ns;
    bit<32> threshold;
    bit<1>  count_first;
    bit<32> max_hyper;
    bit<32> initial_alpha_q31;
    bit<16> wire_overhead_bytes;
    bit<1>  pace;
    bit<64> pacing_credit_ns;
    bit<64> pacing_horizon_ns;
    bit<1>  pacing_horizon_drop;
}

struct cut_params_t {
    bit<64> min_rate_bps;
    bit<64> first_cnp_rate_bps;
    bit<64> guard_ns;
    bit<64> alpha_period_ns;
    bit<32> gain_q31;
    bit<8>  cut_shift;
    bit<8>  min_dec_percent;
    bit<3>  clamp;
    bit<1>  cnp_consume;
    bit<32> max_alpha_q31;
    bit<1>  alpha_is_coarse;
    bit<32> decay_q31_0;
    bit<32> decay_q31_1;
    bit<32> decay_q31_2;
    bit<32> decay_q31_3;
    bit<32> decay_q31_4;
    bit<32> decay_q31_5;
    bit<32> decay_q31_6;
    bit<32> decay_q31_7;
    bit<32> decay_q31_8;
    bit<32> decay_q31_9;
    bit<32> decay_q31_10;
    bit<32> decay_q31_11;
    bit<32> decay_q31_12;
    bit<32> decay_q31_13;
    bit<32> decay_q31_14;
    bit<32> decay_q31_15;
}

// Lists of metadata that recirculated and cloned packets retain.
const bit<8> KEEP_RECIRCULATED = 1;
const bit<8> KEEP_CLONED = 2;

struct metadata_t {
    // Class: counter, kind, offset of the IP header, traffic class.
    bit<32>  stat;
    bit<2>   kind;
    bit<1>   is_datagram;
    // Whether it is in the sequence of packets of its QP, and in which of its two streams.
    bit<1>   is_sequenced;
    bit<1>   stream;
    bit<16>  l3_bytes;
    bit<3>   tc;
    // Addresses, IPv4 ones mapped into IPv6 (RFC 4291, 2.5.5.2).
    bit<128> src_addr;
    bit<128> dst_addr;
    // VLAN IDs, as in `QpId`.
    bit<32>  vlan;

    // Time, and whether it is fixed.
    bit<64>  now_ns;
    bit<1>   is_fixed_time;
    bit<48>  fixed_us;
    // When the packet last left the egress pipeline to be recirculated.
    @field_list(KEEP_RECIRCULATED)
    bit<48>  left_us;

    // Forwarding: whether an entry has its destination on the egress port; addresses to write, and whether to.
    bit<1>   is_to_station;
    bit<1>   is_routed;
    bit<48>  next_src;
    bit<48>  next_dst;

    // Reaction point: the port of the host concerned, its flow, its stream's index, and the state of a waiting packet.
    bit<9>   host_port;
    bit<24>  flow_qpn;
    bit<1>   is_missing;
    bit<1>   is_evicting;
    @field_list(KEEP_RECIRCULATED)
    bit<1>   waits;
    @field_list(KEEP_RECIRCULATED)
    bit<32>  place;
    @field_list(KEEP_RECIRCULATED)
    bit<32>  ticket;
    @field_list(KEEP_RECIRCULATED)
    bit<64>  departure_ns;
    rate_params_t rate;
    cut_params_t  cut;

    // Congestion point: the depth at the packet, and whether it was marked.
    bit<19>  depth_packets;
    bit<1>   is_marked;

    // Trimming: length of the extension headers, and that of the trimmed packet; 0 = not trimmed.
    bit<8>   ext_bytes;
    bit<32>  trimmed_bytes;

    // Notification point: whether this CNP was made here; DSCP and priority of the clone's CNP.
    bit<1>   is_own_cnp;
    @field_list(KEEP_CLONED)
    bit<6>   cnp_dscp;
    @field_list(KEEP_CLONED)
    bit<3>   cnp_802p_prio;
}
