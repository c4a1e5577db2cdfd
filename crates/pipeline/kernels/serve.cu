/*! All turns in one launch that stays on the GPU. The model works in the slots, so nothing is copied. Its
 * first step reads the request where the NIC wrote it, its last one writes the answer where the NIC reads it.
 *
 * The last block is the I/O block: it waits for requests (wait.cu) and sends answers (send.cu). The others
 * run the model, meeting among themselves. In turn N the I/O block sends answer N-1 and looks for N+1.
 *
 *   I/O block    finds N+1, offers it     is told that N is done, sends N     finds N+2, offers it
 *   the others   run N                    take the offer of N+1               run N+1
 *
 * Turns are counted from 1. An offer is one word of 64 bits: the turn, and the slot where the model works. A
 * turn is offered as soon as its request is found, also while the turn before runs, once the one before the
 * last is done. So the others find the next offer behind their last step, without a wait. Offers of even and
 * odd turns lie apart. A block that has not read an offer has not done its turn: no unread offer is
 * overwritten. Four edges beside those of pipeline.h, the first three of scope .gpu:
 *
 *   the offer             db_grid_fence() and a store, a load and db_grid_fence(): what the I/O block
 *                         acquired from the NIC, before the model reads it
 *   the last step         grid.h's barrier: each block's stores of the answer, before block 0 says it is done
 *   the turn is done      grid.h's last fence, a store, a load, db_acquire_room(): the same, before db_ring()
 *   the answer is sent    the slot's `sending`, take to completion: none is offered while computed or sent
 *
 * A wait ends as wait.cu says, and at once when the turn that runs is done: a lone request is answered. A bad
 * request is a turn without a slot. So is an empty wait while nothing ran: it shows that the I/O block lives.
 * A client whose request runs leaves only after its answer is sent: until then no search begins (`held`). The
 * cancel word ends the kernel after a wait that found nothing, or at each 16th turn, behind the running
 * turn's answer. A block that waits too long (offer, others, turn's end) tells all, and the kernel ends.
 */
#include "grid.h"
#include "resident.h"

#define DB_RESIDENT_THREADS 256

/* What an offer has in the place of a slot. */
#define DB_NO_SLOT 0xffffffffu /* the model does not run in this turn */
#define DB_LAST 0xfffffffeu    /* there is no turn */

/* What the I/O block and the model tell each other: GPU memory, 0 at the launch, a line for each word. */
struct db_resident_words {
    unsigned int grid[32]; /* two are the barrier's */
    db_u64 offers[2][16];  /* of even and of odd turns */
    db_u32 done[32];       /* the last turn that is */
};

/* The model: another unit's function; on the twin, which links none, a kernel's entry, given pointers. */
#ifdef DB_TWIN
DB_GPU_FN void db_run_model(db_u64 model, db_u64 entry, struct db_grid *grid) {
    void *arguments[2] = {&model, &grid};
    ((void (*)(void **))entry)(arguments);
}
#else
extern "C" __device__ void db_model(unsigned long long model, struct db_grid *grid);
DB_GPU_FN void db_run_model(db_u64 model, db_u64, struct db_grid *grid) { db_model(model, grid); }
#endif

/* The offered turn's slot: all threads of a model block, which share `slot`. DB_LAST also if I/O is late. */
DB_GPU_FN db_u32 db_take_offer(const struct db_resident_words *words, struct db_grid *grid, db_u32 turn, db_u32 &slot) {
    if (!db_block_thread()) {
        struct db_grid_wait wait = {0, 0};
        db_u64 offer;
        int late = 0;
        do {
            offer = db_load_relaxed64(words->offers[turn & 1]);
            late = (db_u32)(offer >> 32) != turn && db_grid_is_late(grid, &wait);
        } while ((db_u32)(offer >> 32) != turn && !late);
        db_grid_fence();
        slot = late ? DB_LAST : (db_u32)offer;
    }
    db_block_sync();
    return slot;
}

/* What the model's blocks do: all turns that are offered. */
DB_GPU_FN void db_run_turns(struct db_resident_words *words, struct db_grid *grid, db_u64 model, db_u64 entry, db_u32 &offered) {
    db_u32 turn;
    for (turn = 1;; turn++) {
        const db_u32 slot = db_take_offer(words, grid, turn, offered);
        if (slot == DB_LAST) return;
        grid->slot = slot;
        /* Behind either all blocks have read the offer. */
        if (slot == DB_NO_SLOT)
            (void)db_grid_meet(grid);
        else
            db_run_model(model, entry, grid);
        if (grid->is_late) return;
        if (blockIdx.x == 0 && !db_block_thread()) db_store_relaxed32(words->done, turn);
    }
}

/* Waits until a turn is done: all threads of the I/O block. Not 0: a block is late. `is_known`: the wait for
 * a request has seen the end. `done_ns`: the first thread's, when that is so. */
DB_GPU_FN int db_wait_done(struct db_beside beside, struct db_grid *grid, struct db_grid_wait *wait, int is_known, db_u64 *done_ns) {
    int late = 0;
    if (!db_block_thread()) {
        while (!is_known && !late && !db_is_done(db_load_relaxed32(beside.done), beside.turn)) late = db_grid_is_late(grid, wait);
        *done_ns = db_clock_ns();
        db_acquire_room();
    }
    return db_block_any(late);
}

