// What the exercises share: RoCEv2 over IPv4, on a switch with a host on port 1 and another on port 2.

#include <core.p4>
#include <v1model.p4>

const bit<8> OPCODE_CNP = 0x81;
const bit<2> ECN_NOT_ECT = 0;
const bit<2> ECN_CE = 3;
const bit<32> INSTANCE_RECIRCULATED = 4;
// Ports inside the switch, for clones and for packets that wait.
const bit<9> CNP_PORT = 509;
const bit<9> WAIT_PORT = 510;
const bit<32> CNP_SESSION = 1;
// A CNP with its headers.
const bit<32> CNP_BYTES = 74;

header ethernet_h { bit<48> dst; bit<48> src; bit<16> ethertype; }

header ipv4_h {
    bit<4> version; bit<4> ihl; bit<6> dscp; bit<2> ecn; bit<16> total_len;
    bit<16> id; bit<16> fragment;
    bit<8> ttl; bit<8> protocol; bit<16> checksum;
    bit<32> src; bit<32> dst;
}

header udp_h { bit<16> src_port; bit<16> dst_port; bit<16> length; bit<16> checksum; }

header bth_h {
    bit<8> opcode; bit<8> flags; bit<16> p_key;
    bit<1> fecn; bit<1> becn; bit<6> reserved; bit<24> dest_qpn;
    bit<8> ack_request; bit<24> psn;
}

header cnp_h { bit<128> reserved; bit<32> icrc; }

struct headers_t { ethernet_h ethernet; ipv4_h ipv4; udp_h udp; bth_h bth; cnp_h cnp; }

struct metadata_t {
    // Recirculated packets keep these: the port of the packet that a CNP answers; a departure, and the time of the last look at it.
    @field_list(1) bit<9>  back_port;
    @field_list(1) bit<48> departure_us;
    @field_list(1) bit<48> left_us;
}

// 1 if the packet is data. Others are CNPs, acknowledgements (0x11) and READ requests (0x0c).
#define IS_DATA(hdr) (hdr.bth.isValid() && hdr.bth.opcode != OPCODE_CNP && hdr.bth.opcode != 0x11 && hdr.bth.opcode != 0x0c)

// Changes the ECN bits, and the checksum with them (RFC 1624, equation 3).
#define SET_ECN(hdr, value)                                                                         \
    {                                                                                               \
        bit<16> old = hdr.ipv4.version ++ hdr.ipv4.ihl ++ hdr.ipv4.dscp ++ hdr.ipv4.ecn;            \
        hdr.ipv4.ecn = value;                                                                       \
        bit<16> new = hdr.ipv4.version ++ hdr.ipv4.ihl ++ hdr.ipv4.dscp ++ hdr.ipv4.ecn;            \
        bit<32> sum = (bit<32>)(~hdr.ipv4.checksum) + (bit<32>)(~old) + (bit<32>)new;               \
        sum = (sum & 0xffff) + (sum >> 16);                                                         \
        hdr.ipv4.checksum = ~((bit<16>)sum + (bit<16>)(sum >> 16));                                 \
    }

// Writes the checksum of the IPv4 header, and the ICRC of a CNP (IBTA Annex A17): ones for what routers may change.
#define SEAL(hdr)                                                                                   \
    {                                                                                               \
        bit<16> sum;                                                                                \
        hash(sum, HashAlgorithm.csum16, 16w0, {                                                     \
            hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len,        \
            hdr.ipv4.id, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol,                        \
            hdr.ipv4.src, hdr.ipv4.dst }, 32w0x10000);                                              \
        hdr.ipv4.checksum = sum;                                                                    \
        bit<32> crc;                                                                                \
        hash(crc, HashAlgorithm.crc32, 32w0, {                                                      \
            64w0xffffffffffffffff, hdr.ipv4.version, hdr.ipv4.ihl, 8w0xff, hdr.ipv4.total_len,      \
            hdr.ipv4.id, hdr.ipv4.fragment, 8w0xff, hdr.ipv4.protocol, 16w0xffff,                   \
            hdr.ipv4.src, hdr.ipv4.dst, hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.length,         \
            16w0xffff, hdr.bth.opcode, hdr.bth.flags, hdr.bth.p_key, 8w0xff, hdr.bth.dest_qpn,      \
            hdr.bth.ack_request, hdr.bth.psn, hdr.cnp.reserved }, 64w0x100000000);                  \
        hdr.cnp.icrc = crc[7:0] ++ crc[15:8] ++ crc[23:16] ++ crc[31:24];                           \
    }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) { 0x0800: ipv4; default: accept; }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.ihl, hdr.ipv4.protocol) { (5, 17): udp; default: accept; }
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) { 4791: bth; default: accept; }
    }
    state bth {
        packet.extract(hdr.bth);
        transition select(hdr.bth.opcode) { OPCODE_CNP: cnp; default: accept; }
    }
    state cnp {
        packet.extract(hdr.cnp);
        transition accept;
    }
}

control Emit(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
        packet.emit(hdr.cnp);
    }
}

control NoChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

// Out of the other port.
control Forward(inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action across() {
        standard_metadata.egress_spec = 3 - standard_metadata.ingress_port;
        meta.back_port = standard_metadata.ingress_port;
    }

    apply {
        across();
    }
}
