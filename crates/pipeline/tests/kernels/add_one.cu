/*! A resident model that adds 1 to each number, in two steps: the second reads what other blocks stored. */
#include "grid.h"
#include "order.h"

/* As `struct slot` of a model's kernels: where request and answer lie in the grid's slot. */
struct add_one {
    db_u64 slots, index, stride, request, answer;
    db_u64 between; /* as many words as numbers */
    db_u64 count;
    db_u64 gate; /* 32-bit words of the host's: how many runs may begin, and how many have; null: no run waits */
};

/* The first step reverses the numbers, the second adds 1 and reverses back: each reads others' stores. */
#ifdef DB_TWIN
extern "C" __global__ void db_model(unsigned long long model, struct db_grid *grid)
#else
extern "C" __device__ void db_model(unsigned long long model, struct db_grid *grid)
#endif
{
    const struct add_one *at = (const struct add_one *)model;
    const db_u64 slot = at->slots + grid->slot * at->stride;
    const db_u64 all = (db_u64)db_grid_blocks(grid) * blockDim.x, last = at->count - 1;
    db_u64 nth;
    if (at->gate && blockIdx.x == 0 && threadIdx.x == 0) {
        const db_u32 begun = db_load_relaxed32((const db_u32 *)at->gate + 1);
        while (db_load_acquire_sys32(at->gate) <= begun) (void)db_clock_ns();
        db_store_relaxed32((db_u32 *)at->gate + 1, begun + 1);
    }
    for (nth = blockIdx.x * blockDim.x + threadIdx.x; nth <= last; nth += all)
        db_store_relaxed32((db_u32 *)at->between + (last - nth), db_load_relaxed32((const db_u32 *)(slot + at->request) + nth));
    if (db_grid_meet(grid)) return;
    for (nth = blockIdx.x * blockDim.x + threadIdx.x; nth <= last; nth += all) {
        db_u32 bits = db_load_relaxed32((const db_u32 *)at->between + (last - nth));
        bits = __float_as_uint(__uint_as_float(bits) + 1.0f);
        db_store32(slot + at->answer + 4 * nth, bits);
    }
    db_grid_meet(grid);
}
