// The DCQCN rate machine of one flow, `paper` variant: `RateMachine` of dcqcn-common in P4, equal to it to the last bit.
//
// v1model has no timer: the machine catches up when a packet of its flow or a CNP comes. P4 has no loop and, on run-time
// values, no division. So a quotient is found bit by bit, and so is the number of increase events that have one closed form.
// Both find up to MAX_EVENTS; of a longer gap each packet makes up that many.

const bit<32> MAX_EVENTS = 65535;
// A timer that never expires: the largest number that Thrift passes on.
const bit<64> NEVER_NS = 0x7fffffffffffffff;
const bit<32> NO_END = 0xffffffff;
// Alpha = 1.
const bit<32> ALPHA_ONE = 0x80000000;
// Largest factor of R_HAI.
const bit<32> MAX_HYPER = 1 << 23;
// x / 100 for x < 2^47 is x · this >> 54, exactly: this is (2^54 + 16) / 100, and x · 16 < 2^54.
const bit<96> HUNDREDTH_Q54 = 180143985094820;

// Time of a byte in 2^-24 ns, times the rate.
const bit<96> NS_PER_BYTE_AT_1_BPS_Q24 = 8000000000 << 24;

// One bit of a quotient.
#define DIVIDE(bit_, rest, divisor, quotient)                               \
    if (rest >= (divisor << bit_)) {                                        \
        rest = rest - (divisor << bit_);                                    \
        quotient = quotient + (1 << bit_);                                  \
    }

#define DIVIDE_4(rest, divisor, quotient)                                   \
    DIVIDE(3, rest, divisor, quotient) DIVIDE(2, rest, divisor, quotient)   \
    DIVIDE(1, rest, divisor, quotient) DIVIDE(0, rest, divisor, quotient)

#define DIVIDE_16(rest, divisor, quotient)                                  \
    DIVIDE(15, rest, divisor, quotient) DIVIDE(14, rest, divisor, quotient) \
    DIVIDE(13, rest, divisor, quotient) DIVIDE(12, rest, divisor, quotient) \
    DIVIDE(11, rest, divisor, quotient) DIVIDE(10, rest, divisor, quotient) \
    DIVIDE(9, rest, divisor, quotient) DIVIDE(8, rest, divisor, quotient)   \
    DIVIDE(7, rest, divisor, quotient) DIVIDE(6, rest, divisor, quotient)   \
    DIVIDE(5, rest, divisor, quotient) DIVIDE(4, rest, divisor, quotient)   \
    DIVIDE_4(rest, divisor, quotient)

#define DIVIDE_41(rest, divisor, quotient)                                  \
    DIVIDE(40, rest, divisor, quotient) DIVIDE(39, rest, divisor, quotient) \
    DIVIDE(38, rest, divisor, quotient) DIVIDE(37, rest, divisor, quotient) \
    DIVIDE(36, rest, divisor, quotient) DIVIDE(35, rest, divisor, quotient) \
    DIVIDE(34, rest, divisor, quotient) DIVIDE(33, rest, divisor, quotient) \
    DIVIDE(32, rest, divisor, quotient) DIVIDE(31, rest, divisor, quotient) \
    DIVIDE(30, rest, divisor, quotient) DIVIDE(29, rest, divisor, quotient) \
    DIVIDE(28, rest, divisor, quotient) DIVIDE(27, rest, divisor, quotient) \
    DIVIDE(26, rest, divisor, quotient) DIVIDE(25, rest, divisor, quotient) \
    DIVIDE(24, rest, divisor, quotient) DIVIDE(23, rest, divisor, quotient) \
    DIVIDE(22, rest, divisor, quotient) DIVIDE(21, rest, divisor, quotient) \
    DIVIDE(20, rest, divisor, quotient) DIVIDE(19, rest, divisor, quotient) \
    DIVIDE(18, rest, divisor, quotient) DIVIDE(17, rest, divisor, quotient) \
    DIVIDE(16, rest, divisor, quotient) DIVIDE_16(rest, divisor, quotient)

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

// Variables of an action that uses `PHASE`.
#define PHASE_VARIABLES                                                                                         \
    bit<32> left = 0;                                                                                           \
    bit<32> own = 0;                                                                                            \
    bit<32> other = 0;                                                                                          \
    bool other_is_on = false;                                                                                   \
    bit<32> stage;                                                                                              \
    bit<32> events;                                                                                             \
    bit<32> fitting;                                                                                            \
    bit<32> tried;                                                                                              \
    bit<32> factor;                                                                                             \
    bit<64> step_bps;                                                                                           \
    bit<64> growth_bps;                                                                                         \
    bit<64> room_bps;                                                                                           \
    int<64> tends_to_bps;                                                                                       \
    int<64> lag_bps;

// `value` halved `times` times, rounded down each time; `value` is signed.
#define HALVED(value, times) ((value) >> ((times) > 63 ? 8w63 : (bit<8>)(times)))

