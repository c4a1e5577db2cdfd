/*! A block that does not come to the barrier of all blocks: the others say so and end. */
#include "grid.h"

/* Launch: cooperative, two blocks or more. `late[block]`: both barrier results. The last block is absent. */
extern "C" __global__ void late(unsigned int *words, unsigned int *late) {
    struct db_grid grid = {words, 1000000, 0, 0, 0, 0};
    int first, second;
    if (blockIdx.x + 1 == gridDim.x) return;
    first = db_grid_meet(&grid);
    second = db_grid_meet(&grid);
    if (threadIdx.x == 0) late[blockIdx.x] = (unsigned int)(first + 2 * second);
}
