/* Host pages in `gpu_memory.c` that the program registers, unregisters or forks with,
 * while the NIC shows pages to the GPU. */

#define REGION (1 << 20)

/* Messages between host memory and the GPU by each way: the NIC's pages, the mover, the copy engine. */
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

/* A region that the driver is asked for in pieces of 256 MiB, with messages in each and across bounds. */
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
