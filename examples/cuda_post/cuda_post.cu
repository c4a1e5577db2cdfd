/*! The smallest complete CUDA user of the shim: a kernel posts RDMA WRITEs on a queue pair of unmodified
 * libmlx5, rings the NIC's doorbell itself and polls the CQ itself. No Rust, no patched library.
 *
 *   nvcc -std=c++17 -arch=native -I ../../crates/rdma-shim/include cuda_post.cu -libverbs -lmlx5 -o cuda_post
 *   ./cuda_post [thread|warp|shared [MESSAGES [DEVICE]]]   (without a card: softnic run -- ./cuda_post …)
 *
 * `native` asks the present GPU; to build without one, name that of the machine where it runs (-arch=sm_90).
 *
 * `thread`: one thread, 16 requests a doorbell. `warp`: 32 requests at once. `shared`: 8 warps on one queue.
 * Prints one line; exits 1 with the reason when a call, a completion or a payload is not as it should be, 2
 * when there is no device or no GPU.
 */
#include <cuda_runtime.h>
#include <infiniband/mlx5dv.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "doorbell_gpu.h"

/* A completion a quarter of the queue, not a doorbell: each CQE is a trip of a microsecond and more across
 * PCIe, and frees all requests before it. Rarer still, the queue runs empty before the last comes. */
enum { DEPTH = 512, SIGNAL_EVERY = DEPTH / 4, PORT = 1, BYTES = 8, SHARING_WARPS = 8, PATIENCE_S = 5 };

[[noreturn]] static void fail(const char *what, const char *why, int code = 1) {
    fprintf(stderr, "cuda_post: %s: %s\n", what, why);
    exit(code);
}
static void cuda(const char *what, cudaError_t error) {
    if (error != cudaSuccess) fail(what, cudaGetErrorString(error));
}
static void verbs(const char *what, bool good) {
    if (!good) fail(what, strerror(errno));
}

/* ---- The kernels --------------------------------------------------------------------------------------- */

struct job {
    db_u64 source, target; /* arrays of one word a message */
    db_u64 messages;
    db_u32 lkey, rkey;
};
struct outcome {
    db_u64 completed, nanoseconds;
    int error; /* DB_E* of a call */
    struct db_completion failed;
};

static __device__ struct db_wait patience() {
    struct db_wait wait = {db_clock_ns() + PATIENCE_S * 1000000000ull, 0, 0};
    return wait;
}

/* The words to be sent, written by the GPU: payload is covered by the same fence as the WQE. */
static __device__ void write_payload(const struct job &job, db_u64 message) {
    ((db_u64 *)job.source)[message] = ~message;
}

/* Of a doorbell's requests the last one asks for a completion, if one is due. */
static __device__ db_u32 flags_of(db_u64 behind) { return behind % SIGNAL_EVERY ? 0 : DB_SEND_SIGNALED; }

/* One warp with a queue of its own; `lanes` of it post, 1 or 32. */
static __device__ void post_and_wait(struct db_sq sq, struct db_cq cq, struct job job, db_u32 lanes, struct outcome *out) {
    struct db_completion done;
    db_u64 posted = 0, completed = 0, released = 0, begun = db_clock_ns();
    int error = 0;
    done.status = DB_WC_SUCCESS;
    while (completed < job.messages && !error) {
        db_u32 batch = lanes == 1 ? 16 : 32;
        while (posted < job.messages && !error) {
            db_u64 mine = posted + (lanes == 1 ? 0 : db_lane());
            struct db_sge local = {job.source + mine * BYTES, BYTES, job.lkey};
            if (lanes == 1) {
                for (db_u32 i = 0; i < batch; i++) write_payload(job, posted + i);
                error = db_try_post_writes(&sq, posted, local, job.target + posted * BYTES, job.rkey, flags_of(posted + batch),
                                           batch, BYTES);
            } else {
                write_payload(job, mine);
                error = db_warp_post_write(&sq, mine, local, job.target + mine * BYTES, job.rkey,
                                           db_lane() == DB_WARP - 1 ? flags_of(posted + batch) : 0);
            }
            if (error) break;
            posted += batch;
            if (lanes == 1)
                db_ring(&sq);
            else
                db_warp_ring(&sq);
        }
        if (error == DB_ENOMEM) error = 0; /* full: completions give the space back */
        if (error) break;
        if (lanes == 1)
            error = db_gpu_make_room(&cq, &sq, &done, &released, patience());
        else
            error = db_warp_make_room(&cq, &sq, &done, &released, patience());
        completed = sq.consumer; /* each request is of one block */
    }
    if (db_lane() == 0) {
        out->completed = completed;
        out->nanoseconds = db_clock_ns() - begun;
        out->error = error;
        out->failed = done;
    }
}
__global__ void by_thread(struct db_sq sq, struct db_cq cq, struct job job, struct outcome *out) {
    post_and_wait(sq, cq, job, 1, out);
}
__global__ void by_warp(struct db_sq sq, struct db_cq cq, struct job job, struct outcome *out) {
    post_and_wait(sq, cq, job, 32, out);
}

