/*! Two pinned processes with shared memory and no NIC: the floors beside which a NIC's numbers are put.
 *
 * Each measurement forks a second process, pins both, measures in the first, and kills the second. It returns
 * a count, or a negative errno. The second process dies with the first one (PR_SET_PDEATHSIG).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 64, RING_WORDS = 1024, ROUND_TRIPS = 16, SPINS = 1 << 14 };

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int pin(uint32_t core) {
    cpu_set_t set;
    if (core >= CPU_SETSIZE) return -EINVAL;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    return sched_setaffinity(0, sizeof set, &set) ? -errno : 0;
}

/* Pins this process, forks the other and pins it. 0 in the second process, its id in the first, or -errno. */
static pid_t split(uint32_t core, uint32_t other_core) {
    int error = pin(core);
    pid_t child, parent = getpid();
    if (error) return error;
    child = fork();
    if (child < 0) return -errno;
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || pin(other_core)) _exit(1);
    return 0;
}

static void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Waits for a value; yields every SPINS looks, as both may share a core. 0, or -ECHILD when `child` died. */
static int await(const _Atomic uint64_t *word, uint64_t value, pid_t child) {
    uint32_t spins;
    for (spins = 1; atomic_load_explicit(word, memory_order_acquire) != value; spins++) {
        if (spins % SPINS) continue;
        sched_yield();
        if (child && waitpid(child, NULL, WNOHANG) == child) return -ECHILD;
    }
    return 0;
}

static void *shared(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Half a round trip in tenths of a nanosecond, one sample for each ROUND_TRIPS round trips: as many as fit
 * in `room` and in `ns`. */
int64_t db_c_flag_ping_pong(uint32_t core, uint32_t other_core, int64_t ns, uint64_t *samples, int64_t room) {
    char *memory = shared(2 * LINE);
    _Atomic uint64_t *ping = (void *)memory, *pong = (void *)(memory + LINE);
    uint64_t round = 0;
    int64_t count = 0, start, before;
    int trip;
    pid_t child;
    if (!memory) return -ENOMEM;
    child = split(core, other_core);
    if (child < 0) return child;
    if (child == 0)
        for (;;) {
            await(ping, ++round, 0);
            atomic_store_explicit(pong, round, memory_order_release);
        }
    start = now_ns();
    for (before = start; count < room && before - start < ns; count++) {
        int64_t after;
        for (trip = 0; trip < ROUND_TRIPS; trip++) {
            atomic_store_explicit(ping, ++round, memory_order_release);
            if (await(pong, round, child)) return -ECHILD;
        }
        after = now_ns();
        samples[count] = (uint64_t)(after - before) * 10 / (2 * ROUND_TRIPS);
        before = after;
    }
    end(child);
    munmap(memory, 2 * LINE);
    return count;
}

/* Words that went through a ring of words, where 0 means empty; `elapsed` ns were needed. */
int64_t db_c_word_ring(uint32_t core, uint32_t other_core, int64_t ns, int64_t *elapsed) {
    size_t bytes = RING_WORDS * sizeof(uint64_t);
    _Atomic uint64_t *ring = shared(bytes);
    uint64_t sent = 0, taken = 0;
    int64_t start;
    int word;
    pid_t child;
    if (!ring) return -ENOMEM;
    child = split(core, other_core);
    if (child < 0) return child;
    if (child == 0)
        for (;; taken++) {
            _Atomic uint64_t *slot = &ring[taken % RING_WORDS];
            await(slot, taken + 1, 0);
            atomic_store_explicit(slot, 0, memory_order_release);
        }
    start = now_ns();
    do {
        for (word = 0; word < RING_WORDS; word++, sent++) {
            if (await(&ring[sent % RING_WORDS], 0, child)) return -ECHILD;
            atomic_store_explicit(&ring[sent % RING_WORDS], sent + 1, memory_order_release);
        }
        *elapsed = now_ns() - start;
    } while (*elapsed < ns);
    end(child);
    munmap(ring, bytes);
    return (int64_t)sent;
}

/* Copies of `bytes` by process_vm_writev into the other process, which sleeps; they took `elapsed` ns. */
int64_t db_c_process_vm_writev(uint32_t core, uint32_t other_core, int64_t ns, uint64_t bytes, int64_t *elapsed) {
    char *from = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *into = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    _Atomic uint64_t *ready = shared(LINE);
    int64_t copies = 0, start, error = 0;
    pid_t child;
    if (from == MAP_FAILED || into == MAP_FAILED || !ready) return -ENOMEM;
    memset(from, 1, bytes);
    child = split(core, other_core);
    if (child < 0) return child;
    if (child == 0) {
        memset(into, 2, bytes);
        atomic_store_explicit(ready, 1, memory_order_release);
        for (;;) pause();
    }
    if (await(ready, 1, child)) return -ECHILD;
    start = now_ns();
    do {
        struct iovec local = {from, bytes}, remote = {into, bytes};
        ssize_t written = process_vm_writev(child, &local, 1, &remote, 1, 0);
        if (written != (ssize_t)bytes) {
            error = written < 0 ? -errno : -EIO;
            break;
        }
        copies++;
        *elapsed = now_ns() - start;
    } while (*elapsed < ns);
    end(child);
    munmap(from, bytes);
    munmap(into, bytes);
    munmap(ready, LINE);
    return error ? error : copies;
}

/* The first two cores that this process may use; the same one twice when there is one. 0 or -errno. */
int64_t db_c_first_two_cores(uint32_t *cores) {
    cpu_set_t set;
    uint32_t core, found = 0;
    if (sched_getaffinity(0, sizeof set, &set)) return -errno;
    for (core = 0; core < CPU_SETSIZE && found < 2; core++)
        if (CPU_ISSET(core, &set)) cores[found++] = core;
    if (found == 1) cores[1] = cores[0];
    return found ? 0 : -ENOENT;
}
