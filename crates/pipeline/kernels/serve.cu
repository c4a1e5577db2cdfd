/*! All turns of a pipeline in one launch that stays on the GPU, with a model that works in the slots: its first step reads the request
 * where the NIC wrote it, and its last one writes the answer where the NIC reads it. So nothing is copied, and blocks meet once more a turn
 * than in the model alone.
 *
 * A turn: the first block waits for a request (wait.cu), all meet, all run the model, whose last step they meet behind, and the first block
 * sends (send.cu). Two edges beside those of pipeline.h, both by grid.h's barrier:
 *
 *   the turn              what the first block wrote of it and acquired from the NIC, before the model of every block reads it
 *   the answer            what every block stored of it, before the first block's db_ring() publishes it
 *
 * A wait ends as wait.cu says, and the blocks meet behind it also when it found nothing. Then, and behind a bad request, they meet again:
 * the first block may write the next turn once all have read this one. The cancel word ends the kernel after a wait that found nothing, or
 * at each 16th turn; the late end of a meeting ends it too.
 */
#include "grid.h"
#include "resident.h"

#define DB_RESIDENT_THREADS 256

/* The model: a function of another unit, or on the twin, which links none, a kernel's entry, which takes pointers to its arguments. */
#ifdef DB_TWIN
DB_GPU_FN void db_run_model(db_u64 model, db_u64 entry, struct db_grid *grid) {
    void *arguments[2] = {&model, &grid};
    ((void (*)(void **))entry)(arguments);
}
#else
extern "C" __device__ void db_model(unsigned long long model, struct db_grid *grid);
DB_GPU_FN void db_run_model(db_u64 model, db_u64, struct db_grid *grid) { db_model(model, grid); }
#endif

/* Waits for the next turn, or ends it at once if the host wants an end: all threads of the first block. */
DB_GPU_FN void db_next_turn(const struct db_served *at, struct db_turn *turn, struct db_found &found) {
    int stops = !db_block_thread() && !(turn->counts.turns & 15) && db_load_acquire_sys32(at->cancel);
    if (!db_block_any(stops))
        db_wait_inputs(at, turn, found);
    else if (!db_block_thread())
        turn->state = DB_TURN_STOP;
    db_block_sync();
}

/* Launch: cooperative, any number of blocks of DB_RESIDENT_THREADS threads, or as many as the model's function takes. `model`, `entry`:
 * what db_run_model() runs. `words`, `limit_ns`: of the grid's barrier. `alone`: if it is not 0, the model runs so many times and nothing
 * is waited for or sent, for measurements: the turn then has the begin and the end as `begun_ns` and `sent_ns`. */
extern "C" __global__ void __launch_bounds__(DB_RESIDENT_THREADS)
    serve(const struct db_served *at, struct db_turn *turn, db_u64 model, db_u64 entry, unsigned int *words, db_u64 limit_ns, db_u64 alone) {
    __shared__ struct db_found found;
    __shared__ struct db_own own;
    struct db_grid grid = {words, limit_ns, 0, 0};
    db_u64 runs;
    const int is_first = blockIdx.x == 0 && !db_block_thread();
    if (is_first && alone) turn->begun_ns = db_clock_ns();
    for (runs = 0; runs < alone && !grid.is_late; runs++) db_run_model(model, entry, &grid);
    if (is_first && alone) turn->sent_ns = db_clock_ns();
    if (blockIdx.x == 0 && !alone) db_copy_own(own, at, turn);
    while (!alone) {
        db_u32 state, is_good;
        if (blockIdx.x == 0) {
            db_next_turn(&own.served, &own.turn, found);
#ifdef DB_DEFECT_NO_STOP
            if (is_first && own.turn.state == DB_TURN_STOP) own.turn.status = db_load_acquire_sys32(at->cancel);
            db_block_sync();
#endif
            db_copy_back(own, turn);
        }
        if (db_grid_meet(&grid)) break;
        state = turn->state;
        is_good = state == DB_TURN_REQUEST && turn->status == DB_SLOT_STATUS_OK;
#ifdef DB_DEFECT_NO_STOP
        /* So that the test can end it. */
        if (state == DB_TURN_STOP && turn->status == 2) break;
#else
        if (state == DB_TURN_STOP) break;
#endif
        if (is_good)
            db_run_model(model, entry, &grid);
        else
            (void)db_grid_meet(&grid);
        if (grid.is_late) break;
        if (state != DB_TURN_REQUEST || blockIdx.x) continue;
        db_send_outputs(&own.served, &own.turn);
        db_block_sync();
    }
    /* The counts of the last answer. */
    if (blockIdx.x == 0 && !alone) db_copy_back(own, turn);
}
