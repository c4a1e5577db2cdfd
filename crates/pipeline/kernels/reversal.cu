/*! Stands for a model where waiting and sending are timed (src/gpu/cost.rs). It has as many steps as a small
 * one, each of which reads what other blocks stored in the step before. The answer is the request.
 */
#include "grid.h"
#include "order.h"

/* Even: a step reverses the numbers. */
#define DB_REVERSAL_STEPS 8u

/* Where request and answer lie in slot `*index`, or the grid's in a kernel that stays; and what lies between
 * the steps. As many numbers each. */
struct db_reversal {
    db_u64 slots, index, stride, request, answer;
    db_u64 between[2];
    db_u64 count;
};

/* One step in slot `index`: all threads of so many blocks. */
DB_GPU_FN void db_reversal_step(const struct db_reversal *at, db_u32 step, db_u32 blocks, db_u32 index) {
    const db_u64 slot = at->slots + index * at->stride;
    const db_u64 from = step ? at->between[(step - 1) & 1] : slot + at->request;
    const db_u64 to = step + 1 == DB_REVERSAL_STEPS ? slot + at->answer : at->between[step & 1];
    const db_u64 all = (db_u64)blocks * blockDim.x, last = at->count - 1;
    db_u64 nth;
    for (nth = (db_u64)blockIdx.x * blockDim.x + threadIdx.x; nth <= last; nth += all)
        db_store_relaxed32((db_u32 *)to + (last - nth), db_load_relaxed32((const db_u32 *)from + nth));
}

/* Launch: any number of blocks, by a graph, once for each step. */
extern "C" __global__ void reversal(const struct db_reversal *at, db_u32 step) {
    db_reversal_step(at, step, gridDim.x, *(const db_u32 *)at->index);
}

/* All steps, for a kernel that stays. */
#ifdef DB_TWIN
extern "C" __global__ void db_model(unsigned long long model, struct db_grid *grid)
#else
extern "C" __device__ void db_model(unsigned long long model, struct db_grid *grid)
#endif
{
    db_u32 step;
    for (step = 0; step < DB_REVERSAL_STEPS; step++) {
        db_reversal_step((const struct db_reversal *)model, step, db_grid_blocks(grid), grid->slot);
        if (db_grid_meet(grid)) return;
    }
}
