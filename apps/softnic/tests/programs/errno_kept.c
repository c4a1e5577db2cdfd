/* Commands and closes that succeed leave errno as it was, as a kernel's system calls do. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_user_cm.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define KEPT 77
#define CHECK(what) do { errno = KEPT; if (!(what) || errno != KEPT) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); return 1; } } while (0)

struct create { struct rdma_ucm_cmd_hdr header; struct rdma_ucm_create_id id; };
struct destroy { struct rdma_ucm_cmd_hdr header; struct rdma_ucm_destroy_id id; };

int main(void)
{
	struct rdma_ucm_create_id_resp created;
	struct rdma_ucm_destroy_id_resp destroyed;
	struct create create = { { RDMA_USER_CM_CMD_CREATE_ID, sizeof(create.id), sizeof(created) }, { 0 } };
	struct destroy destroy = { { RDMA_USER_CM_CMD_DESTROY_ID, sizeof(destroy.id), sizeof(destroyed) }, { 0 } };
	int count, file = open("/dev/infiniband/rdma_cm", O_RDWR);
	struct ibv_device **devices = ibv_get_device_list(&count);
	struct ibv_context *context = devices && count ? ibv_open_device(devices[0]) : NULL;
	struct ibv_pd *pd;

	if (file < 0 || !context)
		return 2;
	create.id.response = (uintptr_t)&created;
	create.id.ps = RDMA_PS_UDP;
	create.id.qp_type = IBV_QPT_UD;
	CHECK(write(file, &create, sizeof(create)) == sizeof(create));
	destroy.id.response = (uintptr_t)&destroyed;
	destroy.id.id = created.id;
	CHECK(write(file, &destroy, sizeof(destroy)) == sizeof(destroy));
	CHECK(close(file) == 0);
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK(ibv_dealloc_pd(pd) == 0);
	return 0;
}
