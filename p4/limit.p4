// Rate limits on work that received packets cause, with a burst: `Limit` of dcqcn-common.

// Whether one more is within a limit, which is then used up by one. The state is one time, in `state`; a gap of 0 = no limit.
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
