/*! All steps of a plan in one resident launch: its blocks compute each step's blocks in turn, with bodies of
 * `operators.h`, and meet after each step. So sums have the order of `operators.cu`'s launches.
 *
 * `src/engine/resident.rs` writes the structs. All pointers are to device memory. What a NIC wrote is read
 * after the caller acquired it. A wait for other blocks ends after the limit of the caller's grid.
 */
#include "grid.h"
#include "operators.h"

/* Numbers of `OPERATIONS` in src/engine/resident.rs. */
enum {
    OPERATION_CONV_TILED,
    OPERATION_CONV_GROUPED,
    OPERATION_LINEAR,
    OPERATION_POOL,
    OPERATION_MEAN,
    OPERATION_ELEMENTWISE,
    OPERATION_DEPTH_TO_SPACE,
    OPERATION_LOAD,
    OPERATION_STORE,
    OPERATION_CONV_LOAD,
    OPERATION_EXCITE,
    OPERATION_DEPTHWISE,
    OPERATION_POINTWISE
};

#define RESIDENT_THREADS 256 /* of a block: as many as any operator's block has, or a multiple */

/* One launch of operators.cu: its grid and its arguments. */
struct step {
    unsigned int operation, is_half, blocks[3], threads;
    unsigned long long pointers[5]; /* in the order of the operator's arguments */
    struct slot slot;
    union {
        struct convolution convolution;
        struct pooling pooling;
        struct elements elements;
    } shape;
};

struct steps {
    unsigned long long count;
    struct step first[1];
};

/* Not inlined: the compiler takes ten times as long where it is. */
static __device__ __noinline__ void conv_tiled_apart(struct virtual_block b, const struct step *step, union conv_tiles *tiles,
                                                     struct half_number *to) {
    const unsigned long long *at = step->pointers;
    conv_tiled_of(b, (const struct half_number *)at[0], (const struct half_number *)at[1], (const float *)at[2],
                  (const struct half_number *)at[3], to, &step->shape.convolution, tiles);
}
static __device__ inline void conv_tiled_apart(struct virtual_block b, const struct step *step, union conv_tiles *tiles, float *to) {
    const unsigned long long *at = step->pointers;
    conv_tiled_of(b, (const float *)at[0], (const float *)at[1], (const float *)at[2], (const float *)at[3], to,
                  &step->shape.convolution, tiles);
}

static __device__ __noinline__ void conv_load_apart(struct virtual_block b, const struct step *step, union conv_tiles *tiles) {
    const unsigned long long *at = step->pointers;
    conv_load_of(b, &step->slot, (const struct half_number *)at[0], (const float *)at[1], (const struct half_number *)at[2],
                 (struct half_number *)at[3], &step->shape.convolution, tiles);
}

/* One block of a step. Operators with barriers use RESIDENT_THREADS threads: all are in the same one. */
template <typename T>
static __device__ inline void run_block(const struct step *step, struct virtual_block b, union conv_tiles *tiles) {
    const unsigned long long *to = step->pointers;
    switch (step->operation) {
    case OPERATION_CONV_TILED: conv_tiled_apart(b, step, tiles, (T *)to[4]); break;
    case OPERATION_CONV_GROUPED:
    case OPERATION_DEPTHWISE: /* whose blocks would need a barrier of their own */
        conv_grouped_of(b, (const T *)to[0], (const T *)to[1], (const float *)to[2], (const T *)to[3], (T *)to[4],
                        &step->shape.convolution);
        break;
    case OPERATION_POINTWISE:
        pointwise_of(b, (const T *)to[0], (const T *)to[1], (const float *)to[2], (const T *)to[3], (T *)to[4],
                     &step->shape.convolution, &tiles->single.left[0][0]);
        break;
    case OPERATION_LINEAR:
        linear_of(b, (const T *)to[0], (const T *)to[1], (const float *)to[2], (T *)to[3], &step->shape.elements);
        break;
    case OPERATION_POOL: pool_of(b, (const T *)to[0], (T *)to[1], &step->shape.pooling); break;
    case OPERATION_MEAN:
        mean_of(b, (const T *)to[0], (T *)to[1], &step->shape.elements, &tiles->single.left[0][0]);
        break;
    case OPERATION_EXCITE:
        excite_of(b, (const T *)to[0], (const T *)to[1], (const float *)to[2], (const T *)to[3], (T *)to[4], &step->shape.elements,
                  &tiles->single.left[0][0]);
        break;
    case OPERATION_ELEMENTWISE: elementwise_of(b, (const T *)to[0], (const T *)to[1], (T *)to[2], &step->shape.elements); break;
    case OPERATION_DEPTH_TO_SPACE: depth_to_space_of(b, (const T *)to[0], (T *)to[1], &step->shape.elements); break;
    case OPERATION_LOAD: load_of(b, &step->slot, (T *)to[0], &step->shape.elements); break;
    case OPERATION_STORE: store_of(b, &step->slot, (const T *)to[0], &step->shape.elements); break;
    }
}

