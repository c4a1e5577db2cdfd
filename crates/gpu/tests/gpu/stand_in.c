/* A stand-in of CUDA's driver (libcuda.so.1) for tests without a GPU: it runs the kernels of `kernels.cu`,
 * `relaunch.cu` and `stamp.cu` by name, on one thread for each stream. It has only what crate `gpu` calls of
 * `cuda.h`, and is stricter: freeing what a stream may still use, freeing twice, or having no current context
 * aborts with a sentence. It cannot show device code, PCIe, or what only the real driver refuses.
 *
 * LACKS_COUNT, LACKS_VERSION, LACKS_NEWER (macros): functions are left out, as in an older driver.
 * RECORDED (macro): further kernels, as the table has them, which may be recorded into a graph and not run.
 * STAND_IN_INIT, STAND_IN_DEVICES (environment): the result of cuInit, the number of devices. */
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
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600 };
enum { ILLEGAL_ADDRESS = 700, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, NOT_SUPPORTED = 801 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned lost; /* the error that lost the context */
static __thread int current;

static void broken(const char *promise)
{
    fprintf(stderr, "stand-in driver: %s\n", promise);
    abort();
}

/* A test of a kept context has a process alone, and says so: nothing that was launched there is destroyed. */
static void may_go(void)
{
    if (getenv("GPU_TEST_ALONE"))
        broken("what stays loaded in a kept context was destroyed");
}

#define ENTER()                                                                                                            \
    do {                                                                                                                   \
        if (!current)                                                                                                      \
            broken("a call without a current context");                                                                    \
        pthread_mutex_lock(&lock);                                                                                         \
        if (lost) {                                                                                                        \
            pthread_mutex_unlock(&lock);                                                                                   \
            return lost;                                                                                                   \
        }                                                                                                                  \
    } while (0)
#define LEAVE(result)                                                                                                      \
    do {                                                                                                                   \
        CUresult code_ = (result);                                                                                         \
        pthread_mutex_unlock(&lock);                                                                                       \
        return code_;                                                                                                      \
    } while (0)

#include "stand_in_streams.h"

/* ---- memory ---- */
enum place { DEVICE, PINNED, REGISTERED };
struct range {
    uintptr_t start;
    size_t bytes;
    enum place place;
    struct range *next;
};
static struct range *ranges;

static struct range *range_of(uintptr_t at, size_t bytes)
{
    for (struct range *range = ranges; range; range = range->next)
        if (at < range->start + range->bytes && range->start < at + bytes)
            return range;
    return NULL;
}

static void add_range(uintptr_t start, size_t bytes, enum place place)
{
    struct range *range = malloc(sizeof *range);
    *range = (struct range){start, bytes, place, ranges};
    ranges = range;
}

static int remove_range(uintptr_t start, enum place place)
{
    for (struct range **at = &ranges; *at; at = &(*at)->next)
        if ((*at)->start == start && (*at)->place == place) {
            struct range *gone = *at;
            *at = gone->next;
            free(gone);
            return 1;
        }
    return 0;
}

static void *pages(size_t bytes)
{
    size_t unit = bytes >= 2u << 20 ? 2u << 20 : 4096;
    return aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
}

/* ---- the driver's functions ---- */
static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

CUresult cuInit(unsigned flags)
{
    (void)flags;
    return (CUresult)setting("STAND_IN_INIT", 0);
}

CUresult cuGetErrorName(CUresult code, const char **name)
{
    static const struct {
        CUresult code;
        const char *name;
    } names[] = {{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},   {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {100, "CUDA_ERROR_NO_DEVICE"},                 {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
                 {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"}};
    *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code)
            *name = names[i].name;
    return *name ? 0 : INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char **text)
{
    (void)code;
    *text = "said by a stand-in";
    return 0;
}

#ifndef LACKS_VERSION
CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}
#endif

#ifndef LACKS_COUNT
CUresult cuDeviceGetCount(int *count)
{
    *count = (int)setting("STAND_IN_DEVICES", 1);
    return 0;
}
#endif

CUresult cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? 0 : 101;
}

CUresult cuDeviceGetName(char *name, int bytes, int device)
{
    (void)device;
    snprintf(name, (size_t)bytes, "stand-in");
    return 0;
}

CUresult cuDeviceGetPCIBusId(char *id, int bytes, int device)
{
    (void)device;
    snprintf(id, (size_t)bytes, "0000:00:00.0");
    return 0;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return 0;
}

CUresult cuDeviceGetAttribute(int *value, unsigned attribute, int device)
{
    (void)device;
    /* 75, 76: compute capability; 16: multiprocessors; 124: dma-buf, which needs a kernel's help. */
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 2 : attribute == 124 ? 0 : 1;
    return 0;
}

/* Of the primary context. */
static int shares;

CUresult cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    *context = (void *)0x1000;
    __atomic_add_fetch(&shares, 1, __ATOMIC_RELAXED);
    return 0;
}

CUresult cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = __atomic_load_n(&shares, __ATOMIC_RELAXED) > 0;
    return 0;
}

