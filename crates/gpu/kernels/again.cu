// Last kernel of a WHILE node's body: repeats it or not. One block of one thread, launched by its graph.
//
// control, limit, ring: as of `relaunch.cu`, except that no launch fails here. handle: the node's condition,
// not 0 at each launch of the graph. Waits for nothing. Stops by control[0] or `limit`.
#include "stamp.h"

extern "C" __global__ void doorbell_again(volatile unsigned *control, unsigned limit, volatile unsigned long long *ring,
                                          cudaGraphConditionalHandle handle)
{
    if (blockIdx.x || threadIdx.x)
        return;
    if (ring)
        stamp(ring, 1);
    unsigned long long words = *(volatile unsigned long long *)control;
    unsigned turns = (unsigned)(words >> 32) + 1;
    unsigned end = (unsigned)words ? 1 : limit && turns >= limit ? 2 : 0;
    control[1] = turns;
    cudaGraphSetConditional(handle, end == 0);
    if (end) {
        __threadfence_system();
        control[2] = end;
    }
}
