/*! Post to, ring and poll the queues of an mlx5 NIC: what libmlx5 does behind ibv_post_send, ibv_post_recv
 * and ibv_poll_cq, over plain structs that a GPU kernel can hold as well.
 *
 * What is written, byte for byte, follows `providers/mlx5/{qp,cq}.c` of rdma-core (INV-5); where, `mlx5dv.h`.
 * Offsets and numbers are generated (`mlx5_layout.h`, INV-14); machine dependences are in `order.h`.
 *
 * Take a queue over right after creation or RESET: libmlx5's indices are private, so only one of libmlx5 and
 * these routines may post to and poll a queue. One queue has one poster, whose thread owns its CQ too;
 * nothing here locks. Create the QP with scatter-to-CQE off (MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE): else
 * short messages land in the CQE, not in the buffer.
 *
 * Left out: UD, memory windows, SEND with invalidate, compressed and 128-byte CQEs, shared receive queues.
 */
#ifndef DB_DOORBELL_H
#define DB_DOORBELL_H

#include "mlx5_layout.h"
#include "order.h"

/* ---- Numbers of libibverbs, for callers that do not include it ----------------------------------------- */

/* What a call returns: 0, or the errno that libibverbs gives in the same place. */
#define DB_ENOMEM 12      /* the queue is full: poll, then try again */
#define DB_EINVAL 22      /* the request can never be posted on this queue */
#define DB_EOPNOTSUPP 95  /* the queue's service has no such operation */

/* enum ibv_wr_opcode */
#define DB_WR_RDMA_WRITE 0u
#define DB_WR_RDMA_WRITE_WITH_IMM 1u
#define DB_WR_SEND 2u
#define DB_WR_SEND_WITH_IMM 3u
#define DB_WR_RDMA_READ 4u
#define DB_WR_ATOMIC_CMP_AND_SWP 5u
#define DB_WR_ATOMIC_FETCH_AND_ADD 6u

/* enum ibv_send_flags */
#define DB_SEND_FENCE 1u
#define DB_SEND_SIGNALED 2u
#define DB_SEND_SOLICITED 4u
#define DB_SEND_INLINE 8u

/* enum ibv_wc_status; from 0x100 on, the shim's own. */
#define DB_WC_SUCCESS 0u
#define DB_WC_LOC_LEN_ERR 1u
#define DB_WC_LOC_QP_OP_ERR 2u
#define DB_WC_LOC_PROT_ERR 4u
#define DB_WC_WR_FLUSH_ERR 5u
#define DB_WC_MW_BIND_ERR 6u
#define DB_WC_BAD_RESP_ERR 7u
#define DB_WC_LOC_ACCESS_ERR 8u
#define DB_WC_REM_INV_REQ_ERR 9u
#define DB_WC_REM_ACCESS_ERR 10u
#define DB_WC_REM_OP_ERR 11u
#define DB_WC_RETRY_EXC_ERR 12u
#define DB_WC_RNR_RETRY_EXC_ERR 13u
#define DB_WC_REM_ABORT_ERR 16u
#define DB_WC_GENERAL_ERR 21u
/* The device put the payload into the CQE, not the buffer: the queue was created with scatter-to-CQE on. */
#define DB_WC_SCATTERED_TO_CQE 0x100u
/* A completion of a queue that was not given to the poll, or of a request that is not outstanding. */
#define DB_WC_STALE 0x101u

/* enum ibv_wc_opcode */
#define DB_WC_SEND 0u
#define DB_WC_RDMA_WRITE 1u
#define DB_WC_RDMA_READ 2u
#define DB_WC_COMP_SWAP 3u
#define DB_WC_FETCH_ADD 4u
#define DB_WC_RECV 128u
#define DB_WC_RECV_RDMA_WITH_IMM 129u

/* db_poll: the CQ holds compressed CQEs, which these routines cannot read. Create the CQ without them. */
#define DB_POLL_COMPRESSED (-1)

/* ---- Requests and completions -------------------------------------------------------------------------- */

/* struct ibv_sge, field for field. */
struct db_sge {
    db_u64 addr;
    db_u32 length;
    db_u32 lkey;
};

/* struct ibv_send_wr without the list pointer: a list is an array, its elements written side by side. */
struct db_send_wr {
    db_u64 wr_id;
    const struct db_sge *sg_list;
    db_u32 num_sge;
    db_u32 opcode;     /* DB_WR_* */
    db_u32 send_flags; /* DB_SEND_* */
    db_u32 imm_data;   /* in network order, as in ibv_send_wr */
    db_u64 remote_addr;
    db_u64 compare_add;
    db_u64 swap;
    db_u32 rkey;
};

/* struct ibv_recv_wr without the list pointer. */
struct db_recv_wr {
    db_u64 wr_id;
    const struct db_sge *sg_list;
    db_u32 num_sge;
};

/* What struct ibv_wc says, for the operations above. After an error only wr_id, qpn, is_send, status,
 * syndrome and vendor_syndrome mean anything, as with libibverbs. */
struct db_completion {
    db_u64 wr_id;
    db_u64 timestamp;       /* of a receive: when the device wrote it, by its own clock; else 0 */
    db_u32 status;          /* DB_WC_* */
    db_u32 opcode;          /* DB_WC_* */
    db_u32 byte_len;        /* received bytes, or bytes read; 8 for atomics, else 0 */
    db_u32 imm_data;        /* in network order; valid when has_imm */
    db_u32 has_imm;
    db_u32 qpn;             /* local QP */
    db_u32 wqe_index;       /* 16-bit index of the WQE */
    db_u32 is_send;
    db_u32 syndrome;        /* as the device wrote it, 0 on success */
    db_u32 vendor_syndrome;
};

