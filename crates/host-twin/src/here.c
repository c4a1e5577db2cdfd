/*! Where the lane that runs on this thread is in its launch: kernels read it in place, and the runtime writes it.
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
