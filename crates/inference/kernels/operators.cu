/*! Models' operators for any GPU and the host twin: a launch a step, ending by itself. Bodies: operators.h.
 */
#include "operators.h"

static __device__ inline struct virtual_block launched(void) {
    struct virtual_block b = {blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, blockDim.x};
    return b;
}

/* Convolution as a product of matrices: weights times what each output sees. One group; `residual` and `bias`
 * may be null. Launch: 256 threads; blocks: pixels / 64 (half precision: 128), outputs / 64, images. */
extern "C" __global__ void __launch_bounds__(256) conv_tiled(const float *from, const float *weights, const float *bias,
                                                             const float *residual, float *to, struct convolution shape) {
    __shared__ union conv_tiles tiles;
    conv_tiled_of(launched(), from, weights, bias, residual, to, &shape, &tiles);
}
extern "C" __global__ void __launch_bounds__(256, 3)
    conv_tiled_half(const struct half_number *from, const struct half_number *weights, const float *bias,
                    const struct half_number *residual, struct half_number *to, struct convolution shape) {
    __shared__ union conv_tiles tiles;
    conv_tiled_of(launched(), from, weights, bias, residual, to, &shape, &tiles);
}

/* The same for the model's input in its slot, with at most HALF_DEPTH terms. Launch: as conv_tiled_half. */
extern "C" __global__ void __launch_bounds__(256, 3)
    conv_load_half(struct slot slot, const struct half_number *weights, const float *bias, const struct half_number *residual,
                   struct half_number *to, struct convolution shape) {
    __shared__ union conv_tiles tiles;
    conv_load_of(launched(), &slot, weights, bias, residual, to, &shape, &tiles);
}

/* Convolution in groups, an output a thread. Launch: 128 threads; blocks: image elements / 128, 1, images. */
extern "C" __global__ void __launch_bounds__(128) conv_grouped(const float *from, const float *weights, const float *bias,
                                                               const float *residual, float *to, struct convolution shape) {
    conv_grouped_of(launched(), from, weights, bias, residual, to, &shape);
}
extern "C" __global__ void __launch_bounds__(128)
    conv_grouped_half(const struct half_number *from, const struct half_number *weights, const float *bias,
                      const struct half_number *residual, struct half_number *to, struct convolution shape) {
    conv_grouped_of(launched(), from, weights, bias, residual, to, &shape);
}

/* Convolution with one channel a group and a window of 3 or 5 rows and columns. Launch: as `conv_grouped`. */
extern "C" __global__ void __launch_bounds__(DEPTHWISE) depthwise(const float *from, const float *weights, const float *bias,
                                                                  const float *residual, float *to, struct convolution shape) {
    __shared__ float staged[DEPTHWISE * DEPTHWISE_SIDE * DEPTHWISE_SIDE];
    depthwise_any_of(launched(), from, weights, bias, residual, to, &shape, staged);
}
extern "C" __global__ void __launch_bounds__(DEPTHWISE)
    depthwise_half(const struct half_number *from, const struct half_number *weights, const float *bias,
                   const struct half_number *residual, struct half_number *to, struct convolution shape) {
    __shared__ float staged[DEPTHWISE * DEPTHWISE_SIDE * DEPTHWISE_SIDE];
    depthwise_any_of(launched(), from, weights, bias, residual, to, &shape, staged);
}

/* A 1x1 convolution of one group, whose output n sees pixel n. Channels are last and a multiple of four.
 * `from`, its images, its pixels and `weights` begin at multiples of four numbers. `residual` and `bias` may
 * be null. Launch: 32 * POINTWISE_WARPS threads; blocks: pixels / POINTWISE, outputs / POINTWISE /
 * POINTWISE_WARPS * the warps of a sum, images. */
extern "C" __global__ void __launch_bounds__(32 * POINTWISE_WARPS) pointwise(const float *from, const float *weights, const float *bias,
                                                            const float *residual, float *to, struct convolution shape) {
    __shared__ float parts[POINTWISE_WARPS * POINTWISE * POINTWISE];
    pointwise_of(launched(), from, weights, bias, residual, to, &shape, parts);
}
extern "C" __global__ void __launch_bounds__(32 * POINTWISE_WARPS)
    pointwise_half(const struct half_number *from, const struct half_number *weights, const float *bias,
                   const struct half_number *residual, struct half_number *to, struct convolution shape) {
    __shared__ float parts[POINTWISE_WARPS * POINTWISE * POINTWISE];
    pointwise_of(launched(), from, weights, bias, residual, to, &shape, parts);
}