/* Each block is a warp; all post on one queue, and a warp with nothing left to post helps to poll. */
__global__ void by_many(struct db_shared_sq *shared, struct job job, struct outcome *out) {
    struct db_poster poster = db_poster_of(shared);
    struct db_failure failure = {};
    db_u64 share = job.messages / gridDim.x, first = share * blockIdx.x, begun = db_clock_ns();
    int error = 0;
    for (db_u64 message = first; message < first + share && !error; message += DB_WARP) {
        db_u64 mine = message + db_lane();
        struct db_sge local = {job.source + mine * BYTES, BYTES, job.lkey};
        write_payload(job, mine);
        error = db_shared_warp_post_write(shared, mine, local, job.target + mine * BYTES, job.rkey, 0, &poster, patience());
    }
    if (db_lane() == 0) {
        struct db_wait wait = patience();
        while (!error && db_load_acquire64(&shared->consumed) < job.messages) {
            error = db_shared_failure(shared, &failure) ? DB_EIO : 0;
            if (!error && !db_shared_poll(shared, &poster, DB_WARP)) error = db_wait_over(&wait);
        }
        out[blockIdx.x].completed = db_load_acquire64(&shared->consumed);
        out[blockIdx.x].nanoseconds = db_clock_ns() - begun;
        out[blockIdx.x].error = error;
        db_shared_failure(shared, &failure);
        out[blockIdx.x].failed.wr_id = failure.wr_id;
        out[blockIdx.x].failed.status = failure.status;
        out[blockIdx.x].failed.syndrome = failure.syndrome;
    }
}

/* ---- Set-up: libibverbs creates and connects ----------------------------------------------------------- */

static struct ibv_context *open_device(const char *name) {
    int count = 0;
    struct ibv_context *context = nullptr;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (int i = 0; list && i < count && !context; i++)
        if ((!name || !strcmp(name, ibv_get_device_name(list[i]))) && mlx5dv_is_supported(list[i]))
            context = ibv_open_device(list[i]);
    if (!context) fail("no mlx5 device", name ? name : "any", 2);
    ibv_free_device_list(list);
    return context;
}

