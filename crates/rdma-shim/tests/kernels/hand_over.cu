/*! Words from one block to another under a flag: thread by thread from block 0 to block 1, and back.
 *
 * Launch: two blocks. `channels`: one for each thread of a block, all 0, global memory. `bad`: how many
 * hand-overs carried something else than was stored before the flag. Waits for the other block, until
 * `deadline_ns` are over: then `late` counts the thread. */
#include "doorbell_gpu.h"

struct db_channel {
    db_u64 flag;  /* hand-overs made */
    db_u64 taken; /* of them, taken */
    db_u64 words[6];
};

/* Waits for a word to reach `value`: 0, or 1 when it is too late. */
DB_GPU_FN int reaches(const db_u64 *word, db_u64 value, struct db_wait *wait) {
    while (db_load_acquire64(word) < value)
        if (db_wait_over(wait)) return 1;
    return 0;
}

extern "C" __global__ void hand_over(struct db_channel *channels, db_u32 rounds, db_u64 deadline_ns, db_u32 *bad,
                                     db_u32 *late) {
    struct db_channel *channel = &channels[threadIdx.x];
    struct db_wait wait = {db_clock_ns() + deadline_ns, 0, 0};
    db_u64 round;
    db_u32 i;
    for (round = 1; round <= rounds; round++) {
        if (blockIdx.x == 0) {
            for (i = 0; i < 6; i++) db_store64((db_u64)&channel->words[i], round * 100 + i);
            db_store_release64(&channel->flag, round);
            if (reaches(&channel->taken, round, &wait)) break;
        } else {
            if (reaches(&channel->flag, round, &wait)) break;
            for (i = 0; i < 6; i++)
                if (db_load_relaxed64(&channel->words[i]) != round * 100 + i) atomicAdd(bad, 1u);
            db_store_release64(&channel->taken, round);
        }
    }
    if (round <= rounds) atomicAdd(late, 1u);
}
