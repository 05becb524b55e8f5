// Bounds on what others can have this switch do: so many a second, and a burst. `Limit` of dcqcn-common.

// Whether one more is within a limit, which then has one less to give. Its whole state is one time, in `state`; a gap of 0 is no
// bound.
#define WITHIN(state, index, gap_ns, burst_ns, is_within)                                                       \
    {                                                                                                           \
        bit<64> used_up_to_ns;                                                                                  \
        state.read(used_up_to_ns, index);                                                                       \
        if (used_up_to_ns < meta.now_ns) {                                                                      \
            used_up_to_ns = meta.now_ns;                                                                        \
        }                                                                                                       \
        is_within = gap_ns == 0 || used_up_to_ns - meta.now_ns <= burst_ns;                                     \
        if (gap_ns != 0 && is_within) {                                                                         \
            state.write(index, used_up_to_ns + gap_ns);                                                         \
        }                                                                                                       \
    }
