/* A stand-in of CUDA's driver for the NIC's tests without a GPU, as libcuda.so.1. Its «device memory» is the host's, at addresses that
 * nobody but the driver's copies and kernels can touch; kernels are threads of the CPU, known by their names: the NIC's mover, by
 * the protocol of `crates/soft-nic/src/dma/gpu/mover.rs`, and those of `gpu_memory.c`. It is strict: a kernel or a copy that leaves an
 * allocation, or goes to pages of the host that are not registered, ends the process with a sentence. What it cannot show: device code,
 * PCIe, order, times, the real driver's locks but for two: ending a registration waits for all kernels, and copies wait for that; a copy
 * of pageable memory in the default stream (`cuMemcpy`) waits for all kernels, and calls of other threads in its context wait for that.
 *
 * STAND_IN (environment): words of
 *   no-mover      no kernel can be loaded        late-mover  kernels begin after 20 ms
 *   short-mover   the mover takes three commands, and ends when the fourth is there     no-register   pages of the host are refused
 *   loud          says so when it is loaded
 *   slow-register more than 64 KiB of pages are registered in 1 s     no-context-events  a driver before CUDA 12.5
 *   stuck         copies of more than 100,000 bytes to the host do not return for 6 s, with outward=MS for so long, and are done then
 *   inward=MS     copies of more than 100,000 bytes from the host return at once, and are done that many milliseconds later
 *   query=MS      a stream's state is told so late, once     refused-mover  each launch of the mover is refused
 *   mute-mover    the mover waits for its first command, stops for 1.3 s when it sees it, then looks again
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef unsigned CUresult;
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500,
       NOT_READY = 600, CAPTURE_UNSUPPORTED = 900, ILLEGAL_ADDRESS = 700, ALREADY_REGISTERED = 712, NOT_SUPPORTED = 801 };
#define MEMORY (512ull << 20)
#define MOST 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int started;
static volatile unsigned lost;
static volatile int running; /* kernels */
static volatile int resets; /* the context keeps its handle */
static __thread void *current;
static uint8_t *view;   /* where the driver reaches device memory */
static uint64_t device; /* the addresses that the program knows */
/* `apart`: mapped into a range of addresses that was reserved before; `for_nic`: a NIC may reach it. */
static struct { uint64_t start, bytes, id; int managed, apart, for_nic; } allocations[MOST];
static struct { uint64_t start, bytes; } reserved[MOST];
/* Pages of the host; `ours`: allocated here, 1 in the primary context, 2 in one beside it. */
static struct { uint64_t start, bytes, id; int ours; } registered[MOST];
static uint64_t last_id = 900;
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; /* the lock that copies wait for */
static volatile int waiting;                             /* copies, for that lock */
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER; /* the primary context's */
static volatile uint64_t kernel_numbers[MOST], last_kernel; /* of those that run, and of the last launched */

static int asked(const char *word)
{
	const char *all = getenv("STAND_IN");
	return all != NULL && strstr(all, word) != NULL;
}

/* The number behind such a word; 0: it is not there. */
static unsigned number(const char *word)
{
	const char *all = getenv("STAND_IN"), *found = all == NULL ? NULL : strstr(all, word);
	return found == NULL ? 0 : (unsigned)atoi(found + strlen(word));
}

__attribute__((constructor)) static void loaded(void)
{
	if (asked("loud"))
		fprintf(stderr, "stand-in driver: loaded\n");
}

static void broken(const char *promise, uint64_t at)
{
	fprintf(stderr, "stand-in driver: %s (%#lx)\n", promise, (unsigned long)at);
	abort();
}

static uint64_t ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Place in the table of the allocation that holds all of it, or -1. */
static int allocation(uint64_t at, uint64_t bytes)
{
	for (int i = 0; i < MOST; i++)
		if (allocations[i].bytes != 0 && at >= allocations[i].start && at + bytes <= allocations[i].start + allocations[i].bytes)
			return i;
	return -1;
}

/* Device memory as the driver reaches it; NULL: no such memory. Mappings in a row are one to it. */
static uint8_t *reach(uint64_t at, uint64_t bytes)
{
	for (uint64_t next = at; next < at + bytes || bytes == 0;) {
		int i = allocation(next, 1);
		if (i < 0)
			return NULL;
		next = allocations[i].start + allocations[i].bytes;
		if (next >= at + bytes)
			break;
		if (!allocations[i].apart)
			return NULL;
	}
	return view + (at - device);
}

