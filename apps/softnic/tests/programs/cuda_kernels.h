/* Kernels of `cuda_stand_in.c`, as threads of the CPU: the NIC's mover, and those of `gpu_memory.c`. */

CUresult cuModuleLoadData(void **module, const void *image)
{
	ENTER;
	*module = (void *)image;
	return asked("no-mover") && strstr(image, "softnic_mover") ? INVALID_IMAGE : 0;
}
CUresult cuModuleUnload(void *module) { (void)module; return 0; }

struct launch {
	void (*kernel)(const uint64_t *, unsigned blocks);
	struct stream *stream;
	int place;
	unsigned blocks;
	uint64_t arguments[5];
};
#define WORD32(at) ((volatile uint32_t *)(mail + (at)))
#define WORD64(at) ((volatile uint64_t *)(mail + (at)))

/* The last piece of a long copy, which another block takes while the first is at the others. */
struct piece {
	uint8_t *target;
	const uint8_t *source;
	size_t bytes;
};
static void *help(void *of)
{
	struct piece *piece = of;
	memcpy(piece->target, piece->source, piece->bytes);
	return NULL;
}

static void mover(const uint64_t *argument, unsigned blocks)
{
	uint8_t *mail = (uint8_t *)argument[0];
	uint32_t done = (uint32_t)argument[1], instance = (uint32_t)argument[2];
	uint64_t idle = (uint32_t)argument[3], life = (uint32_t)argument[4], begun = ns(), last = begun;
	int taken = 0, stopped = 0;
	__atomic_store_n(WORD32(256), instance, __ATOMIC_RELEASE);
	for (;;) {
		/* There when all its words have one number. */
		uint64_t words[10];
		for (int i = 9; i >= 0; i--)
			words[i] = __atomic_load_n(WORD64(8 * i), __ATOMIC_ACQUIRE);
		uint32_t number = (uint32_t)(words[0] >> 32);
		for (int i = 1; i < 10; i++)
			if (words[i] >> 32 != number)
				number = done;
		if (lost)
			return;
		if (number == done) {
			uint64_t now = ns();
			int waits = asked("mute-mover") && !stopped;
			if (!waits && (now - last > idle || now - begun > life))
				break;
			sched_yield();
			continue;
		}
		if (taken == 3 && asked("short-mover"))
			break;
		if (!stopped && asked("mute-mover")) {
			stopped = 1;
			usleep(1300000);
			continue;
		}
		uint64_t to = (uint32_t)words[1] | words[2] << 32, from = (uint32_t)words[3] | words[4] << 32, bytes = (uint32_t)words[5];
		uint64_t a = (uint32_t)words[6] | words[7] << 32, b = (uint32_t)words[8] | words[9] << 32, old = 0;
		switch ((uint32_t)words[0]) {
		case 4:
		case 0: {
			uint8_t *target = kernels(to, bytes), *source = kernels(from, bytes);
			if ((a != 0 && a != 1 && a != 2 && a != 4 && a != 8) || a > bytes || (a && (to + bytes) % a != 0))
				broken("no last word of a copy", a);
			/* As on a GPU: of 128 KiB and more, copied by 16 bytes, other blocks take pieces of 32 KiB. */
			struct piece piece = { .bytes = blocks > 1 && bytes - a >= 131088 && (to - from) % 16 == 0 ? 32768 : 0 };
			piece.target = target + bytes - a - piece.bytes;
			piece.source = source + bytes - a - piece.bytes;
			pthread_t thread;
			int helped = piece.bytes != 0 && pthread_create(&thread, NULL, help, &piece) == 0;
			memmove(target, source, bytes - a - (helped ? piece.bytes : 0));
			if (helped) {
				pthread_join(thread, NULL);
				*WORD32(144) += 1;
			}
			__atomic_thread_fence(__ATOMIC_RELEASE);
			memcpy((uint32_t)words[0] == 4 ? (uint8_t *)&old : target + bytes - a, source + bytes - a, a);
			break;
		}
		case 1:
			old = a;
			__atomic_compare_exchange_n((uint64_t *)kernels(to, 8), &old, b, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
			break;
		case 2:
			old = __atomic_fetch_add((uint64_t *)kernels(to, 8), a, __ATOMIC_SEQ_CST);
			break;
		default:
			broken("a command that the mover does not know", (uint32_t)words[0]);
		}
		*WORD64(136) = old;
		done = number;
		taken++;
		last = ns();
		__atomic_store_n(WORD32(128), done, __ATOMIC_RELEASE);
	}
	__atomic_store_n(WORD32(260), instance, __ATOMIC_RELEASE);
}

static void wait_word(const uint64_t *argument, unsigned blocks)
{
	(void)blocks;
	uint64_t begun = ns();
	while (!__atomic_load_n((uint32_t *)kernels(argument[0], 4), __ATOMIC_ACQUIRE) && ns() - begun < argument[1])
		usleep(20);
}

static void store_word(const uint64_t *argument, unsigned blocks)
{
	(void)blocks;
	if (argument[0] < 4096)
		lost = ILLEGAL_ADDRESS;
	else
		__atomic_store_n((uint32_t *)kernels(argument[0], 4), (uint32_t)argument[1], __ATOMIC_RELEASE);
}

static const struct kernel {
	const char *name;
	void (*run)(const uint64_t *, unsigned);
	unsigned bytes[5];
} known[] = {
	{ "softnic_mover", mover, { 8, 4, 4, 4, 4 } },
	{ "wait_word", wait_word, { 8, 8 } },
	{ "store_word", store_word, { 8, 8 } },
};

CUresult cuModuleGetFunction(const struct kernel **function, void *module, const char *name)
{
	(void)module;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strcmp(known[i].name, name) == 0)
			return *function = &known[i], 0;
	return NOT_FOUND;
}

static void *run(void *of)
{
	struct launch *launch = of;
	if (asked("late-mover") && launch->kernel == mover)
		usleep(20000);
	launch->kernel(launch->arguments, launch->blocks);
	kernel_numbers[launch->place] = 0;
	if (launch->stream != NULL)
		__atomic_fetch_sub(&launch->stream->kernels, 1, __ATOMIC_RELEASE);
	__atomic_fetch_sub(&running, 1, __ATOMIC_RELEASE);
	free(launch);
	return NULL;
}

CUresult cuLaunchKernel(const struct kernel *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
			unsigned shared, struct stream *stream, void **arguments, void **extra)
{
	ENTER;
	(void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
	answers();
	if (function->run == mover && asked("refused-mover"))
		return NOT_SUPPORTED;
	of_now(stream);
	struct launch *launch = calloc(1, sizeof *launch);
	launch->kernel = function->run;
	launch->stream = stream;
	launch->blocks = gx;
	for (int i = 0; i < 5 && function->bytes[i]; i++)
		memcpy(&launch->arguments[i], arguments[i], function->bytes[i]);
	pthread_mutex_lock(&lock);
	__atomic_fetch_add(&running, 1, __ATOMIC_SEQ_CST);
	while (launch->place < MOST - 1 && kernel_numbers[launch->place] != 0)
		launch->place++;
	kernel_numbers[launch->place] = ++last_kernel;
	pthread_mutex_unlock(&lock);
	if (stream != NULL)
		__atomic_fetch_add(&stream->kernels, 1, __ATOMIC_SEQ_CST);
	pthread_t thread;
	if (pthread_create(&thread, NULL, run, launch) != 0)
		return OUT_OF_MEMORY;
	pthread_detach(thread);
	return 0;
}
