// Kernels of the tests that need a GPU; each is launched with one thread, unless its comment says more.

// word: 4 bytes that the device sees. Adds, and says so to the whole system.
extern "C" __global__ void add(unsigned *word, unsigned value)
{
    atomicAdd_system(word, value);
}

// cancel, alive: words of pinned host memory. Runs until cancel is not 0.
extern "C" __global__ void spin(volatile unsigned *cancel, volatile unsigned *alive)
{
    *alive = 1;
    while (!*cancel)
        ;
}

// Runs for so many nanoseconds of the GPU's clock.
extern "C" __global__ void pass_time(unsigned long long ns)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - start < ns);
}

// register_: 8 bytes of a doorbell page. One store, as a doorbell is rung.
extern "C" __global__ void ring(unsigned long long *register_, unsigned long long value)
{
    asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(register_), "l"(value) : "memory");
}