/* Whether a block is late, without a wait: all threads of the I/O block. */
DB_GPU_FN int db_is_late(const struct db_grid *grid, struct db_grid_wait *wait) {
    wait->round = DB_GRID_ROUNDS - 1;
    return db_block_any(!db_block_thread() && db_grid_is_late(grid, wait));
}

/* Looks for the next turn, or ends if the host wants it: all threads of the I/O block, which then meet. */
DB_GPU_FN void db_next_turn(const struct db_served *at, struct db_turn *turn, struct db_found &found, struct db_beside beside) {
    int stops = !db_block_thread() && !(turn->counts.turns & 15) && db_load_acquire_sys32(at->cancel);
    if (!db_block_any(stops)) {
        db_wait_inputs(at, turn, found, beside);
    } else if (!db_block_thread()) {
        turn->state = DB_TURN_STOP;
        found.over = 0;
    }
#ifdef DB_DEFECT_NO_STOP
    /* So that the test can end it. */
    if (!db_block_thread() && turn->state == DB_TURN_STOP && db_load_acquire_sys32(at->cancel) != 2) turn->state = DB_TURN_NONE;
#endif
    db_block_sync();
}

/* What the I/O block does: all threads of its block. */
DB_GPU_FN void db_serve(const struct db_served *served, struct db_turn *turn, struct db_resident_words *words, struct db_grid *grid,
                        struct db_own &own, struct db_turn &runs, struct db_found &found) {
    struct db_beside beside = {words->done, 0, 0};
    struct db_grid_wait wait = {0, 0}; /* of the turn that runs */
    const db_u32 thread = db_block_thread();
    db_u32 last = 0;
    db_copy_own(own, served, turn);
    for (;;) {
        db_u64 done_ns = 0; /* of the turn behind which the next one was found */
        int begins;
        db_next_turn(&own.served, &own.turn, found, beside);
        begins = own.turn.state == DB_TURN_REQUEST || (own.turn.state == DB_TURN_NONE && !beside.runs);
        if (begins) {
            const int is_good = own.turn.state == DB_TURN_REQUEST && own.turn.status == DB_SLOT_STATUS_OK;
            last++;
            if (!thread) {
                db_grid_fence();
                db_store_relaxed64(words->offers[last & 1], (db_u64)last << 32 | (is_good ? own.turn.slot : DB_NO_SLOT));
            }
        }
        if (beside.runs && own.turn.state == DB_TURN_NONE && !found.held && found.over != DB_OVER_DONE) {
            /* The time of that wait was over. */
            if (db_is_late(grid, &wait)) break;
            continue;
        }
        if (beside.runs) {
#ifdef DB_DEFECT_NOT_DONE
            if (runs.state == DB_TURN_REQUEST) db_send_outputs(&own.served, &runs, &own.turn.counts);
            db_block_sync();
            runs.state = DB_TURN_NONE;
#endif
            if (db_wait_done(beside, grid, &wait, found.over == DB_OVER_DONE, &done_ns)) break;
            if (runs.state == DB_TURN_REQUEST) db_send_outputs(&own.served, &runs, &own.turn.counts);
            beside.runs = 0;
            db_block_sync();
        }
        if (own.turn.state == DB_TURN_STOP) {
            if (!thread) db_store_relaxed64(words->offers[(last + 1) & 1], (db_u64)(last + 1) << 32 | DB_LAST);
            break;
        }
        if (!begins) continue;
        if (!thread) {
            runs = own.turn;
            /* A request that was found beside a turn has waited for the end of that. */
            if (done_ns) runs.begun_ns = done_ns;
            if (own.served.steps && runs.state == DB_TURN_REQUEST) {
                struct db_steps *steps = db_steps_at(&own.served, runs.slot);
                if (done_ns) steps->looks = done_ns;
                steps->begun = steps->takes = steps->taken = runs.begun_ns;
            }
        }
        db_block_sync();
        wait.until = 0;
        beside.turn = last;
        beside.runs = &runs;
    }
    db_block_sync();
    db_copy_back(own, turn);
}

/* Launch: cooperative, two blocks or more, of DB_RESIDENT_THREADS threads or as many as the model's function
 * takes. `model`, `entry`: what db_run_model() runs. `limit_ns`: longest wait between blocks. `alone`: if not
 * 0, the model's runs, without waits or sends, to be measured from `begun_ns` to `sent_ns` of the turn. */
extern "C" __global__ void __launch_bounds__(DB_RESIDENT_THREADS)
    serve(const struct db_served *at, struct db_turn *turn, db_u64 model, db_u64 entry, struct db_resident_words *words, db_u64 limit_ns,
          db_u64 alone) {
    __shared__ struct db_found found;
    __shared__ struct db_own own;
    __shared__ struct db_turn runs;
    __shared__ db_u32 offered;
    struct db_grid grid = {words->grid, limit_ns, 0, 0, 1, 0};
    const int is_first = blockIdx.x == 0 && !db_block_thread();
    if (blockIdx.x == gridDim.x - 1) {
        if (!alone) db_serve(at, turn, words, &grid, own, runs, found);
        return;
    }
    if (!alone) {
        db_run_turns(words, &grid, model, entry, offered);
        return;
    }
    grid.slot = turn->model_slot;
    if (is_first) turn->begun_ns = db_clock_ns();
    for (; alone && !grid.is_late; alone--) db_run_model(model, entry, &grid);
    if (is_first) turn->sent_ns = db_clock_ns();
}
