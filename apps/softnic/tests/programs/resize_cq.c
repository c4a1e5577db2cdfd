/* A completion queue that changes its size: empty, with completions in it, and with traffic under way.
 *
 * usage: resize_cq GID_INDEX. Prints how many WRITEs it made.
 */
#include "loopback.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#define STREAM 20000
#define WINDOW 12

static struct endpoint it;
static struct ibv_cq *cq;
static int written;
static atomic_int polled;

static void post(uint64_t id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)it.buffer, .length = 8, .lkey = it.mr->lkey };
	struct ibv_send_wr *bad, request = {
		.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)it.buffer + 4096, .rkey = it.mr->rkey },
	};
	CHECK(ibv_post_send(it.qp, &request, &bad) == 0);
}

static void expect(uint64_t id)
{
	struct ibv_wc wc;
	int found;
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == id && wc.opcode == IBV_WC_RDMA_WRITE);
	written++;
}

/* `count` WRITEs that nothing polls. The bytes of each have arrived, and 20 ms more let all complete. */
static void fill(int count)
{
	for (int i = 0; i < count; i++) {
		*(volatile uint64_t *)it.buffer = i + 1;
		*(volatile uint64_t *)(it.buffer + 4096) = 0;
		post(i);
		while (*(volatile uint64_t *)(it.buffer + 4096) != (uint64_t)i + 1)
			;
	}
	usleep(20000);
}

static void *stream(void *unused)
{
	(void)unused;
	for (int i = 0; i < STREAM; i++) {
		while (i - atomic_load(&polled) >= WINDOW)
			;
		post(i);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int gid_index = atoi(argv[1]);
	it = endpoint_new();
	struct ibv_device_attr device;
	CHECK(ibv_query_device(it.context, &device) == 0);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(it.context);
	CHECK(channel != NULL);
	CHECK((cq = ibv_create_cq(it.context, 15, (void *)0x77, channel, 0)) != NULL && cq->cqe == 15);
	CHECK(ibv_destroy_qp(it.qp) == 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 256, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((it.qp = ibv_create_qp(it.pd, &init)) != NULL);
	endpoint_connect(&it, it.qp->qp_num, gid_index);

	/* Empty: no event of it, and the next completion gives one. */
	CHECK(ibv_resize_cq(cq, 31) == 0 && cq->cqe == 31);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 30) == 0);
	post(7);
	CHECK(poll(&fd, 1, 2000) == 1);
	struct ibv_cq *told;
	void *mine;
	CHECK(ibv_get_cq_event(channel, &told, &mine) == 0 && told == cq && mine == (void *)0x77);
	ibv_ack_cq_events(cq, 1);
	expect(7);

	/* What waits is carried over, to a larger and to a smaller ring, over many laps of either. */
	for (int round = 0; round < 100; round++) {
		int waiting = round % 13;
		fill(waiting);
		CHECK(ibv_resize_cq(cq, round % 2 ? 31 : 127) == 0);
		CHECK(cq->cqe == (round % 2 ? 31 : 127));
		for (int i = 0; i < waiting; i++)
			expect(i);
		for (int i = 0; i < 5; i++) {
			post(100 + i);
			expect(100 + i);
		}
		struct ibv_wc wc;
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	}

	/* Refused: the queue stays as it was, with what is in it. */
	fill(10);
	int before = cq->cqe;
	CHECK(ibv_resize_cq(cq, 7) != 0 && cq->cqe == before);
	CHECK(ibv_resize_cq(cq, device.max_cqe + 1) != 0 && cq->cqe == before);
	for (int i = 0; i < 10; i++)
		expect(i);
	CHECK(ibv_resize_cq(cq, 15) == 0 && cq->cqe == 15);

	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, stream, NULL) == 0);
	for (int i = 0; i < STREAM; i++) {
		expect(i);
		atomic_store(&polled, i + 1);
		if (i % 50 == 49) {
			int size = 15 << (i / 50 * 7 % 5) | 15;
			CHECK(ibv_resize_cq(cq, size) == 0);
		}
	}
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(ibv_destroy_qp(it.qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	printf("%d\n", written);
	return 0;
}
