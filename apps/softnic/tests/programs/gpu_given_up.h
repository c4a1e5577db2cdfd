/* Messages of `gpu_memory.c` whose copy fails or times out: no byte of them may get to memory of others, nor
 * into the region after it was deregistered. Of the stand-in.
 */

/* Whether all bytes are what `fill` with seed 0 left there. */
static int untouched(struct place *at, uint64_t offset, uint64_t length)
{
	CUDA(to_host(scratch, at->addr + offset, length));
	for (uint64_t i = 0; i < length; i++)
		if (scratch[i] != 0xee) {
			fprintf(stderr, "byte %lu at offset %lu: %#x\n", (unsigned long)i, (unsigned long)offset, scratch[i]);
			return 0;
		}
	return 1;
}

static void post_from(struct place *from, uint64_t offset, uint64_t length, uint64_t there)
{
	struct place kept = places[0][HOST];
	places[0][HOST] = *from;
	post(IBV_WR_RDMA_WRITE, HOST, offset, length, peer((struct order){ .what = WHERE, .kind = GPU }), there);
	places[0][HOST] = kept;
}

/* The host's memory ends in the middle of a message (a file was cut) while the piece before is in flight.
 * The next message uses the same memory on the way; nothing of it may get into the first one's region. */
static void torn(void)
{
	int fd = memfd_create("cut", 0);
	struct place file;
	CHECK(fd >= 0 && ftruncate(fd, 1 << 20) == 0);
	file.addr = (uint64_t)mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK((file.mr = ibv_reg_mr(it.pd, (void *)file.addr, 1 << 20, ALL)) != NULL);
	/* So that the driver has refused the pages before it comes to it. */
	one_message(IBV_WR_RDMA_WRITE, HOST, GPU, 50000, 0, 0);
	fill(&file, HOST, 0, 1 << 20, 11);
	fill(&places[0][HOST], HOST, 0, 200000, 12);
	fill(&places[1][GPU], GPU, 0, 1 << 20, 0);
	CHECK(ftruncate(fd, 300000) == 0);
	post_from(&file, 0, 600000, EDGE);
	CHECK(completion(&it) != IBV_WC_SUCCESS);
	reconnect();
	post_from(&places[0][HOST], 0, 200000, 2 << 20);
	CHECK(completion(&it) == IBV_WC_SUCCESS);
	CHECK(holds(&places[1][GPU], GPU, EDGE, 262144, 11));
	CHECK(ibv_dereg_mr(file.mr) == 0);
	printf("torn\n");
}

/* A copy that takes longer than the NIC waits: the message after it fails, and leaves alone what it reads.
 * Deregistering the region waits for it. */
static void late(void)
{
	fill(&places[0][HOST], HOST, 0, 200000, 21);
	fill(&places[0][HOST], HOST, 1 << 20, 200000, 22);
	fill(&places[1][GPU], GPU, 0, 8 << 20, 0);
	post_from(&places[0][HOST], 0, 200000, EDGE);
	CHECK(completion(&it) != IBV_WC_SUCCESS);
	reconnect();
	/* At once: a message that waited for the engine again would take 3 s, as the first one. */
	double since = now_us();
	post_from(&places[0][HOST], 1 << 20, 200000, 4 << 20);
	CHECK(completion(&it) != IBV_WC_SUCCESS && now_us() - since < 2.5e6);
	CHECK(untouched(&places[1][GPU], 0, 200000 + 2 * EDGE));
	CHECK(ibv_dereg_mr(places[1][GPU].mr) == 0);
	/* The first record of two: the second was not copied after the first had failed. */
	CHECK(holds(&places[1][GPU], GPU, EDGE, 131072, 21));
	CHECK(untouched(&places[1][GPU], EDGE + 131072, 200000 - 131072));
	CHECK((places[1][GPU].mr = ibv_reg_mr(second.pd, (void *)places[1][GPU].addr, SIZE, ALL)) != NULL);
	reconnect();
	one_message(IBV_WR_RDMA_WRITE, HOST, GPU, 50000, 0, 0);
	printf("late\n");
}

