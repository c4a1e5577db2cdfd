/* A stand-in of CUDA's driver for tests without a GPU: as libcuda.so.1 it runs the kernels of `kernels.cu`, `relaunch.cu` and
 * `stamp.cu` by their names, on threads, one for each stream. It does no more of `cuda.h` than crate `gpu` asks of it, and it is stricter:
 * a caller that frees what a stream may still use, frees twice, or has no current context, is aborted with a sentence.
 * What it cannot show: device code, PCIe, and what the real driver refuses for reasons of its own.
 *
 * LACKS_COUNT, LACKS_VERSION, LACKS_NEWER (macros): functions are left out, as in an older driver.
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

/* ---- kernels ---- */
struct kernel {
    const char *name;
    unsigned bytes[4]; /* of its parameters; 0 ends the list */
};
enum { ADD, SPIN, PASS_TIME, RING, RELAUNCH, NEXT, TURN, STAMP, KERNELS };
static const struct kernel kernels[KERNELS] = {
    [ADD] = {"add", {8, 4, 0}},       [SPIN] = {"spin", {8, 8, 0}},
    [PASS_TIME] = {"pass_time", {8, 0, 0}}, [RING] = {"ring", {8, 8, 0}},
    [RELAUNCH] = {"doorbell_relaunch", {8, 4, 8, 0}}, [STAMP] = {"doorbell_stamp", {8, 4, 0}},
    [NEXT] = {"doorbell_next", {8, 4, 8, 0}}, [TURN] = {"doorbell_turn", {8, 8, 8, 0}},
};

/* ---- what a stream does ---- */
enum kind { KERNEL = 0, COPY = 1, FILL = 2, EVENT, GRAPH };
struct graph;
struct event {
    int state; /* 0 never recorded, 1 in a stream, 2 reached */
    struct graph *records; /* the graph in which it was recorded last, which may be gone */
    struct timespec at;
};
struct exec;
struct op {
    enum kind kind;
    int kernel;
    uint64_t argument[3], to, from;
    size_t bytes;
    unsigned char byte;
    struct event *event;
    struct exec *exec;
    struct op *next;
};
struct graph {
    struct op *nodes[64];
    size_t count;
};
struct exec {
    struct op nodes[64];
    size_t count;
    int uploaded;
};
struct stream {
    struct op *first, *last;
    unsigned pending;
    int destroyed;
    struct graph *records;
    struct stream *next;
};
static struct stream *streams;

static void sleep_ns(long ns)
{
    struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

/* `stamp.h`. */
static void stamp(uint64_t *ring, uint64_t is_end)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    ring[2 + 2 * (ring[0] & ring[1]) + is_end] = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
    ring[0] += is_end;
}

/* `next_turn` of `relaunch.cu`: turns, and why there is no further one. */
static void next_turn(const struct op *op, const struct exec *in, volatile uint32_t *state)
{
    volatile uint32_t *control = (volatile uint32_t *)op->argument[0];
    uint32_t limit = (uint32_t)op->argument[1], turns = control[1] + 1;
    uint32_t end = control[0] ? 1 : limit && turns >= limit ? 2 : 0;
    if (!end && !(in && in->uploaded)) {
        control[3] = INVALID_VALUE;
        end = 3;
    }
    state[0] = turns;
    state[1] = end;
}

/* `tell` of `relaunch.cu`. */
static void tell(volatile uint32_t *control, const volatile uint32_t *state)
{
    control[1] = state[0];
    if (state[1])
        __atomic_store_n(&control[2], state[1], __ATOMIC_RELEASE);
}

