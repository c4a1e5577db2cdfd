/* Regions in a GPU's memory through the distribution's libibverbs. CUDA's driver is found at run time, as by
 * a program that has to start without one. Content is checked after every message, with the bytes around it.
 *
 * usage: gpu_memory MODE GID_INDEX   (QUICK=1: fewer sizes), and MODE is
 *   one|pair|pair-host     every operation, direction, size: one process; two with CUDA; two, one with CUDA
 *   refusals|freed|lost    what is refused; memory that is freed under its region; a lost context
 *   reset|stuck            a context that the program resets; no answer for a long message (of the stand-in)
 *   pages|big              host pages that the program registers, lets go, deregisters; pieces of 256 MiB
 *   leaves                 a program that ends while pages wait for its kernel
 *   forks|late-forks       a child that registers while the parent's NIC shows pages to the GPU
 *   mapped|mapped-alone    memory mapped into a reserved range of addresses; the GPU's only memory in traffic
 *   torn|late|queued|mute|mixed|churn   copies that fail or time out (`gpu_given_up.h`)
 *   pair-left|pair-taken   such copies between two processes, towards the peer and from it
 *   calls|waits            what a program does beside its traffic; kernels that wait for a message
 *   blocked                messages that a kernel waits for, and a copy of the program that waits for it
 *   slots                  messages beside kernels that leave room for one block
 *   speed|pair-speed|pair-host-speed    how fast, as lines `SPEED what value unit`
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

#include "gpu_ends.h"

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

#include "gpu_host_pages.h"

#include "gpu_mapped.h"

#include "gpu_given_up.h"

#include "gpu_traffic.h"

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
	/* Else libmlx5 copies short payloads by the CPU out of the CQE to the receive buffer, as beside a card. */
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
