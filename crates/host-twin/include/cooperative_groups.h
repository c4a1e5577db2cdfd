/*! Cooperative groups of CUDA's `cooperative_groups.h`: block, tiles, and the grid of a cooperative launch.
 *
 * Follows the CUDA C++ Programming Guide, "Cooperative Groups". A tile has 1 to 32 lanes, a power of two.
 * Left out: coalesced groups, clusters, multi-grid, tiles beyond a warp, `memcpy_async`, `reduce`, `scan`.
 */
#ifndef DB_TWIN_COOPERATIVE_GROUPS_H
#define DB_TWIN_COOPERATIVE_GROUPS_H

namespace cooperative_groups {

class thread_block {
  public:
    static void sync(DB_TWIN_HERE) { __syncthreads(file, line); }
    static unsigned int thread_rank() { return db_twin_here.lane; }
    static unsigned int size() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned int num_threads() { return size(); }
    static dim3 group_index() { return dim3(blockIdx); }
    static dim3 thread_index() { return dim3(threadIdx); }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};
static inline thread_block this_thread_block() { return thread_block(); }

class grid_group {
  public:
    static void sync(DB_TWIN_HERE) { db_twin_grid_sync(file, line); }
    static bool is_valid() { return true; }
    static unsigned long long block_rank() {
        return ((unsigned long long)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }
    static unsigned long long thread_rank() { return block_rank() * thread_block::size() + db_twin_here.lane; }
    static unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
    static unsigned long long size() { return num_blocks() * thread_block::size(); }
    static unsigned long long num_threads() { return size(); }
    static dim3 group_dim() { return gridDim; }
};
static inline grid_group this_grid() { return grid_group(); }

template <unsigned int N, class Parent = thread_block> class thread_block_tile {
    static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0, "a tile has a power of two of lanes, at most 32");
    static unsigned int mask() { return (N == 32 ? 0xffffffffu : (1u << (N % 32)) - 1u) << (db_twin_lane() / N * N); }

  public:
    static unsigned int thread_rank() { return db_twin_here.lane % N; }
    static constexpr unsigned int size() { return N; }
    static constexpr unsigned int num_threads() { return N; }
    static unsigned int meta_group_rank() { return db_twin_here.lane / N; }
    static unsigned int meta_group_size() { return (thread_block::size() + N - 1) / N; }
    static void sync(DB_TWIN_HERE) { __syncwarp(mask(), file, line); }
    static int any(int predicate, DB_TWIN_HERE) { return __any_sync(mask(), predicate, file, line); }
    static int all(int predicate, DB_TWIN_HERE) { return __all_sync(mask(), predicate, file, line); }
    static unsigned int ballot(int predicate, DB_TWIN_HERE) {
        return __ballot_sync(mask(), predicate, file, line) >> (db_twin_lane() / N * N);
    }
    template <class T> static T shfl(T value, int from, DB_TWIN_HERE) {
        return __shfl_sync(mask(), value, from, (int)N, file, line);
    }
    template <class T> static T shfl_up(T value, unsigned int by, DB_TWIN_HERE) {
        return __shfl_up_sync(mask(), value, by, (int)N, file, line);
    }
    template <class T> static T shfl_down(T value, unsigned int by, DB_TWIN_HERE) {
        return __shfl_down_sync(mask(), value, by, (int)N, file, line);
    }
    template <class T> static T shfl_xor(T value, int bits, DB_TWIN_HERE) {
        return __shfl_xor_sync(mask(), value, bits, (int)N, file, line);
    }
};
template <unsigned int N, class Parent> static inline thread_block_tile<N, Parent> tiled_partition(const Parent &) {
    return thread_block_tile<N, Parent>();
}

template <class Group> static inline void sync(const Group &group, DB_TWIN_HERE) { group.sync(file, line); }

} // namespace cooperative_groups

#endif /* DB_TWIN_COOPERATIVE_GROUPS_H */