/* Place in the table of the range that was reserved around an address, or -1. */
static int reservation(uint64_t at)
{
	for (int i = 0; i < MOST; i++)
		if (reserved[i].bytes != 0 && at >= reserved[i].start && at < reserved[i].start + reserved[i].bytes)
			return i;
	return -1;
}

/* Place in the table of the registration that holds all of it, or -1. */
static int registration(uint64_t at, uint64_t bytes)
{
	for (int i = 0; i < MOST; i++)
		if (registered[i].bytes != 0 && at >= registered[i].start && at + bytes <= registered[i].start + registered[i].bytes)
			return i;
	return -1;
}

/* What a kernel may use: device memory, or pages of the host that are registered. */
static uint8_t *kernels(uint64_t at, uint64_t bytes)
{
	if (at - device >= MEMORY) {
		if (registration(at, bytes) < 0)
			broken("a kernel was sent to pages of the host that no GPU sees", at);
		return (uint8_t *)at;
	}
	uint8_t *there = reach(at, bytes);
	if (there == NULL)
		broken("a kernel was sent to memory that is not allocated", at);
	return there;
}

CUresult cuInit(unsigned flags)
{
	pthread_mutex_lock(&lock);
	if (!started) {
		int fd = memfd_create("device memory", 0);
		if (fd < 0 || ftruncate(fd, MEMORY) != 0)
			broken("no memory", 0);
		view = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		device = (uint64_t)mmap(NULL, MEMORY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		close(fd);
		started = 1;
	}
	pthread_mutex_unlock(&lock);
	return flags;
}

CUresult cuDriverGetVersion(int *version) { *version = 13000; return 0; }
CUresult cuDeviceGetCount(int *count) { *count = 1; return started ? 0 : NOT_INITIALIZED; }
CUresult cuDeviceGet(int *found, int ordinal) { *found = 0; return ordinal == 0 ? 0 : INVALID_VALUE; }
CUresult cuDevicePrimaryCtxRetain(void **context, int of) { *context = &started; return (CUresult)of; }
CUresult cuDevicePrimaryCtxRelease_v2(int of) { return (CUresult)of; }
CUresult cuCtxSetCurrent(void *context) { current = context; return 0; }
CUresult cuCtxCreate_v2(void **context, unsigned flags, int of)
{
	*context = current = malloc(1);
	return flags + (CUresult)of;
}
CUresult cuCtxDestroy_v2(void *context) { free(context); return 0; }
/* Waits while a call of another thread keeps all others from the primary context. */
static void answers(void)
{
	if (current == &started) {
		pthread_mutex_lock(&held);
		pthread_mutex_unlock(&held);
	}
}
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }

#define ENTER                                                                                                   \
	do {                                                                                                    \
		if (current == NULL)                                                                            \
			return INVALID_CONTEXT;                                                                 \
		if (lost)                                                                                       \
			return lost;                                                                            \
	} while (0)

/* ---- streams: kernels are counted, and copies that are not done at once ---- */
struct stream {
	volatile int kernels;
	volatile unsigned posted, done; /* copies that are done later, one after the other */
	int born;                       /* after how many resets; -1: beside the primary context */
};
static void of_now(const struct stream *stream)
{
	if (stream != NULL && stream->born >= 0 && stream->born != resets)
		broken("a stream is used that went with its context", (uint64_t)stream);
}

/* A graph that is recorded. What spoils it: most calls of threads that do not spare it, and two of any thread (as measured). */
static volatile int recording, spoilt;
static __thread int sparing;
#define SPARE(harmless)                                                                                         \
	do {                                                                                                    \
		if (recording && !(harmless)) {                                                                 \
			spoilt = 1;                                                                             \
			return CAPTURE_UNSUPPORTED;                                                             \
		}                                                                                               \
	} while (0)
