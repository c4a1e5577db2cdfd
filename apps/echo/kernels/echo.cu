/*! The smallest complete service: a resident kernel that answers each message its queue receives, and a
 * client kernel that asks, checks the answers and times them.
 *
 * An answer is the message with 1 added to its last whole 8-byte word, which tells it from its question, sent
 * from the buffer in which it arrived. Messages shorter than a word come back as they were. `run` and
 * `status` are in host memory, mirrored in src/kernel.rs. `run` is copied once; `status` is 0 at first
 * (`first_wrong` all ones; `posted` from the launch before) and read by the CPU. Either may be launched again
 * on its queue when it has ended; the client only with all its answers and no error. All completions come to
 * one CQ. Each wait ends by its deadline; the cancel word is read before and in it.
 */
#include "doorbell_kernel.h"

/* What both kernels are told. */
struct db_echo_run {
    struct db_kernel_queue queue;
    db_u64 buffers; /* registered, 8-byte aligned; the service: `window` of `stride` bytes; client: the question, the answer */
    db_u64 cancel;  /* 32-bit word in host memory; anything but 0 ends the kernel */
    db_u64 wait_ns; /* longest wait for a completion */
    db_u64 samples; /* client: `count` 32-bit words in host memory */
    db_u32 lkey;
    db_u32 stride; /* a multiple of 8 */
    db_u32 window; /* at most as many as either queue holds, and a third of the CQ */
    db_u32 bytes;  /* client: of a message; a multiple of 8, at most `stride` */
    db_u32 count;  /* client: questions */
    db_u32 pad;
};

struct db_echo_status {
    struct db_kernel_end end; /* the request: a buffer of the service, a question of the client */
    db_u64 messages;          /* answered, or asked and answered */
    db_u32 ready;             /* 1 once the first receives are posted */
    db_u32 wrong;             /* words of answers that are not what they should be */
    db_u32 first_wrong;       /* question to which the first of them belongs */
    db_u32 posted;            /* the service: buffers that have had their first receive, in this launch or an earlier one */
};

/* The queue in registers. */
struct db_echo_queue {
    struct db_sq sq;
    struct db_rq rq;
    struct db_cq cq;
    db_u64 released;
};

DB_GPU_FN struct db_echo_queue db_echo_load(const struct db_kernel_queue *at) {
    struct db_echo_queue queue = {*(const struct db_sq *)at->sq, *(const struct db_rq *)at->rq,
                                  *(const struct db_cq *)at->send_cq, 0};
    queue.released = queue.cq.consumer;
    return queue;
}

DB_GPU_FN void db_echo_store(struct db_echo_queue *queue, const struct db_kernel_queue *at) {
    /* The next launch begins with nothing to give back. */
    db_release(&queue->cq);
    *(struct db_sq *)at->sq = queue->sq;
    *(struct db_rq *)at->rq = queue->rq;
    *(struct db_cq *)at->send_cq = queue->cq;
}

/* Posts the receive of a buffer. */
DB_GPU_FN int db_echo_receive(struct db_echo_queue *queue, const struct db_echo_run *run, db_u32 buffer) {
    struct db_sge piece = {run->buffers + (db_u64)buffer * run->stride, run->stride, run->lkey};
    struct db_recv_wr wr = {buffer, &piece, 1};
    db_u32 bad;
    return db_post_recv(&queue->rq, &wr, 1, &bad);
}

/* Sends a buffer back; its receive is posted again once that has completed. */
DB_GPU_FN int db_echo_answer(struct db_echo_queue *queue, const struct db_echo_run *run, db_u32 buffer, db_u32 bytes) {
    struct db_sge piece = {run->buffers + (db_u64)buffer * run->stride, bytes, run->lkey};
    db_u64 last = piece.addr + (bytes & ~7u) - 8;
    int error;
    if (buffer >= run->window || bytes > run->stride) return DB_EINVAL;
    if (bytes >= 8) db_store64(last, db_load_relaxed64((const db_u64 *)last) + 1);
    error = db_try_post_send(&queue->sq, buffer, piece, DB_SEND_SIGNALED);
    if (!error) db_ring(&queue->sq);
    return error;
}

/* The next completion, unless the host cancels first. `wr_id`: the request that a failed wait names. */
DB_GPU_FN struct db_kernel_end db_echo_wait(struct db_echo_queue *queue, const struct db_echo_run *run, db_u64 wr_id,
                                            struct db_completion *done) {
    struct db_wait wait = {db_clock_ns() + run->wait_ns, run->cancel, 0};
    int error = db_load_acquire_sys32(run->cancel) ? DB_ECANCELED : 0;
    if (!error) error = db_gpu_wait(&queue->cq, &queue->sq, &queue->rq, done, &queue->released, wait);
    return db_kernel_end_of(queue->sq.qpn, wr_id, error, done);
}

