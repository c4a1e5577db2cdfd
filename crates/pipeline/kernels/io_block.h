/*! The I/O block: it waits for requests (wait.cu) and sends answers (send.cu) beside a model that runs. In
 * turn N it sends answer N-1 and looks for N+1. It knows nothing of what computes.
 *
 *   I/O block     finds N+1, offers it     is told that N is done, sends N     finds N+2, offers it
 *   the model     runs N                   takes the offer of N+1              runs N+1
 *
 * Turns are counted from 1. An offer is one word of 64 bits: the turn, and the slot where the model works. A
 * turn is offered as soon as its request is found, also while the turn before runs, once the one before the
 * last is done. Offers of even and odd turns lie apart: no unread offer is overwritten, since what has not
 * read it has not done its turn. Four edges beside those of pipeline.h, the first three of scope .gpu:
 *
 *   the offer             db_grid_fence() and a store, a load and db_grid_fence(): what the I/O block
 *                         acquired from the NIC, before the model reads it
 *   the last step         the answer, before the turn is said to be done: serve.cu, ahead.cu
 *   the turn is done      a fence, a store, a load, db_acquire_room(): the same, before db_ring()
 *   the answer is sent    the slot's `sending`, take to completion: none is offered while computed or sent
 *
 * A wait ends as wait.cu says, and at once when the turn that runs is done: a lone request is answered. A bad
 * request is a turn without a slot. So is an empty wait while nothing ran: it shows that the I/O block lives.
 * A client whose request runs leaves only after its answer is sent: until then no search begins (`held`). The
 * cancel word ends it after a wait that found nothing, or at each 16th turn, behind the running turn's
 * answer. Who waits too long (for an offer, for a turn's end) tells all, and all end.
 */
#ifndef DB_IO_BLOCK_H
#define DB_IO_BLOCK_H

#include "grid.h"
#include "resident.h"

/* What an offer has in the place of a slot. */
#define DB_NO_SLOT 0xffffffffu /* the model does not run in this turn */
#define DB_LAST 0xfffffffeu    /* there is no turn */

/* What the I/O block and the model tell each other: GPU memory, 0 at the launch, a line for each word. */
struct db_resident_words {
    unsigned int grid[32]; /* two are the barrier's */
    db_u64 offers[2][16];  /* of even and of odd turns */
    db_u32 done[2][32];    /* the last even, and the last odd turn that is; at first of ahead.cu 0 and -1 */
};

/* The offered turn's slot: all threads of a block, which share `slot`. DB_LAST also if I/O is late. */
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

/* Waits until a turn is done: one thread. `is_known`: it is. Not 0: a block or a lane is late. */
DB_GPU_FN int db_await_done(const db_u32 *done, db_u32 turn, int is_known, struct db_grid *grid, struct db_grid_wait *wait) {
    for (;;) {
        /* In one trip. What is late may have run beside the turn that is done. */
        const db_u32 last = db_load_relaxed32(done);
        if (db_grid_load(&grid->words[1])) return 1;
        if (is_known || db_is_done(last, turn)) return 0;
        if (db_grid_is_late(grid, wait)) return 1;
    }
}

/* Waits until a turn is done: all threads of the I/O block. Not 0: a block is late. `is_known`: the wait for
 * a request has seen the end. `done_ns`: the first thread's, when that is so. */
DB_GPU_FN int db_wait_done(struct db_beside beside, struct db_grid *grid, struct db_grid_wait *wait, int is_known, db_u64 *done_ns) {
    int late = 0;
    if (!db_block_thread()) {
        late = db_await_done(beside.done, beside.turn, is_known, grid, wait);
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

/* Looks for the next turn, or ends if the host wants it: all threads of the I/O block, which then meet.
 * `is_told`: the wait before has seen that the host does. */
DB_GPU_FN void db_next_turn(const struct db_served *at, struct db_turn *turn, struct db_found &found, struct db_beside beside, int is_told) {
    int stops = !db_block_thread() && (is_told || (!(turn->counts.turns & 15) && db_load_acquire_sys32(at->cancel)));
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
    struct db_beside beside = {words->done[0], 0, 0};
    struct db_grid_wait wait = {0, 0}; /* of the turn that runs */
    const db_u32 thread = db_block_thread();
    db_u32 last = 0;
    int is_told = 0;
    db_copy_own(own, served, turn);
    for (;;) {
        db_u64 done_ns = 0; /* of the turn behind which the next one was found */
        int begins;
        db_next_turn(&own.served, &own.turn, found, beside, is_told);
#ifndef DB_DEFECT_STOPS_LATE
        is_told = found.over == (db_u32)DB_ECANCELED;
#endif
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
            if (!thread) {
                /* Every turn is done: both have been read. */
                db_store_relaxed64(words->offers[(last + 1) & 1], (db_u64)(last + 1) << 32 | DB_LAST);
                db_store_relaxed64(words->offers[last & 1], (db_u64)(last + 2) << 32 | DB_LAST);
            }
            break;
        }
        if (!begins) continue;
        if (!thread) {
            runs = own.turn;
            /* A request that was found beside a turn has waited for the end of that. */
            if (done_ns) runs.begun_ns = done_ns;
            /* A model with buffers has copies around it, whose times are noted there, maybe before this. */
            if (own.served.steps && db_works_in_slots(&own.served) && runs.state == DB_TURN_REQUEST) {
                struct db_steps *steps = db_steps_at(&own.served, runs.slot);
                if (done_ns) steps->looks = done_ns;
                steps->begun = steps->takes = steps->taken = runs.begun_ns;
            }
        }
        db_block_sync();
        wait.until = 0;
        beside.done = words->done[last & 1];
        beside.turn = last;
        beside.runs = &runs;
    }
    db_block_sync();
    db_copy_back(own, turn);
}

#endif /* DB_IO_BLOCK_H */