CUresult cuThreadExchangeStreamCaptureMode(unsigned *mode)
{
	unsigned before = sparing ? 2 : 0;
	sparing = *mode == 2;
	*mode = before;
	return 0;
}
CUresult cuStreamBeginCapture_v2(struct stream *stream, unsigned mode)
{
	ENTER;
	of_now(stream);
	spoilt = 0;
	recording = 1;
	return mode == 0 ? 0 : INVALID_VALUE;
}
CUresult cuStreamEndCapture(struct stream *stream, void **graph)
{
	of_now(stream);
	recording = 0;
	*graph = &started;
	return spoilt ? 901 : 0;
}
CUresult cuGraphDestroy(void *graph) { return graph != &started; }
CUresult cuStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority)
{
	ENTER;
	answers();
	*stream = calloc(1, sizeof **stream);
	(*stream)->born = current == &started ? resets : -1;
	return flags == 1 && priority <= 0 ? 0 : INVALID_VALUE;
}
CUresult cuStreamCreate(struct stream **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
CUresult cuStreamDestroy_v2(struct stream *stream) { (void)stream; return 0; }
CUresult cuStreamQuery(struct stream *stream)
{
	ENTER;
	of_now(stream);
	SPARE(sparing);
	static int told;
	if (number("query=") && !__atomic_fetch_add(&told, 1, __ATOMIC_SEQ_CST))
		usleep(number("query=") * 1000);
	return __atomic_load_n(&stream->kernels, __ATOMIC_ACQUIRE) ? NOT_READY : 0;
}

/* Events are about all that a context does: reached when no kernel runs that was launched before. */
CUresult cuEventCreate(uint64_t **event, unsigned flags)
{
	ENTER;
	*event = calloc(1, sizeof **event);
	return flags == 2 ? 0 : INVALID_VALUE;
}
CUresult cuEventDestroy_v2(uint64_t *event) { free(event); return 0; }
CUresult cuCtxRecordEvent(void *context, uint64_t *event)
{
	ENTER;
	SPARE(0);
	if (asked("no-context-events"))
		return NOT_SUPPORTED;
	*event = __atomic_load_n(&last_kernel, __ATOMIC_ACQUIRE);
	return context == current ? 0 : INVALID_CONTEXT;
}
CUresult cuEventQuery(uint64_t *event)
{
	ENTER;
	SPARE(sparing);
	for (int i = 0; i < MOST; i++)
		if (kernel_numbers[i] != 0 && kernel_numbers[i] <= *event)
			return NOT_READY;
	return 0;
}

static CUresult wait_for_kernels(void)
{
	ENTER;
	while (__atomic_load_n(&running, __ATOMIC_ACQUIRE) && !lost)
		usleep(50);
	return lost;
}
CUresult cuCtxSynchronize(void) { SPARE(0); return wait_for_kernels(); }

/* ---- memory ---- */
/* The first gap that is large enough: what was freed is given again, as by the real driver. With the lock. */
static uint64_t gap(uint64_t bytes)
{
	uint64_t at = device;
	for (int i = 0; i < 2 * MOST; i++) {
		uint64_t start = i < MOST ? allocations[i].start : reserved[i - MOST].start;
		uint64_t its = i < MOST ? allocations[i].bytes : reserved[i - MOST].bytes;
		if (its != 0 && at < start + its && start < at + bytes) {
			at = (start + its + 511) & ~511ull;
			i = -1;
		}
	}
	return at;
}
static CUresult take(uint64_t at, size_t bytes, int moves, int apart, int for_nic)
{
	int place = 0;
	while (place < MOST && allocations[place].bytes != 0)
		place++;
	if (at + bytes > device + MEMORY || place == MOST || bytes == 0)
		return OUT_OF_MEMORY;
	allocations[place].start = at;
	allocations[place].bytes = bytes;
	allocations[place].id = ++last_id;
	allocations[place].managed = moves;
	allocations[place].apart = apart;
	allocations[place].for_nic = for_nic;
	return 0;
}
static CUresult allocate(uint64_t *address, size_t bytes, int moves)
{
	ENTER;
	pthread_mutex_lock(&lock);
	uint64_t at = gap(bytes);
	CUresult result = take(at, bytes, moves, 0, !moves);
	if (result == 0)
		*address = at;
	pthread_mutex_unlock(&lock);
	return result;
}

/* Ranges of addresses, and what is mapped into them: `handle` is its size, and in bit 0 whether a NIC may reach it. */
CUresult cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags)
{
	(void)alignment, (void)wanted;
	ENTER;
	pthread_mutex_lock(&lock);
	int place = 0;
	while (place < MOST && reserved[place].bytes != 0)
		place++;
	/* On 2 MiB, as the real driver. */
	*address = ((gap(bytes + (2 << 20)) + (2 << 20) - 1) & ~((2ull << 20) - 1));
	if (place < MOST) {
		reserved[place].start = *address;
		reserved[place].bytes = bytes;
	}
	pthread_mutex_unlock(&lock);
	return place < MOST ? (CUresult)flags : OUT_OF_MEMORY;
}
CUresult cuMemCreate(uint64_t *handle, size_t bytes, const uint8_t *properties, unsigned long long flags)
{
	/* CUmemAllocationProp: type at 0, location's type at 8, gpuDirectRDMACapable at 25. */
	*handle = bytes | (properties[25] != 0);
	return bytes % (2 << 20) == 0 && properties[0] == 1 && properties[8] == 1 ? (CUresult)flags : INVALID_VALUE;
}
CUresult cuMemRelease(uint64_t handle) { return handle == 0; }
CUresult cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	int whole = offset == 0 && (handle & ~1ull) == bytes && reservation(address) >= 0 && reservation(address) == reservation(address + bytes - 1);
	CUresult result = whole && allocation(address, 1) < 0 ? take(address, bytes, 0, 1, handle & 1) : INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return result;
}
CUresult cuMemSetAccess(uint64_t address, size_t bytes, const void *access, size_t count)
{
	(void)access;
	return count == 1 && reach(address, bytes) != NULL ? 0 : INVALID_VALUE;
}
CUresult cuMemGetAccess(unsigned long long *rights, const int *location, uint64_t address)
{
	*rights = allocation(address, 1) >= 0 ? 3 : 0;
	return location[0] == 1 ? 0 : INVALID_VALUE;
}
CUresult cuMemUnmap(uint64_t address, size_t bytes)
{
	pthread_mutex_lock(&lock);
	int i = allocation(address, bytes);
	CUresult result = i >= 0 && allocations[i].bytes == bytes && allocations[i].apart ? 0 : INVALID_VALUE;
	if (result == 0)
		allocations[i].bytes = 0;
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemAlloc_v2(uint64_t *address, size_t bytes) { return allocate(address, bytes, 0); }
CUresult cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned flags) { return flags == 1 ? allocate(address, bytes, 1) : INVALID_VALUE; }
CUresult cuMemFree_v2(uint64_t address)
{
	/* As the real one it waits for all kernels first, and only then does the memory go. */
	for (;;) {
		CUresult waited = wait_for_kernels();
		if (waited)
			return waited;
		/* A kernel that is launched from here on finds it gone. */
		pthread_mutex_lock(&lock);
		if (running == 0)
			break;
		pthread_mutex_unlock(&lock);
	}
	int place = allocation(address, 1);
	CUresult result = place < 0 || allocations[place].start != address ? INVALID_VALUE : 0;
	if (result == 0)
		allocations[place].bytes = 0;
	pthread_mutex_unlock(&lock);
	return result;
}
static CUresult note_pages(void *start, size_t bytes, int ours)
{
	uint64_t first = (uint64_t)start;
	CUresult result = OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	for (int i = MOST - 1; i >= 0; i--)
		if (registered[i].bytes != 0 && first < registered[i].start + registered[i].bytes && registered[i].start < first + bytes) {
			result = ALREADY_REGISTERED;
			break;
		} else if (registered[i].bytes == 0)
			result = 0;
	for (int i = 0; i < MOST && result == 0; i++)
		if (registered[i].bytes == 0) {
			registered[i].start = first;
			registered[i].bytes = bytes;
			registered[i].id = ++last_id;
			registered[i].ours = ours;
			break;
		}
	pthread_mutex_unlock(&lock);
	return result;
}
/* As the real one it waits for all kernels first, those of every thread, and copies wait for it. */
static CUresult forget_pages(void *start, int ours)
{
	CUresult result = 713;
	pthread_mutex_lock(&busy);
	wait_for_kernels();
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MOST && result; i++)
		if (registered[i].bytes != 0 && registered[i].start == (uint64_t)start && registered[i].ours == ours) {
			if (ours)
				munmap(start, registered[i].bytes);
			registered[i].bytes = 0;
			result = 0;
		}
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&busy);
	while (waiting && !lost)
		sched_yield();
	return result;
}
CUresult cuMemHostAlloc(void **start, size_t bytes, unsigned flags)
{
	ENTER;
	(void)flags;
	bytes = (bytes + 4095) & ~4095ull;
	*start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return *start == MAP_FAILED ? OUT_OF_MEMORY : note_pages(*start, bytes, current == &started ? 1 : 2);
}
CUresult cuMemFreeHost(void *start) { ENTER; return forget_pages(start, current == &started ? 1 : 2); }
CUresult cuMemHostGetDevicePointer_v2(uint64_t *address, void *start, unsigned flags) { *address = (uint64_t)start; return flags; }
CUresult cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags)
{
	ENTER;
	(void)flags;
	SPARE(sparing);
	/* Copies wait for this as well. */
	pthread_mutex_lock(&busy);
	answers();
	pthread_mutex_unlock(&busy);
	if (asked("no-register"))
		return NOT_SUPPORTED;
	if (bytes > 65536 && asked("slow-register"))
		sleep(1);
	for (size_t page = 0; page < bytes; page += 4096)
		if (mincore((uint8_t *)start + page, 1, &(unsigned char){ 0 }) != 0)
			return INVALID_VALUE;
	return note_pages(start, bytes, 0);
}
CUresult cuMemHostUnregister(void *start) { ENTER; SPARE(sparing); return forget_pages(start, 0); }
/* As in cuda.h: 1 context, 2 kind of memory, 7 number, 8 managed, 9 GPU, 11 start, 12 bytes, 13 mapped, 15 for a NIC. */
CUresult cuPointerGetAttributes(unsigned count, const unsigned *which, void **places, uint64_t address)
{
	if (!started)
		return NOT_INITIALIZED;
	pthread_mutex_lock(&lock);
	int at = allocation(address, 1), range = reservation(address), host = registration(address, 1);
	uint64_t start = range >= 0 ? reserved[range].start : at >= 0 ? allocations[at].start : host >= 0 ? registered[host].start : 0;
	uint64_t bytes = range >= 0 ? reserved[range].bytes : at >= 0 ? allocations[at].bytes : host >= 0 ? registered[host].bytes : 0;
	for (unsigned i = 0; i < count; i++)
		switch (which[i]) {
		case 1: *(void **)places[i] = (at >= 0 && !allocations[at].apart) || host >= 0 ? &started : NULL; break;
		case 2: *(unsigned *)places[i] = at >= 0 ? 2 : host >= 0 ? 1 : 0; break;
		case 7: *(uint64_t *)places[i] = at >= 0 ? allocations[at].id : host >= 0 ? registered[host].id : 0; break;
		case 8: *(uint8_t *)places[i] = at >= 0 && allocations[at].managed; break;
		case 9: *(int *)places[i] = at < 0 && host < 0 ? -2 : 0; break;
		case 11: *(uint64_t *)places[i] = start; break;
		case 12: *(size_t *)places[i] = bytes; break;
		case 13: *(uint8_t *)places[i] = at >= 0 || host >= 0; break;
		case 15: *(uint8_t *)places[i] = at >= 0 && allocations[at].for_nic; break;
		default: broken("an attribute that nobody knows", which[i]);
		}
	pthread_mutex_unlock(&lock);
	return 0;
}

