// The kernel that launches the graph it is in again: one block of one thread, launched by that graph.
//
// control: 16 bytes of pinned host memory, 8-byte aligned, mapped to the device, read by the CPU meanwhile:
//   [0] cancel, written by the CPU: not 0 ends the graph after the turn that sees it
//   [1] turns, written here, this one among them
//   [2] why no turn follows, written here last: 1 cancelled, 2 `limit` reached, 3 the launch failed;
//       0: there will be one
//   [3] the cudaError_t of a launch that failed
// limit: most turns; 0: no limit. ring: as of `stamp`, which notes the end of the run; null: nothing is
// noted. It waits for nothing. The graph stops by [0], by `limit`, or by a failed launch.
//
// As a graph's last kernel it sees what the others wrote to [0]. Beside the last kernels its reads and its
// launch cost no time, since the next turn begins when all of this one has ended; if a kernel beside it
// writes [0], one more turn may follow. Beside the first ones it took a convolution 2 to 3 us, one block of
// which waited for its multiprocessor (H200).
#include "stamp.h"

extern "C" __global__ void doorbell_relaunch(volatile unsigned *control, unsigned limit, volatile unsigned long long *ring)
{
    if (blockIdx.x || threadIdx.x)
        return;
    if (ring)
        stamp(ring, 1);
    // One read over the bus for both words: it takes about a microsecond.
    unsigned long long words = *(volatile unsigned long long *)control;
    unsigned turns = (unsigned)(words >> 32) + 1;
    unsigned end = (unsigned)words ? 1 : limit && turns >= limit ? 2 : 0;
    if (!end) {
        // The next turn begins when all of this one has ended.
        cudaError_t error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
        if (error != cudaSuccess) {
            control[3] = (unsigned)error;
            end = 3;
        }
    }
    control[1] = turns;
    if (end) {
        // The CPU takes [2] as the word that the others are final.
        __threadfence_system();
        control[2] = end;
    }
}
