/*! How a lane enters a kernel, and leaves it from anywhere when the launch is given up.
 *
 * C, because a jump must not pass frames that own something: those between db_twin_enter() and db_twin_leave() are the
 * kernel's own (compiled without exceptions, nothing to destroy), and the runtime's functions have returned before.
 */
#include <setjmp.h>

/* As in twin.h. */
struct db_twin_here {
    struct {
        unsigned x, y, z;
    } thread, block, threads, blocks;
    unsigned lane, direct;
    void *dynamic;
    unsigned *grid;
    unsigned atomics;
};

__thread struct db_twin_here db_twin_here;

static __thread jmp_buf *way_out;

int db_twin_enter(void (*run)(void **), void **arguments, const struct db_twin_here *here);
void db_twin_leave(void);
struct db_twin_here *db_twin_here_of_thread(void);

struct db_twin_here *db_twin_here_of_thread(void) { return &db_twin_here; }

/* Runs one lane: 0 when the kernel returned, 1 when it was left. */
int db_twin_enter(void (*run)(void **), void **arguments, const struct db_twin_here *here) {
    jmp_buf out;
    db_twin_here = *here;
    way_out = &out;
    if (_setjmp(out)) return 1;
    run(arguments);
    return 0;
}

void db_twin_leave(void) { _longjmp(*way_out, 1); }
