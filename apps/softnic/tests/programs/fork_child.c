/* After fork: the parent's NIC goes on, the inherited device fails in the child, a new open gives it a NIC.
 *
 * usage: fork_child GID_INDEX. The parent writes 3 messages before the child's life and 5 after; the child 4.
 */
#include "loopback.h"
#include <sys/wait.h>

static void child(struct endpoint *inherited, int gid_index)
{
	struct ibv_port_attr port;
	CHECK(ibv_query_port(inherited->context, 1, &port) != 0);
	CHECK(ibv_alloc_pd(inherited->context) == NULL);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	CHECK(ibv_modify_qp(inherited->qp, &reset, IBV_QP_STATE) != 0);

	struct endpoint own = endpoint_new();
	endpoint_connect(&own, own.qp->qp_num, gid_index);
	write_messages(&own, &own, 4);
	endpoint_close(&own);
	exit(0);
}

int main(int argc, char **argv)
{
	(void)argc;
	int gid_index = atoi(argv[1]);
	struct endpoint parent = endpoint_new();
	endpoint_connect(&parent, parent.qp->qp_num, gid_index);
	write_messages(&parent, &parent, 3);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		child(&parent, gid_index);
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	write_messages(&parent, &parent, 5);
	endpoint_close(&parent);
	return 0;
}
