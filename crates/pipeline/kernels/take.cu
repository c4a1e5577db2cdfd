/*! Copies a request's tensors out of its slot into the model's inputs: a turn's second kernel, if the model
 * has buffers of its own. It waits for nothing.
 *
 * Lengths and offsets are the model's, which the prefix was compared with; nothing that the client wrote
 * leads anywhere. Once it has ended the client may write its next request there.
 */
#include "pipeline.h"

#define DB_PLAIN_STORE(to, x, y) (*(ulonglong2 *)(to) = make_ulonglong2(x, y))

/* Launch: any number of blocks and threads, behind wait_inputs. */
extern "C" __global__ void take_inputs(const struct db_served *at, const struct db_turn *turn) {
    db_u32 me = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x, tensor;
    if (turn->state != DB_TURN_REQUEST || turn->status != DB_SLOT_STATUS_OK) return;
    if (at->steps && me == 0) db_steps_at(at, turn->slot)->takes = db_clock_ns();
    for (tensor = 0; tensor < at->request_tensors; tensor++) {
        db_u64 from = db_slot_at(at, turn->slot) + db_tensor_offset(at->request_table, tensor);
        DB_COPY_SHARE(at->inputs[tensor], from, db_tensor_bytes(at->request_table, tensor), me, all, DB_PLAIN_STORE);
    }
    if (at->steps) db_note_end(&db_steps_at(at, turn->slot)->taken, &db_steps_at(at, turn->slot)->have_taken);
}
