// Departure times, and the gap behind a packet, which follows the rate: the flow's debt for it is paid at the current rate.
// `Pacer` and `Debt` of dcqcn-common.

// Time of a byte in 2^-24 ns, times the rate.
const bit<96> NS_PER_BYTE_AT_1_BPS_Q24 = 8000000000 << 24;
// 10^-9 bit in a bit.
const bit<64> NANO = 1000000000;

// Variables of an action that uses the macros below.
#define DEBT_VARIABLES                                                                                          \
    bit<64> event_ns = 0;                                                                                       \
    bit<64> from_ns = 0;                                                                                        \
    bit<64> nanobits = 0;                                                                                       \
    bit<64> paid_nanobits = 0;                                                                                  \
    bit<64> paid_bps = 0;

// The debt for the last packet, and the time from which it is paid.
#define READ_DEBT                                                                                               \
    from_ns = next_ns - (((bit<64>)owed_bits * ns_per_byte_q24) >> 27);                                         \
    nanobits = (bit<64>)owed_bits * NANO;

// Pays at a rate until a time. The time of the last payment requires a division, which is done later.
#define PAY(at_bps, until_ns)                                                                                   \
    if (nanobits != 0 && until_ns > from_ns) {                                                                  \
        if ((bit<128>)nanobits <= (bit<128>)at_bps * (bit<128>)(until_ns - from_ns)) {                          \
            paid_bps = at_bps;                                                                                  \
            paid_nanobits = nanobits;                                                                           \
            nanobits = 0;                                                                                       \
        } else {                                                                                                \
            nanobits = nanobits - at_bps * (until_ns - from_ns);                                                \
            from_ns = until_ns;                                                                                 \
        }                                                                                                       \
    }

// Pays before the first of several events of the increase timer, and from it to the last of `fitting`: `Debt::pay_climb`.
#define PAY_NOTHING
#define PAY_FIRST PAY(rate_bps, event_ns)
#define PAY_REST                                                                                                \
    event_ns = event_ns + (bit<64>)fitting * p.time_reset_ns;                                                   \
    if (nanobits != 0 && before == 0 && fitting > 1) {                                                          \
        bit<64> rates = (bit<64>)fitting - 1;                                                                   \
        bit<64> highest_bps = target_bps + (bit<64>)CLIMB(fitting);                                             \
        bit<128> enough_bps = ((bit<128>)rates * (bit<128>)highest_bps + 31) >> 5;                              \
        from_ns = from_ns + rates * p.time_reset_ns;                                                            \
        if ((bit<128>)nanobits < enough_bps * (bit<128>)p.time_reset_ns) {                                      \
            nanobits = 0;                                                                                       \
        } else {                                                                                                \
            SUM_OF_HALVES(off_bps, rates)                                                                       \
            bit<64> pairs = (rates * (rates + 1)) >> 1;                                                         \
            bit<64> triples = pairs * (rates - 1) * INVERSE_OF_3;                                               \
            bit<64> sum_bps = rates * (target_bps - (bit<64>)tends_to_bps)                                      \
                + (step_bps - growth_bps) * pairs + growth_bps * triples - halves;                              \
            bit<128> paid = (bit<128>)sum_bps * (bit<128>)p.time_reset_ns;                                      \
            nanobits = paid > (bit<128>)nanobits ? 0 : nanobits - (bit<64>)paid;                                \
        }                                                                                                       \
    }

// `halves` is value / 2 + value / 4 + ... (n terms), each rounded down. If the value is not negative, the sum of all terms is
// the value less the number of its ones (Legendre); the terms of a negative value v are −1 − (−1 − v) / 2^k.
#define SUM_OF_HALVES(value, n)                                                                                 \
    bit<64> magnitude = (bit<64>)value;                                                                         \
    if (value < 0) {                                                                                            \
        magnitude = ~magnitude;                                                                                 \
    }                                                                                                           \
    bit<64> rest = 0;                                                                                           \
    if (n < 64) {                                                                                               \
        rest = magnitude >> (bit<8>)n;                                                                          \
    }                                                                                                           \
    bit<128> both = magnitude ++ rest;                                                                          \
    bit<128> ones;                                                                                              \
    COUNT_IN_HALVES(both, ones)                                                                                 \
    bit<64> halves = magnitude - ones[127:64] - rest + ones[63:0];                                              \
    if (value < 0) {                                                                                            \
        halves = 0 - halves - n;                                                                                \
    }

// The rate has changed, and the remaining debt is paid at the new one: `Pacer::follow`. Everything is rounded up, so no packet
// leaves early.
#define FOLLOW                                                                                                  \
    if (pacer_rate_bps != rate_bps) {                                                                           \
        bit<96> divisor = (bit<96>)rate_bps;                                                                    \
        bit<96> rest = NS_PER_BYTE_AT_1_BPS_Q24 + divisor - 1;                                                  \
        bit<96> quotient = 0;                                                                                   \
        DIVIDE_41(rest, divisor, quotient)                                                                      \
        ns_per_byte_q24 = (bit<64>)quotient;                                                                    \
        pacer_rate_bps = rate_bps;                                                                              \
        if (owed_bits != 0) {                                                                                   \
            if (paid_bps != 0) {                                                                                \
                divisor = (bit<96>)paid_bps;                                                                    \
                rest = (bit<96>)paid_nanobits + divisor - 1;                                                    \
                quotient = 0;                                                                                   \
                DIVIDE_41(rest, divisor, quotient)                                                              \
                from_ns = from_ns + (bit<64>)quotient;                                                          \
            }                                                                                                   \
            owed_bits = (bit<32>)(((bit<128>)(nanobits + NANO - 1) * BILLIONTH_Q84) >> 84);                     \
            bit<64> owed_q27 = (bit<64>)owed_bits * ns_per_byte_q24;                                            \
            next_ns = from_ns + (owed_q27 >> 27);                                                               \
            next_frac_q27 = (bit<32>)owed_q27[26:0];                                                            \
        }                                                                                                       \
    }

// A packet leaves before its turn: the debt not paid by then remains. `Pacer::skip_to`.
#define SKIP_TO(departure_ns)                                                                                   \
    bit<96> left_q27 = (bit<96>)(next_ns |-| departure_ns) << 27;                                               \
    bit<96> byte_q27 = (bit<96>)ns_per_byte_q24;                                                                \
    bit<32> left_bits = 0;                                                                                      \
    if (left_q27 < (byte_q27 << 23)) {                                                                          \
        DIVIDE_23_16(left_q27, byte_q27, left_bits)                                                             \
        DIVIDE_16(left_q27, byte_q27, left_bits)                                                                \
        owed_bits = left_bits < owed_bits ? left_bits : owed_bits;                                              \
    }
