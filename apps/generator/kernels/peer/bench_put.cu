/*! Kernels of `generator bench-post-gpu --peer-headers DIR`: gpunetio 4.0.0's `doca_gpu_dev_verbs_put`.
 *
 * Compiled only with that library's headers, which the user gives (pip package nvidia-nvshmem-cu13 3.8.0).
 * Launch as in bench_post.cu. The library's flag holds a doorbell back; the GPU itself rings. Where nothing
 * completes there is room for all; else the library's own check waits for it.
 */
#include "bench_run.h"

/* Its own has a form for compilers of GNU C alone, and one that cannot take what is behind a pointer. */
template <typename T> static __device__ __forceinline__ volatile T *db_peer_volatile(T &value) { return &value; }
#define ACCESS_ONCE(x) (*db_peer_volatile(x))

#include "doca_gpunetio_device.h"

/* Sharing of a queue: by one thread or warp, or by the whole GPU. */
#define DB_PEER_ALONE DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE
#define DB_PEER_SHARED DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_GPU
#define DB_PEER_HANDLER DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB
/* Completions: a CQE for each WQE in an ordinary CQ, or one CQE, overwritten, for a doorbell's WQEs. */
#define DB_PEER_CQ DOCA_GPUNETIO_VERBS_CQ_64B
#define DB_PEER_COLLAPSED DOCA_GPUNETIO_VERBS_CQ_64B_COLLAPSED

typedef char db_peer_fits[sizeof(struct doca_gpu_dev_verbs_qp) <= DB_BENCH_PEER_BYTES ? 1 : -1];

/* What this needs of `struct db_sq`, in the host's order. */
struct db_peer_queue {
    db_u64 ring;
    db_u64 record;
    db_u64 reg;
    db_u64 cq_ring;
    db_u64 cq_record;
    db_u64 start; /* first index; all before is done, and its completions were taken */
    db_u32 blocks;
    db_u32 qpn;
    db_u32 cqes; /* the CQ's entries */
    db_u32 pad;
};

/* Launch: a thread a queue, in one block. Makes the library's structs. */
extern "C" __global__ void bench_put_prepare(const struct db_peer_queue *queues, db_u64 to) {
    const struct db_peer_queue *queue = queues + threadIdx.x;
    struct doca_gpu_dev_verbs_qp made = {};
    made.sq_rsvd_index = made.sq_ready_index = made.sq_wqe_pi = queue->start;
    made.sq_num = queue->qpn;
    made.sq_num_shift8 = queue->qpn << 8;
    made.sq_num_shift8_be = db_be32(queue->qpn << 8);
    made.sq_num_shift8_be_1ds = db_be32(queue->qpn << 8 | 1);
    made.sq_num_shift8_be_2ds = db_be32(queue->qpn << 8 | 2);
    made.sq_num_shift8_be_3ds = db_be32(queue->qpn << 8 | 3);
    made.sq_num_shift8_be_4ds = db_be32(queue->qpn << 8 | 4);
    made.sq_num_shift8_be_5ds = db_be32(queue->qpn << 8 | 5);
    made.sq_wqe_num = (uint16_t)queue->blocks;
    made.sq_wqe_mask = (uint16_t)(queue->blocks - 1);
    made.sq_wqe_daddr = (uint8_t *)queue->ring;
    made.sq_dbrec = (__be32 *)queue->record;
    made.sq_db = (uint64_t *)queue->reg;
    made.cq_sq.cqe_daddr = (uint8_t *)queue->cq_ring;
    made.cq_sq.cqe_num = queue->cqes;
    made.cq_sq.cqe_mask = queue->cqes - 1;
    made.cq_sq.cqe_ci = queue->start;
    made.cq_sq.cqe_size = 64;
    made.cq_sq.cq_type = DB_PEER_CQ;
    made.cq_sq.dbrec = (__be32 *)queue->cq_record;
    made.nic_handler = DB_PEER_HANDLER;
    *(struct doca_gpu_dev_verbs_qp *)(to + (db_u64)threadIdx.x * DB_BENCH_PEER_BYTES) = made;
}

static __device__ __forceinline__ void db_peer_end(const struct db_bench_run *run, db_u64 start_ns) {
    struct db_bench_time *time = (struct db_bench_time *)run->times + blockIdx.x;
    db_u64 end_ns = db_clock_ns();
    time->start_ns = start_ns;
    time->end_ns = end_ns;
    time->error = 0;
}

static __device__ __forceinline__ struct doca_gpu_dev_verbs_qp *db_peer_qp(const struct db_bench_run *run) {
    return (struct doca_gpu_dev_verbs_qp *)(run->queues + (db_u64)blockIdx.x * run->apart);
}

/* One by one, a doorbell every per_ring. */
template <enum doca_gpu_dev_verbs_resource_sharing_mode mode, uint32_t options, enum doca_gpu_dev_verbs_cq_type cq>
static __device__ __forceinline__ void db_peer_thread(const struct db_bench_run *run) {
    struct doca_gpu_dev_verbs_qp *qp = db_peer_qp(run);
    db_u64 first = (db_u64)blockIdx.x * run->posts * DB_BENCH_LENGTH;
    struct doca_gpu_dev_verbs_addr to = {run->remote + first, db_be32(run->rkey)};
    struct doca_gpu_dev_verbs_addr from = {run->local + first, db_be32(run->lkey)};
    db_u32 i = 0, j;
    db_u64 start = db_clock_ns();
    while (i < run->posts) {
        for (j = 1; j < run->per_ring; j++, i++) {
            doca_gpu_dev_verbs_put<mode, DB_PEER_HANDLER, DOCA_GPUNETIO_VERBS_EXEC_SCOPE_THREAD, cq>(
                qp, to, from, DB_BENCH_LENGTH, options | DOCA_GPUNETIO_VERBS_GPU_CODE_OPT_SKIP_DB_RINGING);
            to.addr += DB_BENCH_LENGTH;
            from.addr += DB_BENCH_LENGTH;
        }
        doca_gpu_dev_verbs_put<mode, DB_PEER_HANDLER, DOCA_GPUNETIO_VERBS_EXEC_SCOPE_THREAD, cq>(
            qp, to, from, DB_BENCH_LENGTH, options);
        to.addr += DB_BENCH_LENGTH;
        from.addr += DB_BENCH_LENGTH;
        i++;
    }
    db_peer_end(run, start);
}

