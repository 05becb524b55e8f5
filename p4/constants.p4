// Written by `cargo xtask p4` from dcqcn-common: change it there.

// Indices of `stats`, the order of `Stat`.
const bit<32> STATS = 69;
const bit<32> STAT_NOT_ROCE = 0;
const bit<32> STAT_ROCE_V1 = 1;
const bit<32> STAT_IPV4_OPTIONS = 2;
const bit<32> STAT_IPV4_FRAGMENTS = 3;
const bit<32> STAT_IPV6_EXTENSION_HEADERS = 4;
const bit<32> STAT_VLAN_TOO_DEEP = 5;
const bit<32> STAT_MALFORMED = 6;
const bit<32> STAT_UNKNOWN_BTH = 7;
const bit<32> STAT_ROCE_DATA_PACKETS = 8;
const bit<32> STAT_ROCE_CONTROL_PACKETS = 9;
const bit<32> STAT_ROCE_CNP_PACKETS = 10;
const bit<32> STAT_CM_MESSAGES = 11;
const bit<32> STAT_PAIRS_FROM_CM = 12;
const bit<32> STAT_PAIR_CONFLICTS = 13;
const bit<32> STAT_NP_ECN_MARKED_ROCE_PACKETS = 14;
const bit<32> STAT_NP_CNP_SENT = 15;
const bit<32> STAT_NP_CNP_HINTED = 16;
const bit<32> STAT_NP_CNP_SUPPRESSED = 17;
const bit<32> STAT_NP_CNP_FAILED = 18;
const bit<32> STAT_CP_ECN_MARKED_PACKETS = 19;
const bit<32> STAT_CP_BACKLOG_STALE = 20;
const bit<32> STAT_CP_NOT_ECT_PACKETS = 21;
const bit<32> STAT_CP_NOT_ECT_DROPPED = 22;
const bit<32> STAT_RP_CNP_HANDLED = 23;
const bit<32> STAT_RP_CNP_IGNORED = 24;
const bit<32> STAT_RP_CNP_INVALID = 25;
const bit<32> STAT_RP_CNP_UNKNOWN_FLOW = 26;
const bit<32> STAT_RP_CNP_TOO_SOON = 27;
const bit<32> STAT_RP_PACED_PACKETS = 28;
const bit<32> STAT_RP_UNPACED_PACKETS = 29;
const bit<32> STAT_RP_HORIZON_DROP = 30;
const bit<32> STAT_RP_HORIZON_PASS = 31;
const bit<32> STAT_RP_FLOW_NEW = 32;
const bit<32> STAT_RP_FLOW_EVICTED = 33;
const bit<32> STAT_INLINE_FORWARDED_PACKETS = 34;
const bit<32> STAT_EVENTS_LOST = 35;
const bit<32> STAT_WRITE_FAILED = 36;
const bit<32> STAT_NP_FLOW_EVICTED = 37;
const bit<32> STAT_CUTS_LOST = 38;
const bit<32> STAT_TABLE_BUSY = 39;
const bit<32> STAT_RP_FLOW_EXPIRED = 40;
const bit<32> STAT_NP_FLOW_EXPIRED = 41;
const bit<32> STAT_RP_IN_ORDER_PACKETS = 42;
const bit<32> STAT_NP_CNP_WINDOW_END = 43;
const bit<32> STAT_RP_TABLE_FULL = 44;
const bit<32> STAT_RP_FROM_PROCESS_PACKETS = 45;
const bit<32> STAT_NP_NOT_FOR_HOST = 46;
const bit<32> STAT_NP_CNP_LIMITED = 47;
const bit<32> STAT_PAIRS_LIMITED = 48;
const bit<32> STAT_VENDOR_BTH = 49;
const bit<32> STAT_TRIMMED_PACKETS = 50;
const bit<32> STAT_UET_PACKETS = 51;
const bit<32> STAT_MAC_CONTROL_FRAMES = 52;
const bit<32> STAT_PFC_MALFORMED_FRAMES = 53;
const bit<32> STAT_PFC_LIMITED_FRAMES = 54;
const bit<32> STAT_RP_PFC_HELD_PACKETS = 55;
const bit<32> STAT_PFC_WD_DROPPED_PACKETS = 56;
const bit<32> STAT_RP_CNP_OTHER_VLAN = 57;
const bit<32> STAT_GSO_SUPER_PACKETS = 58;
const bit<32> STAT_TOS_SET_PACKETS = 59;
const bit<32> STAT_TAIL_LOSS_PROBES = 60;
const bit<32> STAT_TAIL_LOSS_PROBES_FAILED = 61;
const bit<32> STAT_ACK_ICRC_ERRORS = 62;
const bit<32> STAT_REQUESTERS_FULL = 63;
const bit<32> STAT_CP_TRIMMED_PACKETS = 64;
const bit<32> STAT_CP_TRIM_LIMITED = 65;
const bit<32> STAT_NP_TRIM_NAKS = 66;
const bit<32> STAT_NP_CLONES_UNSEEN = 67;
const bit<32> STAT_ACK_STALE_DROPS = 68;

