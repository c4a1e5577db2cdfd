/*! Waits for a request: the first kernel of a turn. `turn` and `sequences` are the GPU's own; flags are written by the NIC.
 *
 * Slots have their turn: the search begins behind the slot that was served last. A wait ends by a request, by the cancel word, or
 * after `wait_ns`. The word is looked at by a wait that finds nothing for some rounds.
 */
#include "pipeline.h"

/* Launch: one block of any number of threads, by a graph or by the host. A round looks at all slots side by side, so that its time
 * depends on their number by no more than a load for as many slots as threads. */
extern "C" __global__ void wait_inputs(const struct db_arrivals *told, struct db_turn *turn) {
    __shared__ db_u32 nearest;
    struct db_arrivals at = *told;
    struct db_wait wait = {db_deadline_ns(at.wait_ns), at.cancel, 0};
    db_u32 thread = db_block_thread(), threads = db_block_threads();
#ifdef DB_DEFECT_FROM_SLOT_0
    db_u32 first = 0;
#else
    db_u32 first = turn->slot + 1;
#endif
    db_u32 mine, distance;
    int over = 0;
    if (thread == 0) nearest = at.slots;
    do {
        mine = at.slots;
        for (distance = thread; distance < at.slots && mine == at.slots; distance += threads)
            if (db_slot_has_request(&at, (first + distance) % at.slots)) mine = distance;
        /* Across PCIe, now and then. */
        if (thread == 0) over = db_wait_over(&wait);
        /* One barrier a round, after which all threads know the same. */
    } while (!db_block_any(mine < at.slots || over));
    if (mine < at.slots) {
        /* The request, before all that this and later kernels read of it. */
        db_acquire_cqe();
        atomicMin(&nearest, mine);
    }
    db_block_sync();
    if (thread) return;
    if (nearest < at.slots)
        db_turn_take(turn, &at, (first + nearest) % at.slots);
    else
        turn->state = over == DB_ECANCELED ? DB_TURN_STOP : DB_TURN_NONE;
}

/* As the paper's release waits: one thread walks from slot to slot, and its round takes as many loads as there are slots.
 * Launch: one thread. */
extern "C" __global__ void wait_inputs_one(const struct db_arrivals *told, struct db_turn *turn) {
    struct db_arrivals at = *told;
    struct db_wait wait = {db_deadline_ns(at.wait_ns), at.cancel, 0};
    db_u32 slot = turn->slot;
    int over = 0;
    do {
        slot = (slot + 1) % at.slots;
        if (db_slot_has_request(&at, slot)) {
            db_acquire_cqe();
            db_turn_take(turn, &at, slot);
            return;
        }
        over = db_wait_over(&wait);
    } while (!over);
    turn->state = over == DB_ECANCELED ? DB_TURN_STOP : DB_TURN_NONE;
}
