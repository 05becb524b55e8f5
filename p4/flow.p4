// The flow tables of NP and RP: 1024 sets of two places. A flow is called by the QP that receives its data
// (docs/explanation/architecture.md).
//
// The key is stored and compared, so two flows are never mistaken for one; of three that share a set the one used longest ago
// goes.

const bit<32> SETS = 1024;
const bit<32> FLOWS = 2048;

// `place` becomes the flow's own place, or else an empty one or the one used longest ago. `table` is the registers' prefix.
#define FIND_FLOW(table, addr, qpn, set, place, is_found)                                                       \
    bit<32> first_0;                                                                                            \
    bit<32> first_1;                                                                                            \
    bit<32> first_2;                                                                                            \
    bit<32> first_3;                                                                                            \
    bit<32> first_qpn;                                                                                          \
    bit<64> first_seen_ns;                                                                                      \
    bit<32> second_0;                                                                                           \
    bit<32> second_1;                                                                                           \
    bit<32> second_2;                                                                                           \
    bit<32> second_3;                                                                                           \
    bit<32> second_qpn;                                                                                         \
    bit<64> second_seen_ns = 0;                                                                                  \
    bit<32> first = set << 1;                                                                                   \
    bit<32> second = first | 1;                                                                                 \
    table##_addr_0.read(first_0, first);                                                                        \
    table##_addr_1.read(first_1, first);                                                                        \
    table##_addr_2.read(first_2, first);                                                                        \
    table##_addr_3.read(first_3, first);                                                                        \
    table##_qpn.read(first_qpn, first);                                                                         \
    table##_last_seen_ns.read(first_seen_ns, first);                                                            \
    bool is_first = first_seen_ns != 0 && first_qpn == qpn && (first_0 ++ first_1 ++ first_2 ++ first_3) == addr; \
    bool is_second = false;                                                                                     \
    if (!is_first) {                                                                                            \
        table##_addr_0.read(second_0, second);                                                                  \
        table##_addr_1.read(second_1, second);                                                                  \
        table##_addr_2.read(second_2, second);                                                                  \
        table##_addr_3.read(second_3, second);                                                                  \
        table##_qpn.read(second_qpn, second);                                                                   \
        table##_last_seen_ns.read(second_seen_ns, second);                                                      \
        is_second = second_seen_ns != 0 && second_qpn == qpn                                                    \
            && (second_0 ++ second_1 ++ second_2 ++ second_3) == addr;                                          \
    }                                                                                                           \
    is_found = is_first || is_second;                                                                           \
    place = is_first || (!is_second && first_seen_ns <= second_seen_ns) ? first : second;

#define WRITE_FLOW_ID(table, addr, qpn, place)                                                                  \
    table##_addr_0.write(place, addr[127:96]);                                                                  \
    table##_addr_1.write(place, addr[95:64]);                                                                   \
    table##_addr_2.write(place, addr[63:32]);                                                                   \
    table##_addr_3.write(place, addr[31:0]);                                                                    \
    table##_qpn.write(place, qpn);