// Headers.
const bit<16> ETHERTYPE_IPV4 = 0x800;
const bit<16> ETHERTYPE_IPV6 = 0x86dd;
const bit<16> ETHERTYPE_VLAN = 0x8100;
const bit<16> ETHERTYPE_QINQ = 0x88a8;
const bit<16> ETHERTYPE_ROCE_V1 = 0x8915;
const bit<8> IP_PROTOCOL_UDP = 17;
const bit<16> ROCE_V2_PORT = 4791;
const bit<16> UET_PORT = 4793;
const bit<16> ETHERNET_LEN = 14;
const bit<16> VLAN_LEN = 4;
const bit<32> IPV4_LEN = 20;
const bit<32> IPV6_LEN = 40;
const bit<32> UDP_AND_BTH_LEN = 20;
const bit<16> MIN_UDP_LEN = 24;
const bit<16> MIN_UD_UDP_LEN = 32;
const bit<2> ECN_NOT_ECT = 0;
const bit<2> ECN_CE = 3;
const bit<24> QP_GSI = 1;
const bit<16> DEFAULT_P_KEY = 0xffff;
const bit<8> OPCODE_CNP = 0x81;
const bit<8> OPCODE_FIRST_OF_MANUFACTURERS = 0xc0;
const bit<8> OPCODE_UD_SEND_ONLY = 0x64;

// CNPs, and what one interval is kept for.
const bit<16> CNP_UDP_LEN = 40;
const bit<8> CNP_TTL = 64;
const bit<32> CNP_HINT_MAGIC = 0x44435143;
const bit<8> CNP_HINT_VERSION = 1;
const bit<2> CNP_LIMIT_QP = 0;
const bit<2> CNP_LIMIT_PEER = 1;
const bit<2> CNP_LIMIT_PORT = 2;
const bit<1> NP_WINDOW_START = 0;

// Connection management, and how a pair came to be known.
const bit<8> CM_BASE_VERSION = 1;
const bit<8> CM_CLASS = 7;
const bit<8> CM_CLASS_VERSION = 2;
const bit<8> CM_METHOD_SEND = 3;
const bit<16> CM_REQ = 0x10;
const bit<16> CM_MRA = 0x11;
const bit<16> CM_REJ = 0x12;
const bit<16> CM_REP = 0x13;
const bit<16> CM_RTU = 0x14;
const bit<16> CM_DREQ = 0x15;
const bit<16> CM_DREP = 0x16;
const bit<32> CM_IP_LEN = 284;
const bit<8> PAIR_SOURCE_CM = 3;
const bit<8> PAIR_SOURCE_DATAGRAM = 4;
const bit<64> PAIRS_GAP_NS = 1000000;
const bit<64> PAIRS_BURST_NS = 8191000000;

// The rate machine.
const bit<3> CLAMP_ALWAYS = 1;
const bit<3> CLAMP_AFTER_BYTES = 2;
const bit<3> CLAMP_AFTER_TIME = 4;
const bit<2> PENDING_RAISE = 1;
const bit<2> PENDING_CUT = 2;
const bit<8> COARSE_SHIFT = 21;
const bit<32> COARSE_MAX = 1023;
const bit<32> MAX_COARSE_STEPS = 1023;
const bit<32> COARSE_CELLS = 2560;

// Cases of a parser's `select`: headers behind the BTH (reliable datagrams have one more before them).
#define OPCODES_WITH_DETH(state) \
    (0x64, _): state; \
    (0x65, _): state;
#define OPCODES_WITH_AETH(state) \
    (0x0d, _): state; \
    (0x0f, _): state; \
    (0x10, _): state; \
    (0x11, _): state; \
    (0x12, _): state; \
    (0xad, _): state; \
    (0xaf, _): state; \
    (0xb0, _): state; \
    (0xb1, _): state; \
    (0xb2, _): state;

// IPv6 extension headers.
#define IPV6_EXTENSION_HEADERS(state) \
    (0, _): state; \
    (43, _): state; \
    (44, _): state; \
    (50, _): state; \
    (51, _): state; \
    (60, _): state; \
    (135, _): state; \
    (139, _): state; \
    (140, _): state; \
    (253, _): state; \
    (254, _): state;