/* Adds bias and residual to a library's convolution in `to`, and activates. Launch: as `conv_grouped`. */
extern "C" __global__ void __launch_bounds__(128) conv_finish(const float *bias, const float *residual, float *to,
                                                              struct convolution shape) {
    conv_finish_of(launched(), bias, residual, to, &shape);
}
extern "C" __global__ void __launch_bounds__(128)
    conv_finish_half(const float *bias, const struct half_number *residual, struct half_number *to, struct convolution shape) {
    conv_finish_of(launched(), bias, residual, to, &shape);
}

/* What each output of a convolution sees, a row a pixel: its window by rows, columns and channels, zeros for
 * pads. Channels are last; one group. Launch: 256 threads; blocks: fours of a row's elements times pixels /
 * 256 (elements where the channels are no multiple of four), images. */
extern "C" __global__ void __launch_bounds__(256) im2col(const float *from, float *rows, struct convolution shape) {
    im2col_of(launched(), from, rows, &shape);
}
extern "C" __global__ void __launch_bounds__(256) im2col_half(const struct half_number *from, struct half_number *rows,
                                                              struct convolution shape) {
    im2col_of(launched(), from, rows, &shape);
}

/* Rows times the weights' transpose, a warp an output. `channels` of `from` and `to` are their columns.
 * Launch: 128 threads; blocks: outputs / 4, rows. */
extern "C" __global__ void __launch_bounds__(128) linear(const float *from, const float *weights, const float *bias, float *to,
                                                         struct elements shape) {
    linear_of(launched(), from, weights, bias, to, &shape);
}
extern "C" __global__ void __launch_bounds__(128) linear_half(const struct half_number *from, const struct half_number *weights,
                                                              const float *bias, struct half_number *to, struct elements shape) {
    linear_of(launched(), from, weights, bias, to, &shape);
}

/* Greatest or mean of a window, one a thread. Launch: 256 threads; blocks: image elements / 256, images. */
extern "C" __global__ void __launch_bounds__(256) pool(const float *from, float *to, struct pooling shape) {
    pool_of(launched(), from, to, &shape);
}
extern "C" __global__ void __launch_bounds__(256) pool_half(const struct half_number *from, struct half_number *to,
                                                            struct pooling shape) {
    pool_of(launched(), from, to, &shape);
}

/* The mean of each channel. Launch: 32 * MEAN_WARPS threads; blocks: channels / MEAN_WARPS (channels where an
 * image has more than MEAN pixels), images. */
extern "C" __global__ void __launch_bounds__(32 * MEAN_WARPS) mean(const float *from, float *to, struct elements shape) {
    __shared__ float parts[MEAN_WARPS];
    mean_of(launched(), from, to, &shape, parts);
}
extern "C" __global__ void __launch_bounds__(32 * MEAN_WARPS) mean_half(const struct half_number *from, struct half_number *to,
                                                            struct elements shape) {
    __shared__ float parts[MEAN_WARPS];
    mean_of(launched(), from, to, &shape, parts);
}

/* Images times the activation of weights times `squeezed`, a number for each channel. Launch: 256 threads;
 * blocks: pixels / EXCITED_PIXELS, channels / EXCITED, images. */
extern "C" __global__ void __launch_bounds__(256) excite(const float *from, const float *weights, const float *bias,
                                                         const float *squeezed, float *to, struct elements shape) {
    __shared__ float factors[EXCITED];
    excite_of(launched(), from, weights, bias, squeezed, to, &shape, factors);
}
extern "C" __global__ void __launch_bounds__(256)
    excite_half(const struct half_number *from, const struct half_number *weights, const float *bias,
                const struct half_number *squeezed, struct half_number *to, struct elements shape) {
    __shared__ float factors[EXCITED];
    excite_of(launched(), from, weights, bias, squeezed, to, &shape, factors);
}

