// P4 has no division of run-time values, and no loops. A quotient is computed bit by bit; ones are counted in parallel.

// One bit of a quotient.
#define DIVIDE(bit_, rest, divisor, quotient)                                                                   \
    if (rest >= (divisor << bit_)) {                                                                            \
        rest = rest - (divisor << bit_);                                                                        \
        quotient = quotient + (1 << bit_);                                                                      \
    }

// Quotients below 2^4, 2^16 and 2^41; and the bits from the 16th on of those below 2^23 and 2^41.
#define DIVIDE_4(rest, divisor, quotient)                                                                       \
    DIVIDE(3, rest, divisor, quotient) DIVIDE(2, rest, divisor, quotient)                                       \
    DIVIDE(1, rest, divisor, quotient) DIVIDE(0, rest, divisor, quotient)

#define DIVIDE_16(rest, divisor, quotient)                                                                      \
    DIVIDE(15, rest, divisor, quotient) DIVIDE(14, rest, divisor, quotient)                                     \
    DIVIDE(13, rest, divisor, quotient) DIVIDE(12, rest, divisor, quotient)                                     \
    DIVIDE(11, rest, divisor, quotient) DIVIDE(10, rest, divisor, quotient)                                     \
    DIVIDE(9, rest, divisor, quotient) DIVIDE(8, rest, divisor, quotient)                                       \
    DIVIDE(7, rest, divisor, quotient) DIVIDE(6, rest, divisor, quotient)                                       \
    DIVIDE(5, rest, divisor, quotient) DIVIDE(4, rest, divisor, quotient)                                       \
    DIVIDE_4(rest, divisor, quotient)

#define DIVIDE_23_16(rest, divisor, quotient)                                                                   \
    DIVIDE(22, rest, divisor, quotient) DIVIDE(21, rest, divisor, quotient)                                     \
    DIVIDE(20, rest, divisor, quotient) DIVIDE(19, rest, divisor, quotient)                                     \
    DIVIDE(18, rest, divisor, quotient) DIVIDE(17, rest, divisor, quotient)                                     \
    DIVIDE(16, rest, divisor, quotient)

#define DIVIDE_41_16(rest, divisor, quotient)                                                                   \
    DIVIDE(40, rest, divisor, quotient) DIVIDE(39, rest, divisor, quotient)                                     \
    DIVIDE(38, rest, divisor, quotient) DIVIDE(37, rest, divisor, quotient)                                     \
    DIVIDE(36, rest, divisor, quotient) DIVIDE(35, rest, divisor, quotient)                                     \
    DIVIDE(34, rest, divisor, quotient) DIVIDE(33, rest, divisor, quotient)                                     \
    DIVIDE(32, rest, divisor, quotient) DIVIDE(31, rest, divisor, quotient)                                     \
    DIVIDE(30, rest, divisor, quotient) DIVIDE(29, rest, divisor, quotient)                                     \
    DIVIDE(28, rest, divisor, quotient) DIVIDE(27, rest, divisor, quotient)                                     \
    DIVIDE(26, rest, divisor, quotient) DIVIDE(25, rest, divisor, quotient)                                     \
    DIVIDE(24, rest, divisor, quotient) DIVIDE(23, rest, divisor, quotient)                                     \
    DIVIDE(22, rest, divisor, quotient) DIVIDE(21, rest, divisor, quotient)                                     \
    DIVIDE(20, rest, divisor, quotient) DIVIDE(19, rest, divisor, quotient)                                     \
    DIVIDE(18, rest, divisor, quotient) DIVIDE(17, rest, divisor, quotient)                                     \
    DIVIDE(16, rest, divisor, quotient)

#define DIVIDE_41(rest, divisor, quotient) DIVIDE_41_16(rest, divisor, quotient) DIVIDE_16(rest, divisor, quotient)

// One bit of a quotient of which only the remainder is used; and those from the 16th on of quotients below 2^58.
#define REMAINDER(bit_, rest, divisor)                                                                          \
    if (rest >= (divisor << bit_)) {                                                                            \
        rest = rest - (divisor << bit_);                                                                        \
    }

