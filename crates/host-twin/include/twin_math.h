/*! CUDA's mathematical functions and bit intrinsics, as the host's library and compiler have them.
 *
 * Names follow the CUDA Math API. Fast variants (`__expf`) are as exact as the others. A sum is not
 * contracted into a multiply-add unless the source says `fma`.
 */
#ifndef DB_TWIN_MATH_H
#define DB_TWIN_MATH_H

#include <math.h>

#define DB_TWIN_F(name, parameters, expression) \
    static inline float name parameters { return expression; }
DB_TWIN_F(db_twin_rsqrtf, (float x), 1.0f / sqrtf(x))
DB_TWIN_F(db_twin_rcbrtf, (float x), 1.0f / cbrtf(x))
DB_TWIN_F(db_twin_sinpif, (float x), (float)sin(3.14159265358979323846 * fmod(x, 2.0)))
DB_TWIN_F(db_twin_cospif, (float x), (float)cos(3.14159265358979323846 * fmod(x, 2.0)))
DB_TWIN_F(db_twin_normcdff, (float x), (float)(0.5 * erfc(-(double)x * 0.70710678118654752440)))
DB_TWIN_F(__fdividef, (float x, float y), x / y)
DB_TWIN_F(db_twin_fdividef, (float x, float y), x / y)
DB_TWIN_F(__fadd_rn, (float x, float y), x + y)
DB_TWIN_F(__fsub_rn, (float x, float y), x - y)
DB_TWIN_F(__fmul_rn, (float x, float y), x *y)
DB_TWIN_F(__fdiv_rn, (float x, float y), x / y)
DB_TWIN_F(__fmaf_rn, (float x, float y, float z), fmaf(x, y, z))
DB_TWIN_F(__frcp_rn, (float x), 1.0f / x)
DB_TWIN_F(__fsqrt_rn, (float x), sqrtf(x))
DB_TWIN_F(__frsqrt_rn, (float x), (float)(1.0 / sqrt((double)x)))
DB_TWIN_F(__saturatef, (float x), x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f)
/* Macros, since C libraries declare functions of these names (sinpif and cospif since glibc 2.41). */
#define rsqrtf(x) db_twin_rsqrtf(x)
#define rcbrtf(x) db_twin_rcbrtf(x)
#define sinpif(x) db_twin_sinpif(x)
#define cospif(x) db_twin_cospif(x)
#define normcdff(x) db_twin_normcdff(x)
#define fdividef(x, y) db_twin_fdividef(x, y)
#define rsqrt(x) db_twin_rsqrt(x)
#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0f, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __powf(x, y) powf(x, y)
static inline double db_twin_rsqrt(double x) { return 1.0 / sqrt(x); }

#define DB_TWIN_ORDERED(T) \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
DB_TWIN_ORDERED(int)
DB_TWIN_ORDERED(unsigned int)
DB_TWIN_ORDERED(long)
DB_TWIN_ORDERED(unsigned long)
DB_TWIN_ORDERED(long long)
DB_TWIN_ORDERED(unsigned long long)
/* The number, where one of the two is no number. */
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

template <class To, class From> static inline To db_twin_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits stay bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline int __float_as_int(float x) { return db_twin_bits<int>(x); }
static inline unsigned int __float_as_uint(float x) { return db_twin_bits<unsigned int>(x); }
static inline float __int_as_float(int x) { return db_twin_bits<float>(x); }
static inline float __uint_as_float(unsigned int x) { return db_twin_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return db_twin_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return db_twin_bits<double>(x); }
/* As PTX's cvt does: the nearest integer that there is, and 0 for what is no number. */
static inline int __float2int_rz(float x) {
    return x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : x == x ? (int)x : 0;
}
static inline int __float2int_rn(float x) { return __float2int_rz(nearbyintf(x)); }
static inline int __float2int_rd(float x) { return __float2int_rz(floorf(x)); }
static inline int __float2int_ru(float x) { return __float2int_rz(ceilf(x)); }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned int x) { return (float)x; }

static inline int __ffs(int bits) { return __builtin_ffs(bits); }
static inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
static inline int __clz(int bits) { return bits ? __builtin_clz((unsigned)bits) : 32; }
static inline int __clzll(long long bits) { return bits ? __builtin_clzll((unsigned long long)bits) : 64; }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
static inline unsigned int __brev(unsigned int bits) {
    unsigned int reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (bits >> bit & 1u) << (31 - bit);
    return reversed;
}
static inline unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned int)((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
/* Bytes 0 to 7 of the two words, by the nibbles of `selector`; their highest bits (sign) are ignored. */
static inline unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int selector) {
    unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned int bytes = 0;
    for (int at = 0; at < 4; at++) bytes |= (unsigned int)(both >> (8 * (selector >> (4 * at) & 7u)) & 0xffu) << (8 * at);
    return bytes;
}
static inline unsigned int __funnelshift_l(unsigned int low, unsigned int high, unsigned int by) {
    return (unsigned int)(((unsigned long long)high << 32 | low) << (by & 31u) >> 32);
}
static inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int by) {
    return (unsigned int)(((unsigned long long)high << 32 | low) >> (by & 31u));
}
static inline int __dp4a(int a, int b, int sum) {
    for (int at = 0; at < 4; at++) sum += (int)(signed char)(a >> (8 * at)) * (int)(signed char)(b >> (8 * at));
    return sum;
}

#endif /* DB_TWIN_MATH_H */
