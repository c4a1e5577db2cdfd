/*! Ordinary CUDA kernels, as programs have them, to test the twin, NVIDIA's compiler, and GPU against twin.
 *
 * They include what CUDA programs include, and nothing of the twin.
 */
#include <cooperative_groups.h>
#include <cuda_fp16.h>

#define TILE 16

/* c = a * b, `size` x `size`, a multiple of 16. Launch: 16 x 16 threads, size / 16 blocks along x and y. */
extern "C" __global__ void __launch_bounds__(TILE *TILE) tiled_product(const float *a, const float *b, float *c, int size) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int step = 0; step < size; step += TILE) {
        left[y][x] = a[row * size + step + x];
        right[y][x] = b[(step + y) * size + column];
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += left[y][k] * right[k][x];
        __syncthreads();
    }
    c[row * size + column] = sum;
}

/* Sums of `count` numbers, one for each block. Launch: whole warps, at most 32, one dimension. */
extern "C" __global__ void reduce_by_shuffles(const int *numbers, int *sums, int count) {
    __shared__ int of_warp[32];
    int sum = 0, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) sum += numbers[at];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffffu, sum, by);
    if (lane == 0) of_warp[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = lane < (int)blockDim.x / 32 ? of_warp[lane] : 0;
        for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
        if (lane == 0) sums[blockIdx.x] = sum;
    }
}

/* How often each byte comes. Launch: 256 threads, any number of blocks; `counts`: 256 words of 0. */
extern "C" __global__ void histogram(const unsigned char *bytes, unsigned int *counts, int count) {
    __shared__ unsigned int mine[256];
    mine[threadIdx.x] = 0;
    __syncthreads();
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x)
        atomicAdd(&mine[__ldg(&bytes[at])], 1u);
    __syncthreads();
    if (mine[threadIdx.x]) atomicAdd(&counts[threadIdx.x], mine[threadIdx.x]);
}

/* y = a * x + y in half precision, two at a time. Launch: one thread a pair. */
extern "C" __global__ void axpy_half(const __half2 *x, __half2 *y, float a, int pairs) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < pairs) y[at] = __hfma2(__float2half2_rn(a), x[at], y[at]);
}

/* Inclusive sums within each block. Launch: one dimension; dynamic shared memory: two ints a thread. */
extern "C" __global__ void scan_block(const int *numbers, int *sums) {
    extern __shared__ int buffers[];
    int *from = buffers, *to = buffers + blockDim.x, me = threadIdx.x;
    from[me] = numbers[blockIdx.x * blockDim.x + me];
    __syncthreads();
    for (int by = 1; by < (int)blockDim.x; by *= 2) {
        to[me] = me >= by ? from[me] + from[me - by] : from[me];
        __syncthreads();
        int *other = from;
        from = to;
        to = other;
    }
    sums[blockIdx.x * blockDim.x + me] = from[me];
}

/* Adds all numbers: each block its own, then all blocks' sums. Launch: cooperative, whole tiles of 16. */
extern "C" __global__ void sum_of_grid(const float *numbers, float *of_block, float *totals, int count) {
    namespace cg = cooperative_groups;
    cg::grid_group grid = cg::this_grid();
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
    __shared__ float sum;
    if (block.thread_rank() == 0) sum = 0;
    block.sync();
    float mine = 0;
    for (unsigned long long at = grid.thread_rank(); at < (unsigned long long)count; at += grid.size()) mine += numbers[at];
    for (int by = 8; by > 0; by /= 2) mine += tile.shfl_down(mine, by);
    if (tile.thread_rank() == 0) atomicAdd(&sum, mine);
    block.sync();
    if (block.thread_rank() == 0) of_block[blockIdx.x] = sum;
    grid.sync();
    if (block.thread_rank() == 0) {
        float total = 0;
        for (unsigned int other = 0; other < gridDim.x; other++) total += of_block[other];
        totals[blockIdx.x] = total;
    }
}

/* Bits of half precision, by row: the number itself, x + y, x * y, x / y, x * y + x, the root of x. */
extern "C" __global__ void half_arithmetic(const float *xs, const float *ys, unsigned short *results, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    __half x = __float2half(xs[at]), y = __float2half(ys[at]);
    __half values[6] = {x, __hadd(x, y), __hmul(x, y), __hdiv(x, y), __hfma(x, y, x), hsqrt(x)};
    for (int row = 0; row < 6; row++) results[row * count + at] = __half_as_ushort(values[row]);
}

