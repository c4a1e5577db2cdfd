/*! The smallest complete user of the C shim: two queue pairs of one device, WRITEs from one to the other.
 *
 *     cc -std=c11 -I ../../include write.c -libverbs -lmlx5 -o write && ./write [DEVICE [MESSAGES]]
 *
 * libibverbs creates and connects; then the send queue and its CQ belong to doorbell.h. Prints one line.
 * Exits 1 with the reason when a call, a completion or the payload is wrong, and 2 when there is no device.
 */
#define _DEFAULT_SOURCE /* mlx5dv.h calls htobe32, which strict C11 hides. */
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doorbell.h"

enum { PAYLOAD_BYTES = 64, DEPTH = 128, PORT = 1 };

static void fail(const char *what) {
    fprintf(stderr, "write: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct ibv_context *open_device(const char *name) {
    int count = 0, i;
    struct ibv_context *context = NULL;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (i = 0; list && i < count && !context; i++)
        if (!name || !strcmp(name, ibv_get_device_name(list[i])))
            if (mlx5dv_is_supported(list[i])) context = ibv_open_device(list[i]);
    if (!context) {
        fprintf(stderr, "write: no mlx5 device%s%s\n", name ? " " : "", name ? name : "");
        exit(2);
    }
    ibv_free_device_list(list);
    return context;
}

/* A thread domain gives the queue its own doorbell register; scatter-to-CQE must be off for doorbell.h. */
static struct ibv_qp *create_qp(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_td_init_attr no_options = {0};
    struct ibv_td *td = ibv_alloc_td(context, &no_options);
    struct ibv_parent_domain_init_attr domain = {.pd = pd, .td = td};
    struct ibv_pd *with_register = td ? ibv_alloc_parent_domain(context, &domain) : NULL;
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_RC,
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = with_register,
    };
    struct mlx5dv_qp_init_attr mlx5 = {
        .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
        .create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
    };
    struct ibv_qp *qp = with_register ? mlx5dv_create_qp(context, &attr, &mlx5) : NULL;
    if (!qp) fail("creating a queue pair with a register of its own");
    return qp;
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer, const struct ibv_port_attr *port, const union ibv_gid *gid) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) fail("INIT");
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = port->active_mtu;
    attr.dest_qp_num = peer;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.port_num = PORT;
    attr.ah_attr.dlid = port->lid;
    if (port->link_layer == IBV_LINK_LAYER_ETHERNET) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = *gid;
        attr.ah_attr.grh.hop_limit = 64;
    }
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        fail("RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                     IBV_QP_MAX_QP_RD_ATOMIC))
        fail("RTS");
}

/* Takes the send queue and the CQ over from libmlx5. */
static void take_over(struct ibv_qp *qp, struct ibv_cq *cq, struct db_sq *sq, struct db_cq *shim_cq) {
    struct mlx5dv_qp dv_qp = {0};
    struct mlx5dv_cq dv_cq = {0};
    struct mlx5dv_obj objects = {.qp = {.in = qp, .out = &dv_qp}, .cq = {.in = cq, .out = &dv_cq}};
    if (mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ)) fail("mlx5dv_init_obj");
    *sq = (struct db_sq){
        .ring = (uintptr_t)dv_qp.sq.buf,
        .record = (uintptr_t)dv_qp.dbrec + DB_RECORD_SEND,
        .reg = (uintptr_t)dv_qp.bf.reg,
        .slots = (uintptr_t)calloc(dv_qp.sq.wqe_cnt, sizeof(struct db_slot)),
        .blocks = dv_qp.sq.wqe_cnt,
        .qpn = qp->qp_num,
        .half_bytes = dv_qp.bf.size,
        .max_sge = 1,
        .opcodes = DB_OPCODES_RC,
        .order = DB_ORDER_STRICT,
        .doorbell = DB_DOORBELL_8_BYTES,
    };
    *shim_cq = (struct db_cq){.ring = (uintptr_t)dv_cq.buf,
                              .record = (uintptr_t)dv_cq.dbrec + DB_RECORD_CONSUMER,
                              .entries = dv_cq.cqe_cnt,
                              .cqn = dv_cq.cqn};
    if (db_sq_init(sq, dv_qp.sq.stride) || db_cq_init(shim_cq, dv_cq.cqe_size)) fail("a queue of unknown shape");
}

int main(int argc, char **argv) {
    unsigned long messages = argc > 2 ? strtoul(argv[2], NULL, 10) : 100000, posted = 0, completed = 0;
    struct ibv_context *context = open_device(argc > 1 ? argv[1] : NULL);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
    struct ibv_qp *sender, *target;
    struct ibv_port_attr port;
    union ibv_gid gid;
    char *buffer = aligned_alloc(4096, 4096), *landing = buffer + PAYLOAD_BYTES;
    struct ibv_mr *mr = pd ? ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) : NULL;
    struct db_sq sq;
    struct db_cq shim_cq;

    if (!cq || !mr || ibv_query_port(context, PORT, &port) || ibv_query_gid(context, PORT, 0, &gid)) fail("set-up");
    sender = create_qp(context, pd, cq);
    target = create_qp(context, pd, cq);
    connect_qp(sender, target->qp_num, &port, &gid);
    connect_qp(target, sender->qp_num, &port, &gid);
    take_over(sender, cq, &sq, &shim_cq);
    memset(buffer, 0x5a, 4096);

    while (completed < messages) {
        struct db_completion done[16];
        int i, taken;
        while (posted < messages) {
            struct db_sge local = {(uintptr_t)buffer, PAYLOAD_BYTES, mr->lkey};
            /* Every 16th asks for a completion, which gives back the space of the 15 before it as well. */
            db_u32 flags = posted % 16 == 15 || posted + 1 == messages ? DB_SEND_SIGNALED : 0;
            if (db_try_post_write(&sq, posted, local, (uintptr_t)landing, mr->rkey, flags) == DB_ENOMEM) break;
            posted++;
        }
        db_ring(&sq);
        taken = db_poll(&shim_cq, &sq, NULL, done, 16);
        for (i = 0; i < taken; i++) {
            if (done[i].status != DB_WC_SUCCESS) {
                fprintf(stderr, "write: message %llu: status %u, syndrome %#x\n", done[i].wr_id, done[i].status,
                        done[i].syndrome);
                return 1;
            }
            completed = done[i].wr_id + 1;
        }
    }
    if (memcmp(buffer, landing, PAYLOAD_BYTES)) {
        fprintf(stderr, "write: the payload did not arrive\n");
        return 1;
    }
    printf("%lu WRITEs posted by doorbell.h, all completed, payload arrived\n", completed);
    return 0;
}
