/* Regions in a GPU's memory through the distribution's libibverbs; CUDA's driver is found at run time, as a program does that has
 * to start without one. Content is checked after every message, with the bytes around it.
 *
 * usage: gpu_memory one|pair|pair-host GID_INDEX   every operation, direction and size; in one process, between two that both
 *                                                  use CUDA, between one that does and one that does not
 *        gpu_memory refusals|freed|lost|reset|stuck GID_INDEX  what is refused; memory that is freed under its region; a lost
 *                                                  context; one that the program resets; a driver that does not answer for a long message (of the stand-in)
 *        gpu_memory pages|big|leaves|forks|late-forks GID_INDEX  pages of the host that the program registers and lets go; that it deregisters;
 *                                                  a child that registers while the parent's NIC shows pages to the GPU
 *        gpu_memory mapped|mapped-alone GID_INDEX  memory that is mapped into a reserved range of addresses; the GPU's only memory in traffic
 *        gpu_memory torn|late|queued|mute|mixed|churn GID_INDEX  copies that do not end well, or in time (`gpu_given_up.h`)
 *        gpu_memory pair-left|pair-taken GID_INDEX  the same between two processes, towards the peer and from it
 *        gpu_memory calls|waits GID_INDEX          what a program does beside its traffic; kernels that wait for a message
 *        gpu_memory blocked GID_INDEX              messages that a kernel waits for, and a copy of the program's for that kernel
 *        gpu_memory slots GID_INDEX                messages beside kernels that leave room for one block
 *        gpu_memory speed|pair-speed GID_INDEX     how fast, as lines `SPEED what value unit`
 * QUICK=1: fewer sizes.
 */
#define _GNU_SOURCE
#include "loopback.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define SIZE ((16 << 20) + 65536)
#define EDGE 32

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- the driver ---- */
static int (*init_)(unsigned), (*device_get)(int *, int), (*retain)(void **, int), (*set_current)(void *);
static int (*mem_alloc)(uint64_t *, size_t), (*mem_free)(uint64_t), (*to_device)(uint64_t, const void *, size_t);
static int (*to_host)(void *, uint64_t, size_t), (*managed)(uint64_t *, size_t, unsigned), (*synchronise)(void);
static int (*module_load)(void **, const void *), (*get_function)(void **, void *, const char *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*set_attribute)(const void *, int, uint64_t);
static int (*host_alloc)(void **, size_t, unsigned), (*host_free)(void *), (*stream_query)(void *);
static int (*host_register)(void *, size_t, unsigned), (*host_unregister)(void *);
static int (*stream_create)(void **, unsigned), (*record)(void *, unsigned), (*recorded)(void *, void **), (*graph_destroy)(void *);
static void *context;
static int with_cuda;

#define CUDA(call)                                                                                              \
	do {                                                                                                    \
		int code = (call);                                                                              \
		if (code != 0) {                                                                                \
			fprintf(stderr, "%s:%d: %s: CUDA error %d\n", __FILE__, __LINE__, #call, code);         \
			exit(1);                                                                                \
		}                                                                                               \
	} while (0)

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);
	if (found == NULL)
		fprintf(stderr, "the driver has no %s\n", name);
	CHECK(found != NULL);
	return found;
}

static void cuda_start(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library == NULL)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library != NULL);
	struct { void *place; const char *name; } table[] = {
		{ &init_, "cuInit" }, { &device_get, "cuDeviceGet" }, { &retain, "cuDevicePrimaryCtxRetain" },
		{ &set_current, "cuCtxSetCurrent" }, { &mem_alloc, "cuMemAlloc_v2" }, { &mem_free, "cuMemFree_v2" },
		{ &to_device, "cuMemcpyHtoD_v2" }, { &to_host, "cuMemcpyDtoH_v2" }, { &managed, "cuMemAllocManaged" },
		{ &synchronise, "cuCtxSynchronize" }, { &module_load, "cuModuleLoadData" },
		{ &get_function, "cuModuleGetFunction" }, { &launch, "cuLaunchKernel" },
		{ &host_alloc, "cuMemHostAlloc" }, { &set_attribute, "cuPointerSetAttribute" }, { &host_free, "cuMemFreeHost" }, { &stream_query, "cuStreamQuery" },
		{ &host_register, "cuMemHostRegister_v2" }, { &host_unregister, "cuMemHostUnregister" },
		{ &stream_create, "cuStreamCreate" }, { &record, "cuStreamBeginCapture_v2" },
		{ &recorded, "cuStreamEndCapture" }, { &graph_destroy, "cuGraphDestroy" },
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		*(void **)table[i].place = symbol(library, table[i].name);
	int device;
	CUDA(init_(0));
	CUDA(device_get(&device, 0));
	CUDA(retain(&context, device));
	CUDA(set_current(context));
	with_cuda = 1;
}

/* ---- one end ---- */
enum { HOST, GPU };
struct place {
	uint64_t addr;
	struct ibv_mr *mr;
};
struct name {
	uint64_t addr;
	uint32_t rkey, qpn;
	union ibv_gid gid;
	uint16_t lid;
};
static struct endpoint it, second;
static struct place places[2][2]; /* of `it`, of `second` in one process; in the host's and in the GPU's memory */
static int gid_index, quick;
static uint8_t *scratch;

static uint8_t pattern(uint64_t i, unsigned seed)
{
	return (uint8_t)((i * 2654435761u >> 8) + i + seed * 37 + 1);
}

static void store(struct place *at, int kind, uint64_t offset, uint64_t length)
{
	if (kind == GPU)
		CUDA(to_device(at->addr + offset, scratch, length));
	else
		memcpy((void *)(at->addr + offset), scratch, length);
}

static void fill(struct place *at, int kind, uint64_t offset, uint64_t length, unsigned seed)
{
	for (uint64_t i = 0; i < length; i++)
		scratch[i] = seed ? pattern(i, seed) : 0xee;
	store(at, kind, offset, length);
}

/* Whether `length` bytes are the pattern, and the edges what they were. */
static int holds(struct place *at, int kind, uint64_t offset, uint64_t length, unsigned seed)
{
	uint64_t first = offset - EDGE, all = length + 2 * EDGE;
	if (kind == GPU)
		CUDA(to_host(scratch, at->addr + first, all));
	else
		memcpy(scratch, (void *)(at->addr + first), all);
	for (uint64_t i = 0; i < all; i++) {
		uint8_t wanted = i < EDGE || i >= EDGE + length ? 0xee : pattern(i - EDGE, seed);
		if (scratch[i] != wanted) {
			fprintf(stderr, "byte %ld of %lu at offset %lu in the %s: %#x, not %#x\n", (long)i - EDGE,
				(unsigned long)length, (unsigned long)offset, kind == GPU ? "GPU" : "host", scratch[i], wanted);
			return 0;
		}
	}
	return 1;
}