/* Launch: one thread, until the cancel word is set, an error, or a wait without a message. */
extern "C" __global__ void echo(const struct db_echo_run *told, struct db_echo_status *status) {
    struct db_echo_run run = *told;
    struct db_echo_queue queue = db_echo_load(&run.queue);
    struct db_kernel_end end = {0, 0, 0, 0, 0, 0, 0};
    struct db_completion done;
    db_u64 answered = 0;
    db_u32 buffer;
    int error = 0;
    /* From here on a buffer's receive is posted or its answer in flight, whichever launch did it. */
    for (buffer = status->posted; buffer < run.window && !error; buffer++) {
        error = db_echo_receive(&queue, &run, buffer);
        if (!error) status->posted = buffer + 1;
    }
    if (error) end = db_kernel_end_of(queue.sq.qpn, buffer - 1, error, 0);
    db_store_release_sys32((db_u64)&status->ready, 1);
    while (!end.code) {
        end = db_echo_wait(&queue, &run, 0, &done);
        if (end.code) break;
        buffer = (db_u32)done.wr_id;
        if (done.is_send) {
            error = db_echo_receive(&queue, &run, buffer);
        } else {
            error = db_echo_answer(&queue, &run, buffer, done.byte_len);
            if (!error) status->messages = ++answered;
        }
        if (error) end = db_kernel_end_of(queue.sq.qpn, buffer, error, 0);
    }
    status->end = end;
    db_echo_store(&queue, &run.queue);
}

/* Word of a question: its number and its place, spread over all bits. */
DB_GPU_FN db_u64 db_echo_word(db_u32 question, db_u32 word) {
    return ((db_u64)(question + 1) << 32 | word) * 0x9e3779b97f4a7c15ull;
}

/* One question: ns from before writing its WQE until taking the answer's CQE. Takes both completions. */
DB_GPU_FN struct db_kernel_end db_echo_ask(struct db_echo_queue *queue, const struct db_echo_run *run, db_u32 question,
                                           db_u32 *ns) {
    struct db_sge piece = {run->buffers, run->bytes, run->lkey};
    struct db_completion done;
    struct db_kernel_end end;
    db_u32 sent = 0, answered = 0;
    db_u64 begin, took = 0;
    int error = db_echo_receive(queue, run, 1);
    begin = db_clock_ns();
    if (!error) error = db_try_post_send(&queue->sq, question, piece, DB_SEND_SIGNALED);
    if (!error) db_ring(&queue->sq);
    end = db_kernel_end_of(queue->sq.qpn, question, error, 0);
    while (!end.code && !(sent && answered)) {
        end = db_echo_wait(queue, run, question, &done);
        if (end.code) break;
        if (done.is_send) {
            sent = 1;
        } else {
            took = db_clock_ns() - begin;
            answered = 1;
            /* No answer of ours: what it says is not looked at. */
            if (done.byte_len != run->bytes) end = db_kernel_end_of(queue->sq.qpn, question, DB_EINVAL, 0);
        }
    }
    *ns = took < 0xffffffffu ? (db_u32)took : 0xffffffffu;
    return end;
}

/* Launch: one block, any number of threads, which fill and check; the first one asks. `samples`: ns of each
 * round trip. Ends after `count` answers, by the cancel word, or with the first error. */
extern "C" __global__ void ask(const struct db_echo_run *told, struct db_echo_status *status) {
    struct db_echo_run run = *told;
    struct db_echo_queue queue = db_echo_load(&run.queue);
    db_u32 question, word, words = run.bytes / 8, first = threadIdx.x == 0;
    for (question = 0; question < run.count; question++) {
        for (word = threadIdx.x; word < words; word += blockDim.x)
            db_store64(run.buffers + 8ull * word, db_echo_word(question, word));
        /* The other threads' stores are the first one's to publish once it has met them. */
        db_block_sync();
        if (first) {
            struct db_kernel_end end = db_echo_ask(&queue, &run, question, (db_u32 *)run.samples + question);
            if (end.code)
                status->end = end;
            else
                status->messages = question + 1;
        }
        db_block_sync();
        if (db_load_relaxed32(&status->end.code)) break;
        for (word = threadIdx.x; word < words; word += blockDim.x) {
            db_u64 expected = db_echo_word(question, word) + (word + 1 == words);
            if (db_load_relaxed64((const db_u64 *)(run.buffers + run.stride + 8ull * word)) != expected) {
                atomicAdd(&status->wrong, 1u);
                atomicMin(&status->first_wrong, question);
            }
        }
    }
    if (first) db_echo_store(&queue, &run.queue);
}
