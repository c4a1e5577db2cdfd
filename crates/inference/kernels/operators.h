/*! Bodies of the models' operators, in single or half precision, with sums in single. `operators.cu` has a
 * kernel for each, a block a block; in `resident.cu` the blocks of one launch compute those of all steps.
 *
 * A value's element is found by strides: a value may be some channels of a larger one, with channels the
 * slowest or fastest axis. Structs are those of `src/launch.rs`. All pointers are to device memory. Bodies
 * wait only for their own block.
 */
#ifndef DOORBELL_OPERATORS_H
#define DOORBELL_OPERATORS_H

#ifdef DB_TWIN
#include <cuda_fp16.h>
#endif

/* Of a loop whose arrays stay in registers. */
#ifdef DB_TWIN
#define UNROLL
#define ROLLED
#else
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#endif

/* What follows an operator: numbers of `activation_words` in src/launch.rs. */
enum { ACTIVATION_NONE, ACTIVATION_CLIP, ACTIVATION_SIGMOID, ACTIVATION_HARD_SIGMOID, ACTIVATION_HARD_SWISH };

/* Alpha and beta: the bounds of a clip, the factor and offset of a hard sigmoid. */
struct activation {
    unsigned int kind;
    float alpha, beta;
};

struct window {
    unsigned int rows, columns, stride_rows, stride_columns, pad_top, pad_left, dilation_rows, dilation_columns;
};

/* An image's extents, and the distances of images, channels and pixels. */
struct extent {
    unsigned int channels, rows, columns, image, channel, pixel;
};

struct convolution {
    struct extent from, to, residual;
    struct window window;
    struct activation activation;
    unsigned int groups;
};

struct pooling {
    struct extent from, to;
    struct window window;
    /* 0: the greatest; 1: the mean of what lies in the image; 2: the mean with pads. */
    unsigned int mean;
    /* Rows and columns with the last pads. */
    unsigned int padded_rows, padded_columns;
};

struct elements {
    struct extent from, to, second;
    struct activation activation;
    /* 0: the first alone; 1: the sum; 2: the product; 3: the product with a number for each channel. */
    unsigned int operation;
};

/* A tensor of a slot, `offset` bytes behind the begin of the slot that `*index` names. A slot's tensors are
 * of single precision, channel by channel, the images one after the other. */
struct slot {
    unsigned char *base;
    const unsigned int *index;
    unsigned long long stride, offset;
};

static __device__ inline float *tensor_of(const struct slot *slot) {
    return (float *)(slot->base + *slot->index * slot->stride + slot->offset);
}

/* A number in half precision, as memory holds it. */
struct half_number {
    unsigned short bits;
};

static __device__ inline float number(float stored) { return stored; }
static __device__ inline void keep(float *to, float x) { *to = x; }
#ifdef DB_TWIN
static __device__ inline float number(struct half_number stored) { return __half2float(__ushort_as_half(stored.bits)); }
static __device__ inline void keep(struct half_number *to, float x) { to->bits = __half_as_ushort(__float2half(x)); }
#else
static __device__ inline float number(struct half_number stored) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(stored.bits));
    return x;
}
static __device__ inline void keep(struct half_number *to, float x) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
}
#endif

/* The block and thread whose share a body computes: the launch's own, or a resident block's current one. */
struct virtual_block {
    unsigned int x, y, z, thread, threads;
};

static __device__ inline unsigned int thread_of(struct virtual_block b) { return b.x * b.threads + b.thread; }

static __device__ inline size_t place_at(const struct extent *of, unsigned int image, unsigned int channel, unsigned int pixel) {
    return (size_t)image * of->image + (size_t)channel * of->channel + (size_t)pixel * of->pixel;
}

/* Where element `at` of an image lies, counted channel by channel. */
static __device__ inline size_t place_of(const struct extent *of, unsigned int image, unsigned int at) {
    unsigned int pixels = of->rows * of->columns;
    return place_at(of, image, at / pixels, at % pixels);
}

