/*! The smallest complete service: a resident kernel that answers each message that its queue receives; and one that asks,
 * checks the answers and times them.
 *
 * An answer is the message with 1 added to its last whole word of 8 bytes, sent from the buffer in which it arrived, so that
 * it is told from its question. Messages shorter than a word come back as they were.
 * `sq`, `rq` and `cq` are the queue's own, all completions in one CQ; they are kept up to date. `status`: host memory, 0 at
 * first (`first_wrong` all ones), read by the CPU. Nothing here waits longer than its deadline, and the cancel word is looked
 * at before each wait and in it.
 */
#include "doorbell_gpu.h"

/* What both kernels are told: registered memory, and when to stop. */
struct db_echo_run {
    db_u64 buffers; /* 8-byte aligned; the service: `window` of `stride` bytes; who asks: one for questions, one for answers */
    db_u64 cancel;  /* 32-bit word in host memory; anything but 0 ends the kernel */
    db_u64 wait_ns; /* longest wait for a completion */
    db_u32 lkey;
    db_u32 stride; /* a multiple of 8 */
    db_u32 window; /* at most as many as any of the queues holds; half as many as the CQ */
    db_u32 bytes;  /* who asks: of a message; a multiple of 8, at most `stride` */
    db_u32 count;  /* who asks: questions */
    db_u32 pad;
};

struct db_echo_status {
    db_u32 error; /* 0, DB_E*, or DB_EIO for a completion that is an error */
    db_u32 ready; /* 1 once receives are posted */
    db_u64 messages; /* answered, or asked and answered */
    /* What it waited for or did when it ended: the queue, the request, and what its completion said. */
    db_u64 wr_id;
    db_u32 qpn;
    db_u32 is_send;
    db_u32 status; /* DB_WC_* */
    db_u32 syndrome;
    db_u32 vendor_syndrome;
    db_u32 bytes; /* of the message */
    db_u32 wrong; /* words of answers that are not what they should be */
    db_u32 first_wrong; /* question to which the first of them belongs */
};

/* DB_EIO where the completion is an error, and what it said. */
DB_GPU_FN int db_echo_judge(const struct db_completion *done, struct db_echo_status *status) {
    if (done->status == DB_WC_SUCCESS) return 0;
    status->wr_id = done->wr_id;
    status->qpn = done->qpn;
    status->is_send = done->is_send;
    status->status = done->status;
    status->syndrome = done->syndrome;
    status->vendor_syndrome = done->vendor_syndrome;
    return DB_EIO;
}

/* Posts the receive of a buffer. */
DB_GPU_FN int db_echo_receive(struct db_rq *rq, const struct db_echo_run *run, db_u32 buffer) {
    struct db_sge piece = {run->buffers + (db_u64)buffer * run->stride, run->stride, run->lkey};
    struct db_recv_wr wr = {buffer, &piece, 1};
    db_u32 bad;
    return db_post_recv(rq, &wr, 1, &bad);
}

/* Sends a buffer back; its receive is posted again once that has completed. */
DB_GPU_FN int db_echo_answer(struct db_sq *sq, const struct db_echo_run *run, db_u32 buffer, db_u32 bytes) {
    struct db_sge piece = {run->buffers + (db_u64)buffer * run->stride, bytes, run->lkey};
    db_u64 last = piece.addr + (bytes & ~7u) - 8;
    int error;
    if (bytes > run->stride) return DB_EINVAL;
    if (bytes >= 8) db_store64(last, db_load_relaxed64((const db_u64 *)last) + 1);
    error = db_try_post_send(sq, buffer, piece, DB_SEND_SIGNALED);
    if (!error) db_ring(sq);
    return error;
}

/* The next completion, good or bad, unless the host wants an end. */
DB_GPU_FN int db_echo_wait(struct db_cq *cq, struct db_sq *sq, struct db_rq *rq, struct db_completion *done,
                           db_u64 *released, const struct db_echo_run *run, struct db_echo_status *status) {
    struct db_wait wait = {db_clock_ns() + run->wait_ns, run->cancel, 0};
    int error = db_load_acquire_sys32(run->cancel) ? DB_ECANCELED : 0;
    if (!error) error = db_gpu_wait(cq, sq, rq, done, released, wait);
    return error ? error : db_echo_judge(done, status);
}