/* Runs one operation without the lock; not 0: the graph is to run again. */
static int run(const struct op *op, const struct exec *in)
{
    volatile uint32_t *word = (volatile uint32_t *)op->argument[0];
    uint32_t state[2];
    struct timespec start, now;
    switch (op->kind) {
    case COPY:
        memcpy((void *)op->to, (const void *)op->from, op->bytes);
        return 0;
    case FILL:
        memset((void *)op->to, op->byte, op->bytes);
        return 0;
    default:
        break;
    }
    switch (op->kernel) {
    case ADD:
        if (op->argument[0] < 4096) {
            pthread_mutex_lock(&lock);
            lost = ILLEGAL_ADDRESS;
            pthread_mutex_unlock(&lock);
            return 0;
        }
        __atomic_fetch_add(word, (uint32_t)op->argument[1], __ATOMIC_SEQ_CST);
        return 0;
    case SPIN:
        *(volatile uint32_t *)op->argument[1] = 1;
        while (!__atomic_load_n(word, __ATOMIC_ACQUIRE))
            sleep_ns(20000);
        return 0;
    case PASS_TIME:
        clock_gettime(CLOCK_MONOTONIC, &start);
        do {
            sleep_ns(50000);
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while ((uint64_t)(now.tv_sec - start.tv_sec) * 1000000000ull + (uint64_t)now.tv_nsec - (uint64_t)start.tv_nsec <
                 op->argument[0]);
        return 0;
    case RING:
        __atomic_store_n((uint64_t *)op->argument[0], op->argument[1], __ATOMIC_RELEASE);
        return 0;
    case RELAUNCH:
        if (op->argument[2])
            stamp((uint64_t *)op->argument[2], 1);
        next_turn(op, in, state);
        tell(word, state);
        return !state[1];
    case NEXT:
        next_turn(op, in, (volatile uint32_t *)op->argument[2]);
        return !((volatile uint32_t *)op->argument[2])[1];
    case TURN:
        if (op->argument[2])
            stamp((uint64_t *)op->argument[2], 1);
        tell(word, (volatile uint32_t *)op->argument[1]);
        return 0;
    case STAMP:
        stamp((uint64_t *)op->argument[0], op->argument[1]);
        return 0;
    default:
        broken("an unknown kernel");
        return 0;
    }
}

static void *worker(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first && !stream->destroyed)
            pthread_cond_wait(&changed, &lock);
        struct op *op = stream->first;
        if (!op)
            break;
        pthread_mutex_unlock(&lock);
        if (op->kind == EVENT) {
            clock_gettime(CLOCK_MONOTONIC, &op->event->at);
        } else if (op->kind == GRAPH) {
            int again;
            do {
                again = 0;
                for (size_t i = 0; i < op->exec->count; i++)
                    again |= run(&op->exec->nodes[i], op->exec);
            } while (again);
        } else {
            run(op, NULL);
        }
        pthread_mutex_lock(&lock);
        if (op->kind == EVENT)
            op->event->state = 2;
        stream->first = op->next;
        stream->pending--;
        free(op);
    }
    for (struct stream **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(stream);
    return NULL;
}

/* With the lock. */
static int busy(void)
{
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (stream->pending)
            return 1;
    return 0;
}

static void must_rest(const char *promise)
{
    if (busy())
        broken(promise);
}

static CUresult put(struct stream *stream, struct op op)
{
    struct op *own = malloc(sizeof *own);
    *own = op;
    own->next = NULL;
    if (stream->records) {
        if (op.kind != EVENT)
            stream->records->nodes[stream->records->count++] = own;
        return 0;
    }
    if (stream->first)
        stream->last->next = own;
    else
        stream->first = own;
    stream->last = own;
    stream->pending++;
    pthread_cond_broadcast(&changed);
    return 0;
}

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

CUresult cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    *context = (void *)0x1000;
    return 0;
}

CUresult cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    pthread_mutex_lock(&lock);
    if (!lost)
        must_rest("the context was released under a stream");
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
    (void)flags;
    ENTER();
    *event = calloc(1, sizeof **event);
    LEAVE(0);
}

CUresult cuEventDestroy_v2(struct event *event)
{
    ENTER();
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
    free(module);
    LEAVE(0);
}

