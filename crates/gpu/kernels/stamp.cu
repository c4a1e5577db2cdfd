// First and last kernel of a graph whose runs are timed by the GPU; one block of one thread, launched by the graph it is in.
//
// ring: words of 64 bits in device memory, which one graph writes and the CPU copies when that graph has ended:
//   [0] runs that have ended
//   [1] runs that are kept, a power of two, less one
//   [2 + 2 × (run & [1])] when a run's first kernel began, in ns of the GPU's global timer; [3 + …] when its last one did
// is_end: 0 in the first kernel, 1 in the last one. Waits for nothing, and ends at once.
extern "C" __global__ void doorbell_stamp(volatile unsigned long long *ring, unsigned is_end)
{
    if (blockIdx.x || threadIdx.x)
        return;
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    unsigned long long run = ring[0];
    ring[2 + 2 * (run & ring[1]) + is_end] = now;
    if (is_end)
        ring[0] = run + 1;
}
