/* Ends of `gpu_memory.c`: CUDA's driver, regions with a pattern in host and GPU memory, and the other end,
 * in this process or asked over a socket.
 */

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

/* Two ends; `peer_gpu`: the other has a GPU too. Returns in both processes, in the other after serving. */
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