// Entries of `opcode_kind`: what the hooks do with a packet, whether it is a datagram, whether it has a place among the
// packets of its queue pair, in which stream, and the length of its extension headers.
#define OPCODE_KINDS \
    0x00: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x01: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x02: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x03: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0x04: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x05: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0x06: set_kind(KIND_DATA, 0, 1, 0, 16); \
    0x07: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x08: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x09: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0x0a: set_kind(KIND_DATA, 0, 1, 0, 16); \
    0x0b: set_kind(KIND_DATA, 0, 1, 0, 20); \
    0x0c: set_kind(KIND_CONTROL, 0, 1, 0, 16); \
    0x0d: set_kind(KIND_DATA, 0, 1, 1, 4); \
    0x0e: set_kind(KIND_DATA, 0, 1, 1, 0); \
    0x0f: set_kind(KIND_DATA, 0, 1, 1, 4); \
    0x10: set_kind(KIND_DATA, 0, 1, 1, 4); \
    0x11: set_kind(KIND_CONTROL, 0, 1, 1, 4); \
    0x12: set_kind(KIND_CONTROL, 0, 1, 1, 12); \
    0x13: set_kind(KIND_CONTROL, 0, 1, 0, 28); \
    0x14: set_kind(KIND_CONTROL, 0, 1, 0, 28); \
    0x16: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0x17: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0x1c: set_kind(KIND_CONTROL, 0, 1, 0, 20); \
    0x1d: set_kind(KIND_CONTROL, 0, 1, 0, 16); \
    0x20: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x21: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x22: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x23: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0x24: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x25: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0x26: set_kind(KIND_DATA, 0, 1, 0, 16); \
    0x27: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x28: set_kind(KIND_DATA, 0, 1, 0, 0); \
    0x29: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0x2a: set_kind(KIND_DATA, 0, 1, 0, 16); \
    0x2b: set_kind(KIND_DATA, 0, 1, 0, 20); \
    0x40: set_kind(KIND_DATA, 0, 1, 0, 12); \
    0x41: set_kind(KIND_DATA, 0, 1, 0, 12); \
    0x42: set_kind(KIND_DATA, 0, 1, 0, 12); \
    0x43: set_kind(KIND_DATA, 0, 1, 0, 16); \
    0x44: set_kind(KIND_DATA, 0, 1, 0, 12); \
    0x45: set_kind(KIND_DATA, 0, 1, 0, 16); \
    0x46: set_kind(KIND_DATA, 0, 1, 0, 28); \
    0x47: set_kind(KIND_DATA, 0, 1, 0, 12); \
    0x48: set_kind(KIND_DATA, 0, 1, 0, 12); \
    0x49: set_kind(KIND_DATA, 0, 1, 0, 16); \
    0x4a: set_kind(KIND_DATA, 0, 1, 0, 28); \
    0x4b: set_kind(KIND_DATA, 0, 1, 0, 32); \
    0x4c: set_kind(KIND_CONTROL, 0, 1, 0, 28); \
    0x4d: set_kind(KIND_DATA, 0, 1, 1, 8); \
    0x4e: set_kind(KIND_DATA, 0, 1, 1, 4); \
    0x4f: set_kind(KIND_DATA, 0, 1, 1, 8); \
    0x50: set_kind(KIND_DATA, 0, 1, 1, 8); \
    0x51: set_kind(KIND_CONTROL, 0, 1, 1, 8); \
    0x52: set_kind(KIND_CONTROL, 0, 1, 1, 16); \
    0x53: set_kind(KIND_CONTROL, 0, 1, 0, 40); \
    0x54: set_kind(KIND_CONTROL, 0, 1, 0, 40); \
    0x55: set_kind(KIND_CONTROL, 0, 1, 0, 12); \
    0x5c: set_kind(KIND_CONTROL, 0, 1, 0, 32); \
    0x64: set_kind(KIND_DATA, 1, 1, 0, 8); \
    0x65: set_kind(KIND_DATA, 1, 1, 0, 12); \
    0x80: set_kind(KIND_CONTROL, 0, 0, 0, 0); \
    0x81: set_kind(KIND_CNP, 0, 0, 0, 0); \
    0xa0: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0xa1: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0xa2: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0xa3: set_kind(KIND_DATA, 0, 1, 0, 8); \
    0xa4: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0xa5: set_kind(KIND_DATA, 0, 1, 0, 8); \
    0xa6: set_kind(KIND_DATA, 0, 1, 0, 20); \
    0xa7: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0xa8: set_kind(KIND_DATA, 0, 1, 0, 4); \
    0xa9: set_kind(KIND_DATA, 0, 1, 0, 8); \
    0xaa: set_kind(KIND_DATA, 0, 1, 0, 20); \
    0xab: set_kind(KIND_DATA, 0, 1, 0, 24); \
    0xac: set_kind(KIND_CONTROL, 0, 1, 0, 20); \
    0xad: set_kind(KIND_DATA, 0, 1, 1, 4); \
    0xae: set_kind(KIND_DATA, 0, 1, 1, 0); \
    0xaf: set_kind(KIND_DATA, 0, 1, 1, 4); \
    0xb0: set_kind(KIND_DATA, 0, 1, 1, 4); \
    0xb1: set_kind(KIND_CONTROL, 0, 1, 1, 4); \
    0xb2: set_kind(KIND_CONTROL, 0, 1, 1, 12); \
    0xb3: set_kind(KIND_CONTROL, 0, 1, 0, 32); \
    0xb4: set_kind(KIND_CONTROL, 0, 1, 0, 32); \
    0xb6: set_kind(KIND_DATA, 0, 1, 0, 8); \
    0xb7: set_kind(KIND_DATA, 0, 1, 0, 8);