/* Which element of an image a thread takes: neighbours take neighbours in memory. */
static __device__ inline unsigned int element_of(const struct extent *of, unsigned int thread) {
    if (of->channel != 1) return thread;
    return thread % of->channels * (of->rows * of->columns) + thread / of->channels;
}

static __device__ float activate(struct activation of, float x) {
    switch (of.kind) {
    case ACTIVATION_CLIP: return fminf(fmaxf(x, of.alpha), of.beta);
    case ACTIVATION_SIGMOID: return 1.0f / (1.0f + expf(-x));
    case ACTIVATION_HARD_SIGMOID: return fminf(fmaxf(of.alpha * x + of.beta, 0.0f), 1.0f);
    case ACTIVATION_HARD_SWISH: return x * fminf(fmaxf(x / 6.0f + 0.5f, 0.0f), 1.0f);
    default: return x;
    }
}

/* Not inlined: for loops that are unrolled. */
static __device__ __noinline__ float activate_apart(struct activation of, float x) { return activate(of, x); }

/* An output's sum with bias, residual and activation. UNROLLED: the loops around it are. */
template <bool UNROLLED, typename T>
static __device__ inline float finished(float sum, unsigned int image, unsigned int output, unsigned int pixel, const float *bias,
                                        const T *residual, const struct convolution *shape) {
    if (bias) sum += bias[output];
    if (residual) sum += number(residual[place_at(&shape->residual, image, output, pixel)]);
    if (!UNROLLED || shape->activation.kind == ACTIVATION_CLIP) return activate(shape->activation, sum);
    return shape->activation.kind ? activate_apart(shape->activation, sum) : sum;
}

#define TILE 64 /* channels and pixels of a block */
#define DEPTH 16 /* of the sum, between barriers */

/* A block's outputs and pixels, each with DEPTH numbers of the sum. */
struct single_tiles {
    float left[DEPTH][TILE + 4], right[DEPTH][TILE + 4];
};

#include "tensor_cores.h"

/* Keeps what is finished. */
template <typename T>
static __device__ inline void finish(struct virtual_block b, float sum, unsigned int output, unsigned int pixel, const float *bias,
                                     const T *residual, T *to, const struct convolution *shape) {
    keep(&to[place_at(&shape->to, b.z, output, pixel)], finished<false>(sum, b.z, output, pixel, bias, residual, shape));
}

static __device__ inline void conv_tiled_of(struct virtual_block b, const float *from, const float *weights, const float *bias,
                                            const float *residual, float *to, const struct convolution *shape, union conv_tiles *tiles) {
    float (*left)[TILE + 4] = tiles->single.left, (*right)[TILE + 4] = tiles->single.right;
    const struct window w = shape->window;
    const struct extent in = shape->from;
    const unsigned int me = b.thread, pixels = shape->to.rows * shape->to.columns, of_kernel = w.rows * w.columns;
    const unsigned int depth = in.channels * of_kernel;
    const unsigned int first_pixel = b.x * TILE, first_output = b.y * TILE;
    const float *image = from + (size_t)b.z * in.image;
    /* What this thread brings: one pixel, four places of the depth; one place of the depth, four outputs. */
    const unsigned int my_pixel = first_pixel + me % TILE, my_row = my_pixel / shape->to.columns * w.stride_rows;
    const unsigned int my_column = my_pixel % shape->to.columns * w.stride_columns;
    const unsigned int across = me % 16 * 4, down = me / 16 * 4;
    float sums[4][4] = {{0}};
    for (unsigned int begin = 0; begin < depth; begin += DEPTH) {
        for (unsigned int step = 0; step < 4; step++) {
            unsigned int at = begin + me / TILE + step * 4, row = me / DEPTH + step * 16;
            float value = 0;
            if (at < depth && my_pixel < pixels) {
                unsigned int channel = at / of_kernel, in_kernel = at % of_kernel;
                unsigned int y = my_row + in_kernel / w.columns * w.dilation_rows - w.pad_top;
                unsigned int x = my_column + in_kernel % w.columns * w.dilation_columns - w.pad_left;
                /* Above and left of the image the differences wrap. */
                if (y < in.rows && x < in.columns)
                    value = image[(size_t)channel * in.channel + (size_t)(y * in.columns + x) * in.pixel];
            }
            right[me / TILE + step * 4][me % TILE] = value;
            at = begin + me % DEPTH;
            bool inside = at < depth && first_output + row < shape->to.channels;
            left[me % DEPTH][row] = inside ? weights[(size_t)(first_output + row) * depth + at] : 0.0f;
        }
        __syncthreads();
        for (unsigned int k = 0; k < DEPTH; k++)
            for (unsigned int i = 0; i < 4; i++)
                for (unsigned int j = 0; j < 4; j++) sums[i][j] += left[k][down + i] * right[k][across + j];
        __syncthreads();
    }
    for (unsigned int i = 0; i < 4; i++)
        for (unsigned int j = 0; j < 4; j++) {
            unsigned int output = first_output + down + i, pixel = first_pixel + across + j;
            if (output < shape->to.channels && pixel < pixels) finish(b, sums[i][j], output, pixel, bias, residual, to, shape);
        }
}

