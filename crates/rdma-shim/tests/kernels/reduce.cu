/*! Sums over a block in shared memory: lanes to a warp by __syncwarp, warps to the block by __syncthreads.
 *
 * Launch: blocks of whole warps, at most 4. `sums`: `rounds` words a block, host memory; round r of block b
 * is the sum of (r + 1) * (thread + 1) over its threads, times b + 1. Waits only for the block's lanes.
 */
#include "doorbell_gpu.h"

extern "C" __global__ void reduce(db_u64 *sums, db_u32 rounds) {
    __shared__ db_u64 mine[4 * DB_WARP];
    __shared__ db_u64 warps[4];
    db_u32 me = threadIdx.x, warp = me / DB_WARP, lane = db_lane(), round, i;
    for (round = 0; round < rounds; round++) {
        mine[me] = (db_u64)(round + 1) * (me + 1) * (blockIdx.x + 1);
#ifndef DEFECT_NO_WARP_SYNC
        __syncwarp();
#endif
        if (lane == 0) {
            db_u64 sum = 0;
            for (i = 0; i < DB_WARP; i++) sum += mine[warp * DB_WARP + i];
            warps[warp] = sum;
        }
        __syncthreads();
        if (me == 0) {
            db_u64 sum = 0;
            for (i = 0; i < blockDim.x / DB_WARP; i++) sum += warps[i];
            sums[blockIdx.x * rounds + round] = sum;
        }
        __syncthreads();
    }
}