/* This block's share of a step: one in so many of its blocks, several at once if they have fewer threads. */
static __device__ inline void run_step(unsigned int grid_blocks, const struct step *step, union conv_tiles *tiles) {
    const unsigned int *blocks = step->blocks, together = blockDim.x / step->threads;
    const unsigned long long all = (unsigned long long)blocks[0] * blocks[1] * blocks[2];
    struct virtual_block b = {0, 0, 0, threadIdx.x % step->threads, step->threads};
    unsigned long long at;
    for (at = (unsigned long long)blockIdx.x * together + threadIdx.x / step->threads; at < all; at += (unsigned long long)grid_blocks * together) {
        b.x = (unsigned int)(at % blocks[0]);
        b.y = (unsigned int)(at / blocks[0] % blocks[1]);
        b.z = (unsigned int)(at / blocks[0] / blocks[1]);
        if (step->operation == OPERATION_CONV_LOAD)
            conv_load_apart(b, step, tiles);
        else if (step->is_half)
            run_block<struct half_number>(step, b, tiles);
        else
            run_block<float>(step, b, tiles);
    }
}

/* Runs a model once in the grid's slot. All blocks that meet call it, with RESIDENT_THREADS threads each, and
 * have met when it returns. `model`: a struct steps. The grid has the last meeting's result. A resident
 * kernel of another unit calls it by name; on the twin, which links no units, by its address. */
#ifdef DB_TWIN
extern "C" __global__ void db_model(unsigned long long model, struct db_grid *grid)
#else
extern "C" __device__ void db_model(unsigned long long model, struct db_grid *grid)
#endif
{
    __shared__ union conv_tiles tiles;
    __shared__ struct step now;
    __shared__ unsigned int slot;
    const unsigned long long index = (unsigned long long)&slot;
    const unsigned int at_index = (unsigned int)((const unsigned int *)&now.slot.index - (const unsigned int *)&now);
    const struct steps *steps = (const struct steps *)model;
    const unsigned long long count = steps->count;
    unsigned long long at;
    unsigned int word;
    for (at = 0; at < count; at++) {
        for (word = threadIdx.x; word < sizeof now / 4; word += blockDim.x)
            ((unsigned int *)&now)[word] = word - at_index < 2 ? (unsigned int)(index >> 32 * (word - at_index))
                                                               : ((const unsigned int *)&steps->first[at])[word];
        if (threadIdx.x == 0) slot = grid->slot;
        /* All threads have the step; after it all blocks have its output, and no thread needs the step. */
        __syncthreads();
        run_step(db_grid_blocks(grid), &now, &tiles);
        if (db_grid_meet(grid)) return;
    }
}

/* A model alone, `turns` times. Launch: cooperative, RESIDENT_THREADS threads. `words`: the barrier's. */
extern "C" __global__ void __launch_bounds__(RESIDENT_THREADS, 2)
    resident(unsigned long long model, unsigned int *words, unsigned long long limit_ns, unsigned long long turns) {
    struct db_grid grid = {words, limit_ns, 0, 0, 0, 0};
    for (; turns && !grid.is_late; turns--) db_model(model, &grid);
}