template <typename T>
static __device__ inline void conv_grouped_of(struct virtual_block b, const T *from, const T *weights, const float *bias,
                                              const T *residual, T *to, const struct convolution *shape) {
    const struct window w = shape->window;
    const struct extent in = shape->from;
    const unsigned int thread = thread_of(b), pixels = shape->to.rows * shape->to.columns;
    if (thread >= pixels * shape->to.channels) return;
    const unsigned int at = element_of(&shape->to, thread), output = at / pixels, pixel = at % pixels;
    const unsigned int of_group = in.channels / shape->groups;
    const unsigned int row = pixel / shape->to.columns * w.stride_rows, column = pixel % shape->to.columns * w.stride_columns;
    const unsigned int first = output / (shape->to.channels / shape->groups) * of_group;
    const T *image = from + (size_t)b.z * in.image;
    float sum = 0;
    for (unsigned int channel = 0; channel < of_group; channel++)
        for (unsigned int i = 0; i < w.rows; i++) {
            unsigned int y = row + i * w.dilation_rows - w.pad_top;
            if (y >= in.rows) continue;
            for (unsigned int j = 0; j < w.columns; j++) {
                unsigned int x = column + j * w.dilation_columns - w.pad_left;
                if (x >= in.columns) continue;
                sum += number(weights[((size_t)(output * of_group + channel) * w.rows + i) * w.columns + j]) *
                       number(image[(size_t)(first + channel) * in.channel + (size_t)(y * in.columns + x) * in.pixel]);
            }
        }
    finish(b, sum, output, pixel, bias, residual, to, shape);
}

/* Bias and residual of an output, loaded before the sum is known. Adding -0 changes no number. */
struct addends {
    float bias, residual;
};

template <typename T>
static __device__ inline struct addends addends_of(bool is_mine, unsigned int image, unsigned int output, unsigned int pixel,
                                                   const float *bias, const T *residual, const struct convolution *shape) {
    struct addends addends = {-0.0f, -0.0f};
    if (is_mine && bias) addends.bias = bias[output];
    if (is_mine && residual) addends.residual = number(residual[place_at(&shape->residual, image, output, pixel)]);
    return addends;
}

static __device__ inline float added(float sum, struct addends addends) { return sum + addends.bias + addends.residual; }

#include "pointwise.h"

#define DEPTHWISE 128 /* threads of a block of `depthwise` */
#define DEPTHWISE_SIDE 5 /* of its largest window */

