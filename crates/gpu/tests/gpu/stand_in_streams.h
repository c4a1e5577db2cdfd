/* Kernels of the stand-in `stand_in.c`, and streams: a stream's operations run on a thread, in order. */

/* ---- kernels ---- */
struct kernel {
    const char *name;
    unsigned bytes[4]; /* of its parameters; 0 ends the list */
};
enum { ADD, SPIN, PASS_TIME, RING, RELAUNCH, STAMP };
#ifndef RECORDED
#define RECORDED
#endif
static const struct kernel kernels[] = {
    [ADD] = {"add", {8, 4, 0}},       [SPIN] = {"spin", {8, 8, 0}},
    [PASS_TIME] = {"pass_time", {8, 0, 0}}, [RING] = {"ring", {8, 8, 0}},
    [RELAUNCH] = {"doorbell_relaunch", {8, 4, 8, 0}}, [STAMP] = {"doorbell_stamp", {8, 4, 0}},
    RECORDED /* behind the last one */
};

/* ---- what a stream does ---- */
enum kind { KERNEL = 0, COPY = 1, FILL = 2, EVENT, GRAPH };
struct graph;
struct event {
    int state; /* 0 never recorded, 1 in a stream, 2 reached */
    int is_timed;
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

/* `relaunch.cu` behind its stamp: why there is no further turn. */
static uint32_t relaunch(const struct op *op, const struct exec *in)
{
    volatile uint32_t *control = (volatile uint32_t *)op->argument[0];
    uint32_t limit = (uint32_t)op->argument[1], turns = control[1] + 1;
    uint32_t end = control[0] ? 1 : limit && turns >= limit ? 2 : 0;
    if (!end && !(in && in->uploaded)) {
        control[3] = INVALID_VALUE;
        end = 3;
    }
    control[1] = turns;
    if (end)
        __atomic_store_n(&control[2], end, __ATOMIC_RELEASE);
    return end;
}

/* Runs one operation without the lock; not 0: the graph is to run again. */
static int run(const struct op *op, const struct exec *in)
{
    volatile uint32_t *word = (volatile uint32_t *)op->argument[0];
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
        return !relaunch(op, in);
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
