/*! Kernels that can never end: what the twin says of them is tested, and nobody else launches them.
 */
#include "doorbell_gpu.h"

/* Launch: whole warps. Lane 3 does not come to the barrier. */
extern "C" __global__ void absent_lane(db_u32 *word) {
    if (db_lane() == 3) return;
    __syncwarp();
    *word = 1;
}

/* Launch: whole warps. Halves of a warp meet at different intrinsics. */
extern "C" __global__ void divergence(db_u32 *word) {
    if (db_lane() < 16)
        __syncwarp();
    else
        *word = __ballot_sync(0xffffffffu, 1);
}

/* Launch: whole warps. A lane gives a mask that does not name it. */
extern "C" __global__ void foreign_mask(db_u32 *word) {
    if (db_lane() == 0) __syncwarp(0xfffffffeu);
    *word = 1;
}

/* Launch: any. Waits by the twin's calls for a flag that is never set; other threads wait for the first. */
extern "C" __global__ void endless_poll(db_u32 *word) {
    if (threadIdx.x == 0)
        while (!db_load_acquire_sys32((db_u64)word)) {
        }
    __syncthreads();
}

/* Launch: any. The same by a plain load, which the twin does not see. */
extern "C" __global__ void endless_spin(db_u32 *word) {
    while (!*(volatile db_u32 *)word) {
    }
}
