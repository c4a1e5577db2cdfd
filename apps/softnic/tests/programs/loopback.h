/* One queue pair joined to itself, or to another of the process: the least that proves a device works.
 *
 * Used by the test programs beside it. The caller's deadline bounds every wait: the test kills what hangs.
 * Arguments of the programs: the GID index to use, or -1 for LIDs.
 */
#pragma once
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER_BYTES 8192

/* Ends the program with status 1 and the line where a promise was broken. */
#define CHECK(condition)                                                                                        \
	do {                                                                                                    \
		if (!(condition)) {                                                                             \
			fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #condition, errno,    \
				strerror(errno));                                                               \
			exit(1);                                                                                \
		}                                                                                               \
	} while (0)

/* One open of the device with one of everything. */
struct endpoint {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint8_t *buffer;
};

static inline struct ibv_context *open_first_device(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list != NULL && count >= 1);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context != NULL);
	ibv_free_device_list(list);
	return context;
}

static inline struct endpoint endpoint_new(void)
{
	struct endpoint it = { .context = open_first_device() };
	CHECK((it.pd = ibv_alloc_pd(it.context)) != NULL);
	CHECK((it.buffer = aligned_alloc(4096, BUFFER_BYTES)) != NULL);
	memset(it.buffer, 0, BUFFER_BYTES);
	it.mr = ibv_reg_mr(it.pd, it.buffer, BUFFER_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(it.mr != NULL);
	CHECK((it.cq = ibv_create_cq(it.context, 64, NULL, NULL, 0)) != NULL);
	struct ibv_qp_init_attr init = {
		.send_cq = it.cq, .recv_cq = it.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((it.qp = ibv_create_qp(it.pd, &init)) != NULL);
	return it;
}

/* RESET to RTS, towards `peer_qpn` on this very port. */
static inline void endpoint_connect(struct endpoint *it, uint32_t peer_qpn, int gid_index)
{
	struct ibv_port_attr port;
	CHECK(ibv_query_port(it->context, 1, &port) == 0);
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	CHECK(ibv_modify_qp(it->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer_qpn, .rq_psn = 7,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .dlid = port.lid, .port_num = 1 },
	};
	if (gid_index >= 0) {
		rtr.ah_attr.is_global = 1;
		rtr.ah_attr.grh.sgid_index = gid_index;
		rtr.ah_attr.grh.hop_limit = 1;
		CHECK(ibv_query_gid(it->context, 1, gid_index, &rtr.ah_attr.grh.dgid) == 0);
	}
	CHECK(ibv_modify_qp(it->qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	/* A second: a NIC that waits that long for a core of a busy machine is not asked again. */
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 7, .max_rd_atomic = 1,
	};
	CHECK(ibv_modify_qp(it->qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Status of the next completion. */
static inline enum ibv_wc_status completion(struct endpoint *it)
{
	struct ibv_wc wc;
	int found, looks = 0;
	/* One that takes seconds leaves the core to the NIC. */
	while ((found = ibv_poll_cq(it->cq, 1, &wc)) == 0)
		if (++looks > 10000)
			usleep(100);
	CHECK(found == 1);
	return wc.status;
}

/* `count` WRITEs of 1000 bytes from the first page of `from` to the second page of `to`, each checked. */
static inline void write_messages(struct endpoint *from, struct endpoint *to, int count)
{
	for (int i = 0; i < count; i++) {
		memset(from->buffer, 1 + i % 255, 1000);
		struct ibv_sge sge = { .addr = (uintptr_t)from->buffer, .length = 1000, .lkey = from->mr->lkey };
		struct ibv_send_wr *bad, request = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)to->buffer + 4096, .rkey = to->mr->rkey },
		};
		CHECK(ibv_post_send(from->qp, &request, &bad) == 0);
		CHECK(completion(from) == IBV_WC_SUCCESS);
		CHECK(memcmp(from->buffer, to->buffer + 4096, 1000) == 0);
	}
}

static inline void endpoint_close(struct endpoint *it)
{
	CHECK(ibv_destroy_qp(it->qp) == 0);
	CHECK(ibv_destroy_cq(it->cq) == 0);
	CHECK(ibv_dereg_mr(it->mr) == 0);
	CHECK(ibv_dealloc_pd(it->pd) == 0);
	CHECK(ibv_close_device(it->context) == 0);
	free(it->buffer);
}