/* `conv_grouped_of` for one channel a group and a window of SIDE rows and columns. A thread issues all loads
 * before it adds. `staged` has the weights of the block's threads. With channels last and not few, the block
 * loads them side by side; a thread needs all of its channel. */
template <unsigned int SIDE, typename T>
static __device__ inline void depthwise_of(struct virtual_block b, const T *from, const T *weights, const float *bias, const T *residual,
                                           T *to, const struct convolution *shape, float *staged) {
    enum { TAPS = SIDE * SIDE };
    const struct window w = shape->window;
    const struct extent in = shape->from;
    const unsigned int pixels = shape->to.rows * shape->to.columns, channels = shape->to.channels, begin = b.x * DEPTHWISE;
    /* Neighbours take neighbours in memory. */
    const bool is_last = shape->to.channel == 1;
    const unsigned int at = begin + b.thread, slow = at / (is_last ? channels : pixels), fast = at % (is_last ? channels : pixels);
    const unsigned int channel = is_last ? fast : slow, pixel = is_last ? slow : fast;
    /* With fewer channels a block would load each of them several times. */
    const bool is_staged = is_last && 2 * channels >= DEPTHWISE, inside = at < pixels * channels;
    const unsigned int row = pixel / shape->to.columns * w.stride_rows - w.pad_top;
    const unsigned int column = pixel % shape->to.columns * w.stride_columns - w.pad_left;
    const T *image = from + (size_t)b.z * in.image + (size_t)channel * in.channel;
    const struct addends addends = addends_of(inside, b.z, channel, pixel, bias, residual, shape);
    float seen[TAPS], sum = 0;
    unsigned int places[SIDE], nth, i, j;
    bool is_inside[SIDE];
    /* Above and left of the image the differences wrap. An image has fewer than 2^32 elements (`check_place`
     * in src/plan/check.rs). */
    UNROLL for (j = 0; j < SIDE; j++) {
        const unsigned int x = column + j * w.dilation_columns;
        places[j] = x * in.pixel;
        is_inside[j] = x < in.columns;
    }
    UNROLL for (i = 0; i < SIDE; i++) {
        const unsigned int y = row + i * w.dilation_rows;
        const bool sees = inside && y < in.rows;
        const T *line = image + (sees ? y * in.columns * in.pixel : 0);
        UNROLL for (j = 0; j < SIDE; j++) seen[i * SIDE + j] = sees && is_inside[j] ? number(line[places[j]]) : 0.0f;
    }
    if (is_staged) {
        const unsigned int first = begin % channels;
        UNROLL for (nth = 0; nth < TAPS; nth++) {
            const unsigned int place = nth * DEPTHWISE + b.thread;
            unsigned int of = first + place / TAPS;
            if (of >= channels) of -= channels;
            if (of >= channels) of -= channels;
            staged[place] = number(weights[of * TAPS + place % TAPS]);
        }
        __syncthreads();
    }
    if (!inside) return;
    UNROLL for (nth = 0; nth < TAPS; nth++)
        sum += seen[nth] * (is_staged ? staged[b.thread * TAPS + nth] : number(weights[channel * TAPS + nth]));
    keep(&to[place_at(&shape->to, b.z, channel, pixel)], activate(shape->activation, added(sum, addends)));
}

template <typename T>
static __device__ inline void depthwise_any_of(struct virtual_block b, const T *from, const T *weights, const float *bias,
                                               const T *residual, T *to, const struct convolution *shape, float *staged) {
    if (shape->window.rows == DEPTHWISE_SIDE)
        depthwise_of<DEPTHWISE_SIDE>(b, from, weights, bias, residual, to, shape, staged);
    else
        depthwise_of<3>(b, from, weights, bias, residual, to, shape, staged);
}

template <typename T>
static __device__ inline void conv_finish_of(struct virtual_block b, const float *bias, const T *residual, T *to,
                                             const struct convolution *shape) {
    const unsigned int thread = thread_of(b), pixels = shape->to.rows * shape->to.columns;
    if (thread >= pixels * shape->to.channels) return;
    const unsigned int at = element_of(&shape->to, thread);
    finish(b, number(to[place_of(&shape->to, b.z, at)]), at / pixels, at % pixels, bias, residual, to, shape);
}

