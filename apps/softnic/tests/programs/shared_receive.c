/* A shared receive queue through the unmodified library: 3 RC QPs and a UD one take, 2 threads post.
 *
 * usage: shared_receive GID_INDEX. 3 x 400 SENDs over RC and 8 over UD; prints nothing.
 */
#include "loopback.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define QPS 3
#define MESSAGES 400
#define DEPTH 64
#define SLOT 64

static struct ibv_srq *srq;
static uint8_t *slots;
static struct ibv_mr *slots_mr;
static atomic_int stop;

/* Posts slot `id`: the identifier says where its bytes land. */
static int post(uint64_t id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)slots + id * SLOT, .length = SLOT, .lkey = slots_mr->lkey };
	struct ibv_recv_wr *bad, request = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };
	return ibv_post_srq_recv(srq, &request, &bad);
}

/* Identifiers that the poller returns, a FIFO for each thread, so that each identifier comes round. */
static struct { pthread_mutex_t lock; uint64_t ids[DEPTH]; unsigned first, count; } returned[2] = {
	{ .lock = PTHREAD_MUTEX_INITIALIZER }, { .lock = PTHREAD_MUTEX_INITIALIZER },
};

/* Posts what is returned. Told to stop, it first posts the rest: a datagram that finds no receive is lost. */
static void *poster(void *argument)
{
	int me = (int)(intptr_t)argument;
	for (;;) {
		/* Read before the list: nothing is given back after the order to stop. */
		int is_last = stop;
		pthread_mutex_lock(&returned[me].lock);
		int some = returned[me].count > 0;
		uint64_t id = returned[me].ids[returned[me].first % DEPTH];
		returned[me].first += some;
		returned[me].count -= some;
		pthread_mutex_unlock(&returned[me].lock);
		if (some)
			CHECK(post(id) == 0);
		else if (is_last)
			return NULL;
		else
			sched_yield();
	}
}

static void give_back(uint64_t id)
{
	int to = id % 2;
	pthread_mutex_lock(&returned[to].lock);
	returned[to].ids[(returned[to].first + returned[to].count++) % DEPTH] = id;
	pthread_mutex_unlock(&returned[to].lock);
}

/* The next asynchronous event, within two seconds; COMM_EST is passed over. */
static struct ibv_async_event next_event(struct ibv_context *context)
{
	for (;;) {
		struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
		CHECK(poll(&fd, 1, 2000) == 1);
		struct ibv_async_event event;
		CHECK(ibv_get_async_event(context, &event) == 0);
		ibv_ack_async_event(&event);
		if (event.event_type != IBV_EVENT_COMM_EST)
			return event;
	}
}

