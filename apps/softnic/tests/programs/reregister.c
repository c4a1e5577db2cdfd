/* A region that changes what it covers, what it allows, and its protection domain; and what is refused.
 *
 * usage: reregister GID_INDEX. 6 WRITEs succeed.
 */
#include "loopback.h"

static struct endpoint it, peer;
static int gid_index;

/* Fresh queue pairs: those before them may be in error. */
static void renew(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = it.cq, .recv_cq = it.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK(ibv_destroy_qp(it.qp) == 0);
	CHECK((it.qp = ibv_create_qp(it.pd, &init)) != NULL);
	CHECK(peer.qp == NULL || ibv_destroy_qp(peer.qp) == 0);
	peer = it;
	CHECK((peer.qp = ibv_create_qp(it.pd, &init)) != NULL);
	endpoint_connect(&it, peer.qp->qp_num, gid_index);
	endpoint_connect(&peer, it.qp->qp_num, gid_index);
}

/* Status of a WRITE of 8 bytes. */
static enum ibv_wc_status put(struct ibv_mr *from, void *source, struct ibv_mr *to, void *target)
{
	renew();
	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = 8, .lkey = from->lkey };
	struct ibv_send_wr *bad, request = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)target, .rkey = to->rkey },
	};
	CHECK(ibv_post_send(it.qp, &request, &bad) == 0);
	return completion(&it);
}

#define BOTH (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
#define REFUSED(call, number) (errno = 0, (call) != 0 && errno == (number))

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	gid_index = atoi(argv[1]);
	it = endpoint_new();
	uint8_t *first = aligned_alloc(4096, 4096), *second = aligned_alloc(4096, 16384);
	CHECK(first != NULL && second != NULL);
	memset(it.buffer, 0x5a, 8);
	struct ibv_mr *mr = ibv_reg_mr(it.pd, first, 4096, BOTH);
	struct ibv_pd *other = ibv_alloc_pd(it.context);
	CHECK(mr != NULL && other != NULL);
	CHECK(put(it.mr, it.buffer, mr, first) == IBV_WC_SUCCESS);

	/* Other memory, longer. */
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, second, 16384, 0) == 0);
	CHECK(put(it.mr, it.buffer, mr, first) == IBV_WC_REM_ACCESS_ERR);
	memset(second, 0, 16384);
	CHECK(put(it.mr, it.buffer, mr, second + 16376) == IBV_WC_SUCCESS);
	CHECK(memcmp(it.buffer, second + 16376, 8) == 0);

	/* Other rights. */
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
	CHECK(put(it.mr, it.buffer, mr, second) == IBV_WC_REM_ACCESS_ERR);
	CHECK(put(mr, second, it.mr, it.buffer) == IBV_WC_SUCCESS);

	/* Another domain; the old one is free of it then, the new one in use. */
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0) == 0);
	CHECK(put(mr, second, it.mr, it.buffer) == IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_dealloc_pd(other) == EBUSY);

	/* Refused: nothing changes. */
	struct ibv_mr absent = *mr;
	absent.handle = 0xfffff;
	CHECK(REFUSED(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), EINVAL));
	CHECK(REFUSED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE), EINVAL));
	CHECK(REFUSED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP));
	CHECK(REFUSED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)4096, 4096, 0), EFAULT));
	CHECK(REFUSED(ibv_rereg_mr(&absent, IBV_REREG_MR_CHANGE_PD, it.pd, NULL, 0, 0), EINVAL));
	CHECK(put(mr, second, it.mr, it.buffer) == IBV_WC_LOC_PROT_ERR);

	/* All at once, back to what it was. */
	int all = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_PD;
	CHECK(ibv_rereg_mr(mr, all, it.pd, first, 4096, BOTH) == 0);
	CHECK(ibv_dealloc_pd(other) == 0);
	CHECK(put(it.mr, it.buffer, mr, first + 4088) == IBV_WC_SUCCESS);
	CHECK(put(mr, first, it.mr, it.buffer) == IBV_WC_SUCCESS);
	CHECK(put(it.mr, it.buffer, mr, second) == IBV_WC_REM_ACCESS_ERR);
	CHECK(put(mr, first, mr, first + 8) == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_qp(peer.qp) == 0);
	endpoint_close(&it);
	return 0;
}
