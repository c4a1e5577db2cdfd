/*! The place in its launch of the lane on this thread: the runtime writes it, and kernels read it in place.
 *
 * C, because Rust has no thread-local variable that other languages can name.
 */

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

struct db_twin_here *db_twin_here_of_thread(void);
struct db_twin_here *db_twin_here_of_thread(void) { return &db_twin_here; }
