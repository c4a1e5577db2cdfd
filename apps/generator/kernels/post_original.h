/*! The original release's instructions for a post, to compare in bench_post.cu and generate_original.cu.
 * State is looked up in memory at each use, and a WQE is volatile words, with a system-scope fence behind
 * each step and a doorbell a WQE. The caller checked room, and a length of 1 to 2^31 - 1 bytes.
 */
#ifndef DB_POST_ORIGINAL_H
#define DB_POST_ORIGINAL_H

#include "doorbell_gpu.h"

/* Posts and rings. `opcode`: DB_OPCODE_RDMA_WRITE or DB_OPCODE_RDMA_WRITE_IMM, with `imm` in network order;
 * `send_flags`: DB_SEND_SIGNALED or 0. */
DB_GPU_FN void db_post_original(volatile struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u64 remote, db_u32 rkey,
                                db_u32 opcode, db_u32 imm, db_u32 send_flags) {
    db_u32 index = (db_u32)sq->producer & (sq->blocks - 1);
    volatile db_u32 *wqe = (volatile db_u32 *)(sq->ring + (db_u64)index * DB_BLOCK_BYTES);
    volatile db_u64 *slot = (volatile db_u64 *)(sq->slots + (db_u64)index * sizeof(struct db_slot));
    wqe[0] = db_be32(((db_u32)sq->producer & 0xffff) << 8 | opcode);
    wqe[1] = db_be32(sq->qpn << 8 | 3);
    wqe[2] = db_be32(send_flags & DB_SEND_SIGNALED ? DB_CTRL_CE_ALWAYS : 0);
    wqe[3] = imm;
    *(volatile db_u64 *)(wqe + 4) = db_be64(remote);
    wqe[6] = db_be32(rkey);
    wqe[7] = 0;
    wqe[8] = db_be32(local.length);
    wqe[9] = db_be32(local.lkey);
    *(volatile db_u64 *)(wqe + 10) = db_be64(local.addr);
    slot[0] = wr_id;
    slot[1] = sq->producer + 1;
    sq->producer = sq->producer + 1;
    db_order_wqe_before_record();
    *(volatile db_u32 *)sq->record = db_be32((db_u32)sq->producer & 0xffff);
    db_order_record_before_register();
    *(volatile db_u64 *)sq->reg = db_pair((((db_u32)sq->producer - 1) & 0xffff) << 8 | opcode, sq->qpn << 8 | 3);
    db_order_record_before_register();
}

#endif /* DB_POST_ORIGINAL_H */