CUresult cuPointerSetAttribute(const void *value, unsigned attribute, uint64_t address)
{
	ENTER;
	return attribute == 6 && *(const unsigned *)value == 1 && allocation(address, 1) >= 0 ? 0 : INVALID_VALUE;
}

/* ---- copies ---- */
/* All of the context goes, for every holder: memory, pages, and what was allocated of the host's. */
CUresult cuDevicePrimaryCtxReset_v2(int of)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MOST; i++) {
		if (registered[i].bytes != 0 && registered[i].ours == 1)
			munmap((void *)registered[i].start, registered[i].bytes);
		if (registered[i].ours != 2)
			registered[i].bytes = 0;
		if (!allocations[i].apart)
			allocations[i].bytes = 0;
	}
	resets++;
	pthread_mutex_unlock(&lock);
	return (CUresult)of;
}

CUresult cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
	ENTER;
	uint8_t *there = reach(from, bytes);
	return there == NULL ? INVALID_VALUE : (memcpy(to, there, bytes), 0);
}
CUresult cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
	ENTER;
	uint8_t *there = reach(to, bytes);
	return there == NULL ? INVALID_VALUE : (memcpy(there, from, bytes), 0);
}
CUresult cuMemcpy(uint64_t to, uint64_t from, size_t bytes)
{
	ENTER;
	pthread_mutex_lock(&held);
	CUresult result = wait_for_kernels();
	pthread_mutex_unlock(&held);
	return result ? result : cuMemcpyDtoH_v2((void *)to, from, bytes);
}
/* Copies in a stream are the NIC's: their pages of the host are of one registration. */
static void pages(const void *start, size_t bytes, struct stream *stream)
{
	of_now(stream);
	answers();
	__atomic_fetch_add(&waiting, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&busy);
	__atomic_fetch_sub(&waiting, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&busy);
	if (registration((uint64_t)start, bytes) < 0)
		broken("a copy to or from pages of the host that are not registered", (uint64_t)start);
}
CUresult cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, struct stream *stream)
{
	pages(to, bytes, stream);
	if (bytes > 100000 && (asked("stuck") || number("outward=")))
		usleep(asked("stuck") ? 6000000 : number("outward=") * 1000);
	return cuMemcpyDtoH_v2(to, from, bytes);
}
struct later {
	uint64_t to;
	const void *from;
	size_t bytes;
	struct stream *stream;
	unsigned turn;
};
static void *copy_later(void *of)
{
	struct later *later = of;
	if (later->bytes > 100000)
		usleep(number("inward=") * 1000);
	while (__atomic_load_n(&later->stream->done, __ATOMIC_ACQUIRE) != later->turn)
		usleep(100);
	uint8_t *there = reach(later->to, later->bytes);
	if (there == NULL)
		broken("memory was freed under a copy", later->to);
	memcpy(there, later->from, later->bytes);
	__atomic_store_n(&later->stream->done, later->turn + 1, __ATOMIC_RELEASE);
	__atomic_fetch_sub(&later->stream->kernels, 1, __ATOMIC_RELEASE);
	free(later);
	return NULL;
}
CUresult cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, struct stream *stream)
{
	pages(from, bytes, stream);
	struct later *later;
	pthread_t thread;
	if (number("inward=") == 0 || (bytes <= 100000 && stream->posted == __atomic_load_n(&stream->done, __ATOMIC_ACQUIRE)))
		return cuMemcpyHtoD_v2(to, from, bytes);
	ENTER;
	if ((later = malloc(sizeof *later)) == NULL || reach(to, bytes) == NULL)
		return INVALID_VALUE;
	*later = (struct later){ to, from, bytes, stream, stream->posted++ };
	__atomic_fetch_add(&stream->kernels, 1, __ATOMIC_SEQ_CST);
	if (pthread_create(&thread, NULL, copy_later, later) != 0)
		return OUT_OF_MEMORY;
	pthread_detach(thread);
	return 0;
}
/* `CUDA_MEMCPY2D`: a side is an offset, a row, a kind of memory (1: the host's, 2: the device's), three addresses, a pitch. */
struct side { size_t x, y; int kind; uint64_t host, device; void *array; size_t pitch; };
struct rows { struct side from, to; size_t width, height; };
CUresult cuMemcpy2DAsync_v2(const struct rows *copy, struct stream *stream)
{
	CUresult result = 0;
	if (copy->from.kind != 1 || copy->to.kind != 2 || copy->from.pitch <= copy->width || copy->to.pitch <= copy->width)
		return INVALID_VALUE;
	for (size_t row = 0; row < copy->height && result == 0; row++)
		result = cuMemcpyHtoDAsync_v2(copy->to.device + row * copy->to.pitch,
		                              (void *)(copy->from.host + row * copy->from.pitch), copy->width, stream);
	return result;
}
CUresult cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, struct stream *stream)
{
	ENTER;
	of_now(stream);
	answers();
	uint8_t *target = reach(to, bytes), *source = reach(from, bytes);
	return target == NULL || source == NULL ? INVALID_VALUE : (memmove(target, source, bytes), 0);
}
CUresult cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t bytes, unsigned kind, unsigned long long flags)
{
	(void)handle, (void)address, (void)bytes, (void)kind, (void)flags;
	return NOT_SUPPORTED;
}

/* ---- kernels ---- */
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
			/* As on a GPU: where one block alone would copy 128 KiB and more, 16 bytes at a time, the others take pieces of 32 KiB. */
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
