/*! Half precision of CUDA's `cuda_fp16.h`: IEEE 754-2019 binary16, rounded once to nearest even.
 *
 * Sums, products, quotients and roots are taken in `float`: its 24 bits (2 * 11 + 2) are enough that the
 * second rounding changes nothing. A multiply-add is taken in `double`.
 * Left out: other roundings, bfloat16, saturating and relu variants, and most functions but the common ones.
 */
#ifndef DB_TWIN_CUDA_FP16_H
#define DB_TWIN_CUDA_FP16_H

static inline unsigned short db_twin_half_bits(double value) {
    unsigned long long bits = db_twin_bits<unsigned long long>(value);
    unsigned short sign = (unsigned short)(bits >> 48 & 0x8000u);
    unsigned long long rest = bits & 0x7fffffffffffffffull;
    if (rest > 0x7ff0000000000000ull) return 0x7fff; /* no number: CUDA's is always this one */
    /* 65520, from where on the nearest is infinite. */
    if (rest >= 0x40effe0000000000ull) return (unsigned short)(sign | 0x7c00u);
    int exponent = (int)(rest >> 52) - 1023;
    if (exponent < -25) return sign;
    unsigned long long mantissa = (rest & 0xfffffffffffffull) | 0x10000000000000ull;
    /* Bits that are cut off: 42, and more of a number below the normal ones. */
    int cut = exponent < -14 ? 42 + (-14 - exponent) : 42;
    unsigned long long kept = mantissa >> cut, lost = mantissa & ((1ull << cut) - 1), tie = 1ull << (cut - 1);
    if (lost > tie || (lost == tie && (kept & 1))) kept++;
    /* A carry out of the mantissa is the next exponent. */
    if (exponent >= -14) kept += (unsigned long long)(exponent + 14) << 10;
    return (unsigned short)(sign | kept);
}

static inline float db_twin_half_value(unsigned short bits) {
    unsigned int sign = (unsigned int)(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, mantissa = bits & 0x3ffu;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
        float value = (float)mantissa * 5.9604644775390625e-8f; /* 2^-24 */
        return sign ? -value : value;
    }
    return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

struct __half {
    unsigned short bits;
    __half() = default;
    __half(float value) : bits(db_twin_half_bits(value)) {}
    __half(double value) : bits(db_twin_half_bits(value)) {}
    __half(int value) : bits(db_twin_half_bits(value)) {}
    __half(unsigned int value) : bits(db_twin_half_bits(value)) {}
    operator float() const { return db_twin_half_value(bits); }
};
struct alignas(4) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half x, __half y) : x(x), y(y) {}
};
typedef __half half;
typedef __half2 half2;
typedef __half __nv_half;
typedef __half2 __nv_half2;

static inline __half __ushort_as_half(unsigned short bits) {
    __half value;
    value.bits = bits;
    return value;
}
static inline unsigned short __half_as_ushort(__half value) { return value.bits; }
static inline __half __float2half(float value) { return __half(value); }
static inline __half __float2half_rn(float value) { return __half(value); }
static inline __half __double2half(double value) { return __half(value); }
static inline __half __int2half_rn(int value) { return __half(value); }
static inline float __half2float(__half value) { return (float)value; }
static inline int __half2int_rn(__half value) { return (int)nearbyintf((float)value); }
static inline int __half2int_rz(__half value) { return (int)(float)value; }

static inline __half2 make_half2(__half x, __half y) { return __half2(x, y); }
static inline __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
static inline __half2 __half2half2(__half value) { return __half2(value, value); }
static inline __half2 __float2half2_rn(float value) { return __half2(value, value); }
static inline __half2 __floats2half2_rn(float x, float y) { return __half2(x, y); }
static inline __half2 __float22half2_rn(float2 values) { return __half2(values.x, values.y); }
static inline float2 __half22float2(__half2 values) { return make_float2(values.x, values.y); }
static inline __half __low2half(__half2 values) { return values.x; }
static inline __half __high2half(__half2 values) { return values.y; }
static inline float __low2float(__half2 values) { return values.x; }
static inline float __high2float(__half2 values) { return values.y; }
static inline __half2 __low2half2(__half2 values) { return __half2(values.x, values.x); }
static inline __half2 __high2half2(__half2 values) { return __half2(values.y, values.y); }
static inline __half2 __lowhigh2highlow(__half2 values) { return __half2(values.y, values.x); }

