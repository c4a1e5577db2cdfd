/*! A barrier of all blocks of a cooperative launch, for kernels that stay on the GPU. Waits are bounded: a
 * block that waits too long tells all others, and none of them waits any more.
 *
 * Order, by the PTX ISA, "Memory Consistency Model" (8.7, release and acquire patterns; 8.9.5, causality):
 *   __syncthreads()     the block's stores before its first thread's arrival, whose fence is cumulative
 *   fence, atomicAdd    a release: what the block has stored, before its arrival
 *   load, fence         an acquire: each counted arrival before this thread's later reads. On a GPU it
 *                       also empties the L1 cache, whose lines another block may have written since
 *   __syncthreads_or()  the same for the other threads of the block
 * Left out: grids whose blocks do not all run side by side.
 */
#ifndef DOORBELL_GRID_H
#define DOORBELL_GRID_H

/* A block's view of the barrier; each thread has a copy. */
struct db_grid {
    unsigned int *words;         /* two, in memory of the GPU's, 0 at the launch: blocks that have arrived; not 0: a wait was too long */
    unsigned long long limit_ns; /* longest wait */
    unsigned int arrivals;       /* 0 at the launch; the first thread's counts */
    int is_late;                 /* 0 at the launch: what the last meeting returned */
    unsigned int apart;          /* the last blocks of the launch that do not meet: their caller's */
    unsigned int slot;           /* where a model works that has its tensors in slots */
};

/* The blocks that meet: the first ones of the launch. A model's share of them is its own. */
static __device__ inline unsigned int db_grid_blocks(const struct db_grid *grid) { return gridDim.x - grid->apart; }

#ifdef DB_TWIN
static inline unsigned int db_grid_load(unsigned int *word) { return (unsigned int)db_twin_get((db_twin_u64)word, 4); }
static inline unsigned long long db_grid_now(void) { return db_twin_now(); }
#ifdef DB_DEFECT_NO_GRID_FENCE
static inline void db_grid_fence(void) {}
#else
static inline void db_grid_fence(void) { __threadfence(); }
#endif
#else
static __device__ inline unsigned int db_grid_load(unsigned int *word) {
    unsigned int value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}
static __device__ inline unsigned long long db_grid_now(void) {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}
/* __threadfence() is the dearer fence.sc. */
static __device__ inline void db_grid_fence(void) { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
#endif

/* Rounds of a wait between looks at the clock. */
#define DB_GRID_ROUNDS 256u

/* A wait of one thread for another block: 0 at its begin. */
struct db_grid_wait {
    unsigned int round;
    unsigned long long until;
};

/* Called in each round of such a wait. Not 0: this one, or another block's, has been too long. */
static __device__ inline int db_grid_is_late(const struct db_grid *grid, struct db_grid_wait *wait) {
    unsigned long long now;
    if (++wait->round % DB_GRID_ROUNDS) return 0;
    now = db_grid_now();
    if (!wait->until) wait->until = now + grid->limit_ns < now ? ~0ull : now + grid->limit_ns;
    if (now >= wait->until) atomicAdd(&grid->words[1], 1u);
    return db_grid_load(&grid->words[1]) != 0;
}

/* Waits until all blocks are here as often as this one. All threads of a block, which has one dimension, call
 * it. Not 0: a block did not come in time, and what it should have written is not there. */
static __device__ inline int db_grid_meet(struct db_grid *grid) {
#ifdef DB_DEFECT_NO_GRID_BARRIER
    (void)grid;
    __syncthreads();
    return 0;
#else
    int late = grid->is_late;
    __syncthreads();
    if (threadIdx.x == 0 && !late) {
        struct db_grid_wait wait = {0, 0};
        db_grid_fence();
        atomicAdd(&grid->words[0], 1u);
        grid->arrivals += db_grid_blocks(grid);
        /* Arrivals wrap around. Those of the next meeting may be counted already. */
        while (!late && (int)(db_grid_load(&grid->words[0]) - grid->arrivals) < 0) late = db_grid_is_late(grid, &wait);
        db_grid_fence();
    }
    grid->is_late = __syncthreads_or(late);
    return grid->is_late;
#endif
}

#endif /* DOORBELL_GRID_H */