/* 32 at a time, a doorbell every per_ring. */
template <enum doca_gpu_dev_verbs_resource_sharing_mode mode, uint32_t options, enum doca_gpu_dev_verbs_cq_type cq>
static __device__ __forceinline__ void db_peer_warp(const struct db_bench_run *run) {
    struct doca_gpu_dev_verbs_qp *qp = db_peer_qp(run);
    db_u64 first = ((db_u64)blockIdx.x * run->posts + threadIdx.x) * DB_BENCH_LENGTH;
    struct doca_gpu_dev_verbs_addr to = {run->remote + first, db_be32(run->rkey)};
    struct doca_gpu_dev_verbs_addr from = {run->local + first, db_be32(run->lkey)};
    db_u32 i = 0, j;
    db_u64 start = db_clock_ns();
    while (i < run->posts) {
        for (j = 32; j < run->per_ring; j += 32, i += 32) {
            doca_gpu_dev_verbs_put<mode, DB_PEER_HANDLER, DOCA_GPUNETIO_VERBS_EXEC_SCOPE_WARP, cq>(
                qp, to, from, DB_BENCH_LENGTH, options | DOCA_GPUNETIO_VERBS_GPU_CODE_OPT_SKIP_DB_RINGING);
            to.addr += 32 * DB_BENCH_LENGTH;
            from.addr += 32 * DB_BENCH_LENGTH;
        }
        doca_gpu_dev_verbs_put<mode, DB_PEER_HANDLER, DOCA_GPUNETIO_VERBS_EXEC_SCOPE_WARP, cq>(
            qp, to, from, DB_BENCH_LENGTH, options);
        to.addr += 32 * DB_BENCH_LENGTH;
        from.addr += 32 * DB_BENCH_LENGTH;
        i += 32;
    }
    if (threadIdx.x == 0) db_peer_end(run, start);
}

/* per_ring at once by the library's pieces: blocks for all, each WQE, one mark, one submission. A thread. */
extern "C" __global__ void bench_put_pieces(struct db_bench_run run) {
    struct doca_gpu_dev_verbs_qp *qp = db_peer_qp(&run);
    struct doca_gpu_dev_verbs_addr to = {run.remote, db_be32(run.rkey)}, from = {run.local, db_be32(run.lkey)};
    db_u32 i, j;
    db_u64 start = db_clock_ns();
    for (i = 0; i < run.posts; i += run.per_ring) {
        db_u64 first =
            doca_gpu_dev_verbs_reserve_wq_slots<DB_PEER_ALONE, DOCA_GPUNETIO_VERBS_QP_SQ, DB_PEER_CQ>(qp, run.per_ring);
        for (j = 0; j < run.per_ring; j++) {
            doca_gpu_dev_verbs_wqe_prepare_write(
                qp, doca_gpu_dev_verbs_get_wqe_ptr(qp, first + j), first + j, DOCA_GPUNETIO_IB_MLX5_OPCODE_RDMA_WRITE,
                doca_gpu_dev_verbs_get_ctrl_flags<DOCA_GPUNETIO_VERBS_QP_SQ, DB_PEER_CQ>(qp, 0), 0, to.addr, to.key, from.addr, from.key,
                DB_BENCH_LENGTH);
            to.addr += DB_BENCH_LENGTH;
            from.addr += DB_BENCH_LENGTH;
        }
        doca_gpu_dev_verbs_mark_wqes_ready<DB_PEER_ALONE>(qp, first, first + run.per_ring - 1);
        doca_gpu_dev_verbs_submit<DB_PEER_ALONE, DOCA_GPUNETIO_VERBS_SYNC_SCOPE_GPU, DB_PEER_HANDLER>(qp, first + run.per_ring);
    }
    db_peer_end(&run, start);
}

#define DB_PEER_KERNELS(name, mode, options, cq)                                                                       \
    extern "C" __global__ void bench_put_##name(struct db_bench_run run) { db_peer_thread<mode, options, cq>(&run); }  \
    extern "C" __global__ void bench_put_##name##_warp(struct db_bench_run run) { db_peer_warp<mode, options, cq>(&run); }

DB_PEER_KERNELS(alone, DB_PEER_ALONE, 0, DB_PEER_CQ)
DB_PEER_KERNELS(alone_collapsed, DB_PEER_ALONE, 0, DB_PEER_COLLAPSED)
DB_PEER_KERNELS(alone_unchecked, DB_PEER_ALONE, DOCA_GPUNETIO_VERBS_GPU_CODE_OPT_SKIP_AVAILABILITY_CHECK, DB_PEER_CQ)
DB_PEER_KERNELS(shared, DB_PEER_SHARED, 0, DB_PEER_CQ)
DB_PEER_KERNELS(shared_collapsed, DB_PEER_SHARED, 0, DB_PEER_COLLAPSED)
DB_PEER_KERNELS(shared_unchecked, DB_PEER_SHARED, DOCA_GPUNETIO_VERBS_GPU_CODE_OPT_SKIP_AVAILABILITY_CHECK, DB_PEER_CQ)
