/*! The routines of doorbell.h, and the host's of doorbell_shared.h, with external linkage: Rust calls the
 * very text that C users include.
 * Loops stay on this side: db_c_post takes a list, so that a call's cost is paid once a list. The sizes at
 * the end let a test compare `sys.rs` with the header.
 */
#include "doorbell.h"
#include "doorbell_shared.h"

int db_c_sq_init(struct db_sq *sq, db_u32 stride) { return db_sq_init(sq, stride); }
int db_c_rq_init(struct db_rq *rq) { return db_rq_init(rq); }
int db_c_cq_init(struct db_cq *cq, db_u32 cqe_bytes) { return db_cq_init(cq, cqe_bytes); }

int db_c_try_post(struct db_sq *sq, const struct db_send_wr *wr) { return db_try_post(sq, wr); }
int db_c_post(struct db_sq *sq, const struct db_send_wr *wrs, db_u32 count, db_u32 *bad) {
    return db_post(sq, wrs, count, bad);
}
void db_c_ring(struct db_sq *sq) { db_ring(sq); }
int db_c_post_recv(struct db_rq *rq, const struct db_recv_wr *wrs, db_u32 count, db_u32 *bad) {
    return db_post_recv(rq, wrs, count, bad);
}

int db_c_try_post_write(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u64 remote_addr, db_u32 rkey,
                        db_u32 send_flags) {
    return db_try_post_write(sq, wr_id, local, remote_addr, rkey, send_flags);
}

int db_c_try_post_writes(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u64 remote_addr, db_u32 rkey,
                         db_u32 send_flags, db_u32 count, db_u32 stride) {
    return db_try_post_writes(sq, wr_id, local, remote_addr, rkey, send_flags, count, stride);
}

int db_c_poll(struct db_cq *cq, struct db_sq *sq, struct db_rq *rq, struct db_completion *out, int max) {
    return db_poll(cq, sq, rq, out, max);
}

void db_c_reset_send(struct db_sq *sq) { db_reset_send(sq); }
void db_c_reset_recv(struct db_rq *rq) { db_reset_recv(rq); }
int db_c_drain(struct db_cq *cq) { return db_drain(cq); }

int db_c_shared_init(struct db_shared_sq *shared) { return db_shared_init(shared); }
int db_c_shared_reset(struct db_shared_sq *shared) { return db_shared_reset(shared); }

const db_u32 db_c_sizes[] = {sizeof(struct db_sge),        sizeof(struct db_send_wr), sizeof(struct db_recv_wr),
                             sizeof(struct db_completion), sizeof(struct db_slot),    sizeof(struct db_sq),
                             sizeof(struct db_rq),         sizeof(struct db_cq),      sizeof(struct db_failure),
                             sizeof(struct db_shared_sq)};