/* Four channels of a place of the window a thread; one, where their number is no multiple of four. */
template <typename T>
static __device__ inline void im2col_of(struct virtual_block b, const T *from, T *rows, const struct convolution *shape) {
    const struct window w = shape->window;
    const struct extent in = shape->from;
    const unsigned int each = in.channels % 4 ? 1 : 4, of_place = in.channels / each, of_pixel = of_place * w.rows * w.columns;
    const unsigned int thread = thread_of(b), count = shape->to.rows * shape->to.columns * of_pixel;
    if (thread >= count) return;
    const unsigned int pixel = thread / of_pixel, place = thread % of_pixel / of_place, channel = thread % of_place * each;
    /* Above and left of the image the differences wrap. */
    const unsigned int y = pixel / shape->to.columns * w.stride_rows + place / w.columns * w.dilation_rows - w.pad_top;
    const unsigned int x = pixel % shape->to.columns * w.stride_columns + place % w.columns * w.dilation_columns - w.pad_left;
    const bool inside = y < in.rows && x < in.columns;
    const T *seen = from + (size_t)b.y * in.image + (inside ? (size_t)(y * in.columns + x) * in.pixel + channel : 0);
    T *to = rows + ((size_t)b.y * count + thread) * each;
    for (unsigned int i = 0; i < each; i++) keep(&to[i], inside ? number(seen[i]) : 0.0f);
}

template <typename T>
static __device__ inline void linear_of(struct virtual_block b, const T *from, const T *weights, const float *bias, T *to,
                                        const struct elements *shape) {
    const unsigned int output = b.x * 4 + b.thread / 32, lane = b.thread % 32, depth = shape->from.channels;
    const T *row = from + (size_t)b.y * shape->from.image;
    float sum = 0;
    if (output < shape->to.channels)
        for (unsigned int at = lane; at < depth; at += 32)
            sum += number(row[(size_t)at * shape->from.channel]) * number(weights[(size_t)output * depth + at]);
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (lane == 0 && output < shape->to.channels)
        keep(&to[place_of(&shape->to, b.y, output)], activate(shape->activation, sum + (bias ? bias[output] : 0)));
}

template <typename T>
static __device__ inline void pool_of(struct virtual_block b, const T *from, T *to, const struct pooling *shape) {
    const struct window w = shape->window;
    const struct extent in = shape->from;
    const unsigned int thread = thread_of(b), pixels = shape->to.rows * shape->to.columns;
    if (thread >= pixels * shape->to.channels) return;
    const unsigned int at = element_of(&shape->to, thread), channel = at / pixels, pixel = at % pixels;
    const unsigned int row = pixel / shape->to.columns * w.stride_rows, column = pixel % shape->to.columns * w.stride_columns;
    const T *image = from + (size_t)b.y * in.image + (size_t)channel * in.channel;
    float most = -__int_as_float(0x7f800000), sum = 0;
    unsigned int seen = 0, with_pads = 0;
    for (unsigned int i = 0; i < w.rows; i++)
        for (unsigned int j = 0; j < w.columns; j++) {
            unsigned int down = row + i * w.dilation_rows, across = column + j * w.dilation_columns;
            unsigned int y = down - w.pad_top, x = across - w.pad_left;
            with_pads += down < shape->padded_rows && across < shape->padded_columns;
            if (y >= in.rows || x >= in.columns) continue;
            float value = number(image[(size_t)(y * in.columns + x) * in.pixel]);
            most = fmaxf(most, value);
            sum += value;
            seen++;
        }
    keep(&to[place_of(&shape->to, b.y, at)], shape->mean == 0 ? most : sum / (shape->mean == 1 ? seen : with_pads));
}

