// The DCQCN rate machine of one flow, both variants: `RateMachine` of dcqcn-common in P4, equal to it to the last bit.
//
// v1model has no timer: the machine catches up at a packet of its flow or a CNP. The number of increase events that have one
// closed form is computed bit by bit, up to MAX_EVENTS; after a longer gap each packet makes up for that many.

const bit<32> MAX_EVENTS = 65535;
// A timer that never expires: the largest number that Thrift can transfer.
const bit<64> NEVER_NS = 0x7fffffffffffffff;
const bit<32> NO_END = 0xffffffff;

// One bit of the number of events whose steps, `step`, `step + growth` and so on, fit into the room below the line rate.
#define FIT(bit_)                                                                                               \
    tried = fitting + (1 << bit_);                                                                              \
    if (tried <= events && CLIMB(tried) <= (bit<96>)room_bps) {                                                 \
        fitting = tried;                                                                                        \
    }

#define CLIMB(n) ((bit<96>)(n) * (bit<96>)step_bps + (((bit<96>)(n) * ((bit<96>)(n) - 1)) >> 1) * (bit<96>)growth_bps)

#define FIT_4 FIT(3) FIT(2) FIT(1) FIT(0)
#define FIT_16                                                                                                  \
    if (events > 15) {                                                                                          \
        FIT(15) FIT(14) FIT(13) FIT(12) FIT(11) FIT(10) FIT(9) FIT(8) FIT(7) FIT(6) FIT(5) FIT(4)               \
    }                                                                                                           \
    FIT_4
#define FIT_NONE

// Variables of an action that uses `PHASE`.
#define PHASE_VARIABLES                                                                                         \
    bit<32> left = 0;                                                                                           \
    bit<32> before = 0;                                                                                         \
    bit<32> own = 0;                                                                                            \
    bit<32> other = 0;                                                                                          \
    bool other_is_on = false;                                                                                   \
    bool is_capped = false;                                                                                     \
    bit<32> stage = 0;                                                                                          \
    bit<32> events = 0;                                                                                         \
    bit<32> fitting = 0;                                                                                        \
    bit<32> tried = 0;                                                                                          \
    bit<32> factor = 0;                                                                                         \
    bit<64> step_bps = 0;                                                                                       \
    bit<64> growth_bps = 0;                                                                                     \
    bit<64> room_bps = 0;                                                                                       \
    int<64> tends_to_bps = 0;                                                                                   \
    int<64> lag_bps = 0;                                                                                        \
    int<64> off_bps = 0;

// `value` halved `times` times, rounded down each time; `value` is signed.
#define HALVED(value, times) ((value) >> ((times) > 63 ? 8w63 : (bit<8>)(times)))

// Takes `taken` events off.
#define TAKE(taken)                                                                                             \
    own = own |+| taken;                                                                                        \
    left = left - taken;                                                                                        \
    before = before |-| taken;

// Of `left` increase events of the counter whose stage is `own`, those that have one closed form: `phase` and `leap` of
// dcqcn-common. `before` of the timer's are before the debt begins (pacing.p4), and are a separate run.
//
// One event is R_T += step, R_C = (R_C + R_T + 1) / 2. With d = R_T − R_C that is d ← (d + step) / 2, rounded down; and with e
// = d − (step − 2 growth), e ← e / 2, rounded down. So after n events e has been shifted right by n, exactly. At the line rate
// all events are equal; the one that reaches it is limited by it.
#define PHASE(FIT_EVENTS, PAY_FIRST, PAY_REST)                                                                  \
    if (left != 0 && !is_capped) {                                                                              \
        stage = own |+| (bit<32>)p.count_first;                                                                 \
        step_bps = 0;                                                                                           \
        growth_bps = 0;                                                                                         \
        events = NO_END;                                                                                        \
        room_bps = p.line_rate_bps - target_bps;                                                                \
        if (room_bps == 0) {                                                                                    \
            events = left;                                                                                      \
        } else if (stage < p.threshold && (!other_is_on || other < p.threshold)) {                              \
            events = p.threshold - stage;                                                                       \
        } else if (stage <= p.threshold || (other_is_on && other <= p.threshold)) {                             \
            step_bps = p.ai_rate_bps;                                                                           \
            if (stage <= p.threshold && (!other_is_on || other > p.threshold)) {                                \
                events = p.threshold - stage + 1;                                                               \
            }                                                                                                   \
        } else if (p.max_hyper == 1) {                                                                          \
            step_bps = p.hai_rate_bps;                                                                          \
        } else if (other_is_on && stage > other) {                                                              \
            factor = other - p.threshold;                                                                       \
            if (factor > p.max_hyper) {                                                                         \
                factor = p.max_hyper;                                                                           \
            }                                                                                                   \
            step_bps = p.hai_rate_bps * (bit<64>)factor;                                                        \
        } else {                                                                                                \
            factor = stage - p.threshold;                                                                       \
            if (factor > p.max_hyper) {                                                                         \
                factor = p.max_hyper;                                                                           \
            }                                                                                                   \
            step_bps = p.hai_rate_bps * (bit<64>)factor;                                                        \
            growth_bps = p.hai_rate_bps;                                                                        \
            if (other_is_on) {                                                                                  \
                events = (other - stage) |+| 1;                                                                 \
            }                                                                                                   \
        }                                                                                                       \
        events = events < left ? events : left;                                                                 \
        events = before != 0 && before < events ? before : events;                                              \
        fitting = events;                                                                                       \
        if (step_bps != 0) {                                                                                    \
            fitting = 0;                                                                                        \
            FIT_EVENTS                                                                                          \
        }                                                                                                       \
        is_capped = fitting != events;                                                                          \
        lag_bps = (int<64>)(target_bps - rate_bps);                                                             \
        if (fitting != 0 && (room_bps != 0 || lag_bps != 0)) {                                                  \
            PAY_FIRST                                                                                           \
            tends_to_bps = (int<64>)step_bps;                                                                   \
            if (growth_bps != 0) {                                                                              \
                tends_to_bps = tends_to_bps - (int<64>)(growth_bps << 1);                                       \
            }                                                                                                   \
            off_bps = lag_bps - tends_to_bps;                                                                   \
            PAY_REST                                                                                            \
            lag_bps = HALVED(off_bps, fitting) + tends_to_bps + (int<64>)(growth_bps * (bit<64>)fitting);       \
            target_bps = target_bps + (bit<64>)CLIMB(fitting);                                                  \
            rate_bps = target_bps - (bit<64>)lag_bps;                                                           \
        }                                                                                                       \
        TAKE(fitting)                                                                                           \
    }

