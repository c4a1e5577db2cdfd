/*! Ordering primitives of the shim: types, byte order, fences, and stores and loads that a device can see.
 *
 * `doorbell.h` is the same text on every machine; what differs lies behind this file, once a machine:
 *
 *   order_host.h   x86-64 and arm64 processors, compiled by gcc or clang as C11 or C++17
 *   order_cuda.h   NVIDIA GPUs, compiled by nvcc or at run time by NVRTC
 *   order_twin.h   kernels of the latter as threads of a host processor (DB_TWIN)
 *
 * Includes nothing else, because run-time compilers bring no system headers.
 *
 * What each edge of a post costs, by placement. «Ring» is where WQEs lie, «record» the doorbell record,
 * «register» the doorbell; a GPU reaches host memory and the register across PCIe.
 *
 *   edge                    host x86-64   host arm64   GPU, ring in host memory   GPU, ring in GPU memory
 *   WQE -> record           compiler      dmb oshst    fence.acq_rel.sys          fence.acq_rel.sys
 *   record -> register      sfence        dsb st       fence.acq_rel.sys          fence.acq_rel.sys (strict)
 *   WQE -> register         compiler      dmb oshst    the first fence again      the first again (early)
 *   register -> later       sfence        dsb st       none: mmio stores leave    none
 *   CQE's tail -> the rest  compiler      dmb oshld    fence.acquire.sys          fence.acquire.sys
 *   CQE -> consumer index   compiler      dmb osh      fence.acq_rel.sys          fence.acq_rel.sys
 */
#ifndef DB_ORDER_H
#define DB_ORDER_H

typedef unsigned char db_u8;
typedef unsigned short db_u16;
typedef unsigned int db_u32;
typedef unsigned long long db_u64;

/* An array of negative size is an assertion that C11, C++17 and run-time compilers know without a header. */
typedef char db_assert_u16[sizeof(db_u16) == 2 ? 1 : -1];
typedef char db_assert_u32[sizeof(db_u32) == 4 ? 1 : -1];
typedef char db_assert_u64[sizeof(db_u64) == 8 && sizeof(void *) == 8 ? 1 : -1];

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "order.h swaps bytes unconditionally: a big-endian machine needs its own db_be32 and db_be64"
#endif

/* DB_FN declares a routine. DB_FN_INLINED: its call must vanish into the caller, since request builders fold
 * to straight stores only if the opcode is a constant in them. DB_FN_OUTLINED: it must not, since a rare path
 * would take the common one's registers. A GPU keeps a queue in registers only if no call takes its address:
 * there nothing is outlined. */
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define DB_FN static __host__ __device__ __forceinline__
#define DB_FN_OUTLINED DB_FN
#define DB_FN_INLINED DB_FN
/* In front of the one loop that a single thread of a GPU runs flat out, which is unrolled by hand. */
#define DB_NO_UNROLL _Pragma("unroll 1")
/* In front of one whose array is to lie in registers. */
#define DB_UNROLL _Pragma("unroll")
#else
#define DB_NO_UNROLL
#define DB_UNROLL
#define DB_FN static inline
#define DB_FN_OUTLINED static __attribute__((noinline, unused))
#define DB_FN_INLINED static inline __attribute__((always_inline))
#endif

#if defined(DB_TWIN)
#include "order_twin.h"
#else
/* nvcc reads a file twice, once for each machine. */
#if !defined(__CUDACC__) || !(defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__))
#include "order_host.h"
#endif
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "order_cuda.h"
#endif
#endif

#endif /* DB_ORDER_H */
