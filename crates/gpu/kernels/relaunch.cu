// Kernels that launch the graph they are in again; one block of one thread each, launched by that graph.
//
// control: 16 bytes of pinned host memory, 8-byte aligned, mapped to the device, read by the CPU meanwhile:
//   [0] cancel, written by the CPU: not 0 ends the graph after the turn that sees it
//   [1] turns, written here: ended ones by `doorbell_relaunch`, begun ones by `doorbell_next`
//   [2] why no turn follows, written here last: 1 cancelled, 2 `limit` reached, 3 the launch failed;
//       0: there will be one
//   [3] the cudaError_t of a launch that failed
// limit: most turns; 0: no limit. ring: as of `stamp`, which notes the end of the run; null: nothing is
// noted. They wait for nothing. The graph stops by [0], by `limit`, or by a failed launch.
#include "stamp.h"

// Counts a turn and launches the next, which begins when all of this turn has ended. Returns why not, or 0.
static __device__ inline unsigned next_turn(volatile unsigned *control, unsigned limit, unsigned *turns)
{
    // One read over the bus for both words: it takes about a microsecond.
    unsigned long long words = *(volatile unsigned long long *)control;
    *turns = (unsigned)(words >> 32) + 1;
    unsigned end = (unsigned)words ? 1 : limit && *turns >= limit ? 2 : 0;
    if (!end) {
        cudaError_t error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
        if (error != cudaSuccess) {
            control[3] = (unsigned)error;
            end = 3;
        }
    }
    return end;
}

// Tells the CPU why there is no further turn.
static __device__ inline void tell(volatile unsigned *control, unsigned end)
{
    if (end) {
        // The CPU takes [2] as the word that the others are final.
        __threadfence_system();
        control[2] = end;
    }
}

// Last kernel of a graph: a turn of which a kernel sets [0] is the last one.
extern "C" __global__ void doorbell_relaunch(volatile unsigned *control, unsigned limit, volatile unsigned long long *ring)
{
    if (blockIdx.x || threadIdx.x)
        return;
    if (ring)
        stamp(ring, 1);
    unsigned turns, end = next_turn(control, limit, &turns);
    control[1] = turns;
    tell(control, end);
}

// Runs beside a graph's last kernels, so its reads and launch cost no time. Beside the first ones it took a
// convolution 2 to 3 us, one block of which waited for its multiprocessor (H200). If a kernel beside it sets
// [0], one more turn may follow. state: 4 bytes of device memory for `doorbell_turn`: why none follows, or 0.
extern "C" __global__ void doorbell_next(volatile unsigned *control, unsigned limit, volatile unsigned *state)
{
    if (blockIdx.x || threadIdx.x)
        return;
    unsigned turns, end = next_turn(control, limit, &turns);
    control[1] = turns;
    *state = end;
}

// Last kernel of a graph with a `doorbell_next`. Writes over the bus in the last turn only. A kernel ends
// when its writes have arrived, and in other turns nothing runs meanwhile.
extern "C" __global__ void doorbell_turn(volatile unsigned *control, const volatile unsigned *state, volatile unsigned long long *ring)
{
    if (blockIdx.x || threadIdx.x)
        return;
    // Before the ring is read: the two reads are under way together.
    unsigned end = *state;
    if (ring)
        stamp(ring, 1);
    tell(control, end);
}
