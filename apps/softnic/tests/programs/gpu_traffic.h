/* What `gpu_memory.c` does beside its traffic: driver calls, and kernels that wait or leave little room. */

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

/* What an ordinary program calls while messages to and from the GPU are in flight: each call has to end. */
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

/* Beside kernels that leave room for one block of the mover, on multiprocessors of 2048 threads. */
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

/* Kernels that wait for a message: one thread, and as many as fill the GPU; with or without a device wait. */
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

/* A kernel waits for a word behind long messages. A thread of the program waits for the kernel in a copy of
 * pageable memory, and meanwhile keeps all other threads from its context. */
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