/* ---- Queues -------------------------------------------------------------------------------------------- */

#define DB_ORDER_STRICT 0u /* a fence between doorbell record and register */
#define DB_ORDER_EARLY 1u  /* none: the register write's own index keeps the device right */

/* Always an 8-byte write to the register's first half, as every GPU peer does. Alternating halves would make
 * the device fetch a second line: measured as a tenth of a lone post on the software NIC. */
#define DB_DOORBELL_8_BYTES 0u
/* As libmlx5: a lone WQE is pushed through the register as a whole. Each ring, of either kind, takes the
 * other half, so that one may fill while the other drains. */
#define DB_DOORBELL_BLUEFLAME 1u

/* Which requests a service takes (IBTA vol. 1 table 40): bit n stands for DB_WR_ n. */
#define DB_OPCODES_RC 0x7fu
#define DB_OPCODES_UC 0x0fu

/* What the queue remembers of a posted request, at the slot of its first block. In a row of one-block
 * requests with ascending wr_ids only the last one's slot says so; others keep an earlier lap's data. */
struct __attribute__((aligned(16))) db_slot { /* a GPU stores it as a whole */
    db_u64 wr_id;
    db_u64 end; /* producer index behind its last block, in the low DB_SLOT_BITS; above, how many requests of its row are before it */
};

#define DB_SLOT_BITS 48

/* A send queue. `ring`, `record` and `reg` come from mlx5dv_init_obj; addresses are integers, since host and
 * GPU may see the same memory at different ones. Indices count blocks, never wrap in software, and are cut to
 * 16 bits for the device. */
struct db_sq {
    db_u64 ring;       /* block 0 */
    db_u64 record;     /* send word of the doorbell record */
    db_u64 reg;        /* first half of the doorbell register */
    db_u64 slots;      /* `blocks` struct db_slot, 0 at first, the owner's memory, 16-byte aligned */
    db_u32 blocks;     /* a power of two, at most DB_MAX_BLOCKS */
    db_u32 qpn;
    db_u32 half_bytes; /* of the register; 0 when BlueFlame must not be used */
    db_u32 max_sge;
    db_u32 max_inline;
    db_u32 opcodes;          /* DB_OPCODES_* */
    db_u32 signal_all;       /* sq_sig_all of the create call, 0 or 1 */
    db_u32 order;            /* DB_ORDER_* */
    db_u32 doorbell;         /* DB_DOORBELL_* */
    db_u32 register_offset;  /* half that the next ring uses */
    db_u64 doorbell_word;    /* first 8 bytes of the last WQE, as in memory */
    db_u64 producer;         /* next free block */
    db_u64 rung;             /* what the device has been told */
    db_u64 consumer;         /* blocks given back by completions */
};

/* A receive queue. Indices count WQEs. */
struct db_rq {
    db_u64 ring;
    db_u64 record; /* receive word of the doorbell record */
    db_u64 wr_ids; /* `wqes` 64-bit words, the owner's memory */
    db_u32 wqes;   /* a power of two */
    db_u32 stride; /* bytes */
    db_u32 qpn;
    db_u32 max_sge;
    db_u64 producer;
    db_u64 consumer;
};

/* A completion queue of 64-byte CQEs. */
struct db_cq {
    db_u64 ring;
    db_u64 record;  /* consumer word of the doorbell record */
    db_u32 entries; /* a power of two */
    db_u32 cqn;
    db_u64 consumer;
};

/* More would make the 16-bit index of a completion ambiguous. */
#define DB_MAX_BLOCKS 32768u

DB_FN int db_is_power_of_two(db_u32 value) { return value != 0 && (value & (value - 1)) == 0; }

/* Checks the sizes that the routines below rely on and empties the queue. The caller has filled in all above
 * `register_offset`. `stride` is mlx5dv's of the ring. 0 or DB_EINVAL. */
DB_FN int db_sq_init(struct db_sq *sq, db_u32 stride) {
    if (!db_is_power_of_two(sq->blocks) || sq->blocks > DB_MAX_BLOCKS || stride != DB_BLOCK_BYTES) return DB_EINVAL;
    if (!sq->ring || !sq->record || !sq->reg || !sq->slots) return DB_EINVAL;
    /* Segments and slots are stored 16 bytes at a time, which a GPU does not do elsewhere. */
#ifndef DB_DEFECT_NO_ALIGNMENT
    if ((sq->ring & 15) || (sq->record & 3) || (sq->reg & 7) || (sq->slots & 15)) return DB_EINVAL;
#endif
    sq->register_offset = 0;
    sq->producer = sq->rung = sq->consumer = 0;
    sq->doorbell_word = 0;
    return 0;
}

/* Likewise for a receive queue. */
DB_FN int db_rq_init(struct db_rq *rq) {
    if (!db_is_power_of_two(rq->wqes) || rq->wqes > DB_MAX_BLOCKS || !rq->ring || !rq->record || !rq->wr_ids)
        return DB_EINVAL;
    if (!db_is_power_of_two(rq->stride) || rq->stride < DB_SEGMENT_BYTES * rq->max_sge || rq->stride < DB_SEGMENT_BYTES)
        return DB_EINVAL;
    rq->producer = rq->consumer = 0;
    return 0;
}

/* Likewise for a CQ; `cqe_bytes` is what mlx5dv says. */
DB_FN int db_cq_init(struct db_cq *cq, db_u32 cqe_bytes) {
    if (!db_is_power_of_two(cq->entries) || cqe_bytes != DB_CQE_BYTES || !cq->ring || !cq->record) return DB_EINVAL;
    cq->consumer = 0;
    return 0;
}

#include "doorbell_post.h"
#include "doorbell_poll.h"

#endif /* DB_DOORBELL_H */