CUresult cuModuleGetFunction(const struct kernel **function, void *module, const char *name)
{
    (void)module;
    ENTER();
    for (int i = 0; i < KERNELS; i++)
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

CUresult cuFuncGetAttribute(int *value, unsigned attribute, const struct kernel *function)
{
    (void)function;
    *value = attribute == 0 ? 1024 : 16;
    return 0;
}

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

CUresult cuStreamBeginCapture_v2(struct stream *stream, unsigned mode)
{
    ENTER();
    if (mode != 2 || stream->records)
        LEAVE(INVALID_VALUE);
    stream->records = calloc(1, sizeof *stream->records);
    LEAVE(0);
}

CUresult cuStreamEndCapture(struct stream *stream, struct graph **graph)
{
    ENTER();
    *graph = stream->records;
    for (struct stream *one = streams; *graph && one; one = one->next)
        if (one->records == *graph)
            one->records = NULL;
    LEAVE(*graph ? 0 : INVALID_VALUE);
}

CUresult cuGraphCreate(struct graph **graph, unsigned flags)
{
    ENTER();
    *graph = calloc(1, sizeof **graph);
    LEAVE(flags ? INVALID_VALUE : 0);
}

CUresult cuGraphDestroy(struct graph *graph)
{
    ENTER();
    for (size_t i = 0; i < graph->count; i++)
        free(graph->nodes[i]);
    free(graph);
    LEAVE(0);
}

CUresult cuGraphGetNodes(struct graph *graph, struct op **nodes, size_t *count)
{
    ENTER();
    size_t room = nodes ? *count : 0;
    if (nodes && !room) LEAVE(INVALID_VALUE); /* as the driver of CUDA 13.0 on an H200 */
    *count = graph->count;
    if (nodes)
        memcpy(nodes, graph->nodes, (room < *count ? room : *count) * sizeof *nodes);
    LEAVE(0);
}

CUresult cuGraphNodeGetType(struct op *node, unsigned *kind)
{
    *kind = node->kind;
    return 0;
}

/* CUDA_MEMCPY3D, as far as it is read. */
struct copy3d {
    size_t src_x, src_y, src_z, src_lod;
    unsigned src_kind;
    const void *src_host;
    uint64_t src_device;
    void *src_array, *reserved0;
    size_t src_pitch, src_height, dst_x, dst_y, dst_z, dst_lod;
    unsigned dst_kind;
    void *dst_host;
    uint64_t dst_device;
};

static int is_pinned(uint64_t address)
{
    return range_of((uintptr_t)address, 1) != NULL;
}

CUresult cuGraphMemcpyNodeGetParams(struct op *node, struct copy3d *copy)
{
    ENTER();
    if (node->kind != COPY)
        LEAVE(INVALID_VALUE);
    copy->src_kind = is_pinned(node->from) ? 2 : 1;
    copy->src_host = (const void *)node->from;
    copy->src_device = node->from;
    copy->dst_kind = is_pinned(node->to) ? 2 : 1;
    copy->dst_host = (void *)node->to;
    copy->dst_device = node->to;
    LEAVE(0);
}

CUresult cuGraphChildGraphNodeGetGraph(struct op *node, struct graph **graph)
{
    (void)node, (void)graph;
    return INVALID_VALUE;
}

struct kernel_node {
    const struct kernel *function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kern, *context;
};

CUresult cuGraphAddKernelNode_v2(struct op **node, struct graph *graph, struct op *const *after, size_t count,
                                 const struct kernel_node *wanted)
{
    ENTER();
    if (count > 1 || (count && after[0] != graph->nodes[graph->count - 1]) || wanted->block[0] > 1024)
        LEAVE(INVALID_VALUE);
    *node = malloc(sizeof **node);
    **node = kernel_op(wanted->function, wanted->parameters);
    graph->nodes[graph->count++] = *node;
    LEAVE(0);
}

struct instantiate {
    uint64_t flags;
    struct stream *upload;
    struct op *node;
    unsigned result;
};

CUresult cuGraphInstantiateWithParams(struct exec **exec, struct graph *graph, struct instantiate *wanted)
{
    ENTER();
    if (wanted->flags != 4)
        LEAVE(INVALID_VALUE);
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->kind == COPY && !(is_pinned(graph->nodes[i]->from) && is_pinned(graph->nodes[i]->to))) {
            wanted->node = graph->nodes[i];
            wanted->result = 3;
            LEAVE(NOT_SUPPORTED);
        }
    *exec = calloc(1, sizeof **exec);
    (*exec)->count = graph->count;
    for (size_t i = 0; i < graph->count; i++)
        (*exec)->nodes[i] = *graph->nodes[i];
    LEAVE(0);
}

CUresult cuGraphUpload(struct exec *exec, struct stream *stream)
{
    (void)stream;
    ENTER();
    exec->uploaded = 1;
    LEAVE(0);
}

CUresult cuGraphLaunch(struct exec *exec, struct stream *stream)
{
    ENTER();
    LEAVE(put(stream, (struct op){.kind = GRAPH, .exec = exec}));
}

CUresult cuGraphExecDestroy(struct exec *exec)
{
    ENTER();
    must_rest("a graph was destroyed under itself");
    free(exec);
    LEAVE(0);
}