#define MEAN 512 /* pixels above which all warps of a block of `mean` share a channel */
#define MEAN_WARPS 8 /* of a block */

/* `parts` has a number for each warp. */
template <typename T>
static __device__ inline void mean_of(struct virtual_block b, const T *from, T *to, const struct elements *shape, float *parts) {
    const struct extent in = shape->from;
    const unsigned int lane = b.thread % 32, warp = b.thread / 32, pixels = in.rows * in.columns;
    const bool is_shared = pixels > MEAN;
    const unsigned int channel = is_shared ? b.x : b.x * MEAN_WARPS + warp, by = is_shared ? 32 * MEAN_WARPS : 32;
    const T *image = from + (size_t)b.y * in.image + (size_t)channel * in.channel;
    float sum = 0, seen[16];
    unsigned int begin, nth;
    /* As many loads at once as there are registers for: with channels last each is of another line. */
    if (channel < in.channels)
        for (begin = is_shared ? b.thread : lane; begin < pixels; begin += by * 16) {
            UNROLL for (nth = 0; nth < 16; nth++) {
                const unsigned int at = begin + by * nth;
                seen[nth] = at < pixels ? number(image[(size_t)at * in.pixel]) : 0.0f;
            }
            UNROLL for (nth = 0; nth < 16; nth++) sum += seen[nth];
        }
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    if (is_shared) {
        if (lane == 0) parts[warp] = sum;
        __syncthreads();
        for (nth = 1; nth < MEAN_WARPS && b.thread == 0; nth++) sum += parts[nth];
        /* After this barrier a resident block may begin another virtual block, which writes `parts`. */
        __syncthreads();
    }
    if (lane == 0 && (!is_shared || warp == 0) && channel < in.channels)
        keep(&to[place_of(&shape->to, b.y, channel)], activate(shape->activation, sum / pixels));
}

#define EXCITED 8 /* channels of a block of `excite`, a warp each */
#define EXCITED_PIXELS 64

template <typename T>
static __device__ inline void excite_of(struct virtual_block b, const T *from, const T *weights, const float *bias, const T *squeezed,
                                        T *to, const struct elements *shape, float *factors) {
    enum { EACH = EXCITED * EXCITED_PIXELS / 256 };
    const unsigned int lane = b.thread % 32, warp = b.thread / 32, depth = shape->second.channels, first = b.y * EXCITED;
    const unsigned int pixels = shape->to.rows * shape->to.columns, channels = shape->to.channels;
    const T *row = squeezed + (size_t)b.z * shape->second.image;
    float values[EACH], sum = 0;
    unsigned int channel[EACH], pixel[EACH], nth;
    /* The images are on their way while the factors are computed. Neighbours take neighbours in memory. */
    UNROLL for (nth = 0; nth < EACH; nth++) {
        const unsigned int at = nth * 256 + b.thread, last = shape->to.channel == 1;
        channel[nth] = last ? at % EXCITED : at / EXCITED_PIXELS;
        pixel[nth] = b.x * EXCITED_PIXELS + (last ? at / EXCITED : at % EXCITED_PIXELS);
        if (first + channel[nth] < channels && pixel[nth] < pixels)
            values[nth] = number(from[place_at(&shape->from, b.z, first + channel[nth], pixel[nth])]);
    }
    if (first + warp < channels)
        for (unsigned int at = lane; at < depth; at += 32)
            sum += number(row[(size_t)at * shape->second.channel]) * number(weights[(size_t)(first + warp) * depth + at]);
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (lane == 0 && first + warp < channels)
        factors[warp] = activate(shape->activation, sum + (bias ? bias[first + warp] : 0));
    __syncthreads();
    UNROLL for (nth = 0; nth < EACH; nth++)
        if (first + channel[nth] < channels && pixel[nth] < pixels)
            keep(&to[place_at(&shape->to, b.z, first + channel[nth], pixel[nth])], values[nth] * factors[channel[nth]]);
    /* Behind it a resident block may begin another one. */
    __syncthreads();
}

