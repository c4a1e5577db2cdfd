// Last kernel of a graph that launches itself again; one block of one thread, launched by the graph it is in.
//
// control: 16 bytes of pinned host memory, aligned to 8, mapped to the device, seen by the CPU while this runs:
//   [0] cancel, written by the CPU: not 0 ends the graph after the turn that sees it
//   [1] turns that have ended, written here
//   [2] why there will be no further turn, written here last: 1 cancelled, 2 `limit` reached, 3 the launch failed; 0: there will
//   [3] the cudaError_t of a launch that failed
// limit: turns at most; 0: no limit. ring: as of `stamp`, which notes the end of the run; null: nothing is noted.
// Waits for nothing. Stops by [0], by `limit`, or by a failed launch.
#include "stamp.h"

extern "C" __global__ void doorbell_relaunch(volatile unsigned *control, unsigned limit, volatile unsigned long long *ring)
{
    if (blockIdx.x || threadIdx.x)
        return;
    if (ring)
        stamp(ring, 1);
    // One read over the bus for both words: it takes about a microsecond, most of what this kernel costs.
    unsigned long long words = *(volatile unsigned long long *)control;
    unsigned turns = (unsigned)(words >> 32) + 1;
    unsigned end = (unsigned)words ? 1 : limit && turns >= limit ? 2 : 0;
    control[1] = turns;
    if (!end) {
        cudaError_t error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
        if (error != cudaSuccess) {
            control[3] = (unsigned)error;
            end = 3;
        }
    }
    if (end) {
        // The CPU takes [2] as the word that the others are final.
        __threadfence_system();
        control[2] = end;
    }
}
