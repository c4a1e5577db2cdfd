// Kernels that launch the graph they are in again; one block of one thread each, launched by that graph.
//
// control: 16 bytes of pinned host memory, aligned to 8, mapped to the device, seen by the CPU while they run:
//   [0] cancel, written by the CPU: not 0 ends the graph after the turn that sees it
//   [1] turns, written here: of `doorbell_relaunch` those that have ended, of `doorbell_next` those that have begun
//   [2] why there will be no further turn, written here last: 1 cancelled, 2 `limit` reached, 3 the launch failed; 0: there will
//   [3] the cudaError_t of a launch that failed
// limit: turns at most; 0: no limit. ring: as of `stamp`, which notes the end of the run; null: nothing is noted.
// They wait for nothing. The graph stops by [0], by `limit`, or by a failed launch.
#include "stamp.h"

// Counts a turn, and launches the next one if there is to be one; why not otherwise. It begins when all of this turn has ended.
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

// Runs beside a graph's last kernels, so that its reads and its launch take no time of their own. Beside the first ones it took 2 to 3 us
// of a convolution, one of whose blocks waited for its multiprocessor (H200). If what runs beside it sets [0], there may be one more turn.
// state: 4 bytes of device memory for `doorbell_turn`: why this turn is the last one, or 0.
extern "C" __global__ void doorbell_next(volatile unsigned *control, unsigned limit, volatile unsigned *state)
{
    if (blockIdx.x || threadIdx.x)
        return;
    unsigned turns, end = next_turn(control, limit, &turns);
    control[1] = turns;
    *state = end;
}

// Last kernel of a graph that has a `doorbell_next`. It writes over the bus in the last turn alone: a kernel ends when its writes have
// arrived, and in the others nothing runs meanwhile.
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
