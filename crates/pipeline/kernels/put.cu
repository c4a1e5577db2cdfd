/*! Copies the model's outputs into the slot's answer: the kernel behind a model with its own buffers. Waits
 * for nothing: the WRITE of the answer before has completed, or wait_inputs had passed the slot.
 */
#include "pipeline.h"

/* Launch: any number of blocks and threads. */
extern "C" __global__ void put_outputs(const struct db_served *at, const struct db_turn *turn) {
    db_u32 me = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x, tensor;
    if (turn->state != DB_TURN_REQUEST || turn->status != DB_SLOT_STATUS_OK) return;
#ifdef DB_DEFECT_ONE_THREAD
    if (me) return;
#endif
    if (at->steps && me == 0) db_steps_at(at, turn->slot)->puts = db_clock_ns();
    for (tensor = 0; tensor < at->answer_tensors; tensor++) {
        db_u64 to = db_answer_at(at, turn->slot) + db_tensor_offset(at->answer_table, tensor);
#ifdef DB_DEFECT_REVERSED_COPY
        DB_COPY_SHARE(at->outputs[tensor], to, db_tensor_bytes(at->answer_table, tensor), me, all, db_store_segment);
#else
        DB_COPY_SHARE(to, at->outputs[tensor], db_tensor_bytes(at->answer_table, tensor), me, all, db_store_segment);
#endif
    }
    if (at->steps) db_note_end(&db_steps_at(at, turn->slot)->put, &db_steps_at(at, turn->slot)->have_put);
}
