/* A stand-in of CUDA's driver (libcuda.so.1) for the NIC's tests without a GPU. Its «device memory» is the
 * host's, at addresses that only the driver's copies and kernels can touch. Kernels are CPU threads, known by
 * name: the NIC's mover (protocol: `crates/soft-nic/src/dma/gpu/mover.rs`) and those of `gpu_memory.c`.
 * A kernel or a late copy (inward=) outside an allocation ends the process with a sentence. So does a kernel
 * or a stream's copy in host pages not registered. It cannot show device code, PCIe, order, times, or the
 * real driver's locks but two: unregistering pages waits for all kernels, and copies wait for it; a copy of
 * pageable memory in the default stream (`cuMemcpy`) waits for all kernels, and calls of other threads in its
 * context wait for it.
 * STAND_IN (environment): words of
 *   no-mover, refused-mover   the mover cannot be loaded; each launch of it is refused
 *   late-mover, mute-mover    the mover begins after 20 ms; stops for 1.3 s at its first command, looks again
 *   short-mover               the mover takes three commands, and ends when the fourth is there
 *   no-register, slow-register   pages of the host are refused; more than 64 KiB of them take 1 s
 *   loud, no-context-events   says so when it is loaded; a driver before CUDA 12.5
 *   stuck, outward=MS         copies of more than 100,000 bytes to the host return after 6 s or MS, done then
 *   inward=MS                 copies of more than 100,000 bytes from the host return at once, done MS later
 *   query=MS                  the first query of a stream's state is answered MS late
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

/* A graph being recorded. Most calls spoil it unless their thread is `sparing`; two always do (measured). */
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

#include "cuda_memory.h"

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
/* `CUDA_MEMCPY2D`. A side: offset, row, kind of memory (1: host, 2: device), three addresses, pitch. */
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

#include "cuda_kernels.h"