#define REMAINDER_58_16(rest, divisor)                                                                          \
    REMAINDER(57, rest, divisor) REMAINDER(56, rest, divisor) REMAINDER(55, rest, divisor)                      \
    REMAINDER(54, rest, divisor) REMAINDER(53, rest, divisor) REMAINDER(52, rest, divisor)                      \
    REMAINDER(51, rest, divisor) REMAINDER(50, rest, divisor) REMAINDER(49, rest, divisor)                      \
    REMAINDER(48, rest, divisor) REMAINDER(47, rest, divisor) REMAINDER(46, rest, divisor)                      \
    REMAINDER(45, rest, divisor) REMAINDER(44, rest, divisor) REMAINDER(43, rest, divisor)                      \
    REMAINDER(42, rest, divisor) REMAINDER(41, rest, divisor) REMAINDER(40, rest, divisor)                      \
    REMAINDER(39, rest, divisor) REMAINDER(38, rest, divisor) REMAINDER(37, rest, divisor)                      \
    REMAINDER(36, rest, divisor) REMAINDER(35, rest, divisor) REMAINDER(34, rest, divisor)                      \
    REMAINDER(33, rest, divisor) REMAINDER(32, rest, divisor) REMAINDER(31, rest, divisor)                      \
    REMAINDER(30, rest, divisor) REMAINDER(29, rest, divisor) REMAINDER(28, rest, divisor)                      \
    REMAINDER(27, rest, divisor) REMAINDER(26, rest, divisor) REMAINDER(25, rest, divisor)                      \
    REMAINDER(24, rest, divisor) REMAINDER(23, rest, divisor) REMAINDER(22, rest, divisor)                      \
    REMAINDER(21, rest, divisor) REMAINDER(20, rest, divisor) REMAINDER(19, rest, divisor)                      \
    REMAINDER(18, rest, divisor) REMAINDER(17, rest, divisor) REMAINDER(16, rest, divisor)

#define REMAINDER_58(rest, divisor)                                                                             \
    if (rest >= (divisor << 16)) {                                                                              \
        REMAINDER_58_16(rest, divisor)                                                                          \
    }                                                                                                           \
    REMAINDER(15, rest, divisor) REMAINDER(14, rest, divisor) REMAINDER(13, rest, divisor) REMAINDER(12, rest, divisor)\
    REMAINDER(11, rest, divisor) REMAINDER(10, rest, divisor) REMAINDER(9, rest, divisor) REMAINDER(8, rest, divisor)\
    REMAINDER(7, rest, divisor) REMAINDER(6, rest, divisor) REMAINDER(5, rest, divisor) REMAINDER(4, rest, divisor)\
    REMAINDER(3, rest, divisor) REMAINDER(2, rest, divisor) REMAINDER(1, rest, divisor) REMAINDER(0, rest, divisor)

// Product of two fractions of 2^31, rounded.
#define MUL_Q31(a, b) ((bit<32>)(((bit<64>)(a) * (bit<64>)(b) + (1 << 30)) >> 31))

// x / 100 for x < 2^47 is x · this >> 54, exactly: this is (2^54 + 16) / 100, and x · 16 < 2^54.
const bit<96> HUNDREDTH_Q54 = 180143985094820;
// x / 10^9 for x < 2^54 is x · this >> 84, exactly: this is (2^84 + 204701184) / 10^9, and x · 204701184 < 2^84.
const bit<128> BILLIONTH_Q84 = 19342813113834067;
// x / 3 for a multiple of 3 is x · this, modulo 2^64.
const bit<64> INVERSE_OF_3 = 0xaaaaaaaaaaaaaaab;

// `value` shifted left by a number of 10 bits: run-time shifts in BMv2 have 8 bits.
#define QUARTER(n) (bit<8>)((n) >> 2)
#define SHIFT_10(value, n) ((((value << QUARTER(n)) << QUARTER(n)) << QUARTER(n)) << QUARTER(n) << (bit<8>)((n) & 3))

// The number of ones in each half of `value`, of 128 bits. Every step has the same condition: without it the compiler would
// insert each step into the next, twice.
#define IN_BOTH(word) (64w##word ++ 64w##word)
#define COUNT_IN_HALVES(value, count)                                                                           \
    count = value;                                                                                              \
    if (value != 0) {                                                                                           \
        count = value - ((value >> 1) & IN_BOTH(0x5555555555555555));                                           \
    }                                                                                                           \
    if (value != 0) {                                                                                           \
        count = (count & IN_BOTH(0x3333333333333333)) + ((count >> 2) & IN_BOTH(0x3333333333333333));           \
    }                                                                                                           \
    if (value != 0) {                                                                                           \
        count = (count + (count >> 4)) & IN_BOTH(0x0f0f0f0f0f0f0f0f);                                           \
    }                                                                                                           \
    if (value != 0) {                                                                                           \
        count = count + (count >> 8);                                                                           \
    }                                                                                                           \
    if (value != 0) {                                                                                           \
        count = count + (count >> 16);                                                                          \
    }                                                                                                           \
    if (value != 0) {                                                                                           \
        count = (count + (count >> 32)) & IN_BOTH(0x7f);                                                        \
    }
