// The tables of flows, queue pairs and connections: 1024 sets of two places.
//
// The key is stored and compared, so two of them are never mistaken for one; of three that share a set the one used longest ago
// goes. A flow is known by both its ends: the address it comes from, and the QP that receives it (docs/explanation/architecture.md).

const bit<32> SETS = 1024;
const bit<32> FLOWS = 2048;
// Packets of a flow have their places in two sequences: what a requester sends, and what a responder sends.
const bit<32> STREAMS = 4096;

// Four words of an address in registers whose names begin with `prefix`.
#define IS_ADDRESS(prefix, place, addr, is_it)                                                                  \
    {                                                                                                           \
        bit<32> word_0;                                                                                         \
        bit<32> word_1;                                                                                         \
        bit<32> word_2;                                                                                         \
        bit<32> word_3;                                                                                         \
        prefix##_0.read(word_0, place);                                                                         \
        prefix##_1.read(word_1, place);                                                                         \
        prefix##_2.read(word_2, place);                                                                         \
        prefix##_3.read(word_3, place);                                                                         \
        is_it = (word_0 ++ word_1 ++ word_2 ++ word_3) == addr;                                                 \
    }

#define WRITE_ADDRESS(prefix, place, addr)                                                                      \
    prefix##_0.write(place, addr[127:96]);                                                                      \
    prefix##_1.write(place, addr[95:64]);                                                                       \
    prefix##_2.write(place, addr[63:32]);                                                                       \
    prefix##_3.write(place, addr[31:0]);

// `place` becomes a QP's own place in its set, or else an empty one or the one used longest ago. `table` is the registers' prefix.
#define FIND_QP(table, addr, qpn, place, is_found)                                                              \
    {                                                                                                           \
        bit<32> set;                                                                                            \
        hash(set, HashAlgorithm.crc32, 32w0, { addr, qpn }, SETS);                                              \
        LOOK_IN_SET(table, addr, qpn)                                                                           \
        CHOOSE(place, is_found)                                                                                 \
    }

// The same for a flow, once in an action: what is known of the places stays known.
#define FIND_FLOW(table, src, addr, qpn, place, is_found)                                                       \
    bit<32> set;                                                                                                \
    hash(set, HashAlgorithm.crc32, 32w0, { src, addr, qpn }, SETS);                                             \
    LOOK_IN_SET(table, addr, qpn)                                                                               \
    if (is_first) {                                                                                             \
        IS_ADDRESS(table##_src, first, src, is_first)                                                           \
    }                                                                                                           \
    if (is_second) {                                                                                            \
        IS_ADDRESS(table##_src, second, src, is_second)                                                         \
    }                                                                                                           \
    CHOOSE(place, is_found)

#define LOOK_IN_SET(table, addr, qpn)                                                                           \
    bit<32> first = set << 1;                                                                                   \
    bit<32> second = first | 1;                                                                                 \
    bit<32> first_qpn;                                                                                          \
    bit<32> second_qpn;                                                                                         \
    bit<64> first_seen_ns;                                                                                      \
    bit<64> second_seen_ns;                                                                                     \
    table##_qpn.read(first_qpn, first);                                                                         \
    table##_qpn.read(second_qpn, second);                                                                       \
    table##_last_seen_ns.read(first_seen_ns, first);                                                            \
    table##_last_seen_ns.read(second_seen_ns, second);                                                          \
    bool is_first = first_seen_ns != 0 && first_qpn == qpn;                                                     \
    bool is_second = second_seen_ns != 0 && second_qpn == qpn;                                                  \
    if (is_first) {                                                                                             \
        IS_ADDRESS(table##_addr, first, addr, is_first)                                                         \
    }                                                                                                           \
    if (is_second) {                                                                                            \
        IS_ADDRESS(table##_addr, second, addr, is_second)                                                       \
    }

#define CHOOSE(place, is_found)                                                                                 \
    is_found = is_first || is_second;                                                                           \
    place = is_first || (!is_second && first_seen_ns <= second_seen_ns) ? first : second;

#define WRITE_QP(table, addr, qpn, place)                                                                       \
    WRITE_ADDRESS(table##_addr, place, addr)                                                                    \
    table##_qpn.write(place, qpn);

#define WRITE_FLOW(table, src, addr, qpn, place)                                                                \
    WRITE_ADDRESS(table##_src, place, src)                                                                      \
    WRITE_QP(table, addr, qpn, place)