// Of `left` increase events of the counter whose stage is `own`, those that have one closed form: `phase` and `leap` of
// dcqcn-common.
//
// One event is R_T += step, R_C = (R_C + R_T + 1) / 2. With d = R_T − R_C that is d ← (d + step) / 2, rounded down; and with e
// = d − (step − 2 growth), e ← e / 2, rounded down. So after n events e has been shifted right by n, exactly. At the line rate
// all events are alike; the one that gets there is cut short.
#define PHASE(FIT_EVENTS)                                                                                       \
    if (left != 0) {                                                                                            \
        stage = own |+| 1;                                                                                      \
        step_bps = 0;                                                                                           \
        growth_bps = 0;                                                                                         \
        events = NO_END;                                                                                        \
        if (stage < p.threshold && (!other_is_on || other < p.threshold)) {                                     \
            events = p.threshold - stage;                                                                       \
        } else if (stage <= p.threshold || (other_is_on && other <= p.threshold)) {                             \
            step_bps = p.ai_rate_bps;                                                                           \
            if (stage <= p.threshold && (!other_is_on || other > p.threshold)) {                                \
                events = p.threshold - stage + 1;                                                               \
            }                                                                                                   \
        } else if (other_is_on && stage > other) {                                                              \
            factor = other - p.threshold;                                                                       \
            if (factor > MAX_HYPER) {                                                                           \
                factor = MAX_HYPER;                                                                             \
            }                                                                                                   \
            step_bps = p.hai_rate_bps * (bit<64>)factor;                                                        \
        } else {                                                                                                \
            factor = stage - p.threshold;                                                                       \
            if (factor > MAX_HYPER) {                                                                           \
                factor = MAX_HYPER;                                                                             \
            }                                                                                                   \
            step_bps = p.hai_rate_bps * (bit<64>)factor;                                                        \
            growth_bps = p.hai_rate_bps;                                                                        \
            if (other_is_on) {                                                                                  \
                events = (other - stage) |+| 1;                                                                 \
            }                                                                                                   \
        }                                                                                                       \
        if (events > left) {                                                                                    \
            events = left;                                                                                      \
        }                                                                                                       \
        room_bps = p.line_rate_bps - target_bps;                                                                \
        fitting = events;                                                                                       \
        if (step_bps != 0) {                                                                                    \
            fitting = 0;                                                                                        \
            FIT_EVENTS                                                                                          \
        }                                                                                                       \
        tends_to_bps = (int<64>)step_bps - (int<64>)(growth_bps << 1);                                          \
        lag_bps = (int<64>)(target_bps - rate_bps) - tends_to_bps;                                              \
        lag_bps = HALVED(lag_bps, fitting) + tends_to_bps + (int<64>)(growth_bps * (bit<64>)fitting);           \
        target_bps = target_bps + (bit<64>)CLIMB(fitting);                                                      \
        rate_bps = target_bps - (bit<64>)lag_bps;                                                               \
        own = own |+| fitting;                                                                                  \
        left = left - fitting;                                                                                  \
        if (fitting != events) {                                                                                \
            if (target_bps != p.line_rate_bps) {                                                                \
                target_bps = p.line_rate_bps;                                                                   \
                rate_bps = (rate_bps + target_bps + 1) >> 1;                                                    \
                own = own |+| 1;                                                                                \
                left = left - 1;                                                                                \
            }                                                                                                   \
            lag_bps = (int<64>)(target_bps - rate_bps);                                                         \
            lag_bps = HALVED(lag_bps, left);                                                                    \
            rate_bps = target_bps - (bit<64>)lag_bps;                                                           \
            own = own |+| left;                                                                                 \
            left = 0;                                                                                           \
        }                                                                                                       \
    }

// A run of events has three phases at most: fast recovery, additive increase, and growing hyper increase; or, where the other
// counter is past F already, additive, growing and constant hyper increase.
#define RUN(FIT_EVENTS) PHASE(FIT_EVENTS) PHASE(FIT_EVENTS) PHASE(FIT_EVENTS)

// Product of two fractions of 2^31, rounded.
#define MUL_Q31(a, b) ((bit<32>)(((bit<64>)(a) * (bit<64>)(b) + (1 << 30)) >> 31))

// One power of the decay of alpha.
#define DECAY(bit_)                                                                                             \
    if (periods[bit_:bit_] == 1) {                                                                              \
        alpha_q31 = MUL_Q31(alpha_q31, cut.decay_q31_##bit_);                                                   \
    }

#define DECAY_16                                                                                                \
    DECAY(0) DECAY(1) DECAY(2) DECAY(3) DECAY(4) DECAY(5) DECAY(6) DECAY(7)                                     \
    DECAY(8) DECAY(9) DECAY(10) DECAY(11) DECAY(12) DECAY(13) DECAY(14) DECAY(15)