/* A thread domain gives the queue its own doorbell register; scatter-to-CQE must be off for doorbell.h. */
static struct ibv_qp *create_qp(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_td_init_attr no_options = {};
    struct ibv_td *td = ibv_alloc_td(context, &no_options);
    struct ibv_parent_domain_init_attr domain = {};
    domain.pd = pd;
    domain.td = td;
    struct ibv_pd *with_register = td ? ibv_alloc_parent_domain(context, &domain) : nullptr;
    struct ibv_qp_init_attr_ex attr = {};
    attr.qp_type = IBV_QPT_RC;
    attr.send_cq = attr.recv_cq = cq;
    attr.cap.max_send_wr = DEPTH;
    attr.cap.max_recv_wr = attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = with_register;
    struct mlx5dv_qp_init_attr mlx5 = {};
    mlx5.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
    mlx5.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
    struct ibv_qp *qp = with_register ? mlx5dv_create_qp(context, &attr, &mlx5) : nullptr;
    verbs("creating a queue pair with a register of its own", qp != nullptr);
    return qp;
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer, const struct ibv_port_attr &port, const union ibv_gid &gid) {
    struct ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = PORT;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    verbs("INIT", !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = port.active_mtu;
    attr.dest_qp_num = peer;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.port_num = PORT;
    attr.ah_attr.dlid = port.lid;
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = gid;
        attr.ah_attr.grh.hop_limit = 64;
    }
    verbs("RTR", !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    verbs("RTS", !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Shows whole pages to the GPU, and returns where it sees `at`. Doorbell records of several objects share a
 * page, so that «already» is no error. A card's register is I/O memory, an emulated one's is not: try the
 * first, then the second. */
static db_u64 show(const char *what, void *at, size_t bytes, bool is_register = false) {
    size_t page = 4096, from = (size_t)at & ~(page - 1), to = ((size_t)at + bytes + page - 1) & ~(page - 1);
    unsigned flags = cudaHostRegisterMapped | cudaHostRegisterPortable;
    cudaError_t error = cudaErrorInvalidValue;
    if (is_register) error = cudaHostRegister((void *)from, to - from, flags | cudaHostRegisterIoMemory);
    if (error != cudaSuccess) error = cudaHostRegister((void *)from, to - from, flags);
    if (error != cudaErrorHostMemoryAlreadyRegistered) cuda(what, error);
    cudaGetLastError();
    void *seen = nullptr;
    cuda(what, cudaHostGetDevicePointer(&seen, at, 0));
    return (db_u64)seen;
}

/* Takes the send queue and the CQ over from libmlx5, with the addresses at which the GPU sees them. */
static void take_over(struct ibv_qp *qp, struct ibv_cq *cq, struct db_sq *sq, struct db_cq *gpu_cq) {
    struct mlx5dv_qp dv_qp = {};
    struct mlx5dv_cq dv_cq = {};
    struct mlx5dv_obj objects = {};
    objects.qp.in = qp;
    objects.qp.out = &dv_qp;
    objects.cq.in = cq;
    objects.cq.out = &dv_cq;
    verbs("mlx5dv_init_obj", !mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ));
    void *slots = nullptr;
    cuda("memory for the requests", cudaMalloc(&slots, dv_qp.sq.wqe_cnt * sizeof(struct db_slot)));
    cuda("memory for the requests", cudaMemset(slots, 0, dv_qp.sq.wqe_cnt * sizeof(struct db_slot)));
    memset(sq, 0, sizeof *sq);
    sq->ring = show("the send queue", dv_qp.sq.buf, (size_t)dv_qp.sq.wqe_cnt * dv_qp.sq.stride);
    sq->record = show("the doorbell record", dv_qp.dbrec, 8) + DB_RECORD_SEND;
    sq->reg = show("the doorbell register", dv_qp.bf.reg, 8, true);
    sq->slots = (db_u64)slots;
    sq->blocks = dv_qp.sq.wqe_cnt;
    sq->qpn = qp->qp_num;
    sq->max_sge = 1;
    sq->opcodes = DB_OPCODES_RC;
    sq->order = DB_ORDER_STRICT;
    sq->doorbell = DB_DOORBELL_8_BYTES;
    memset(gpu_cq, 0, sizeof *gpu_cq);
    gpu_cq->ring = show("the CQ", dv_cq.buf, (size_t)dv_cq.cqe_cnt * dv_cq.cqe_size);
    gpu_cq->record = show("the CQ's doorbell record", dv_cq.dbrec, 8) + DB_RECORD_CONSUMER;
    gpu_cq->entries = dv_cq.cqe_cnt;
    gpu_cq->cqn = dv_cq.cqn;
    if (db_sq_init(sq, dv_qp.sq.stride) || db_cq_init(gpu_cq, dv_cq.cqe_size)) fail("mlx5dv", "a queue of unknown shape");
}

static struct db_shared_sq *share(const struct db_sq &sq, const struct db_cq &cq) {
    struct db_shared_sq host = {}, *shared = nullptr;
    void *filled = nullptr;
    cuda("marks", cudaMalloc(&filled, sq.blocks * sizeof(db_u32)));
    cuda("marks", cudaMemset(filled, 0, sq.blocks * sizeof(db_u32)));
    host.sq = sq;
    host.cq = cq;
    host.filled = (db_u64)filled;
    host.signal_mask = SIGNAL_EVERY - 1;
    if (db_shared_init(&host)) fail("sharing", "the ring is too short or too long, or the CQ too short");
    cuda("the shared queue", cudaMalloc(&shared, sizeof *shared));
    cuda("the shared queue", cudaMemcpy(shared, &host, sizeof host, cudaMemcpyHostToDevice));
    return shared;
}

int main(int argc, char **argv) {
    const char *who = argc > 1 ? argv[1] : "thread";
    db_u64 asked = argc > 2 ? strtoull(argv[2], nullptr, 10) : 50000;
    bool thread = !strcmp(who, "thread"), shared = !strcmp(who, "shared");
    if ((!thread && !shared && strcmp(who, "warp")) || !asked || asked > 10000000)
        fail("usage", "cuda_post [thread|warp|shared [MESSAGES up to 10000000 [DEVICE]]]", 2);
    int answers = 0; /* CUDA's release that the driver is for: 0 without a driver, of which the runtime says that it is too old */
    if (cudaDriverGetVersion(&answers) != cudaSuccess || !answers)
        fail("no GPU", "no CUDA driver answers; it comes with NVIDIA's kernel driver (nvidia-smi tells)", 2);
    cudaError_t error = cudaSetDevice(0);
    if (error != cudaSuccess) fail("no GPU", cudaGetErrorString(error), 2);

    struct ibv_context *context = open_device(argc > 3 ? argv[3] : nullptr);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, DEPTH * 4, nullptr, nullptr, 0);
    struct ibv_port_attr port;
    union ibv_gid gid;
    struct job job = {};
    job.messages = (asked + 511) / 512 * 512; /* whole warps, whole shares of them, and the last one asks for a completion */
    size_t bytes = job.messages * BYTES;
    char *buffer = (char *)aligned_alloc(4096, (2 * bytes + 4095) / 4096 * 4096);
    struct ibv_mr *mr = pd && buffer ? ibv_reg_mr(pd, buffer, 2 * bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) : nullptr;
    verbs("set-up", cq && mr && !ibv_query_port(context, PORT, &port) && !ibv_query_gid(context, PORT, 0, &gid));
    memset(buffer, 0, 2 * bytes);

    struct ibv_qp *sender = create_qp(context, pd, cq), *target = create_qp(context, pd, cq);
    connect_qp(sender, target->qp_num, port, gid);
    connect_qp(target, sender->qp_num, port, gid);
    struct db_sq sq;
    struct db_cq gpu_cq;
    take_over(sender, cq, &sq, &gpu_cq);
    /* The GPU writes the payload where it sees it; the NIC reads it where libibverbs registered it. */
    if (show("the payload", buffer, 2 * bytes) != (db_u64)buffer) fail("the payload", "the GPU sees it elsewhere");
    job.source = (db_u64)buffer;
    job.target = (db_u64)buffer + bytes;
    job.lkey = mr->lkey;
    job.rkey = mr->rkey;

    struct outcome *out = nullptr;
    cuda("results", cudaHostAlloc(&out, SHARING_WARPS * sizeof *out, cudaHostAllocMapped));
    memset(out, 0, SHARING_WARPS * sizeof *out);
    if (thread)
        by_thread<<<1, 1>>>(sq, gpu_cq, job, out);
    else if (shared)
        by_many<<<SHARING_WARPS, 32>>>(share(sq, gpu_cq), job, out);
    else
        by_warp<<<1, 32>>>(sq, gpu_cq, job, out);
    cuda("launch", cudaGetLastError());
    cuda("the kernel", cudaDeviceSynchronize()); /* ends by itself: every wait in it has a deadline */

    db_u64 longest = 0;
    for (int i = 0; i < (shared ? SHARING_WARPS : 1); i++) {
        if (out[i].error) {
            fprintf(stderr, "cuda_post: QPN %#x: error %d after %llu of %llu completions; request %llu: status %u, syndrome %#x\n",
                    sq.qpn, out[i].error, out[i].completed, job.messages, out[i].failed.wr_id, out[i].failed.status,
                    out[i].failed.syndrome);
            return 1;
        }
        if (out[i].nanoseconds > longest) longest = out[i].nanoseconds;
    }
    for (db_u64 i = 0; i < job.messages; i++)
        if (((db_u64 *)job.target)[i] != ~i) fail("payload", "a message did not arrive as it was sent");
    printf("%llu RDMA WRITEs of %d bytes posted by a GPU (%s), all completed, every payload arrived; %.0f ns each\n", job.messages,
           BYTES, who, (double)longest / job.messages);
    return 0;
}
