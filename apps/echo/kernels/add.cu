/*! The echo's model in the pipeline's modes: an answer is its request with 1 added to the last 8-byte word.
 *
 * Between the kernels of a turn it works in the one buffer that they copy into and out of. In the resident
 * kernel it works in the slots, and copies there as well.
 */
#include "grid.h"
#include "order.h"

/* Where request and answer lie in the grid's slot, and their number of words: as src/kernel/add.rs. */
struct db_add {
    db_u64 slots, index, stride, request, answer, words;
};

/* Called by all blocks of the kernel that stays: pipeline's serve.cu. */
#ifdef DB_TWIN
extern "C" __global__ void db_model(unsigned long long model, struct db_grid *grid)
#else
extern "C" __device__ void db_model(unsigned long long model, struct db_grid *grid)
#endif
{
    const struct db_add *at = (const struct db_add *)model;
    const db_u64 slot = at->slots + grid->slot * at->stride;
    const db_u64 all = (db_u64)db_grid_blocks(grid) * blockDim.x;
    db_u64 nth;
    for (nth = blockIdx.x * blockDim.x + threadIdx.x; nth < at->words; nth += all)
        db_store64(slot + at->answer + 8 * nth,
                   db_load_relaxed64((const db_u64 *)(slot + at->request) + nth) + (nth + 1 == at->words));
    db_grid_meet(grid);
}

/* Launch: one thread, between take_inputs and put_outputs. `last`: address of the buffer's last word. */
extern "C" __global__ void add_last(db_u64 last) { db_store64(last, db_load_relaxed64((const db_u64 *)last) + 1); }
