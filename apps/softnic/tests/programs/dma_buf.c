/* Regions in dma-bufs through the distribution's libibverbs.
 *
 * usage: dma_buf refusals            what is no dma-buf is refused, with the errno that a kernel gives
 *        dma_buf udmabuf GID_INDEX   a dma-buf of the kernel (/dev/udmabuf): 1 WRITE into it, 2 out of it
 */
#define _GNU_SOURCE
#include "loopback.h"
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define SIZE (1 << 20)
/* Above what travels in a record. */
#define LONG 100000
#define IOVA 0x770000001000
#define REFUSED(fd, offset, length, iova, access, number)                                                       \
	(errno = 0, ibv_reg_dmabuf_mr(it.pd, offset, length, iova, fd, access) == NULL && errno == (number))

static struct endpoint it, peer;

static int sealed_memfd(void)
{
	int fd = memfd_create("pages", MFD_ALLOW_SEALING);
	CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	return fd;
}

static void refusals(void)
{
	int memfd = sealed_memfd(), ends[2];
	CHECK(pipe(ends) == 0);
	CHECK(REFUSED(memfd, 0, 4096, 0, ALL, EINVAL));
	CHECK(REFUSED(ends[0], 0, 4096, 0, ALL, EINVAL));
	CHECK(REFUSED(it.context->cmd_fd, 0, 4096, 0, ALL, EINVAL));
	CHECK(REFUSED(-1, 0, 4096, 0, ALL, EBADF));
	CHECK(REFUSED(12345, 0, 4096, 0, ALL, EBADF));
	CHECK(REFUSED(memfd, 0, 4096, 1, ALL, EINVAL));
	CHECK(REFUSED(memfd, 0, 4096, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL));
	CHECK(REFUSED(memfd, 0, 4096, 0, IBV_ACCESS_ON_DEMAND, EINVAL));
	CHECK(close(memfd) == 0);
	CHECK(REFUSED(memfd, 0, 4096, 0, ALL, EBADF));
}

static void put(struct endpoint *from, uint64_t source, uint32_t lkey, uint64_t target, uint32_t rkey, uint32_t length)
{
	struct ibv_sge sge = { .addr = source, .length = length, .lkey = lkey };
	struct ibv_send_wr *bad, request = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = target, .rkey = rkey },
	};
	CHECK(ibv_post_send(from->qp, &request, &bad) == 0);
	CHECK(completion(from) == IBV_WC_SUCCESS);
}

static void of_the_kernel(int gid_index)
{
	int device = open("/dev/udmabuf", O_RDWR), memfd = sealed_memfd();
	CHECK(device >= 0);
	struct udmabuf_create create = { .memfd = memfd, .flags = UDMABUF_FLAGS_CLOEXEC, .offset = 0, .size = SIZE };
	int fd = ioctl(device, UDMABUF_CREATE, &create);
	CHECK(fd >= 0);
	uint8_t *pages = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	CHECK(pages != MAP_FAILED);
	CHECK(REFUSED(fd, 0, SIZE + 4096, 0, ALL, EINVAL));
	CHECK(REFUSED(fd, SIZE, 4096, 0, ALL, EINVAL));
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(it.pd, 4096, SIZE - 4096, IOVA, fd, ALL);
	CHECK(mr != NULL && close(fd) == 0);
	peer = endpoint_new();
	endpoint_connect(&it, peer.qp->qp_num, gid_index);
	endpoint_connect(&peer, it.qp->qp_num, gid_index);
	uint8_t *far = malloc(LONG);
	CHECK(far != NULL);
	memset(far, 0x5a, LONG);
	struct ibv_mr *far_mr = ibv_reg_mr(peer.pd, far, LONG, ALL);
	CHECK(far_mr != NULL);
	put(&peer, (uintptr_t)far, far_mr->lkey, IOVA + 65536, mr->rkey, LONG);
	CHECK(memcmp(pages + 4096 + 65536, far, LONG) == 0);
	/* The other way the buffer is the source, which its owner copies. */
	memset(pages + 4096, 0xa5, LONG);
	put(&it, IOVA, mr->lkey, (uintptr_t)far, far_mr->rkey, LONG);
	CHECK(memcmp(pages + 4096, far, LONG) == 0);
	put(&it, IOVA, mr->lkey, (uintptr_t)far, far_mr->rkey, 8);
	CHECK(ibv_dereg_mr(far_mr) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	endpoint_close(&peer);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	it = endpoint_new();
	if (strcmp(argv[1], "refusals") == 0)
		refusals();
	else
		of_the_kernel(argc > 2 ? atoi(argv[2]) : -1);
	endpoint_close(&it);
	return 0;
}
