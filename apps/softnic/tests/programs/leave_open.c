/* Leaves with the device open and everything on it alive.
 *
 * usage: leave_open GID_INDEX return|exit|_exit|close|polling|commanding|failing. First it writes 3 messages;
 * a receive stays posted. `close` closes the library's command fd: verbs must then fail with an error, not
 * crash. The next two say «ready», poll or command for ever, and `_exit` in SIGINT's handler. `failing`
 * polls too, but first a WRITE that leaves its region by a byte fails, and a region cannot be registered.
 */
#include <signal.h>

#include "loopback.h"

static void leave(int signal)
{
	(void)signal;
	_exit(0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	struct endpoint it = endpoint_new();
	endpoint_connect(&it, it.qp->qp_num, atoi(argv[1]));
	struct ibv_sge sge = { .addr = (uintptr_t)it.buffer, .length = 100, .lkey = it.mr->lkey };
	struct ibv_recv_wr *bad, receive = { .sg_list = &sge, .num_sge = 1 };
	CHECK(ibv_post_recv(it.qp, &receive, &bad) == 0);
	write_messages(&it, &it, 3);
	if (strcmp(argv[2], "exit") == 0)
		exit(0);
	if (strcmp(argv[2], "_exit") == 0)
		_exit(0);
	if (strcmp(argv[2], "failing") == 0) {
		struct endpoint a = endpoint_new(), b = endpoint_new();
		endpoint_connect(&a, b.qp->qp_num, atoi(argv[1]));
		endpoint_connect(&b, a.qp->qp_num, atoi(argv[1]));
		struct ibv_sge page = { .addr = (uintptr_t)a.buffer, .length = 4096, .lkey = a.mr->lkey };
		struct ibv_send_wr *wrong, request = {
			.sg_list = &page, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)b.buffer + 4097, .rkey = b.mr->rkey },
		};
		CHECK(ibv_post_send(a.qp, &request, &wrong) == 0 && completion(&a) == IBV_WC_REM_ACCESS_ERR);
		CHECK(ibv_reg_mr(a.pd, a.buffer, 100, IBV_ACCESS_REMOTE_WRITE) == NULL);
	}
	if (strcmp(argv[2], "failing") == 0 || strcmp(argv[2], "polling") == 0 || strcmp(argv[2], "commanding") == 0) {
		int commands = strcmp(argv[2], "commanding") == 0;
		CHECK(signal(SIGINT, leave) != SIG_ERR);
		puts("ready");
		fflush(stdout);
		for (;;) {
			struct ibv_wc wc;
			CHECK(ibv_poll_cq(it.qp->send_cq, 1, &wc) == 0);
			if (!commands)
				continue;
			struct ibv_pd *pd = ibv_alloc_pd(it.context);
			CHECK(pd && ibv_dealloc_pd(pd) == 0);
		}
	}
	if (strcmp(argv[2], "close") == 0) {
		CHECK(close(it.context->cmd_fd) == 0);
		CHECK(ibv_alloc_pd(it.context) == NULL);
	}
	return 0;
}