static void make_places(struct endpoint *of, struct place *at, int gpu)
{
	void *host = aligned_alloc(4096, SIZE);
	CHECK(host != NULL);
	memset(host, 0xee, SIZE);
	at[HOST].addr = (uintptr_t)host;
	CHECK((at[HOST].mr = ibv_reg_mr(of->pd, host, SIZE, ALL)) != NULL);
	if (!gpu)
		return;
	CUDA(mem_alloc(&at[GPU].addr, SIZE));
	/* SYNC_MEMOPS, as for any card: without it a short copy by a call may end after the call. */
	CUDA(set_attribute(&(unsigned){ 1 }, 6, at[GPU].addr));
	CHECK((at[GPU].mr = ibv_reg_mr(of->pd, (void *)at[GPU].addr, SIZE, ALL)) != NULL);
}

static struct name name_of(struct endpoint *of)
{
	struct name name = { .qpn = of->qp->qp_num };
	struct ibv_port_attr port;
	CHECK(ibv_query_port(of->context, 1, &port) == 0);
	name.lid = port.lid;
	if (gid_index >= 0)
		CHECK(ibv_query_gid(of->context, 1, gid_index, &name.gid) == 0);
	return name;
}

/* 4.096 us times 2 to this: how long an answer is waited for, eight times in all. */
static uint8_t patience = 20;

