/*! Kernels that do what CUDA forbids: what the twin says of them is tested.
 */

/* Half of the threads come to the barrier, the others wait for their warp. Launch: whole warps. */
extern "C" __global__ void divergent_barrier(int *word) {
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncwarp();
    *word = 1;
}

/* Lane 3 has returned when the others come to the warp's barrier. */
extern "C" __global__ void returned_lane(int *word) {
    if (threadIdx.x == 3) return;
    __syncwarp();
    *word = 1;
}

/* The same, while lane 0 polls a word that nobody changes. */
extern "C" __global__ void returned_lane_beside_a_poll(int *word) {
    if (threadIdx.x == 3) return;
    if (threadIdx.x != 0) __syncwarp(0xfffffffeu);
    while (atomicAdd(word, 0) == 0) {
    }
}

/* Threads that return early do not keep the others of the block at its barrier. */
extern "C" __global__ void early_return(int *word) {
    if (threadIdx.x % 2) return;
    __syncthreads();
    atomicAdd(word, 1);
}

/* A lane gives a mask that does not name it. */
extern "C" __global__ void foreign_mask(int *word) {
    if (threadIdx.x == 0) __syncwarp(0xfffffffeu);
    *word = 1;
}

/* Waits for a word that nobody changes. */
extern "C" __global__ void endless_atomics(int *word) {
    if (threadIdx.x == 0)
        while (atomicAdd(word, 0) == 0) {
        }
    __syncthreads();
}

/* As above, by a load that the twin does not see. */
extern "C" __global__ void endless_loads(int *word) {
    while (*(volatile int *)word == 0) {
    }
}

/* One thread writes an element too many. */
extern "C" __global__ void overrun(int *word) {
    __shared__ int numbers[32];
    extern __shared__ int more[];
    int beyond = *word;
    numbers[threadIdx.x] = more[threadIdx.x] = 0;
    if (threadIdx.x == 0) (beyond < 0 ? more : numbers)[beyond < 0 ? -beyond : beyond] = 1;
}

/* Takes more shared memory than a block has. */
extern "C" __global__ void too_much(int *word) {
    __shared__ double numbers[1 << 15];
    numbers[threadIdx.x] = 1;
    *word = (int)numbers[threadIdx.x];
}

/* Every block waits for the last: it must begin while all others wait. */
extern "C" __global__ void wait_for_last(unsigned int *word) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == gridDim.x - 1) atomicExch(word, 1u);
    while (atomicAdd(word, 0u) == 0) {
    }
}

/* Lanes sleep, so that other blocks begin meanwhile; counts the blocks. */
extern "C" __global__ void sleepy(int *word) {
    for (int times = 0; times < 3; times++) __nanosleep(1000000);
    if (threadIdx.x == 0) atomicAdd(word, 1);
}

/* An array larger than a lane's stack; the last lane writes the end that is far from the stack's top. */
extern "C" __global__ void large_array(int *word) {
    volatile char bytes[256 << 10];
    if (threadIdx.x + 1 != blockDim.x) return;
    bytes[*word] = 1;
    *word = bytes[*word] + 1;
}

/* Stores that wait in a weak memory's buffer when the lane ends. */
extern "C" __global__ void stores_and_ends(unsigned int *words, int count) {
    for (int nth = 0; nth < count; nth++) db_twin_put((db_twin_u64)(words + nth), nth + 1, 4);
}