/* Launch: one thread, for as long as the service is wanted. Ends by the cancel word, an error, or a wait without a message. */
extern "C" __global__ void echo(struct db_sq *sq, struct db_rq *rq, struct db_cq *cq, struct db_echo_run run,
                                struct db_echo_status *status) {
    struct db_sq sends = *sq;
    struct db_rq receives = *rq;
    struct db_cq completions = *cq;
    struct db_completion done;
    db_u64 released = completions.consumer, answered = 0;
    db_u32 buffer;
    int error = 0;
    status->qpn = sends.qpn;
    for (buffer = 0; buffer < run.window && !error; buffer++) error = db_echo_receive(&receives, &run, buffer);
    if (!error) db_store_release_sys32((db_u64)&status->ready, 1);
    while (!error) {
        error = db_echo_wait(&completions, &sends, &receives, &done, &released, &run, status);
        if (error) break;
        buffer = (db_u32)done.wr_id;
        if (done.is_send) {
            error = db_echo_receive(&receives, &run, buffer);
        } else {
            error = db_echo_answer(&sends, &run, buffer, done.byte_len);
            answered += !error;
        }
        status->messages = answered;
        if (error) {
            status->wr_id = buffer;
            status->is_send = !done.is_send;
            status->bytes = done.byte_len;
        }
    }
    status->error = (db_u32)error;
    *sq = sends;
    *rq = receives;
    *cq = completions;
}

/* Word of a question: its number and its place, spread over all bits. */
DB_GPU_FN db_u64 db_echo_word(db_u32 question, db_u32 word) {
    return ((db_u64)(question + 1) << 32 | word) * 0x9e3779b97f4a7c15ull;
}

/* One question, from the writing of its WQE to the answer's completion: nanoseconds. Both completions are taken. */
DB_GPU_FN int db_echo_ask(struct db_sq *sq, struct db_rq *rq, struct db_cq *cq, db_u64 *released,
                          const struct db_echo_run *run, struct db_echo_status *status, db_u32 question, db_u32 *ns) {
    struct db_sge piece = {run->buffers, run->bytes, run->lkey};
    struct db_completion done;
    db_u32 sent = 0, answered = 0;
    db_u64 begin, end = 0;
    int error = db_echo_receive(rq, run, 1);
    status->wr_id = question;
    begin = db_clock_ns();
    if (!error) error = db_try_post_send(sq, question, piece, DB_SEND_SIGNALED);
    if (!error) db_ring(sq);
    while (!error && !(sent && answered)) {
        status->is_send = !sent;
        error = db_echo_wait(cq, sq, rq, &done, released, run, status);
        if (error) break;
        if (done.is_send) {
            sent = 1;
        } else {
            end = db_clock_ns();
            answered = 1;
            if (done.byte_len != run->bytes) error = DB_EINVAL;
            status->bytes = done.byte_len;
        }
    }
    *ns = end - begin < 0xffffffffu ? (db_u32)(end - begin) : 0xffffffffu;
    return error;
}

/* Launch: one block of any number of threads, which fill and check; the first one asks. `samples`: `count` words in host
 * memory, nanoseconds of each round trip. Buffer 0 holds the question, buffer 1 the answer. Ends after `count` answers, by
 * the cancel word, or with the first error. */
extern "C" __global__ void ask(struct db_sq *sq, struct db_rq *rq, struct db_cq *cq, struct db_echo_run run,
                               db_u32 *samples, struct db_echo_status *status) {
    struct db_sq sends = *sq;
    struct db_rq receives = *rq;
    struct db_cq completions = *cq;
    db_u64 released = completions.consumer;
    db_u32 question, word, words = run.bytes / 8, first = threadIdx.x == 0;
    int error = 0;
    if (first) {
        status->qpn = sends.qpn;
        status->ready = 1;
    }
    for (question = 0; question < run.count; question++) {
        for (word = threadIdx.x; word < words; word += blockDim.x)
            db_store64(run.buffers + 8ull * word, db_echo_word(question, word));
        /* The other threads' stores are the first one's to publish once it has met them. */
        db_block_sync();
        if (first) {
            error = db_echo_ask(&sends, &receives, &completions, &released, &run, status, question, &samples[question]);
            if (error)
                db_store_relaxed32(&status->error, (db_u32)error);
            else
                status->messages = question + 1;
        }
        db_block_sync();
        if (db_load_relaxed32(&status->error)) break;
        for (word = threadIdx.x; word < words; word += blockDim.x) {
            db_u64 expected = db_echo_word(question, word) + (word + 1 == words);
            if (db_load_relaxed64((const db_u64 *)(run.buffers + run.stride + 8ull * word)) != expected) {
                atomicAdd(&status->wrong, 1u);
                atomicMin(&status->first_wrong, question);
            }
        }
    }
    if (!first) return;
    *sq = sends;
    *rq = receives;
    *cq = completions;
}