static void join(struct endpoint *of, const struct name *peer)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL };
	CHECK(ibv_modify_qp(of->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn, .rq_psn = 7,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12, .ah_attr = { .dlid = peer->lid, .port_num = 1 },
	};
	if (gid_index >= 0) {
		rtr.ah_attr.is_global = 1;
		rtr.ah_attr.grh.sgid_index = gid_index;
		rtr.ah_attr.grh.hop_limit = 1;
		rtr.ah_attr.grh.dgid = peer->gid;
	}
	CHECK(ibv_modify_qp(of->qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = patience, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 7, .max_rd_atomic = 4,
	};
	CHECK(ibv_modify_qp(of->qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* ---- the other end: in this process, or asked over a socket ---- */
struct order {
	enum { FILL, HOLDS, RECEIVE, RECEIVED, WHERE, MEET, END } what;
	int kind;
	uint64_t offset, length;
	unsigned seed;
};
static int peer_socket = -1;
static pid_t peer_process;

/* One more queue pair beside the first, to one of the peer's. */
static struct endpoint beside(struct endpoint *of)
{
	struct endpoint more = *of;
	struct ibv_qp_init_attr init = {
		.send_cq = of->cq, .recv_cq = of->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 64, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((more.qp = ibv_create_qp(of->pd, &init)) != NULL);
	return more;
}

static struct name serve(struct endpoint *of, struct place *at, const struct order *order)
{
	struct name answer = { .qpn = 1 };
	struct place *place = &at[order->kind];
	struct ibv_sge sge = { .addr = place->addr + order->offset, .length = (uint32_t)order->length };
	struct ibv_recv_wr *bad, receive = { .sg_list = &sge, .num_sge = 1 };
	switch (order->what) {
	case FILL:
		fill(place, order->kind, order->offset, order->length, order->seed);
		break;
	case HOLDS:
		answer.qpn = (uint32_t)holds(place, order->kind, order->offset, order->length, order->seed);
		break;
	case RECEIVE:
		sge.lkey = place->mr->lkey;
		CHECK(ibv_post_recv(of->qp, &receive, &bad) == 0);
		break;
	case RECEIVED:
		CHECK(completion(of) == IBV_WC_SUCCESS);
		break;
	case WHERE:
		answer.addr = place->addr;
		answer.rkey = place->mr->rkey;
		break;
	case MEET: {
		struct endpoint more = beside(of);
		answer = name_of(&more);
		join(&more, &(struct name){ .qpn = order->seed, .lid = (uint16_t)order->offset });
		break;
	}
	case END:
		break;
	}
	return answer;
}

static struct name peer(struct order order)
{
	struct name answer;
	if (peer_socket < 0)
		return serve(&second, places[1], &order);
	CHECK(write(peer_socket, &order, sizeof order) == sizeof order);
	CHECK(read(peer_socket, &answer, sizeof answer) == sizeof answer);
	return answer;
}

static void serve_all(void)
{
	struct order order;
	do {
		CHECK(read(peer_socket, &order, sizeof order) == sizeof order);
		struct name answer = serve(&it, places[0], &order);
		CHECK(write(peer_socket, &answer, sizeof answer) == sizeof answer);
	} while (order.what != END);
}

/* Two ends; `peer_gpu`: the other one has a GPU too. Returns in both processes, in the other one after serving. */
static int start(int processes, int peer_gpu)
{
	int ends[2], other = 0;
	if (processes == 2) {
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
		pid_t child = fork();
		CHECK(child >= 0);
		peer_process = child;
		other = child == 0;
		peer_socket = ends[other];
		close(ends[!other]);
	}
	if (!other || peer_gpu)
		cuda_start();
	CHECK((scratch = malloc(SIZE)) != NULL);
	it = endpoint_new();
	make_places(&it, places[0], with_cuda);
	struct name mine = name_of(&it), theirs;
	if (processes == 1) {
		second = endpoint_new();
		make_places(&second, places[1], 1);
		theirs = name_of(&second);
		join(&second, &mine);
	} else {
		CHECK(write(peer_socket, &mine, sizeof mine) == sizeof mine);
		CHECK(read(peer_socket, &theirs, sizeof theirs) == sizeof theirs);
	}
	join(&it, &theirs);
	if (processes == 2) {
		CHECK(write(peer_socket, "x", 1) == 1);
		CHECK(read(peer_socket, &(char){ 0 }, 1) == 1);
	}
	if (other)
		serve_all();
	return other;
}

/* ---- messages ---- */
static void post(enum ibv_wr_opcode opcode, int mine, uint64_t offset, uint64_t length, struct name theirs, uint64_t there)
{
	struct place *at = &places[0][mine];
	struct ibv_sge sge = { .addr = at->addr + offset, .length = (uint32_t)length, .lkey = at->mr->lkey };
	struct ibv_send_wr *bad, request = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .imm_data = 42,
		.wr.rdma = { .remote_addr = theirs.addr + there, .rkey = theirs.rkey },
	};
	CHECK(ibv_post_send(it.qp, &request, &bad) == 0);
}

static void one_message(enum ibv_wr_opcode opcode, int mine, int theirs, uint64_t length, uint64_t here, uint64_t there)
{
	static unsigned seed;
	struct name where = peer((struct order){ .what = WHERE, .kind = theirs });
	int inward = opcode == IBV_WR_RDMA_READ, receives = opcode == IBV_WR_SEND || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	struct place *at = &places[0][mine];
	here += EDGE;
	there += EDGE;
	seed = seed % 250 + 1;
	if (inward)
		fill(at, mine, here - EDGE, length + 2 * EDGE, 0);
	else
		fill(at, mine, here, length, seed);
	if (inward)
		peer((struct order){ FILL, theirs, there, length, seed });
	else
		peer((struct order){ FILL, theirs, there - EDGE, length + 2 * EDGE, 0 });
	if (receives)
		peer((struct order){ RECEIVE, theirs, there, length, 0 });
	post(opcode, mine, here, length, where, there);
	CHECK(completion(&it) == IBV_WC_SUCCESS);
	if (receives)
		peer((struct order){ .what = RECEIVED, .kind = theirs });
	if (inward)
		CHECK(holds(at, mine, here, length, seed));
	else
		CHECK(peer((struct order){ HOLDS, theirs, there, length, seed }).qpn);
}

static void atomics(int mine, int theirs)
{
	struct name where = peer((struct order){ .what = WHERE, .kind = theirs });
	struct place *at = &places[0][mine];
	for (unsigned turn = 0; turn < 15; turn++) {
		unsigned round = turn % 3 + 1;
		uint64_t value, old;
		peer((struct order){ FILL, theirs, 64, 8, round });
		for (int i = 0; i < 8; i++)
			((uint8_t *)&value)[i] = pattern((uint64_t)i, round);
		struct ibv_sge sge = { .addr = at->addr + 128, .length = 8, .lkey = at->mr->lkey };
		struct ibv_send_wr *bad, request = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };
		request.wr.atomic.remote_addr = where.addr + 64;
		request.wr.atomic.rkey = where.rkey;
		/* Round 1 adds, 2 swaps, 3 finds another value. */
		request.opcode = round == 1 ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
		request.wr.atomic.compare_add = round == 1 ? 5 : round == 2 ? value : ~value;
		request.wr.atomic.swap = 0x0123456789abcdef;
		CHECK(ibv_post_send(it.qp, &request, &bad) == 0);
		CHECK(completion(&it) == IBV_WC_SUCCESS);
		if (mine == GPU)
			CUDA(to_host(&old, at->addr + 128, 8));
		else
			old = *(uint64_t *)(at->addr + 128);
		CHECK(old == value);
		/* What is there now, by a READ. */
		post(IBV_WR_RDMA_READ, mine, 256, 8, where, 64);
		CHECK(completion(&it) == IBV_WC_SUCCESS);
		if (mine == GPU)
			CUDA(to_host(&old, at->addr + 256, 8));
		else
			old = *(uint64_t *)(at->addr + 256);
		CHECK(old == (round == 1 ? value + 5 : round == 2 ? 0x0123456789abcdef : value));
	}
}

static void contents(int peer_gpu)
{
	static const uint64_t all[] = { 1, 2, 3, 7, 8, 15, 64, 65, 1000, 4096, 4097, 16384, 16385, 32768, 32769, 65536, 65543,
					100001, 262144, 262145, 1048576, 1048581, 16777216 };
	static const uint64_t few[] = { 1, 8, 65, 4097, 16385, 32769, 65543, 600001 };
	const uint64_t *sizes = quick ? few : all;
	size_t count = quick ? sizeof few / sizeof *few : sizeof all / sizeof *all;
	enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM };
	int messages = 0;
	for (int mine = 0; mine < 2; mine++)
		for (int theirs = 0; theirs <= peer_gpu; theirs++) {
			if (mine == HOST && theirs == HOST)
				continue;
			for (size_t s = 0; s < count; s++)
				for (size_t o = 0; o < 4; o++, messages++)
					one_message(opcodes[o], mine, theirs, sizes[s], s * 13 % 64 + (o == 1), o * 7 + s % 3);
			/* Both ends alike modulo 16, which the mover takes up to 2 MiB; with bytes at either end, and without. */
			for (size_t s = 0; s < (quick ? 2 : 5); s++, messages += 2) {
				static const uint64_t aligned[] = { 600001, 131072, 131073, 1048579, 2097152 };
				one_message(IBV_WR_RDMA_WRITE, mine, theirs, aligned[s], 3, 19);
				one_message(IBV_WR_RDMA_READ, mine, theirs, aligned[s], s % 2, s % 2);
			}
			atomics(mine, theirs);
		}
	printf("%d messages\n", messages);
}

/* ---- kernels ---- */
static const char assembly[] =
	".version 6.3\n.target sm_70\n.address_size 64\n"
	/* Waits until the word at `at` is not 0, at most `limit` ns. */
	".visible .entry wait_word(.param .u64 at, .param .u64 limit) {\n"
	" .reg .pred %p; .reg .u32 %w; .reg .u64 %a, %l, %s, %n;\n"
	" ld.param.u64 %a, [at]; ld.param.u64 %l, [limit]; mov.u64 %s, %globaltimer;\n"
	"LOOK: nanosleep.u32 2000; ld.acquire.sys.u32 %w, [%a]; setp.ne.u32 %p, %w, 0; @%p bra DONE;\n"
	" mov.u64 %n, %globaltimer; sub.u64 %n, %n, %s; setp.lt.u64 %p, %n, %l; @%p bra LOOK;\n"
	"DONE: ret; }\n"
	".visible .entry store_word(.param .u64 at, .param .u64 value) {\n"
	" .reg .u64 %a, %v; .reg .u32 %w; ld.param.u64 %a, [at]; ld.param.u64 %v, [value]; cvt.u32.u64 %w, %v;\n"
	" st.u32 [%a], %w; ret; }\n";

static void *function(const char *name)
{
	void *module, *function;
	CUDA(module_load(&module, assembly));
	CUDA(get_function(&function, module, name));
	return function;
}

/* ---- what is refused, and what goes wrong ---- */
static int refused(uint64_t addr, size_t length, int number)
{
	errno = 0;
	return ibv_reg_mr(it.pd, (void *)addr, length, ALL) == NULL && errno == number;
}

static void refusals(void)
{
	uint64_t first, moving;
	CUDA(mem_alloc(&first, 1 << 20));
	CUDA(managed(&moving, 1 << 20, 1));
	CHECK(refused(moving, 1 << 20, EFAULT));
	CHECK(refused(first, (1 << 20) + 1, EFAULT));
	CHECK(refused(first + 4096, 1 << 20, EFAULT));
	struct ibv_mr *mr = ibv_reg_mr(it.pd, (void *)(first + 100), (1 << 20) - 100, ALL);
	CHECK(mr != NULL && ibv_dereg_mr(mr) == 0);
	CUDA(mem_free(first));
	CHECK(refused(first, 4096, EFAULT));
	/* A dma-buf: by the device address alone, and of nothing that does not hold all of it. */
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int (*handle)(void *, uint64_t, size_t, int, unsigned long long) = symbol(library, "cuMemGetHandleForAddressRange");
	uint64_t big, small;
	int fd = -1;
	CUDA(mem_alloc(&big, 4 << 20));
	CUDA(mem_alloc(&small, 2 << 20));
	CUDA(set_attribute(&(unsigned){ 1 }, 6, big));
	int code = handle(&fd, big, 4 << 20, 1, 0);
	if (code != 0) {
		printf("no dma-buf: CUDA error %d\n", code);
		return;
	}
	errno = 0;
	CHECK(ibv_reg_dmabuf_mr(it.pd, 0, 4 << 20, 0, fd, ALL) == NULL && errno == EOPNOTSUPP);
	CHECK(ibv_reg_dmabuf_mr(it.pd, 0, 2 << 20, small, fd, ALL) == NULL);
	CHECK(ibv_reg_dmabuf_mr(it.pd, 0, 4096, (uintptr_t)scratch & ~4095ull, fd, ALL) == NULL);
	mr = ibv_reg_dmabuf_mr(it.pd, 65536, 1 << 20, big + 65536, fd, ALL);
	CHECK(mr != NULL && close(fd) == 0);
	struct place kept = places[0][GPU];
	places[0][GPU] = (struct place){ big, mr };
	one_message(IBV_WR_RDMA_WRITE, GPU, HOST, 100000, 65536, 0);
	one_message(IBV_WR_RDMA_READ, GPU, HOST, 1000, 65536, 0);
	places[0][GPU] = kept;
	CHECK(ibv_dereg_mr(mr) == 0);
	printf("dma-buf\n");
}

static void again(struct endpoint *of, struct endpoint *to)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	CHECK(ibv_modify_qp(of->qp, &reset, IBV_QP_STATE) == 0);
	struct name name = name_of(to);
	join(of, &name);
}

static void reconnect(void)
{
	struct ibv_wc wc;
	again(&it, &second);
	again(&second, &it);
	while (ibv_poll_cq(it.cq, 1, &wc) > 0 || ibv_poll_cq(second.cq, 1, &wc) > 0)
		;
}

static void freed(void)
{
	static const uint64_t sizes[] = { 8, 20000, 200000, 1 << 20 };
	for (int far = 0; far < 2; far++)
		for (size_t s = 0; s < 4; s++) {
			uint64_t gone;
			struct place kept = places[far][GPU];
			CUDA(mem_alloc(&gone, 2 << 20));
			CUDA(set_attribute(&(unsigned){ 1 }, 6, gone));
			struct ibv_mr *mr = ibv_reg_mr((far ? &second : &it)->pd, (void *)gone, 2 << 20, ALL);
			CHECK(mr != NULL);
			places[far][GPU] = (struct place){ gone, mr };
			one_message(IBV_WR_RDMA_WRITE, far ? HOST : GPU, far ? GPU : HOST, sizes[s], 0, 0);
			CUDA(mem_free(gone));
			/* Another allocation, in the same place as a rule. */
			uint64_t next;
			if (s % 2)
				CUDA(mem_alloc(&next, 2 << 20));
			struct name where = peer((struct order){ .what = WHERE, .kind = far ? GPU : HOST });
			post(IBV_WR_RDMA_WRITE, far ? HOST : GPU, 0, sizes[s], where, 0);
			enum ibv_wc_status status = completion(&it);
			CHECK(status == (far ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR) || status == IBV_WC_REM_OP_ERR);
			if (s % 2)
				CUDA(mem_free(next));
			CHECK(ibv_dereg_mr(mr) == 0);
			places[far][GPU] = kept;
			reconnect();
			one_message(IBV_WR_RDMA_WRITE, GPU, GPU, sizes[s], 0, 0);
		}
	printf("freed\n");
}

static void lost(void)
{
	one_message(IBV_WR_RDMA_WRITE, GPU, HOST, 1000, 0, 0);
	uint64_t nowhere = 16, value = 1;
	void *arguments[] = { &nowhere, &value };
	CUDA(launch(function("store_word"), 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
	CHECK(synchronise() != 0);
	struct name where = peer((struct order){ .what = WHERE, .kind = HOST });
	double since = now_us();
	static const uint64_t sizes[] = { 8, 200000 };
	for (size_t s = 0; s < 2; s++) {
		post(IBV_WR_RDMA_WRITE, GPU, 0, sizes[s], where, 0);
		CHECK(completion(&it) != IBV_WC_SUCCESS);
		reconnect();
	}
	one_message(IBV_WR_RDMA_WRITE, HOST, HOST, 100000, 0, 0);
	printf("lost: %.0f ms\n", (now_us() - since) * 1e-3);
}

/* The program takes all that CUDA has of this process away, the NIC's part too. */
static void reset(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int (*reset_all)(int) = symbol(library, "cuDevicePrimaryCtxReset_v2");
	static const uint64_t sizes[] = { 8, 20000, 200000, 600000 };
	uint64_t next;
	for (size_t s = 0; s < 4; s++)
		for (int mine = 0; mine < 2; mine++)
			one_message(IBV_WR_RDMA_WRITE, mine, GPU, sizes[s], 0, 0);
	usleep(20000);
	CUDA(reset_all(0));
	CUDA(retain(&context, 0));
	CUDA(set_current(context));
	CUDA(mem_alloc(&next, SIZE));
	for (size_t s = 0; s < 4; s++)
		for (int ends = 1; ends < 4; ends++) {
			struct name where = peer((struct order){ .what = WHERE, .kind = ends & 1 });
			post(IBV_WR_RDMA_WRITE, ends >> 1, 0, sizes[s], where, 0);
			CHECK(completion(&it) != IBV_WC_SUCCESS);
			reconnect();
		}
	CHECK(refused(next, SIZE, EFAULT));
	one_message(IBV_WR_RDMA_WRITE, HOST, HOST, 100000, 0, 0);
	CHECK(ibv_dereg_mr(places[0][GPU].mr) == 0 && ibv_dereg_mr(places[0][HOST].mr) == 0);
	printf("reset\n");
}

static void stuck(void)
{
	struct name where = peer((struct order){ .what = WHERE, .kind = HOST });
	double since = now_us();
	post(IBV_WR_RDMA_WRITE, GPU, 0, 200000, where, 0);
	CHECK(completion(&it) != IBV_WC_SUCCESS);
	CHECK(now_us() - since < 5e6);
	reconnect();
	/* The host's memory needs no driver; the GPU's is there again when the driver is. */
	one_message(IBV_WR_RDMA_WRITE, HOST, HOST, 100000, 0, 0);
	sleep(4);
	one_message(IBV_WR_RDMA_WRITE, GPU, HOST, 20000, 0, 0);
	printf("stuck\n");
}

/* ---- pages of the host ---- */
#define REGION (1 << 20)

/* Messages of all ways between host memory of ours and the GPU: by way of the NIC's pages, by the mover, by the copy engine. */
static void both_ways(void)
{
	static const uint64_t sizes[] = { 1000, 20000, 200000 };
	for (size_t s = 0; s < 3; s++) {
		one_message(IBV_WR_RDMA_WRITE, HOST, GPU, sizes[s], 0, 0);
		one_message(IBV_WR_RDMA_READ, HOST, GPU, sizes[s], 0, 0);
	}
}

/* The same, often enough that the GPU sees them where it can. */
static void shown(void)
{
	for (int round = 0; round < 3; round++, usleep(20000))
		both_ways();
}

static struct place here(void *memory, size_t length)
{
	struct place place = { .addr = (uintptr_t)memory, .mr = ibv_reg_mr(it.pd, memory, length, ALL) };
	CHECK(place.mr != NULL);
	return place;
}

static void *fresh(void *at, size_t length)
{
	void *memory = mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
	CHECK(memory != MAP_FAILED && (at == NULL || memory == at));
	memset(memory, 0xee, length);
	return memory;
}

/* Whether the program may register a page, within two seconds: the NIC has ended its registration. */
static int is_free(void *memory)
{
	for (int i = 0; i < 200; i++, usleep(10000))
		if (host_register(memory, 4096, 3) == 0)
			return host_unregister(memory) == 0;
	return 0;
}

static void pages(void)
{
	struct place kept = places[0][HOST];
	void *memory = fresh(NULL, REGION), *pinned;
	/* Registered by the program, and let go again with the region still there: as beside a card. */
	CUDA(host_register(memory, REGION, 3));
	places[0][HOST] = here(memory, REGION);
	shown();
	CUDA(host_unregister(memory));
	shown();
	CHECK(ibv_dereg_mr(places[0][HOST].mr) == 0);
	CHECK(is_free(memory));
	/* Allocated by CUDA and freed under the region: what the CPU cannot reach is an error, and nothing else. */
	CUDA(host_alloc(&pinned, REGION, 3));
	places[0][HOST] = here(pinned, REGION);
	shown();
	CUDA(host_free(pinned));
	static const uint64_t sizes[] = { 20000, 200000 };
	for (size_t s = 0; s < 2; s++) {
		struct name where = peer((struct order){ .what = WHERE, .kind = GPU });
		post(IBV_WR_RDMA_WRITE, HOST, 0, sizes[s], where, 0);
		enum ibv_wc_status status = completion(&it);
		printf("PAGES freed: %s\n", ibv_wc_status_str(status));
		CHECK(status == IBV_WC_SUCCESS || status == IBV_WC_LOC_PROT_ERR);
		reconnect();
	}
	CHECK(ibv_dereg_mr(places[0][HOST].mr) == 0);
	/* Deregistered while the driver is asked, and unmapped: other memory in the place is that memory. */
	places[0][HOST] = here(memory, REGION);
	double since = now_us();
	both_ways();
	printf("PAGES first messages: %.0f us\n", now_us() - since);
	CHECK(now_us() - since < 1e6);
	CHECK(ibv_dereg_mr(places[0][HOST].mr) == 0);
	printf("PAGES deregistered after %.0f us\n", now_us() - since);
	fresh(memory, REGION);
	places[0][HOST] = here(memory, REGION);
	shown();
	CHECK(ibv_dereg_mr(places[0][HOST].mr) == 0);
	/* What the driver still was asked for when the region went has come to its end too. */
	sleep(getenv("STAND_IN") != NULL && strstr(getenv("STAND_IN"), "slow-register") != NULL ? 2 : 0);
	CHECK(is_free(memory));
	places[0][HOST] = kept;
	both_ways();
	printf("pages\n");
}

/* A region of which the driver is asked for pieces of 256 MiB, with messages in each and across their bounds. */
static void big(void)
{
	size_t length = quick ? 300u << 20 : 3ul << 30, step = quick ? 30 << 20 : 16 << 20;
	struct place kept = places[0][HOST];
	void *memory = fresh(NULL, length);
	places[0][HOST] = here(memory, length);
	for (int round = 0; round < 3; round++, usleep(20000)) {
		struct name where = peer((struct order){ .what = WHERE, .kind = GPU });
		double worst = 0, all = now_us();
		int messages = 0;
		for (size_t at = 0; at < length - 100000; at += step, messages++) {
			double since = now_us();
			post(IBV_WR_RDMA_WRITE, HOST, at, 100000, where, 0);
			CHECK(completion(&it) == IBV_WC_SUCCESS);
			worst = now_us() - since > worst ? now_us() - since : worst;
		}
		all = now_us() - all;
		for (size_t bound = 256 << 20; bound < length; bound += 256 << 20)
			for (uint64_t before = 5; before < 100000; before *= 70) {
				one_message(IBV_WR_RDMA_WRITE, HOST, GPU, 100000, bound - before, 0);
				one_message(IBV_WR_RDMA_READ, HOST, GPU, 20000, bound - before, 0);
			}
		printf("PAGES big: %.0f us a message, at most %.0f us\n", all / messages, worst);
		CHECK(worst < 1e6);
	}
	double since = now_us();
	CHECK(ibv_dereg_mr(places[0][HOST].mr) == 0);
	printf("PAGES big: deregistered after %.0f us\n", now_us() - since);
	CHECK(is_free(memory));
	CHECK(munmap(memory, length) == 0);
	places[0][HOST] = kept;
	both_ways();
}

/* A program that ends while pages wait for its kernel. */
static void leaves(void)
{
	places[0][HOST] = here(fresh(NULL, REGION), REGION);
	shown();
	uint64_t at = places[1][GPU].addr + (4 << 20), limit = 4000000000ull;
	void *arguments[] = { &at, &limit };
	CUDA(to_device(at, &(uint32_t){ 0 }, 4));
	CUDA(launch(function("wait_word"), 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL));
	double since = now_us();
	CHECK(ibv_dereg_mr(places[0][HOST].mr) == 0);
	printf("PAGES deregistered after %.0f us; leaves\n", now_us() - since);
}

static void forks(int given_up)
{
	struct place kept = places[0][HOST];
	void *memory = fresh(NULL, REGION);
	places[0][HOST] = here(memory, REGION);
	struct name where = peer((struct order){ .what = WHERE, .kind = GPU });
	post(IBV_WR_RDMA_WRITE, HOST, 0, 200000, where, 0);
	usleep(100000);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(10);
		struct endpoint own = endpoint_new();
		endpoint_connect(&own, own.qp->qp_num, gid_index);
		struct ibv_mr *mr = ibv_reg_mr(own.pd, fresh(NULL, REGION), REGION, ALL);
		CHECK(mr != NULL);
		write_messages(&own, &own, 4);
		double since = now_us();
		CHECK(ibv_dereg_mr(mr) == 0 && now_us() - since < 5e5);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	enum ibv_wc_status ended = completion(&it);
	/* Of the stand-in, when its copies are slow: this one was given up. */
	if (given_up) {
		CHECK(ended != IBV_WC_SUCCESS);
		CHECK(ibv_dereg_mr(places[0][HOST].mr) == 0);
		printf("forks\n");
		return;
	}
	CHECK(ended == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(places[0][HOST].mr) == 0);
	places[0][HOST] = kept;
	both_ways();
	printf("forks\n");
}

/* ---- memory that is mapped into a reserved range ---- */
static int (*reserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
static int (*create)(uint64_t *, size_t, const void *, unsigned long long), (*map)(uint64_t, size_t, size_t, uint64_t, unsigned long long);
static int (*unmap)(uint64_t, size_t), (*set_access)(uint64_t, size_t, const void *, size_t);

static void find_mappings(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)&reserve = symbol(library, "cuMemAddressReserve");
	*(void **)&create = symbol(library, "cuMemCreate");
	*(void **)&map = symbol(library, "cuMemMap");
	*(void **)&unmap = symbol(library, "cuMemUnmap");
	*(void **)&set_access = symbol(library, "cuMemSetAccess");
}

static void map_one(uint64_t at, int for_nic)
{
	/* CUmemAllocationProp: pinned, on GPU 0; CUmemAccessDesc: its kernels and copies read and write. */
	struct {
		int type, handles, location, gpu;
		void *attributes;
		unsigned char compression, for_nic, rest[6];
	} properties = { .type = 1, .location = 1, .for_nic = (unsigned char)for_nic };
	struct { int location, gpu, rights; } access = { 1, 0, 3 };
	uint64_t handle;
	CUDA(create(&handle, 2 << 20, &properties, 0));
	CUDA(map(at, 2 << 20, 0, handle, 0));
	CUDA(set_access(at, 2 << 20, &access, 1));
}

/* `other`: the other end of its READs. */
static void on_region(struct ibv_mr *mr, uint64_t addr, int other)
{
	struct place kept = places[0][GPU];
	places[0][GPU] = (struct place){ addr, mr };
	static const uint64_t sizes[] = { 8, 20000, 600000 };
	for (size_t s = 0; s < 3; s++) {
		one_message(IBV_WR_RDMA_WRITE, GPU, HOST, sizes[s], 0, 0);
		one_message(IBV_WR_RDMA_READ, GPU, other, sizes[s], 0, 0);
	}
	places[0][GPU] = kept;
}

static void fails_on(struct ibv_mr *mr, uint64_t addr, uint64_t length)
{
	struct place kept = places[0][GPU];
	places[0][GPU] = (struct place){ addr, mr };
	struct name where = peer((struct order){ .what = WHERE, .kind = HOST });
	post(IBV_WR_RDMA_WRITE, GPU, 0, length, where, 0);
	CHECK(completion(&it) == IBV_WC_LOC_PROT_ERR);
	places[0][GPU] = kept;
	reconnect();
}

static void mapped(int other)
{
	find_mappings();
	enum { MIB2 = 2 << 20 };
	uint64_t range;
	CUDA(reserve(&range, 5 * MIB2, 0, 0, 0));
	/* Nothing, two mappings for a NIC, one that is for none, nothing. */
	map_one(range + 1 * MIB2, 1);
	map_one(range + 2 * MIB2, 1);
	map_one(range + 3 * MIB2, 0);
	CHECK(refused(range, MIB2, EFAULT) && refused(range, 2 * MIB2, EFAULT));
	CHECK(refused(range + 3 * MIB2, MIB2, EFAULT) && refused(range + 2 * MIB2, 2 * MIB2, EFAULT));
	CHECK(refused(range + 4 * MIB2, MIB2, EFAULT) && refused(range + 2 * MIB2, 4 * MIB2, EFAULT));
	struct ibv_mr *first = ibv_reg_mr(it.pd, (void *)(range + MIB2), MIB2, ALL);
	struct ibv_mr *next = ibv_reg_mr(it.pd, (void *)(range + 2 * MIB2), MIB2, ALL);
	/* From the middle of one to that of the other. */
	struct ibv_mr *both = ibv_reg_mr(it.pd, (void *)(range + MIB2 + MIB2 / 2), MIB2, ALL);
	CHECK(first != NULL && next != NULL && both != NULL);
	on_region(first, range + MIB2, other);
	on_region(next, range + 2 * MIB2, other);
	on_region(both, range + MIB2 + MIB2 / 2, other);
	on_region(both, range + 2 * MIB2 - 4096, other);
	/* Where the first was is nothing, then something else: the second is what it was. */
	for (int anew = 0; anew < 2; anew++) {
		if (anew)
			map_one(range + MIB2, 1);
		else
			CUDA(unmap(range + MIB2, MIB2));
		fails_on(first, range + MIB2, 8);
		fails_on(first, range + MIB2, 200000);
		fails_on(both, range + 2 * MIB2 - 4096, 8192);
		on_region(next, range + 2 * MIB2, other);
	}
	/* What is registered there from now on is what is there now. */
	struct ibv_mr *again = ibv_reg_mr(it.pd, (void *)(range + MIB2), MIB2, ALL);
	CHECK(again != NULL);
	on_region(again, range + MIB2, other);
	CHECK(ibv_dereg_mr(first) == 0 && ibv_dereg_mr(next) == 0 && ibv_dereg_mr(both) == 0);
	on_region(again, range + MIB2, other);
	CHECK(ibv_dereg_mr(again) == 0);
	printf("mapped\n");
}

#include "gpu_given_up.h"

/* ---- beside traffic ---- */
static volatile int stop;
static volatile unsigned long sent;

static void *traffic(void *unused)
{
	(void)unused;
	CUDA(set_current(context));
	for (unsigned i = 0; !stop; i++) {
		struct name where = peer((struct order){ .what = WHERE, .kind = i % 2 ? GPU : HOST });
		uint64_t length = i % 7 == 0 ? 100000 : i % 5 == 0 ? 20000 : 64;
		post(i % 3 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, GPU, 4096, length, where, 4096);
		CHECK(completion(&it) == IBV_WC_SUCCESS);
		sent++;
	}
	return NULL;
}

/* What an ordinary program calls, while messages to and from the GPU are under way all the time: each is to end. */
static void calls(void)
{
	const char *names[] = { "synchronise", "malloc and free", "copies in the default stream", "pinned memory",
				"a kernel's first use", "recording a graph" };
	pthread_t thread;
	void *stream, *graph;
	CUDA(stream_create(&stream, 1));
	CHECK(pthread_create(&thread, NULL, traffic, NULL) == 0);
	while (sent == 0)
		usleep(100);
	for (int call = 0; call < 6; call++) {
		double worst = 0, all = 0;
		unsigned long before = sent;
		int rounds = 0;
		/* However long the NIC waits for a core: until a message went, or a minute says that none does. */
		for (double first = now_us(), least = quick ? 50000 : 500000;
		     rounds < 20 || now_us() - first < (sent > before ? least : 60e6); rounds++) {
			double since = now_us();
			uint64_t memory;
			void *pinned;
			switch (call) {
			case 0:
				CUDA(synchronise());
				break;
			case 1:
				CUDA(mem_alloc(&memory, 8 << 20));
				CUDA(mem_free(memory));
				break;
			case 2:
				CUDA(to_device(places[1][GPU].addr + (8 << 20), scratch, 1 << 20));
				CUDA(to_host(scratch, places[1][GPU].addr + (8 << 20), 1 << 20));
				break;
			case 3:
				CUDA(host_alloc(&pinned, 65536, 0));
				CUDA(host_free(pinned));
				break;
			case 5:
				/* In the strictest mode: what another thread calls spoils it, unless that thread takes care. */
				CUDA(record(stream, 0));
				usleep(1000);
				CUDA(recorded(stream, &graph));
				CUDA(graph_destroy(graph));
				break;
			default: {
				uint64_t at = places[1][GPU].addr + (9 << 20), value = 7;
				void *arguments[] = { &at, &value };
				CUDA(launch(function("store_word"), 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
				CUDA(synchronise());
			}
			}
			double took = now_us() - since;
			all += took;
			worst = took > worst ? took : worst;
		}
		printf("CALLS %s: %.0f us each, at most %.0f us, %lu messages meanwhile\n", names[call], all / rounds, worst,
		       sent - before);
		CHECK(worst < 2e6 && sent > before);
	}
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
}

/* Long messages and short ones between them, in microseconds. */
static void in_slots(const char *beside)
{
	struct name where = peer((struct order){ .what = WHERE, .kind = GPU });
	for (int round = 0; round < 8; round++) {
		double since = now_us();
		post(IBV_WR_RDMA_WRITE, HOST, 0, round & 1 ? 2 << 20 : 1 << 20, where, 0);
		CHECK(completion(&it) == IBV_WC_SUCCESS);
		double next = now_us();
		for (int i = 0; i < 50; i++) {
			post(IBV_WR_RDMA_WRITE, HOST, 0, 64, where, 0);
			CHECK(completion(&it) == IBV_WC_SUCCESS);
		}
		printf("SLOTS %s: %d MiB %.0f us, 64 B %.1f us\n", beside, round & 1 ? 2 : 1, next - since, (now_us() - next) / 50);
	}
}

/* Beside kernels that leave room for one block of the mover, of GPUs whose multiprocessors have 2048 threads each. */
static void slots(void)
{
	int (*attribute)(int *, int, int) = symbol(dlopen("libcuda.so.1", RTLD_NOW), "cuDeviceGetAttribute");
	int processors, threads, device;
	CUDA(device_get(&device, 0));
	CUDA(attribute(&processors, 16, device));
	CUDA(attribute(&threads, 39, device));
	if (threads != 2048) {
		printf("SLOTS none: a multiprocessor has %d threads\n", threads);
		return;
	}
	void *streams[2], *kernel = function("wait_word");
	uint64_t at = places[1][GPU].addr + (4 << 20), limit = 1500000000ull;
	void *arguments[] = { &at, &limit };
	struct name where = { .addr = places[1][GPU].addr, .rkey = places[1][GPU].mr->rkey };
	shown();
	in_slots("nothing");
	CUDA(to_device(at, &(uint32_t){ 0 }, 4));
	for (int i = 0; i < 2; i++) {
		CUDA(stream_create(&streams[i], 1));
		CUDA(launch(kernel, i ? 3 : 2 * processors - 1, 1, 1, i ? 256 : 1024, 1, 1, 0, streams[i], arguments, NULL));
	}
	usleep(20000);
	double since = now_us();
	in_slots("one slot");
	/* Both ran all the time. */
	CHECK(stream_query(streams[0]) == 600 && stream_query(streams[1]) == 600);
	*(uint32_t *)places[0][HOST].addr = 1;
	post(IBV_WR_RDMA_WRITE, HOST, 0, 4, where, 4 << 20);
	CHECK(completion(&it) == IBV_WC_SUCCESS);
	CUDA(synchronise());
	printf("SLOTS kernels ended after %.0f us\n", now_us() - since);
	CHECK(now_us() - since < 1e6);
	in_slots("nothing");
}

static void *synchronises(void *took)
{
	double since = now_us();
	CUDA(set_current(context));
	CUDA(synchronise());
	*(double *)took = now_us() - since;
	return NULL;
}

/* Kernels that wait for a message: one thread, and as many as fill the GPU; with nobody and somebody waiting for the device. */
static void waits(void)
{
	void *kernel = function("wait_word"), *memory = fresh(NULL, REGION);
	struct place kept = places[0][HOST];
	for (int shape = 0; shape < 4; shape++) {
		/* A region that the GPU sees; it goes while the kernel runs, and other memory comes in its place. */
		if (shape == 0) {
			places[0][HOST] = here(memory, REGION);
			shown();
		}
		uint64_t at = places[1][GPU].addr + (4 << 20), limit = 5000000000ull;
		void *arguments[] = { &at, &limit };
		pthread_t thread;
		double took = 0;
		CUDA(to_device(at, &(uint32_t){ 0 }, 4));
		unsigned blocks = shape & 1 ? 132 * 2 : 1, threads = shape & 1 ? 1024 : 32;
		CUDA(launch(kernel, blocks, 1, 1, threads, 1, 1, 0, NULL, arguments, NULL));
		usleep(20000);
		if (shape & 2) {
			CHECK(pthread_create(&thread, NULL, synchronises, &took) == 0);
			usleep(20000);
		}
		struct name where = { .addr = places[1][GPU].addr, .rkey = places[1][GPU].mr->rkey };
		double since = now_us();
		if (shape == 0) {
			CHECK(ibv_dereg_mr(places[0][HOST].mr) == 0);
			printf("WAITS deregistered after %.0f us\n", now_us() - since);
			fresh(memory, REGION);
			places[0][HOST] = here(memory, REGION);
			for (unsigned i = 0; i < 100000; i++)
				((uint8_t *)memory)[i] = pattern(i, 9);
			post(IBV_WR_RDMA_WRITE, HOST, 0, 100000, where, 0);
			CHECK(completion(&it) == IBV_WC_SUCCESS);
			post(IBV_WR_RDMA_READ, HOST, 500000, 100000, where, 0);
			CHECK(completion(&it) == IBV_WC_SUCCESS);
			CHECK(memcmp(memory, (uint8_t *)memory + 500000, 100000) == 0);
			CHECK(ibv_dereg_mr(places[0][HOST].mr) == 0);
			places[0][HOST] = kept;
		}
		memset((void *)places[0][HOST].addr, 1, 65536);
		/* A long message, then the word: the kernel ends when it has arrived. */
		post(IBV_WR_RDMA_WRITE, HOST, 0, 65536, where, 0);
		CHECK(completion(&it) == IBV_WC_SUCCESS);
		post(IBV_WR_RDMA_WRITE, HOST, 0, 4, where, 4 << 20);
		CHECK(completion(&it) == IBV_WC_SUCCESS);
		double written = now_us() - since;
		CUDA(synchronise());
		if (shape & 2)
			CHECK(pthread_join(thread, NULL) == 0);
		/* The pages that were shown are given back. */
		CHECK(shape != 0 || is_free(memory));
		printf("WAITS %u blocks of %u%s: messages %.0f us, kernel %.0f us\n", blocks, threads,
		       shape & 2 ? ", somebody synchronises" : "", written, now_us() - since);
		CHECK(now_us() - since < 2e6);
	}
}

static int (*copy_any)(uint64_t, uint64_t, size_t);

static void *copies_behind(void *took)
{
	void *pageable = malloc(1 << 20);
	double since = now_us();
	CUDA(set_current(context));
	CUDA(copy_any((uint64_t)pageable, places[0][GPU].addr, 1 << 20));
	*(double *)took = now_us() - since;
	free(pageable);
	return NULL;
}

/* A kernel waits for a word that comes behind long messages, and a thread of the program's, in a copy of pageable memory, for the kernel:
 * meanwhile it keeps all other threads from its context. */
static void blocked(void)
{
	enum { MIB = 1 << 20, AT = 4096 };
	static const struct { int mine, theirs; uint64_t length, here, there; } messages[] = {
		{ HOST, GPU, MIB, AT, AT }, { GPU, HOST, MIB, AT + 2 * MIB, AT + 2 * MIB },
		{ GPU, GPU, MIB, AT + 4 * MIB, AT + 4 * MIB }, { HOST, GPU, 64, AT + 6 * MIB, AT + 6 * MIB },
		{ GPU, HOST, 64, AT + 7 * MIB, AT + 7 * MIB },
	};
	enum { COUNT = sizeof messages / sizeof *messages };
	*(void **)&copy_any = symbol(dlopen("libcuda.so.1", RTLD_NOW), "cuMemcpy");
	void *kernel = function("wait_word");
	uint64_t at = places[1][GPU].addr + 8 * MIB, limit = 20000000000ull;
	void *arguments[] = { &at, &limit };
	pthread_t thread;
	double took = 0;
	for (unsigned i = 0; i < COUNT; i++) {
		fill(&places[0][messages[i].mine], messages[i].mine, messages[i].here, messages[i].length, i + 1);
		fill(&places[1][messages[i].theirs], messages[i].theirs, messages[i].there - EDGE, messages[i].length + 2 * EDGE, 0);
	}
	memset((void *)(places[0][HOST].addr + 9 * MIB), 1, 4);
	CUDA(to_device(at, &(uint32_t){ 0 }, 4));
	CUDA(launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL));
	CHECK(pthread_create(&thread, NULL, copies_behind, &took) == 0);
	usleep(200000);
	for (unsigned i = 0; i < COUNT; i++) {
		struct place *to = &places[1][messages[i].theirs];
		struct name where = { .addr = to->addr, .rkey = to->mr->rkey };
		double best = 1e9;
		for (int round = 0; round < (quick ? 1 : 20); round++) {
			double since = now_us();
			post(IBV_WR_RDMA_WRITE, messages[i].mine, messages[i].here, messages[i].length, where, messages[i].there);
			CHECK(completion(&it) == IBV_WC_SUCCESS);
			best = now_us() - since < best ? now_us() - since : best;
		}
		printf("BLOCKED %lu bytes %s to %s: %.0f us\n", (unsigned long)messages[i].length, messages[i].mine ? "GPU" : "host",
		       messages[i].theirs ? "GPU" : "host", best);
	}
	struct name where = { .addr = places[1][GPU].addr, .rkey = places[1][GPU].mr->rkey };
	CHECK(took == 0);
	post(IBV_WR_RDMA_WRITE, HOST, 9 * MIB, 4, where, 8 * MIB);
	CHECK(completion(&it) == IBV_WC_SUCCESS);
	CHECK(pthread_join(thread, NULL) == 0);
	printf("BLOCKED the program's copy: %.0f us\n", took);
	for (unsigned i = 0; i < COUNT; i++)
		CHECK(holds(&places[1][messages[i].theirs], messages[i].theirs, messages[i].there, messages[i].length, i + 1));
}

/* ---- how fast ---- */
static double gbps(enum ibv_wr_opcode opcode, int mine, int theirs, uint64_t length, int count)
{
	struct name where = peer((struct order){ .what = WHERE, .kind = theirs });
	double since = 0, first = now_us();
	for (int i = -4, under_way = 0; i < count || under_way > 0;) {
		/* Warm: the pages are shown to the GPU, and a thread that this slowed down has caught up. */
		if (i == 0 && since == 0 && !quick && now_us() - first < 30000)
			i = -4;
		if (i == 0 && since == 0) {
			while (under_way-- > 0)
				CHECK(completion(&it) == IBV_WC_SUCCESS);
			under_way = 0;
			since = now_us();
		}
		if (i < count && under_way < 8) {
			post(opcode, mine, 0, length, where, 0);
			i++, under_way++;
			continue;
		}
		CHECK(completion(&it) == IBV_WC_SUCCESS);
		under_way--;
	}
	return (double)length * 8e-3 * count / (now_us() - since);
}

static double latency(int mine, int theirs, uint64_t length, int count)
{
	struct name where = peer((struct order){ .what = WHERE, .kind = theirs });
	double since = 0;
	for (int i = -100; i < count; i++) {
		if (i == 0)
			since = now_us();
		post(IBV_WR_RDMA_WRITE, mine, 0, length, where, 0);
		CHECK(completion(&it) == IBV_WC_SUCCESS);
	}
	return (now_us() - since) / count;
}

static void speed(int peer_gpu)
{
	const char *kinds[] = { "host", "GPU" };
	for (int mine = 0; mine < 2; mine++)
		for (int theirs = 0; theirs <= peer_gpu; theirs++) {
			for (uint64_t length = 65536; length <= 4 << 20; length *= 4)
				printf("SPEED WRITE %s to %s %lu KiB: %.0f Gb/s\n", kinds[mine], kinds[theirs],
				       (unsigned long)length >> 10, gbps(IBV_WR_RDMA_WRITE, mine, theirs, length, quick ? 4 : 200));
			printf("SPEED READ %s from %s 1024 KiB: %.0f Gb/s\n", kinds[mine], kinds[theirs],
			       gbps(IBV_WR_RDMA_READ, mine, theirs, 1 << 20, quick ? 4 : 200));
			for (uint64_t length = 8; length <= 32768; length *= 64)
				printf("SPEED latency of a WRITE %s to %s %lu B: %.1f us\n", kinds[mine], kinds[theirs],
				       (unsigned long)length, latency(mine, theirs, length, quick ? 10 : 1000));
		}
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	const char *what = argv[1];
	gid_index = atoi(argv[2]);
	quick = getenv("QUICK") != NULL;
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* Or libmlx5 copies short payloads by the CPU out of the CQE to where the program receives, as beside a card. */
	setenv("MLX5_SCATTER_TO_CQE", "0", 1);
	int pair = strncmp(what, "pair", 4) == 0, peer_gpu = strcmp(what, "pair-host") != 0 && strcmp(what, "pair-host-speed") != 0 && strcmp(what, "pair-left") != 0;
	if (start(pair ? 2 : 1, peer_gpu))
		return 0;
	if (strcmp(what, "refusals") == 0)
		refusals();
	else if (strcmp(what, "freed") == 0)
		freed();
	else if (strcmp(what, "lost") == 0)
		lost();
	else if (strcmp(what, "reset") == 0)
		reset();
	else if (strcmp(what, "stuck") == 0)
		stuck();
	else if (strcmp(what, "pages") == 0)
		pages();
	else if (strcmp(what, "big") == 0)
		big();
	else if (strcmp(what, "leaves") == 0)
		leaves();
	else if (strcmp(what, "forks") == 0 || strcmp(what, "late-forks") == 0)
		forks(what[0] == 'l');
	else if (strcmp(what, "mapped") == 0 || strcmp(what, "mapped-alone") == 0)
		mapped(what[6] ? HOST : GPU);
	else if (strcmp(what, "torn") == 0)
		torn();
	else if (strcmp(what, "pair-left") == 0)
		pair_left();
	else if (strcmp(what, "pair-taken") == 0)
		pair_taken();
	else if (strcmp(what, "late") == 0)
		late();
	else if (strcmp(what, "queued") == 0)
		queued();
	else if (strcmp(what, "mute") == 0)
		mute();
	else if (strcmp(what, "mixed") == 0)
		mixed();
	else if (strcmp(what, "churn") == 0)
		churn();
	else if (strcmp(what, "calls") == 0)
		calls();
	else if (strcmp(what, "waits") == 0)
		waits();
	else if (strcmp(what, "blocked") == 0)
		blocked();
	else if (strcmp(what, "slots") == 0)
		slots();
	else if (strstr(what, "speed"))
		speed(peer_gpu);
	else
		contents(peer_gpu);
	int status = 0;
	if (pair) {
		peer((struct order){ .what = END });
		CHECK(wait(&status) > 0);
	}
	return status != 0;
}