/* A copy that waits behind a blocked call of the driver until its message has failed is not done any more. */
static void queued(void)
{
	fill(&places[0][HOST], HOST, 0, 2000, 31);
	fill(&places[1][GPU], GPU, 0, 1 << 20, 0);
	/* Each registration asks whether the context is lost, in that queue. */
	setenv("STAND_IN", "no-register no-mover query=6000", 1);
	double since = now_us();
	struct ibv_mr *more = ibv_reg_mr(it.pd, (void *)places[1][GPU].addr, 1 << 20, ALL);
	CHECK(more != NULL);
	post_from(&places[0][HOST], 0, 2000, EDGE);
	CHECK(completion(&it) != IBV_WC_SUCCESS);
	/* What follows waits in the same queue, and for nothing. */
	reconnect();
	double next = now_us();
	post_from(&places[0][HOST], 0, 2000, EDGE);
	CHECK(completion(&it) != IBV_WC_SUCCESS && now_us() - next < 5e5);
	while (now_us() - since < 6.2e6)
		usleep(10000);
	CHECK(untouched(&places[1][GPU], 0, 2000 + 2 * EDGE));
	CHECK(ibv_dereg_mr(more) == 0);
	reconnect();
	one_message(IBV_WR_RDMA_WRITE, HOST, GPU, 2000, 0, 0);
	printf("queued\n");
}

#define SOME 24
#define INLINE 10000

/* A queue pair to the same peer that has nothing to do with the message that fails. */
static struct endpoint met(void)
{
	struct endpoint more = beside(&it);
	struct name mine = name_of(&more);
	struct name theirs = peer((struct order){ .what = MEET, .offset = mine.lid, .seed = mine.qpn });
	/* Where nobody answers any more that is to be known in this test's time. */
	patience = 17;
	join(&more, &theirs);
	patience = 20;
	return more;
}

static void post_beside(struct endpoint *more, enum ibv_wr_opcode opcode, uint64_t mine, struct name theirs, uint64_t there)
{
	struct ibv_qp *first = it.qp;
	it.qp = more->qp;
	post(opcode, HOST, mine, INLINE, theirs, there);
	it.qp = first;
}

/* A copy out of the GPU into the channel's ring that ends after its message has failed. Meanwhile other queue
 * pairs send through that ring, to a peer that does not look: nothing of theirs may arrive changed. */
static void pair_left(void)
{
	struct endpoint more = met();
	struct name where = peer((struct order){ .what = WHERE, .kind = HOST });
	for (int round = 0; round < 4; round++, usleep(20000))
		one_message(IBV_WR_RDMA_WRITE, GPU, HOST, 50000, 0, 0);
	fill(&places[0][GPU], GPU, 0, 150000, 51);
	for (uint64_t i = 0; i < SOME; i++)
		fill(&places[0][HOST], HOST, i * INLINE, INLINE, 60 + (unsigned)i);
	double since = now_us();
	post(IBV_WR_RDMA_WRITE, GPU, 0, 150000, where, 0);
	CHECK(completion(&it) != IBV_WC_SUCCESS && now_us() - since < 3.4e6);
	CHECK(kill(peer_process, SIGSTOP) == 0);
	for (uint64_t i = 0; i < SOME; i++)
		post_beside(&more, IBV_WR_RDMA_WRITE, i * INLINE, where, (4 << 20) + i * 2 * INLINE);
	while (now_us() - since < 4.5e6)
		usleep(10000);
	CHECK(kill(peer_process, SIGCONT) == 0);
	for (uint64_t i = 0; i < SOME; i++)
		if (completion(&it) == IBV_WC_SUCCESS)
			CHECK(peer((struct order){ HOLDS, HOST, (4 << 20) + i * 2 * INLINE, INLINE, 60 + (unsigned)i }).qpn);
	printf("left\n");
}

