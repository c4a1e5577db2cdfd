/* Extended completion queues with timestamps, the ibv_wr_* interface, and what the device says of them.
 *
 * usage: extended GID_INDEX. 25 WRITEs and 1 SEND.
 */
#include "loopback.h"

#include <infiniband/mlx5dv.h>

static struct endpoint it;
static struct ibv_cq_ex *cq;
static uint64_t last;

/* The next completion: in order of time, and of this kind. */
static void expect(uint64_t id, enum ibv_wc_opcode opcode)
{
	struct ibv_poll_cq_attr attr = { .comp_mask = 0 };
	int found;
	while ((found = ibv_start_poll(cq, &attr)) == ENOENT)
		;
	CHECK(found == 0 && cq->status == IBV_WC_SUCCESS && cq->wr_id == id);
	CHECK(ibv_wc_read_opcode(cq) == opcode && ibv_wc_read_qp_num(cq) == it.qp->qp_num);
	if (opcode == IBV_WC_RECV)
		CHECK(ibv_wc_read_byte_len(cq) == 16);
	uint64_t now = ibv_wc_read_completion_ts(cq);
	CHECK(now >= last && now != 0);
	last = now;
	ibv_end_poll(cq);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	it = endpoint_new();
	struct ibv_device_attr_ex device;
	CHECK(ibv_query_device_ex(it.context, NULL, &device) == 0);
	CHECK(device.completion_timestamp_mask != 0 && device.hca_core_clock != 0);
	/* What works is said, and what does not is 0. */
	CHECK(device.orig_attr.max_srq > 0 && device.orig_attr.max_mw > 0 && device.orig_attr.max_mcast_grp == 0);
	unsigned windows = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	CHECK((device.orig_attr.device_cap_flags & windows) == (IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B));
	CHECK(device.odp_caps.general_caps == 0 && device.rss_caps.supported_qpts == 0 && device.tso_caps.max_tso == 0);
	CHECK(device.max_wq_type_rq == 0 && device.raw_packet_caps == 0 && device.tm_caps.max_num_tags == 0);
	CHECK((device.device_cap_flags_ex & 0xffffffff) == device.orig_attr.device_cap_flags);

	struct ibv_cq_init_attr_ex wanted = {
		.cqe = 63,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	CHECK((cq = ibv_create_cq_ex(it.context, &wanted)) != NULL);
	struct ibv_cq *plain = ibv_cq_ex_to_cq(cq);
	CHECK(ibv_destroy_qp(it.qp) == 0);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = plain, .recv_cq = plain, .qp_type = IBV_QPT_RC, .pd = it.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND,
		.cap = { .max_send_wr = 32, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 32 },
	};
	CHECK((it.qp = ibv_create_qp_ex(it.context, &init)) != NULL);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(it.qp);
	CHECK(qp != NULL);
	endpoint_connect(&it, it.qp->qp_num, atoi(argv[1]));

	uint64_t before, after;
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	CHECK(ibv_query_rt_values_ex(it.context, &values) == 0);
	before = (uint64_t)values.raw_clock.tv_sec * 1000000000 + values.raw_clock.tv_nsec;
	for (int round = 0; round < 8; round++) {
		ibv_wr_start(qp);
		for (int i = 0; i < 3; i++) {
			memset(it.buffer + 64 * i, 'a' + round + i, 64);
			qp->wr_id = 10 * round + i;
			qp->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(qp, it.mr->rkey, (uintptr_t)it.buffer + 4096 + 64 * i);
			if (i == 2)
				ibv_wr_set_inline_data(qp, it.buffer + 64 * i, 32);
			else
				ibv_wr_set_sge(qp, it.mr->lkey, (uintptr_t)it.buffer + 64 * i, 64);
		}
		CHECK(ibv_wr_complete(qp) == 0);
		for (int i = 0; i < 3; i++)
			expect(10 * round + i, IBV_WC_RDMA_WRITE);
		CHECK(memcmp(it.buffer, it.buffer + 4096, 128 + 32) == 0);
	}
	/* What is begun and given up is not posted. */
	ibv_wr_start(qp);
	qp->wr_id = 99;
	ibv_wr_rdma_write(qp, it.mr->rkey, (uintptr_t)it.buffer + 4096);
	ibv_wr_set_sge(qp, it.mr->lkey, (uintptr_t)it.buffer, 64);
	ibv_wr_abort(qp);

	struct ibv_sge sge = { .addr = (uintptr_t)it.buffer + 4096, .length = 64, .lkey = it.mr->lkey };
	struct ibv_recv_wr *bad, receive = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 };
	CHECK(ibv_post_recv(it.qp, &receive, &bad) == 0);
	ibv_wr_start(qp);
	qp->wr_id = 6;
	qp->wr_flags = 0;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, it.mr->lkey, (uintptr_t)it.buffer, 16);
	CHECK(ibv_wr_complete(qp) == 0);
	expect(5, IBV_WC_RECV);
	/* The unsignaled SEND is acknowledged when the WRITE after it completes: the queue must live until then. */
	ibv_wr_start(qp);
	qp->wr_id = 7;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, it.mr->rkey, (uintptr_t)it.buffer + 4096);
	ibv_wr_set_sge(qp, it.mr->lkey, (uintptr_t)it.buffer, 64);
	CHECK(ibv_wr_complete(qp) == 0);
	expect(7, IBV_WC_RDMA_WRITE);
	CHECK(ibv_query_rt_values_ex(it.context, &values) == 0);
	after = (uint64_t)values.raw_clock.tv_sec * 1000000000 + values.raw_clock.tv_nsec;
	CHECK(before <= last && last <= after);

	CHECK(ibv_destroy_qp(it.qp) == 0);
	CHECK(ibv_destroy_cq(plain) == 0);
	struct ibv_cq_init_attr_ex refused = { .cqe = 63, .comp_vector = 1 << 20 };
	CHECK(ibv_create_cq_ex(it.context, &refused) == NULL && errno == EINVAL);
	return 0;
}
