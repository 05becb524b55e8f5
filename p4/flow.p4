// The tables of flows, QPs and connections: 512 sets of four entries.
//
// The key is stored and compared, so two of them are never confused. The fifth in a set replaces the one used longest ago. A
// flow is identified by both its ends, its source address and the QP that receives it (docs/explanation/architecture.md). Flows,
// QPs and connections are identified by their VLANs too.

const bit<32> SETS = 512;
const bit<32> FLOWS = 2048;
// Packets of a flow are in two sequences: those of a requester and those of a responder.
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

// `place` becomes the QP's entry in its set, or else an empty one or the one used longest ago. `table` is the prefix of the
// registers.
#define FIND_QP(table, addr, qpn, place, is_found)                                                              \
    {                                                                                                           \
        bit<32> set;                                                                                            \
        hash(set, HashAlgorithm.crc32, 32w0, { addr, qpn, meta.vlan }, SETS);                                   \
        LOOK_IN_SET(table, addr, qpn)                                                                           \
        CHOOSE(meta.vlan, place, is_found)                                                                      \
    }

// The same for a flow, once in an action: the state of its set stays known. `hashed_vlan` decides whether flows that differ in
// their VLANs only share a set.
#define FIND_FLOW(table, src, addr, qpn, vlan, hashed_vlan, place, is_found)                                    \
    bit<32> set;                                                                                                \
    hash(set, HashAlgorithm.crc32, 32w0, { src, addr, qpn, hashed_vlan }, SETS);                                \
    LOOK_IN_SET(table, addr, qpn)                                                                               \
    COMPARE_SRC(table, src, 0)                                                                                  \
    COMPARE_SRC(table, src, 1)                                                                                  \
    COMPARE_SRC(table, src, 2)                                                                                  \
    COMPARE_SRC(table, src, 3)                                                                                  \
    CHOOSE(vlan, place, is_found)

#define LOOK_IN_SET(table, addr, qpn)                                                                           \
    LOOK_AT(table, addr, qpn, 0)                                                                                \
    LOOK_AT(table, addr, qpn, 1)                                                                                \
    LOOK_AT(table, addr, qpn, 2)                                                                                \
    LOOK_AT(table, addr, qpn, 3)

// An entry of a set, and whether it has this key in any VLANs.
#define LOOK_AT(table, addr, qpn, way)                                                                          \
    bit<32> place_##way = (set << 2) | way;                                                                     \
    bit<32> qpn_##way;                                                                                          \
    bit<32> vlan_##way;                                                                                         \
    bit<64> seen_ns_##way;                                                                                      \
    table##_qpn.read(qpn_##way, place_##way);                                                                   \
    table##_vlan.read(vlan_##way, place_##way);                                                                 \
    table##_last_seen_ns.read(seen_ns_##way, place_##way);                                                      \
    bool is_named_##way = seen_ns_##way != 0 && qpn_##way == qpn;                                               \
    if (is_named_##way) {                                                                                       \
        IS_ADDRESS(table##_addr, place_##way, addr, is_named_##way)                                             \
    }

#define COMPARE_SRC(table, src, way)                                                                            \
    if (is_named_##way) {                                                                                       \
        IS_ADDRESS(table##_src, place_##way, src, is_named_##way)                                               \
    }

#define CHOOSE(vlan, place, is_found)                                                                           \
    place = place_0;                                                                                            \
    bit<64> oldest_ns = seen_ns_0;                                                                              \
    CHOOSE_IF_OLDER(place, 1)                                                                                   \
    CHOOSE_IF_OLDER(place, 2)                                                                                   \
    CHOOSE_IF_OLDER(place, 3)                                                                                   \
    is_found = false;                                                                                           \
    CHOOSE_IF_SAME(vlan, place, is_found, 0)                                                                    \
    CHOOSE_IF_SAME(vlan, place, is_found, 1)                                                                    \
    CHOOSE_IF_SAME(vlan, place, is_found, 2)                                                                    \
    CHOOSE_IF_SAME(vlan, place, is_found, 3)

#define CHOOSE_IF_OLDER(place, way)                                                                             \
    if (seen_ns_##way < oldest_ns) {                                                                            \
        place = place_##way;                                                                                    \
        oldest_ns = seen_ns_##way;                                                                              \
    }

#define CHOOSE_IF_SAME(vlan, place, is_found, way)                                                              \
    if (is_named_##way && vlan_##way == vlan) {                                                                 \
        place = place_##way;                                                                                    \
        is_found = true;                                                                                        \
    }

#define WRITE_QP(table, addr, qpn, vlan, place)                                                                 \
    WRITE_ADDRESS(table##_addr, place, addr)                                                                    \
    table##_qpn.write(place, qpn);                                                                              \
    table##_vlan.write(place, vlan);

#define WRITE_FLOW(table, src, addr, qpn, vlan, place)                                                          \
    WRITE_ADDRESS(table##_src, place, src)                                                                      \
    WRITE_QP(table, addr, qpn, vlan, place)