#define CAPPED_EVENT(PAY_FIRST, PAY_REST)                                                                       \
    if (is_capped) {                                                                                            \
        PAY_FIRST                                                                                               \
        fitting = 1;                                                                                            \
        PAY_REST                                                                                                \
        target_bps = p.line_rate_bps;                                                                           \
        rate_bps = (rate_bps + target_bps + 1) >> 1;                                                            \
        TAKE(1)                                                                                                 \
        is_capped = false;                                                                                      \
    }

// A run of events has at most three phases: fast recovery, additive increase, and growing hyper increase; or, if the other
// counter is past F already, additive, growing and constant hyper increase. One of the timer's may be in two parts, and so may
// those at the line rate.

// The increase timer up to and including `until_ns`.
#define RUN_TIMER(until_ns)                                                                                     \
    if (next_increase_ns <= until_ns) {                                                                         \
        bit<64> late_ns = until_ns - next_increase_ns;                                                          \
        left = 0;                                                                                               \
        DIVIDE_16(late_ns, p.time_reset_ns, left)                                                               \
        left = left < MAX_EVENTS ? left + 1 : MAX_EVENTS;                                                       \
        before = 0;                                                                                             \
        if (nanobits != 0 && next_increase_ns <= from_ns) {                                                     \
            late_ns = from_ns - next_increase_ns;                                                               \
            DIVIDE_16(late_ns, p.time_reset_ns, before)                                                         \
            before = before < left ? before + 1 : left;                                                         \
        }                                                                                                       \
        event_ns = next_increase_ns;                                                                            \
        next_increase_ns = next_increase_ns + (bit<64>)left * p.time_reset_ns;                                  \
        own = time_stage;                                                                                       \
        other = byte_stage;                                                                                     \
        other_is_on = p.byte_reset_bytes != 0;                                                                  \
        PHASE(FIT_16, PAY_FIRST, PAY_REST)                                                                      \
        PHASE(FIT_16, PAY_FIRST, PAY_REST)                                                                      \
        PHASE(FIT_16, PAY_FIRST, PAY_REST)                                                                      \
        PHASE(FIT_16, PAY_FIRST, PAY_REST)                                                                      \
        CAPPED_EVENT(PAY_FIRST, PAY_REST)                                                                       \
        PHASE(FIT_NONE, PAY_FIRST, PAY_REST)                                                                    \
        PHASE(FIT_NONE, PAY_FIRST, PAY_REST)                                                                    \
        time_stage = own;                                                                                       \
    }

// The byte counter: no time passes, and nothing is paid.
#define RUN_BYTES                                                                                               \
    left = 0;                                                                                                   \
    before = 0;                                                                                                 \
    DIVIDE_4(byte_count, p.byte_reset_bytes, left)                                                              \
    own = byte_stage;                                                                                           \
    other = time_stage;                                                                                         \
    other_is_on = p.time_reset_ns != 0;                                                                         \
    PHASE(FIT_4, PAY_NOTHING, PAY_NOTHING)                                                                      \
    PHASE(FIT_4, PAY_NOTHING, PAY_NOTHING)                                                                      \
    PHASE(FIT_4, PAY_NOTHING, PAY_NOTHING)                                                                      \
    CAPPED_EVENT(PAY_NOTHING, PAY_NOTHING)                                                                      \
    PHASE(FIT_NONE, PAY_NOTHING, PAY_NOTHING)                                                                   \
    byte_stage = own;

// Cuts the rate at a time when alpha is `alpha_q31`; stages, byte counter and increase timer restart.
#define CUT(at_ns)                                                                                              \
    if ((cut.clamp & CLAMP_ALWAYS) != 0 || ((cut.clamp & CLAMP_AFTER_BYTES) != 0 && byte_stage != 0)            \
        || ((cut.clamp & CLAMP_AFTER_TIME) != 0 && time_stage != 0)) {                                          \
        target_bps = rate_bps;                                                                                  \
    }                                                                                                           \
    reduction_bps = (bit<64>)(((bit<96>)rate_bps * (bit<96>)alpha_q31) >> cut.cut_shift);                       \
    kept_bps = (bit<64>)(((bit<96>)rate_bps * (bit<96>)cut.min_dec_percent * HUNDREDTH_Q54) >> 54);             \
    rate_bps = rate_bps - reduction_bps;                                                                        \
    rate_bps = rate_bps > kept_bps ? rate_bps : kept_bps;                                                       \
    rate_bps = rate_bps > cut.min_rate_bps ? rate_bps : cut.min_rate_bps;                                       \
    next_increase_ns = TIMER_FROM(at_ns);                                                                       \
    byte_count = 0;                                                                                             \
    time_stage = 0;                                                                                             \
    byte_stage = 0;

// When an increase timer expires that starts at a time; never if it is off.
#define TIMER_FROM(at_ns) (p.time_reset_ns == 0 ? NEVER_NS : at_ns + p.time_reset_ns)