CUresult cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    pthread_mutex_lock(&lock);
    if (!lost)
        must_rest("the context was released under a stream");
    __atomic_sub_fetch(&shares, 1, __ATOMIC_RELAXED);
    LEAVE(0);
}

CUresult cuCtxSetCurrent(void *context)
{
    current = context != NULL;
    return 0;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return 0;
}

CUresult cuStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority)
{
    pthread_t thread;
    ENTER();
    if (flags != 1 || priority > 0 || priority < -5)
        LEAVE(INVALID_VALUE);
    *stream = calloc(1, sizeof **stream);
    (*stream)->next = streams;
    streams = *stream;
    pthread_create(&thread, NULL, worker, *stream);
    pthread_detach(thread);
    LEAVE(0);
}

CUresult cuStreamDestroy_v2(struct stream *stream)
{
    ENTER();
    stream->destroyed = 1;
    pthread_cond_broadcast(&changed);
    LEAVE(0);
}

CUresult cuStreamQuery(struct stream *stream)
{
    ENTER();
    if (stream->records)
        broken("a stream was asked for its state while it records");
    LEAVE(stream->pending ? NOT_READY : 0);
}

CUresult cuEventCreate(struct event **event, unsigned flags)
{
    ENTER();
    *event = calloc(1, sizeof **event);
    (*event)->is_timed = !(flags & 2);
    LEAVE(0);
}

CUresult cuEventDestroy_v2(struct event *event)
{
    ENTER();
    if (event->is_timed)
        may_go();
    if (event->state != 1)
        free(event);
    LEAVE(0);
}

CUresult cuEventRecord(struct event *event, struct stream *stream)
{
    ENTER();
    event->records = stream->records;
    event->state = stream->records ? 0 : 1;
    LEAVE(put(stream, (struct op){.kind = EVENT, .event = event}));
}

/* Only of an event of a graph that is being recorded: the stream then records into it as well. */
CUresult cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags)
{
    ENTER();
    if (flags || !event->records || (stream->records && stream->records != event->records))
        LEAVE(INVALID_VALUE);
    stream->records = event->records;
    LEAVE(0);
}

CUresult cuEventQuery(struct event *event)
{
    ENTER();
    LEAVE(event->state == 1 ? NOT_READY : 0);
}

CUresult cuEventElapsedTime_v2(float *ms, struct event *start, struct event *end)
{
    ENTER();
    if (start->state != 2 || end->state != 2)
        LEAVE(INVALID_HANDLE);
    *ms = (float)(end->at.tv_sec - start->at.tv_sec) * 1e3f + (float)(end->at.tv_nsec - start->at.tv_nsec) / 1e6f;
    LEAVE(0);
}

CUresult cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    ENTER();
    void *start = bytes > (size_t)1 << 30 ? NULL : pages(bytes);
    if (!start)
        LEAVE(OUT_OF_MEMORY);
    *address = (uint64_t)start;
    add_range((uintptr_t)start, bytes, DEVICE);
    LEAVE(0);
}

CUresult cuMemFree_v2(uint64_t address)
{
    ENTER();
    must_rest("device memory was freed under a stream");
    if (!remove_range((uintptr_t)address, DEVICE))
        broken("what is no device memory was freed");
    free((void *)address);
    LEAVE(0);
}

CUresult cuMemHostAlloc(void **start, size_t bytes, unsigned flags)
{
    ENTER();
    if (flags != 3)
        LEAVE(INVALID_VALUE);
    *start = bytes > (size_t)1 << 30 ? NULL : pages(bytes);
    if (!*start)
        LEAVE(OUT_OF_MEMORY);
    memset(*start, 0xee, bytes);
    add_range((uintptr_t)*start, bytes, PINNED);
    LEAVE(0);
}