/* The same from the ring to the GPU: nothing that gets into the ring meanwhile may get into the region. */
static void pair_taken(void)
{
	struct endpoint more = met();
	struct name gpu = peer((struct order){ .what = WHERE, .kind = GPU });
	for (int round = 0; round < 4; round++, usleep(20000))
		one_message(IBV_WR_RDMA_READ, GPU, GPU, 50000, 0, 0);
	peer((struct order){ FILL, GPU, 0, 150000, 53 });
	peer((struct order){ FILL, GPU, 4 << 20, INLINE, 54 });
	fill(&places[0][GPU], GPU, 0, 200000, 0);
	double since = now_us();
	post(IBV_WR_RDMA_READ, GPU, EDGE, 150000, gpu, 0);
	CHECK(completion(&it) != IBV_WC_SUCCESS && now_us() - since < 3.4e6);
	/* Once round the ring and more, as long as anything goes. */
	for (int i = 0; i < 120; i++) {
		post_beside(&more, IBV_WR_RDMA_READ, EDGE, gpu, 4 << 20);
		if (completion(&it) != IBV_WC_SUCCESS)
			break;
		CHECK(holds(&places[0][HOST], HOST, EDGE, INLINE, 54));
	}
	while (now_us() - since < 4.5e6)
		usleep(10000);
	uint8_t *found = malloc(150000);
	CUDA(to_host(found, places[0][GPU].addr + EDGE, 150000));
	fill(&places[0][HOST], HOST, 0, 150000, 53);
	for (size_t i = 0; i < 150000; i++)
		CHECK(found[i] == 0xee || found[i] == ((uint8_t *)places[0][HOST].addr)[i]);
	free(found);
	printf("taken\n");
}

/* A mover that is stopped when a command comes, as by a debugger, and goes on after its message failed. */
static void mute(void)
{
	fill(&places[0][HOST], HOST, 0, 1000, 41);
	fill(&places[1][GPU], GPU, 0, 4096, 0);
	post_from(&places[0][HOST], 0, 1000, EDGE);
	CHECK(completion(&it) != IBV_WC_SUCCESS);
	usleep(700000);
	CHECK(untouched(&places[1][GPU], 0, 1000 + 2 * EDGE));
	reconnect();
	one_message(IBV_WR_RDMA_WRITE, HOST, GPU, 1000, 0, 0);
	printf("mute\n");
}

/* A region of host memory whose addresses a GPU's memory gets later: the stand-in gives them again. */
static void mixed(void)
{
	uint64_t first, next, again;
	CUDA(mem_alloc(&first, 1 << 20));
	CUDA(mem_alloc(&next, 1 << 20));
	CHECK(next == first + (1 << 20) && first % 4096 == 0);
	CUDA(mem_free(first));
	CUDA(mem_free(next));
	struct place both = { .addr = first };
	CHECK(mmap((void *)first, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)first);
	CHECK((both.mr = ibv_reg_mr(it.pd, (void *)first, 2 << 20, ALL)) != NULL);
	CHECK(mmap((void *)next, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)next);
	CUDA(mem_alloc(&again, 1 << 20));
	CUDA(mem_alloc(&next, 1 << 20));
	CHECK(again == first && next == first + (1 << 20));
	CUDA(mem_free(first));
	struct ibv_mr *mr = ibv_reg_mr(it.pd, (void *)next, 1 << 20, ALL);
	CHECK(mr != NULL);
	/* One of its records lies in both. */
	post_from(&both, 65536, (2 << 20) - 65536, 0);
	CHECK(completion(&it) != IBV_WC_SUCCESS);
	reconnect();
	one_message(IBV_WR_RDMA_WRITE, HOST, GPU, 200000, 0, 0);
	printf("mixed\n");
}

/* ---- memory that comes and goes under its region, at any moment of a message ---- */
static volatile uint64_t churning;
static volatile unsigned long good, failed, unregistered;
static volatile int churned;

/* Frees and allocates for that many rounds, and on until a message has arrived and one has failed. While none
 * has arrived, memory lives longer each round: a slow machine gets its first message through as well. */
static void *churns(void *rounds)
{
	CUDA(set_current(context));
	unsigned seed = 1, usual = quick ? 3000 : 300, life = usual;
	double since = now_us();
	for (long i = 0; i < (long)rounds || good == 0 || failed + unregistered == 0; i++) {
		if (now_us() - since > 60e6) {
			fprintf(stderr, "after 60 s and %ld rounds: %lu messages, %lu errors, %lu regions refused\n", i, good, failed, unregistered);
			exit(1);
		}
		usleep((useconds_t)rand_r(&seed) % life);
		life = good > 0 ? usual : life < 1000000 ? life * 2 : life;
		uint64_t next = churning;
		CUDA(mem_free(next));
		/* For a while nothing is there. */
		if (i % 2)
			usleep(quick ? 3000 : 200);
		CUDA(mem_alloc(&next, 2 << 20));
		churning = next;
	}
	churned = 1;
	return NULL;
}

