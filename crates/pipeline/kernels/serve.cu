/*! All turns in one launch that stays on the GPU. The model works in the slots, so nothing is copied. Its
 * first step reads the request where the NIC wrote it, its last one writes the answer where the NIC reads it.
 *
 * The last block is the I/O block (io_block.h). The others run the model, meeting among themselves: grid.h's
 * barrier orders each block's stores of the answer before block 0 says that the turn is done. They find the
 * next offer behind their last step, without a wait.
 */
#include "io_block.h"

#define DB_RESIDENT_THREADS 256

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
        if (blockIdx.x == 0 && !db_block_thread()) db_store_relaxed32(words->done[turn & 1], turn);
    }
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