CUresult cuMemFreeHost(void *start)
{
    ENTER();
    must_rest("pinned memory was freed under a stream");
    if (!remove_range((uintptr_t)start, PINNED))
        broken("what is no pinned memory was freed");
    free(start);
    LEAVE(0);
}

CUresult cuMemHostGetDevicePointer_v2(uint64_t *address, void *start, unsigned flags)
{
    ENTER();
    struct range *range = range_of((uintptr_t)start, 1);
    if (flags || !range || range->place == DEVICE)
        LEAVE(INVALID_VALUE);
    *address = (uint64_t)start;
    LEAVE(0);
}

CUresult cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags)
{
    ENTER();
    if ((uintptr_t)start % 4096 || bytes % 4096 || !bytes || flags & 4)
        LEAVE(INVALID_VALUE);
    if (range_of((uintptr_t)start, bytes))
        LEAVE(ALREADY_REGISTERED);
    add_range((uintptr_t)start, bytes, REGISTERED);
    LEAVE(0);
}

/* Takes its time, as the driver does where there are many pages; other threads call meanwhile. */
CUresult cuMemHostUnregister(void *start)
{
    ENTER();
    must_rest("pages were given back under a stream");
    pthread_mutex_unlock(&lock);
    sleep_ns(20000000);
    pthread_mutex_lock(&lock);
    if (msync(start, 4096, MS_ASYNC))
        broken("pages were unmapped before they were given back");
    LEAVE(remove_range((uintptr_t)start, REGISTERED) ? 0 : NOT_REGISTERED);
}

CUresult cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, struct stream *stream)
{
    ENTER();
    LEAVE(put(stream, (struct op){.kind = COPY, .to = to, .from = from, .bytes = bytes}));
}

CUresult cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, struct stream *stream)
{
    ENTER();
    LEAVE(put(stream, (struct op){.kind = FILL, .to = to, .byte = byte, .bytes = bytes}));
}

CUresult cuPointerSetAttribute(const void *value, unsigned attribute, uint64_t address)
{
    ENTER();
    struct range *range = range_of((uintptr_t)address, 1);
    LEAVE(attribute == 6 && *(const unsigned *)value == 1 && range && range->place == DEVICE ? 0 : INVALID_VALUE);
}

CUresult cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t bytes, unsigned kind, unsigned long long flags)
{
    (void)handle, (void)address, (void)bytes, (void)kind, (void)flags;
    return NOT_SUPPORTED;
}

CUresult cuModuleLoadData(void **module, const void *image)
{
    ENTER();
    if (memcmp(image, "\177ELF", 4))
        LEAVE(INVALID_VALUE);
    *module = malloc(1);
    LEAVE(0);
}

CUresult cuModuleUnload(void *module)
{
    ENTER();
    must_rest("code was unloaded under a stream");
    may_go();
    free(module);
    LEAVE(0);
}

CUresult cuModuleGetFunction(const struct kernel **function, void *module, const char *name)
{
    (void)module;
    ENTER();
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i].name, name)) {
            *function = &kernels[i];
            LEAVE(0);
        }
    LEAVE(NOT_FOUND);
}

#ifndef LACKS_NEWER
CUresult cuFuncLoad(const struct kernel *function)
{
    (void)function;
    return 0;
}

CUresult cuFuncGetParamInfo(const struct kernel *function, size_t index, size_t *offset, size_t *bytes)
{
    if (index > 2 || !function->bytes[index])
        return INVALID_VALUE;
    *offset = index * 8;
    *bytes = function->bytes[index];
    return 0;
}
#endif

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const struct kernel *function, int threads, size_t shared)
{
    (void)function, (void)shared;
    ENTER();
    *blocks = threads > 1024 ? 0 : 2048 / threads;
    LEAVE(threads < 1 ? INVALID_VALUE : 0);
}

static struct op kernel_op(const struct kernel *function, void **parameters)
{
    struct op op = {.kind = KERNEL, .kernel = (int)(function - kernels)};
    for (int i = 0; function->bytes[i]; i++)
        memcpy(&op.argument[i], parameters[i], function->bytes[i]);
    return op;
}

CUresult cuLaunchKernel(const struct kernel *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, struct stream *stream, void **parameters, void **extra)
{
    (void)shared, (void)extra;
    ENTER();
    if (!gx || !gy || !gz || !bx || !by || !bz || (uint64_t)bx * by * bz > 1024)
        LEAVE(INVALID_VALUE);
    LEAVE(put(stream, kernel_op(function, parameters)));
}

#include "stand_in_graphs.h"