/* Each thread's place, by its number in the launch: block and thread along x, y and z, as base-16 digits. */
extern "C" __global__ void places(unsigned int *out) {
    unsigned int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned int digits[6] = {blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z}, all = 0;
    for (int at = 0; at < 6; at++) all = all * 16 + digits[at];
    out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = all;
}

/* What the other intrinsics answer: 0, or the number of the first wrong one. Launch: whole warps, one
 * dimension. `words`: 8 words of 0 for the atomics of all threads. */
extern "C" __global__ void intrinsics(unsigned int *out, int *words, float *sum) {
    int me = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    unsigned int wrong = 0, full = 0xffffffffu;
#define EXPECT(step, truth) \
    if (!(truth) && !wrong) wrong = step
    EXPECT(1, __ballot_sync(full, lane % 3 == 0) == 0x49249249u);
    EXPECT(2, __shfl_sync(full, lane * 1.5f, 5) == 7.5f && __shfl_sync(full, lane, 3, 8) == lane / 8 * 8 + 3);
    EXPECT(3, __shfl_up_sync(full, lane, 3, 16) == (lane % 16 < 3 ? lane : lane - 3));
    EXPECT(4, __shfl_down_sync(full, (double)lane, 2) == (lane > 29 ? lane : lane + 2));
    EXPECT(5, __shfl_xor_sync(full, lane, 16) == (lane ^ 16));
    EXPECT(6, __any_sync(full, lane == 9) && !__all_sync(full, lane == 9) && __all_sync(full, 1));
    EXPECT(7, __syncthreads_count(lane == 0) == (int)blockDim.x / 32 && __syncthreads_and(1) && !__syncthreads_or(0));
    if (lane < 16) {
        EXPECT(8, __ballot_sync(0x0000ffffu, lane % 2) == 0x0000aaaau);
    } else {
        EXPECT(8, __ballot_sync(0xffff0000u, lane % 2 == 0) == 0x55550000u);
    }
    EXPECT(9, __popc(0xf0f0u) == 8 && __ffs(8) == 4 && __clz(1) == 31 && __brev(1u) == 0x80000000u);
    EXPECT(10, __popcll(~0ull) == 64 && __clzll(1) == 63 && __ffsll(1ll << 40) == 41);
    EXPECT(11, __umulhi(0x80000000u, 6u) == 3u && __byte_perm(0x33221100u, 0x77665544u, 0x7150u) == 0x77115500u);
    EXPECT(12, __float_as_int(1.0f) == 0x3f800000 && __int_as_float(0x40000000) == 2.0f);
    EXPECT(13, fabsf(rsqrtf(4.0f) - 0.5f) < 1e-6f && fmaxf(1.0f, 2.0f) == 2.0f && max(-3, 2) == 2);
    EXPECT(14, __dp4a(0x01ff0203, 0x01010101, 5) == 1 - 1 + 2 + 3 + 5);
    float4 four = make_float4(1, 2, 3, 4);
    EXPECT(15, sizeof(float4) == 16 && alignof(float2) == 8 && sizeof(float3) == 12 && four.x + four.w == 5);
    EXPECT(16, __half2float(__float2half(0.1f)) == 0.0999755859375f);
    half2 pair = __floats2half2_rn(1.5f, -2.0f) * __float2half2_rn(2.0f);
    EXPECT(17, __low2float(pair) == 3.0f && __high2float(pair) == -4.0f && __hlt(pair.y, pair.x));
    float large = 3e9f * (1 + lane);
    EXPECT(18, __float2int_rn(large) == 0x7fffffff && __float2int_rd(-large) == (int)0x80000000);
    EXPECT(19, __float2int_ru(large * 0.0f / (me * 0.0f)) == 0 && __float2int_rz(-2.5f * lane) == -5 * lane / 2);
    atomicAdd(&words[0], 1);
    atomicMax(&words[1], me);
    atomicMin(&words[2], -me);
    atomicOr((unsigned int *)&words[3], 1u << lane);
    atomicXor((unsigned int *)&words[4], 1u << lane);
    while (atomicCAS(&words[5], 0, 1) != 0) {
    }
    __threadfence();
    words[6] = *(volatile int *)&words[6] + 1;
    __threadfence();
    atomicExch(&words[5], 0);
    atomicAdd((unsigned long long *)sum, 0ull);
    atomicAdd(&sum[2], 0.5f);
    out[me] = wrong;
}

/* Which lane of the launch came when: each comes `rounds` times. */
extern "C" __global__ void arrivals(int *count, int *order, int rounds) {
    for (int round = 0; round < rounds; round++) order[atomicAdd(count, 1)] = (int)(blockIdx.x * blockDim.x + threadIdx.x);
}
