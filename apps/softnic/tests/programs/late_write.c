/* Ten WRITEs, each checked. With an argument one more: into memory that was freed and is still registered
 * (`target`), or from such memory (`source`).
 *
 * usage: late_write [target|source]
 */
#include "loopback.h"

int main(int argc, char **argv)
{
	struct endpoint from = endpoint_new(), to = endpoint_new();
	endpoint_connect(&from, to.qp->qp_num, -1);
	endpoint_connect(&to, from.qp->qp_num, -1);
	write_messages(&from, &to, 10);
	if (argc > 1) {
		struct ibv_sge sge = { .addr = (uintptr_t)from.buffer, .length = 1000, .lkey = from.mr->lkey };
		struct ibv_send_wr *bad, request = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)to.buffer + 4096, .rkey = to.mr->rkey },
		};
		free(strcmp(argv[1], "target") == 0 ? to.buffer : from.buffer);
		CHECK(ibv_post_send(from.qp, &request, &bad) == 0);
		printf("late write: status %d\n", completion(&from));
		fflush(stdout);
		_exit(0);
	}
	endpoint_close(&from);
	endpoint_close(&to);
	printf("ten writes\n");
	return 0;
}