template <typename T>
static __device__ inline void elementwise_of(struct virtual_block b, const T *from, const T *second, T *to,
                                             const struct elements *shape) {
    const unsigned int thread = thread_of(b), pixels = shape->to.rows * shape->to.columns;
    if (thread >= shape->to.channels * pixels) return;
    const unsigned int at = element_of(&shape->to, thread);
    float value = number(from[place_of(&shape->from, b.y, at)]);
    if (shape->operation) {
        float operand = number(second[place_of(&shape->second, b.y, shape->operation == 3 ? at / pixels : at)]);
        value = shape->operation == 1 ? value + operand : value * operand;
    }
    keep(&to[place_of(&shape->to, b.y, at)], activate(shape->activation, value));
}

/* Where the element of `from` lies that becomes element `at` of `to` when channels become blocks of rows and
 * columns; `operation`: the block's side. */
static __device__ inline size_t place_in_blocks(const struct elements *shape, unsigned int image, unsigned int at) {
    const struct extent of = shape->from;
    const unsigned int side = shape->operation, above = at / shape->to.columns, column = at - above * shape->to.columns;
    const unsigned int outer = above / shape->to.rows, row = above - outer * shape->to.rows;
    const unsigned int y = row / side, x = column / side;
    const unsigned int channel = (outer * side + row - y * side) * side + column - x * side;
    return (size_t)image * of.image + (size_t)channel * of.channel + (size_t)(y * of.columns + x) * of.pixel;
}

template <typename T>
static __device__ inline void depth_to_space_of(struct virtual_block b, const T *from, T *to, const struct elements *shape) {
    const unsigned int thread = thread_of(b);
    if (thread >= shape->to.channels * shape->to.rows * shape->to.columns) return;
    const unsigned int at = element_of(&shape->to, thread);
    to[place_of(&shape->to, b.y, at)] = from[place_in_blocks(shape, b.y, at)];
}

template <typename T>
static __device__ inline void load_of(struct virtual_block b, const struct slot *slot, T *to, const struct elements *shape) {
    const unsigned int at = thread_of(b), count = shape->to.channels * shape->to.rows * shape->to.columns;
    const float *from = tensor_of(slot);
    if (at < count) keep(&to[place_of(&shape->to, b.y, at)], from[(size_t)b.y * count + at]);
}

/* Elements that lie side by side in an output and that one thread stores. */
#define STORED 4

template <typename T>
static __device__ inline void store_of(struct virtual_block b, const struct slot *slot, const T *from,
                                       const struct elements *shape) {
    const unsigned int count = shape->to.channels * shape->to.rows * shape->to.columns, columns = shape->to.columns;
    const unsigned int side = shape->operation, first = STORED * thread_of(b);
    float *to = tensor_of(slot) + (size_t)b.y * count + first, values[STORED];
    unsigned int column = first % columns, within = column % side, nth;
    size_t at;
    if (first >= count) return;
    at = place_in_blocks(shape, b.y, first);
    /* A division for each element would take longer than the memory. */
    UNROLL for (nth = 0; nth < STORED; nth++) {
        if (first + nth < count) values[nth] = number(from[at]);
        if (++column == columns) {
            column = within = 0;
            at = place_in_blocks(shape, b.y, first + nth + 1);
        } else if (++within == side) {
            within = 0;
            at = at + shape->from.pixel - (size_t)(side - 1) * shape->from.channel;
        } else {
            at += shape->from.channel;
        }
    }
    if (first + STORED <= count && !((size_t)to % sizeof(float4))) {
        *(float4 *)to = make_float4(values[0], values[1], values[2], values[3]);
        return;
    }
    UNROLL for (nth = 0; nth < STORED; nth++)
        if (first + nth < count) to[nth] = values[nth];
}

#endif /* DOORBELL_OPERATORS_H */
