/*! Turns whose model is a graph that launches itself, while one block stays and looks ahead for the next
 * request (io_block.h). There are two such graphs, the lanes, with the same model: one has the even turns,
 * the other the odd ones. So the next turn's launch is behind it when its request is found.
 *
 *   I/O block     finds N+1, offers it               is told that N is done, sends N     finds N+2
 *   lane of N     runs N, says so, is relaunched     waits for the offer of N+2
 *   lane of N+1   takes the offer, waits for N       runs N+1
 *
 * A launch of a lane: take_turn, the model, end_turn, the relaunch. A model with buffers stands between
 * take_inputs and put_outputs. It runs once at a time: take_turn ends when the turn before is done, which
 * end_turn says. A turn without a good request runs in the spare slot behind all. Two edges, of scope .gpu:
 *
 *   the turn before       its kernels' stores, end_turn's fence and store; a load and a fence in take_turn
 *   the answer            likewise, and db_acquire_room() in the I/O block, before db_ring()
 */
#include "io_block.h"

/* Launch: one block, which stays. `limit_ns`: longest wait for a lane. */
extern "C" __global__ void __launch_bounds__(DB_MOST_THREADS)
    look_ahead(const struct db_served *at, struct db_turn *turn, struct db_resident_words *words, db_u64 limit_ns) {
    __shared__ struct db_found found;
    __shared__ struct db_own own;
    __shared__ struct db_turn runs;
    struct db_grid grid = {words->grid, limit_ns, 0, 0, 0, 0};
    db_serve(at, turn, words, &grid, own, runs, found);
}

/* Launch: one thread. Waits for the next turn of lane `nth` and for the end of the one before. */
extern "C" __global__ void take_turn(const struct db_served *at, struct db_resident_words *words, struct db_lanes *lanes, db_u64 nth,
                                     db_u64 limit_ns) {
    __shared__ db_u32 slot;
    struct db_lane *lane = &lanes->lanes[nth];
    struct db_grid grid = {words->grid, limit_ns, 0, 0, 0, 0};
    struct db_grid_wait wait = {0, 0};
    const db_u32 turn = lane->next, spare = at->slot_count;
    const db_u64 cancel = lane->cancel;
#ifdef DB_DEFECT_NOT_IN_TURN
    const db_u32 before = 0;
#else
    const db_u32 before = turn - 1;
#endif
    db_u32 offered;
    int late;
    /* Before the waits. Behind them, each load and store is time in which no model runs. */
    lane->next = turn + 2;
    offered = db_take_offer(words, &grid, turn, slot);
    late = db_await_done(words->done[before & 1], before, 0, &grid, &wait);
    db_grid_fence();
    /* The model runs once more, and its graph ends. */
    if (late || offered == DB_LAST) db_store_relaxed32((db_u32 *)cancel, 1);
    /* Beside the turn before, whose slot stays: no answer is sent any more. */
    if (late) return;
    /* What is no slot is greater. */
    lanes->runs.state = offered < spare ? DB_TURN_REQUEST : DB_TURN_NONE;
    lanes->runs.slot = lanes->runs.model_slot = offered < spare ? offered : spare;
}

/* Launch: one thread, behind the model, whose stores are before this. It loads nothing: the next turn waits.
 * What was late counts too, and who looks for a turn's end looks for that as well. */
extern "C" __global__ void end_turn(struct db_resident_words *words, db_u64 nth) {
    db_grid_fence();
    atomicAdd(words->done[nth], 2u);
}