/* Sum, product, activation, copy: one a thread. Launch: 256 threads; blocks: image elements / 256, images. */
extern "C" __global__ void __launch_bounds__(256) elementwise(const float *from, const float *second, float *to,
                                                              struct elements shape) {
    elementwise_of(launched(), from, second, to, &shape);
}
extern "C" __global__ void __launch_bounds__(256) elementwise_half(const struct half_number *from, const struct half_number *second,
                                                                   struct half_number *to, struct elements shape) {
    elementwise_of(launched(), from, second, to, &shape);
}

/* Channels become blocks of rows and columns, an output a thread. Launch: as `elementwise`. */
extern "C" __global__ void __launch_bounds__(256) depth_to_space(const float *from, float *to, struct elements shape) {
    depth_to_space_of(launched(), from, to, &shape);
}
extern "C" __global__ void __launch_bounds__(256) depth_to_space_half(const struct half_number *from, struct half_number *to,
                                                                      struct elements shape) {
    depth_to_space_of(launched(), from, to, &shape);
}

/* The model's input, from its slot. Launch: as `elementwise`. */
extern "C" __global__ void __launch_bounds__(256) load(struct slot slot, float *to, struct elements shape) {
    load_of(launched(), &slot, to, &shape);
}
extern "C" __global__ void __launch_bounds__(256) load_half(struct slot slot, struct half_number *to, struct elements shape) {
    load_of(launched(), &slot, to, &shape);
}

/* The model's output, to its slot; channels become blocks where the side is above 1. STORED elements a
 * thread. Launch: 256 threads; blocks: elements of an image / 256 / STORED, images. */
extern "C" __global__ void __launch_bounds__(256) store(struct slot slot, const float *from, struct elements shape) {
    store_of(launched(), &slot, from, &shape);
}
extern "C" __global__ void __launch_bounds__(256) store_half(struct slot slot, const struct half_number *from,
                                                             struct elements shape) {
    store_of(launched(), &slot, from, &shape);
}

/* A number between -1 and 1 that depends on its place alone. */
static __device__ inline float noise_at(unsigned int at) {
    at = (at ^ at >> 16) * 0x7feb352du;
    at = (at ^ at >> 15) * 0x846ca68bu;
    return (float)((at ^ at >> 16) >> 8) / 8388608.0f - 1.0f;
}

/* Fills memory with numbers between -1 and 1. Launch: 256 threads, any number of blocks. */
extern "C" __global__ void __launch_bounds__(256) noise(float *to, unsigned long long count) {
    for (unsigned long long at = blockIdx.x * 256ull + threadIdx.x; at < count; at += gridDim.x * 256ull)
        keep(&to[at], noise_at((unsigned int)at));
}
extern "C" __global__ void __launch_bounds__(256) noise_half(struct half_number *to, unsigned long long count) {
    for (unsigned long long at = blockIdx.x * 256ull + threadIdx.x; at < count; at += gridDim.x * 256ull)
        keep(&to[at], noise_at((unsigned int)at));
}

template <typename T>
static __device__ inline void compare_of(const T *found, const T *wanted, float *sums, const struct extent *shape, unsigned int images) {
    const unsigned int of_image = shape->channels * shape->rows * shape->columns, thread = blockIdx.x * 256 + threadIdx.x;
    float most = 0, apart = 0, norm = 0;
    for (unsigned int image = 0; image < images; image++)
        for (unsigned int at = thread; at < of_image; at += gridDim.x * 256) {
            const size_t place = place_of(shape, image, at);
            const float one = number(found[place]), two = number(wanted[place]), difference = fabsf(one - two);
            /* A difference that is no number stays. */
            if (most == most && !(difference <= most)) most = difference;
            apart += difference * difference;
            norm += two * two;
        }
    sums[thread * 3] = most;
    sums[thread * 3 + 1] = apart;
    sums[thread * 3 + 2] = norm;
}

/* Three numbers a thread: the largest difference of values at the same place, the sum of the squared
 * differences, and that of `wanted`'s squares. Launch: 256 threads, any number of blocks. */
extern "C" __global__ void __launch_bounds__(256) compare(const float *found, const float *wanted, float *sums, struct extent shape,
                                                          unsigned int images) {
    compare_of(found, wanted, sums, &shape, images);
}
extern "C" __global__ void __launch_bounds__(256) compare_half(const struct half_number *found, const struct half_number *wanted,
                                                               float *sums, struct extent shape, unsigned int images) {
    compare_of(found, wanted, sums, &shape, images);
}