/* A mapped piece is unmapped behind a message that a mover took; every second time another is mapped in its
 * place. Messages to other memory keep the mover running until the next message to the piece, which fails. */
static void churn_mapped(int rounds)
{
	enum { MIB2 = 2 << 20, MEANWHILE = 4 };
	struct name other = { .addr = places[1][GPU].addr, .rkey = places[1][GPU].mr->rkey };
	uint64_t piece;
	find_mappings();
	CUDA(reserve(&piece, MIB2, 0, 0, 0));
	for (int i = 0; i < rounds; i++) {
		map_one(piece, 1);
		struct ibv_mr *mr = ibv_reg_mr(second.pd, (void *)piece, MIB2, ALL);
		CHECK(mr != NULL);
		struct name where = { .addr = piece, .rkey = mr->rkey };
		post(IBV_WR_RDMA_WRITE, HOST, 0, 64, where, 0);
		CHECK(completion(&it) == IBV_WC_SUCCESS);
		for (int n = 0; n < MEANWHILE; n++)
			post(IBV_WR_RDMA_WRITE, HOST, 0, 64, other, 0);
		CUDA(unmap(piece, MIB2));
		if (i % 2)
			map_one(piece, 1);
		post(IBV_WR_RDMA_WRITE, HOST, 0, 64, where, 0);
		for (int n = 0; n < MEANWHILE; n++)
			CHECK(completion(&it) == IBV_WC_SUCCESS);
		enum ibv_wc_status status = completion(&it);
		if (status != IBV_WC_REM_ACCESS_ERR && status != IBV_WC_REM_OP_ERR) {
			fprintf(stderr, "a message to a piece that is gone: %s, round %d\n", ibv_wc_status_str(status), i);
			exit(1);
		}
		CHECK(ibv_dereg_mr(mr) == 0);
		if (i % 2)
			CUDA(unmap(piece, MIB2));
		reconnect();
	}
	printf("CHURN %d mapped pieces\n", rounds);
}

static void churn(void)
{
	static const uint64_t sizes[] = { 8, 20000, 200000, 64, 4096 };
	uint64_t first;
	pthread_t thread;
	CUDA(mem_alloc(&first, 2 << 20));
	churning = first;
	CHECK(pthread_create(&thread, NULL, churns, (void *)(quick ? 50l : 1000l)) == 0);
	while (!churned) {
		struct place at = { .addr = churning };
		if ((at.mr = ibv_reg_mr(second.pd, (void *)at.addr, 2 << 20, ALL)) == NULL) {
			unregistered++;
			continue;
		}
		enum ibv_wc_status status = IBV_WC_SUCCESS;
		struct name where = { .addr = at.addr, .rkey = at.mr->rkey };
		for (unsigned i = 0; !churned && status == IBV_WC_SUCCESS; i++) {
			post(i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, i % 3 ? GPU : HOST, 0, sizes[i % 5], where, 0);
			status = completion(&it);
			good += status == IBV_WC_SUCCESS;
		}
		failed += status != IBV_WC_SUCCESS;
		CHECK(ibv_dereg_mr(at.mr) == 0);
		if (status != IBV_WC_SUCCESS)
			reconnect();
	}
	CHECK(pthread_join(thread, NULL) == 0);
	CUDA(synchronise());
	CUDA(mem_free(churning));
	one_message(IBV_WR_RDMA_WRITE, GPU, GPU, 1000, 0, 0);
	one_message(IBV_WR_RDMA_WRITE, HOST, GPU, 200000, 0, 0);
	printf("CHURN %lu messages, %lu errors, %lu regions refused\n", good, failed, unregistered);
	churn_mapped(quick ? 30 : 300);
	one_message(IBV_WR_RDMA_WRITE, HOST, GPU, 1000, 0, 0);
}