static inline int __hisnan(__half a) { return (a.bits & 0x7fffu) > 0x7c00u; }
static inline __half __hadd(__half a, __half b) { return __half((float)a + (float)b); }
static inline __half __hsub(__half a, __half b) { return __half((float)a - (float)b); }
static inline __half __hmul(__half a, __half b) { return __half((float)a * (float)b); }
static inline __half __hdiv(__half a, __half b) { return __half((float)a / (float)b); }
static inline __half __hfma(__half a, __half b, __half c) { return __half((double)(float)a * (float)b + (float)c); }
static inline __half __hneg(__half a) { return __ushort_as_half((unsigned short)(a.bits ^ 0x8000u)); }
static inline __half __habs(__half a) { return __ushort_as_half((unsigned short)(a.bits & 0x7fffu)); }
static inline __half __hmax(__half a, __half b) { return __half(fmaxf(a, b)); }
static inline __half __hmin(__half a, __half b) { return __half(fminf(a, b)); }
static inline __half hsqrt(__half a) { return __half(sqrtf(a)); }
static inline __half hrsqrt(__half a) { return __half(1.0 / sqrt((double)(float)a)); }
static inline __half hexp(__half a) { return __half(exp((double)(float)a)); }
static inline __half hlog(__half a) { return __half(log((double)(float)a)); }
static inline __half hrcp(__half a) { return __half(1.0f / (float)a); }
static inline __half htanh(__half a) { return __half(tanh((double)(float)a)); }

#define DB_TWIN_HALF_COMPARISON(name, operator_) \
    static inline bool name(__half a, __half b) { return (float)a operator_(float) b; } \
    static inline bool operator operator_(__half a, __half b) { return (float)a operator_(float) b; }
DB_TWIN_HALF_COMPARISON(__heq, ==)
DB_TWIN_HALF_COMPARISON(__hne, !=)
DB_TWIN_HALF_COMPARISON(__hlt, <)
DB_TWIN_HALF_COMPARISON(__hle, <=)
DB_TWIN_HALF_COMPARISON(__hgt, >)
DB_TWIN_HALF_COMPARISON(__hge, >=)

#define DB_TWIN_HALF_OPERATION(operator_, of_one, of_two) \
    static inline __half2 of_two(__half2 a, __half2 b) { return __half2(of_one(a.x, b.x), of_one(a.y, b.y)); } \
    static inline __half operator operator_(__half a, __half b) { return of_one(a, b); } \
    static inline __half2 operator operator_(__half2 a, __half2 b) { return of_two(a, b); } \
    static inline __half &operator operator_##=(__half &a, __half b) { return a = of_one(a, b); } \
    static inline __half2 &operator operator_##=(__half2 &a, __half2 b) { return a = of_two(a, b); }
DB_TWIN_HALF_OPERATION(+, __hadd, __hadd2)
DB_TWIN_HALF_OPERATION(-, __hsub, __hsub2)
DB_TWIN_HALF_OPERATION(*, __hmul, __hmul2)
DB_TWIN_HALF_OPERATION(/, __hdiv, __h2div)
static inline __half operator-(__half a) { return __hneg(a); }
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }
static inline __half2 __hneg2(__half2 a) { return __half2(__hneg(a.x), __hneg(a.y)); }
static inline __half2 __habs2(__half2 a) { return __half2(__habs(a.x), __habs(a.y)); }
static inline __half2 __hmax2(__half2 a, __half2 b) { return __half2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }
static inline __half2 __hmin2(__half2 a, __half2 b) { return __half2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }

#endif /* DB_TWIN_CUDA_FP16_H */