static struct ibv_qp *create(struct endpoint *it, enum ibv_qp_type type, struct ibv_cq *recv_cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = it->cq, .recv_cq = recv_cq, .srq = srq, .qp_type = type,
		.cap = { .max_send_wr = 16, .max_send_sge = 1, .max_recv_wr = 5, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(it->pd, &init);
	CHECK(qp != NULL && init.cap.max_recv_wr == 0);
	return qp;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int gid_index = atoi(argv[1]);
	struct endpoint from[QPS], to[QPS];
	for (int i = 0; i < QPS; i++) {
		from[i] = endpoint_new();
		to[i] = from[i];
	}
	/* All that receives is of one context: that of the first. */
	struct endpoint *home = &to[0];
	struct ibv_device_attr device;
	CHECK(ibv_query_device(home->context, &device) == 0);
	CHECK(device.max_srq > 0 && device.max_srq_wr >= 1024 && device.max_srq_sge >= 16);

	struct ibv_srq_init_attr wanted = { .attr = { .max_wr = device.max_srq_wr + 1, .max_sge = 1 } };
	CHECK(ibv_create_srq(home->pd, &wanted) == NULL && errno == EINVAL);
	wanted.attr.max_wr = 16;
	wanted.attr.max_sge = device.max_srq_sge + 1;
	CHECK(ibv_create_srq(home->pd, &wanted) == NULL && errno == EINVAL);
	wanted.attr.max_wr = DEPTH;
	wanted.attr.max_sge = 2;
	CHECK((srq = ibv_create_srq(home->pd, &wanted)) != NULL);
	CHECK(wanted.attr.max_wr >= DEPTH && wanted.attr.max_sge >= 2);
	struct ibv_srq_attr attr;
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_sge >= 2 && attr.srq_limit == 0);
	attr.max_wr = 2 * DEPTH;
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EINVAL);
	attr.srq_limit = 1 << 20;
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);

	CHECK((slots = aligned_alloc(4096, DEPTH * SLOT)) != NULL);
	CHECK((slots_mr = ibv_reg_mr(home->pd, slots, DEPTH * SLOT, IBV_ACCESS_LOCAL_WRITE)) != NULL);
	struct ibv_cq *recv_cq = ibv_create_cq(home->context, 256, NULL, NULL, 0);
	CHECK(recv_cq != NULL);
	for (int i = 0; i < QPS; i++) {
		to[i] = *home;
		to[i].qp = create(home, IBV_QPT_RC, recv_cq);
		endpoint_connect(&to[i], from[i].qp->qp_num, gid_index);
		endpoint_connect(&from[i], to[i].qp->qp_num, gid_index);
	}
	CHECK(ibv_destroy_srq(srq) == EBUSY);

	/* Few are posted: one event when the limit is passed, and no second one. */
	for (int i = 0; i < 5; i++)
		CHECK(post(i) == 0);
	attr.srq_limit = 4;
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 4);
	int sent[QPS] = { 0 }, received[QPS] = { 0 }, total = 0, arrived = 0;
	pthread_t threads[2];
	uint64_t seen = 0;
	while (arrived < QPS * MESSAGES) {
		for (int i = 0; i < QPS; i++) {
			/* Each carries its queue and number; one under way a queue. */
			if (sent[i] == MESSAGES || sent[i] > received[i] || (total < 3 && i > 0))
				continue;
			if (total == 3 && arrived < 3)
				continue;
			uint32_t *words = (uint32_t *)from[i].buffer;
			words[0] = i;
			words[1] = sent[i]++;
			total++;
			struct ibv_sge sge = { .addr = (uintptr_t)words, .length = 8, .lkey = from[i].mr->lkey };
			struct ibv_send_wr *bad, request = {
				.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
			};
			CHECK(ibv_post_send(from[i].qp, &request, &bad) == 0);
			CHECK(completion(&from[i]) == IBV_WC_SUCCESS);
		}
		struct ibv_wc wc;
		int found = ibv_poll_cq(recv_cq, 1, &wc);
		CHECK(found >= 0);
		if (found == 0)
			continue;
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 8);
		uint32_t *words = (uint32_t *)(slots + wc.wr_id * SLOT);
		CHECK(words[0] < QPS && wc.qp_num == to[words[0]].qp->qp_num);
		CHECK((int)words[1] == received[words[0]]++);
		seen |= 1ull << wc.wr_id;
		/* Nothing is posted anew before the third. */
		if (++arrived == 3) {
			struct ibv_async_event event = next_event(home->context);
			CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
			CHECK(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 0);
			struct pollfd fd = { .fd = home->context->async_fd, .events = POLLIN };
			CHECK(poll(&fd, 1, 20) == 0);
			for (int t = 0; t < 2; t++)
				CHECK(pthread_create(&threads[t], NULL, poster, (void *)(intptr_t)t) == 0);
			for (int id = 5; id < DEPTH; id++)
				give_back(id);
		}
		give_back(wc.wr_id);
	}
	stop = 1;
	for (int t = 0; t < 2; t++)
		CHECK(pthread_join(threads[t], NULL) == 0 && returned[t].count == 0);
	/* All of one thread's at least, which posted the most, and what was posted before the threads were there. */
	CHECK(__builtin_popcountll(seen) > DEPTH / 2);

	/* Datagrams: 40 bytes for the GRH in front. */
	struct endpoint ud = *home;
	ud.qp = create(home, IBV_QPT_UD, recv_cq);
	struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234 };
	CHECK(ibv_modify_qp(ud.qp, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	state.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(ud.qp, &state, IBV_QP_STATE) == 0);
	state.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(ud.qp, &state, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	struct ibv_port_attr port;
	CHECK(ibv_query_port(ud.context, 1, &port) == 0);
	struct ibv_ah_attr path = { .dlid = port.lid, .port_num = 1 };
	if (gid_index >= 0) {
		path.is_global = 1;
		path.grh.sgid_index = gid_index;
		path.grh.hop_limit = 1;
		CHECK(ibv_query_gid(ud.context, 1, gid_index, &path.grh.dgid) == 0);
	}
	struct ibv_ah *ah = ibv_create_ah(ud.pd, &path);
	CHECK(ah != NULL);
	for (int i = 0; i < 8; i++) {
		ud.buffer[0] = 'a' + i;
		struct ibv_sge sge = { .addr = (uintptr_t)ud.buffer, .length = 16, .lkey = ud.mr->lkey };
		struct ibv_send_wr *bad, request = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
			.wr.ud = { .ah = ah, .remote_qpn = ud.qp->qp_num, .remote_qkey = 0x1234 },
		};
		CHECK(ibv_post_send(ud.qp, &request, &bad) == 0);
		CHECK(completion(&ud) == IBV_WC_SUCCESS);
		struct ibv_wc wc;
		int found;
		while ((found = ibv_poll_cq(recv_cq, 1, &wc)) == 0)
			;
		CHECK(found == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 56);
		CHECK(slots[wc.wr_id * SLOT + 40] == 'a' + i);
	}

	/* A queue in error takes nothing more, and says so. */
	state.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(to[1].qp, &state, IBV_QP_STATE) == 0);
	struct ibv_async_event event = next_event(home->context);
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == to[1].qp);

	CHECK(ibv_destroy_ah(ah) == 0);
	CHECK(ibv_destroy_qp(ud.qp) == 0);
	for (int i = 0; i < QPS; i++)
		CHECK(ibv_destroy_qp(to[i].qp) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(ibv_destroy_cq(recv_cq) == 0);
	CHECK(ibv_dereg_mr(slots_mr) == 0);
	for (int i = 0; i < QPS; i++)
		endpoint_close(&from[i]);
	free(slots);
	return 0;
}
