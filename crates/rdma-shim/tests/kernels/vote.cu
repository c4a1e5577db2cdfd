/*! What lanes of a warp learn from one another: votes and shuffles, checked against the lane's own result.
 *
 * Launch: blocks of whole warps. `out`: a word for each thread, host memory; 0, or the number of the first
 * step that went wrong. Waits for nothing but the warp's own lanes.
 */
#include "doorbell_gpu.h"

extern "C" __global__ void vote(db_u32 *out) {
    db_u32 lane = db_lane(), me = blockIdx.x * blockDim.x + threadIdx.x, wrong = 0, half;
    db_u64 wide = (db_u64)me << 40 | 7;
#define EXPECT(step, truth) \
    if (!(truth) && !wrong) wrong = step
    EXPECT(1, db_warp_ballot(lane % 3 == 0) == 0x49249249u);
    EXPECT(2, db_warp_shuffle32(me, 5) == me - lane + 5);
    EXPECT(3, db_warp_shuffle64(wide, 31) >> 40 == me - lane + 31);
    EXPECT(4, db_warp_shuffle_up32(me, 3) == (lane < 3 ? me : me - 3));
    EXPECT(5, __shfl_down_sync(0xffffffffu, lane, 1) == (lane == 31 ? lane : lane + 1));
    EXPECT(6, __shfl_xor_sync(0xffffffffu, lane, 16) == (lane ^ 16));
    EXPECT(7, __any_sync(0xffffffffu, lane == 9) && !__any_sync(0xffffffffu, lane > 31));
    EXPECT(8, __all_sync(0xffffffffu, lane < 32) && !__all_sync(0xffffffffu, lane != 9));
    EXPECT(9, __activemask() >> lane & 1);
    /* Two halves apart, then together again. */
    half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    if (lane < 16) {
        EXPECT(10, __ballot_sync(half, lane % 2) == 0x0000aaaau);
    } else {
        EXPECT(10, __ballot_sync(half, lane % 2 == 0) == 0x55550000u);
    }
    __syncwarp(half);
    EXPECT(11, __popc(db_warp_ballot(1)) == 32 && __ffs(8) == 4 && __clz(1) == 31);
    out[me] = wrong;
}

/* Atomics: each thread adds to a counter and marks the number that it got. Launch: up to 64 lanes a block.
 * `words`: counter, maximum, a lock, what the lock guards, then a mark for each number; host memory. */
extern "C" __global__ void count(db_u64 *words, db_u32 rounds) {
    db_u32 round;
    for (round = 0; round < rounds; round++) {
        db_u64 number = db_fetch_add64(&words[0], 1);
        db_u32 *lock = (db_u32 *)&words[2];
        atomicAdd(&words[4 + number], 1ull);
        atomicMax(&words[1], number);
        while (db_exchange_acquire32(lock, 1)) {
        }
        db_store64((db_u64)&words[3], db_load_relaxed64(&words[3]) + 1);
        db_store_release32(lock, 0);
    }
}
