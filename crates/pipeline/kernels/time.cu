/*! Tells the GPU's time in turns with the CPU, for the offset of the clocks. Launched beside serving kernels.
 *
 * In each of `rounds` turns the CPU writes the turn's number, from 1, then this kernel the time and the
 * number. `words`, in host memory: CPU's number at 0, kernel's at 64, time at 128. It ends after `limit_ns`.
 */
#include "pipeline.h"

/* Launch: one thread. */
extern "C" __global__ void tell_time(db_u64 words, db_u64 rounds, db_u64 limit_ns) {
    db_u64 deadline = db_deadline_ns(db_clock_ns(), limit_ns);
    db_u32 round;
    for (round = 1; round <= rounds; round++) {
        while (db_load_acquire_sys32(words) != round)
            if (db_clock_ns() >= deadline) return;
        db_store_relaxed64((db_u64 *)(words + 128), db_clock_ns());
        db_store_release_sys32(words + 64, round);
    }
}
