// Alpha, the estimate of congestion, after any number of periods: `rate/alpha.rs` of dcqcn-common.

// 2^k steps of decay of an alpha in 1/1024, four per cell: those of alpha a begin at bit 16 * (a modulo 4) of cell
// 256 * k + a / 4. A controller writes them for a coarse alpha.
register<bit<64>>(COARSE_CELLS) rp_coarse_decay;

// Variables of an action that uses the macros below.
#define ALPHA_VARIABLES                                                                                         \
    bit<32> alpha_q31 = 0;                                                                                      \
    bit<32> epoch_alpha_q31 = 0;                                                                                \
    bit<64> alpha_epoch_ns = 0;                                                                                 \
    bit<32> periods = 0;                                                                                        \
    bool is_long = false;                                                                                       \
    bit<96> since_ns = 0;                                                                                       \
    bit<96> period_ns = 0;                                                                                      \
    bit<32> steps = 0;                                                                                          \
    bit<64> reduction_bps = 0;                                                                                  \
    bit<64> kept_bps = 0;

#define READ_ALPHA                                                                                              \
    rp_alpha_q31.read(epoch_alpha_q31, place);                                                                  \
    rp_alpha_epoch_ns.read(alpha_epoch_ns, place);

// One power of the decay.
#define DECAY(bit_)                                                                                             \
    if (periods[bit_:bit_] == 1) {                                                                              \
        alpha_q31 = MUL_Q31(alpha_q31, cut.decay_q31_##bit_);                                                   \
    }

#define DECAY_16                                                                                                \
    DECAY(0) DECAY(1) DECAY(2) DECAY(3) DECAY(4) DECAY(5) DECAY(6) DECAY(7)                                     \
    DECAY(8) DECAY(9) DECAY(10) DECAY(11) DECAY(12) DECAY(13) DECAY(14) DECAY(15)

// `alpha_q31` as a coarse alpha. A fine alpha of 1, from before a change of the parameter, is above the maximum.
#define COARSE_OF_ALPHA                                                                                         \
    steps = alpha_q31 >> COARSE_SHIFT;                                                                          \
    steps = steps < COARSE_MAX ? steps : COARSE_MAX;

// 2^bit_ steps of a coarse alpha.
#define COARSE_DECAY(bit_)                                                                                      \
    if (periods[bit_:bit_] == 1) {                                                                              \
        COARSE_STEP(bit_)                                                                                       \
    }

#define COARSE_STEP(bit_)                                                                                       \
    {                                                                                                           \
        bit<64> four;                                                                                           \
        rp_coarse_decay.read(four, (bit_ << 8) | (steps >> 2));                                                 \
        steps = (bit<32>)(four >> (bit<8>)((steps & 3) << 4)) & 0x3ff;                                          \
    }

#define COARSE_DECAY_10                                                                                         \
    COARSE_DECAY(0) COARSE_DECAY(1) COARSE_DECAY(2) COARSE_DECAY(3) COARSE_DECAY(4)                             \
    COARSE_DECAY(5) COARSE_DECAY(6) COARSE_DECAY(7) COARSE_DECAY(8) COARSE_DECAY(9)

// `alpha_q31` after a period with a CNP.
#define RAISE_ALPHA                                                                                             \
    if (cut.alpha_is_coarse == 1) {                                                                             \
        COARSE_OF_ALPHA                                                                                         \
        COARSE_STEP(0)                                                                                          \
        alpha_q31 = steps << COARSE_SHIFT;                                                                      \
    } else {                                                                                                    \
        alpha_q31 = MUL_Q31(alpha_q31, cut.decay_q31_0);                                                        \
    }                                                                                                           \
    alpha_q31 = alpha_q31 |+| cut.gain_q31;                                                                     \
    alpha_q31 = alpha_q31 < cut.max_alpha_q31 ? alpha_q31 : cut.max_alpha_q31;

// `alpha_q31` becomes alpha at a time, and `since_ns` the elapsed part of the period then. After 65,536 periods every alpha is
// 0: at most e^-64 of it is left.
#define ALPHA_AT(at_ns)                                                                                         \
    alpha_q31 = epoch_alpha_q31;                                                                                \
    periods = 0;                                                                                                \
    is_long = false;                                                                                            \
    since_ns = 0;                                                                                               \
    if (active == 1 && at_ns > alpha_epoch_ns) {                                                                \
        since_ns = (bit<96>)(at_ns - alpha_epoch_ns);                                                           \
        period_ns = (bit<96>)cut.alpha_period_ns;                                                               \
        if (since_ns >= (period_ns << 16)) {                                                                    \
            is_long = true;                                                                                     \
            REMAINDER_58_16(since_ns, period_ns)                                                                \
        }                                                                                                       \
        DIVIDE_16(since_ns, period_ns, periods)                                                                 \
    }                                                                                                           \
    if (is_long) {                                                                                              \
        alpha_q31 = 0;                                                                                          \
    } else {                                                                                                    \
        if (periods != 0 && (pending & PENDING_RAISE) != 0) {                                                   \
            RAISE_ALPHA                                                                                         \
            periods = periods - 1;                                                                              \
        }                                                                                                       \
        if (cut.alpha_is_coarse == 0) {                                                                         \
            DECAY_16                                                                                            \
        } else {                                                                                                \
            COARSE_OF_ALPHA                                                                                     \
            if (periods > MAX_COARSE_STEPS) {                                                                   \
                steps = 0;                                                                                      \
            } else {                                                                                            \
                COARSE_DECAY_10                                                                                 \
            }                                                                                                   \
            alpha_q31 = steps << COARSE_SHIFT;                                                                  \
        }                                                                                                       \
    }
