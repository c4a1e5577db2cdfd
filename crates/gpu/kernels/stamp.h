// When a run of a graph begins or ends, noted by one of its kernels.
#ifndef DOORBELL_STAMP_H
#define DOORBELL_STAMP_H

// Notes the begin or the end of a run of one graph. One thread calls it; waits for nothing.
//
// ring: 64-bit words in device memory, written by one graph; the CPU copies them when that graph has ended:
//   [0] runs that have ended
//   [1] runs that are kept, a power of two, less one
//   [2 + 2 × (run & [1])] when a run's first kernel began, ns of the global timer; [3 + …] when its last did
// is_end: 0 at the begin of a run, 1 at its end. The begin is noted behind the reads of the ring, the end
// before them, so that a run does not hold them.
static __device__ inline void stamp(volatile unsigned long long *ring, unsigned is_end)
{
    unsigned long long now = 0, run, kept;
    if (is_end)
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    run = ring[0];
    kept = ring[1];
    // It takes what was read, so that it waits for it.
    if (!is_end)
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) : "l"(run), "l"(kept) : "memory");
    ring[2 + 2 * (run & kept) + is_end] = now;
    if (is_end)
        ring[0] = run + 1;
}

#endif
