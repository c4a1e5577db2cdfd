/*! CUDA's vector types: sizes and alignments of the CUDA C++ Programming Guide, "Built-in Vector Types".
 *
 * Left out: vectors of long, which is not the same on all machines.
 */
#ifndef DB_TWIN_VECTOR_H
#define DB_TWIN_VECTOR_H

#define DB_TWIN_VECTORS(T, name, align2, align4) \
    struct name##1 { \
        T x; \
    }; \
    struct alignas(align2) name##2 { \
        T x, y; \
    }; \
    struct name##3 { \
        T x, y, z; \
    }; \
    struct alignas(align4) name##4 { \
        T x, y, z, w; \
    }; \
    static inline name##1 make_##name##1(T x) { return {x}; } \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

DB_TWIN_VECTORS(signed char, char, 2, 4)
DB_TWIN_VECTORS(unsigned char, uchar, 2, 4)
DB_TWIN_VECTORS(short, short, 4, 8)
DB_TWIN_VECTORS(unsigned short, ushort, 4, 8)
DB_TWIN_VECTORS(int, int, 8, 16)
DB_TWIN_VECTORS(unsigned int, uint, 8, 16)
DB_TWIN_VECTORS(long long, longlong, 16, 16)
DB_TWIN_VECTORS(unsigned long long, ulonglong, 16, 16)
DB_TWIN_VECTORS(float, float, 8, 16)
DB_TWIN_VECTORS(double, double, 16, 16)

/* Numbers of blocks or threads; what is not said is 1. */
struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 of) : x(of.x), y(of.y), z(of.z) {}
    operator uint3() const { return {x, y, z}; }
};

#endif /* DB_TWIN_VECTOR_H */
