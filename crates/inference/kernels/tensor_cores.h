/*! Half-precision convolution by tensor cores: weights times what each output sees; single-precision sums.
 *
 * A block computes 128 pixels of 64 outputs at most, a warp 16 of the pixels. A sum's terms are in the
 * window's order: rows, columns, channels. Without `mma` (before sm_80; twin) lanes exchange what it reads.
 */
#ifndef DOORBELL_TENSOR_CORES_H
#define DOORBELL_TENSOR_CORES_H

#define HALF_PIXELS 128 /* of a block: `HALF_PIXELS` of src/launch.rs */
#define HALF_OUTPUTS 64
#define HALF_DEPTH 32 /* of the sum, between barriers */
#define HALF_PAIRS (HALF_DEPTH / 2 + 4) /* of a row in shared memory: eight rows begin in different banks */

/* A block's pixels and outputs, each with HALF_DEPTH numbers of the sum, as pairs. */
struct alignas(16) half_tiles {
    unsigned int pixels[HALF_PIXELS][HALF_PAIRS];
    unsigned int outputs[HALF_OUTPUTS][HALF_PAIRS];
};

/* What a block of either precision has in shared memory. */
union conv_tiles {
    struct single_tiles single;
    struct half_tiles half;
};

static __device__ inline unsigned int pair_of(float first, float second) {
    struct half_number low, high;
    keep(&low, first);
    keep(&high, second);
    return (unsigned int)high.bits << 16 | low.bits;
}

static __device__ inline float product_of_pairs(unsigned int one, unsigned int two) {
    const struct half_number low[2] = {{(unsigned short)one}, {(unsigned short)two}};
    const struct half_number high[2] = {{(unsigned short)(one >> 16)}, {(unsigned short)(two >> 16)}};
    return number(low[0]) * number(low[1]) + number(high[0]) * number(high[1]);
}

/* Adds 16 numbers of each of 16 pixels times those of 8 outputs; all lanes of a warp call it. Fragments as in
 * the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". */
static __device__ inline void multiply_add(float *sums, const unsigned int *pixels, const unsigned int *outputs) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(pixels[0]), "r"(pixels[1]), "r"(pixels[2]), "r"(pixels[3]), "r"(outputs[0]), "r"(outputs[1]));
#else
    const unsigned int lane = threadIdx.x % 32;
    for (unsigned int pair = 0; pair < 8; pair++) {
        const unsigned int from = lane / 4 * 4 + pair % 4;
        const unsigned int upper = __shfl_sync(0xffffffffu, pixels[pair / 4 * 2], (int)from);
        const unsigned int lower = __shfl_sync(0xffffffffu, pixels[pair / 4 * 2 + 1], (int)from);
        for (unsigned int column = 0; column < 2; column++) {
            const unsigned int other = __shfl_sync(0xffffffffu, outputs[pair / 4], (int)((lane % 4 * 2 + column) * 4 + pair % 4));
            sums[column] += product_of_pairs(upper, other);
            sums[2 + column] += product_of_pairs(lower, other);
        }
    }
#endif
}

/* Whether eight numbers that begin at a multiple of eight lie together in memory, for one load or store. */
static __device__ inline bool in_eights(const struct half_number *at, const struct extent *of) {
    return of->channel == 1 && (of->channels | of->pixel | of->image) % 8 == 0 && (size_t)at % 16 == 0;
}

/* A term of the sum: a channel of a place of the window. */
struct term {
    unsigned int row, column, channel;
};

static __device__ inline struct term term_of(const struct convolution *shape, unsigned int at) {
    const unsigned int place = at / shape->from.channels, row = place / shape->window.columns;
    struct term term = {row, place - row * shape->window.columns, at - place * shape->from.channels};
    return term;
}

static __device__ inline void next_term(const struct convolution *shape, struct term *term) {
    if (++term->channel < shape->from.channels) return;
    term->channel = 0;
    if (++term->column < shape->window.columns) return;
    term->column = 0;
    term->row++;
}

/* Eight terms, from `at` on, of the sum for an output whose window begins there; zeros for pads and behind
 * the last term. A row and column above and left of the image wrap. */
static __device__ inline uint4 seen_eight(const struct half_number *image, const struct convolution *shape, unsigned int row,
                                          unsigned int column, unsigned int at, bool eights) {
    const struct window w = shape->window;
    const struct extent in = shape->from;
    const unsigned int depth = in.channels * w.rows * w.columns;
    struct term term = term_of(shape, at);
    if (eights) {
        const unsigned int y = row + term.row * w.dilation_rows, x = column + term.column * w.dilation_columns;
        if (at >= depth || y >= in.rows || x >= in.columns) return make_uint4(0, 0, 0, 0);
        return *(const uint4 *)(image + (size_t)(y * in.columns + x) * in.pixel + term.channel);
    }
    unsigned int pairs[4] = {0};
    UNROLL
    for (unsigned int i = 0; i < 8; i++, next_term(shape, &term)) {
        const unsigned int y = row + term.row * w.dilation_rows, x = column + term.column * w.dilation_columns;
        if (at + i >= depth || y >= in.rows || x >= in.columns) continue;
        const size_t place = (size_t)(y * in.columns + x) * in.pixel + (size_t)term.channel * in.channel;
        pairs[i / 2] |= (unsigned int)image[place].bits << i % 2 * 16;
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/* The weights of those terms. */
static __device__ inline uint4 weights_eight(const struct half_number *weights, const struct convolution *shape, unsigned int output,
                                             unsigned int at) {
    const unsigned int of_kernel = shape->window.rows * shape->window.columns, depth = shape->from.channels * of_kernel;
    unsigned int pairs[4] = {0};
    struct term term = term_of(shape, at);
    UNROLL
    for (unsigned int i = 0; i < 8; i++, next_term(shape, &term)) {
        if (at + i >= depth || output >= shape->to.channels) continue;
        const unsigned int place = term.row * shape->window.columns + term.column;
        const struct half_number weight = weights[((size_t)output * shape->from.channels + term.channel) * of_kernel + place];
        pairs[i / 2] |= (unsigned int)weight.bits << i % 2 * 16;
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/* Finishes a pixel's sums `FIRST` and the next of each eight, which are of 2 * EIGHTS outputs from `output`
 * on, and keeps the results. */
template <unsigned int EIGHTS, unsigned int FIRST>
static __device__ inline void finish_pixel(const float (*sums)[4], unsigned int output, unsigned int image,
                                           unsigned int pixel, const float *bias, const struct half_number *residual,
                                           struct half_number *to, const struct convolution *shape) {
    const struct extent out = shape->to;
    struct half_number *at = to + place_at(&out, image, output, pixel);
    unsigned int pairs[EIGHTS];
    UNROLL
    for (unsigned int i = 0; i < EIGHTS; i++) {
        float both[2];
        UNROLL
        for (unsigned int j = 0; j < 2; j++) {
            const unsigned int mine = output + 2 * i + j;
            /* An output that does not exist is not kept. Without a branch here the loads lie side by side. */
            both[j] = finished<true>(sums[i][FIRST + j], image, mine < out.channels ? mine : 0, pixel, bias, residual, shape);
        }
        pairs[i] = pair_of(both[0], both[1]);
    }
    if (EIGHTS % 4 == 0 && output + 2 * EIGHTS <= out.channels && in_eights(to, &out)) {
        UNROLL
        for (unsigned int i = 0; i < EIGHTS; i += 4)
            ((uint4 *)at)[i / 4] = make_uint4(pairs[i], pairs[i + 1], pairs[i + 2], pairs[i + 3]);
        return;
    }
    UNROLL
    for (unsigned int i = 0; i < 2 * EIGHTS && output + i < out.channels; i++)
        at[(size_t)i * out.channel].bits = (unsigned short)(pairs[i / 2] >> i % 2 * 16);
}

/* The row of an output in shared memory. Which two outputs of each eight a lane of `mma` has is free: they
 * are neighbours, so that a lane writes 2 * EIGHTS of them together. */
template <unsigned int EIGHTS> static __device__ inline unsigned int row_of(unsigned int output) {
    return output % (2 * EIGHTS) / 2 * 8 + output / (2 * EIGHTS) * 2 + output % 2;
}

/* A block of 8 * EIGHTS outputs. */
template <unsigned int EIGHTS>
static __device__ inline void conv_half_of(struct virtual_block b, const struct half_number *from, const struct half_number *weights,
                                           const float *bias, const struct half_number *residual, struct half_number *to,
                                           const struct convolution *shape, struct half_tiles *tiles) {
    const struct window w = shape->window;
    const unsigned int pixels = shape->to.rows * shape->to.columns, depth = shape->from.channels * w.rows * w.columns;
    const unsigned int first_pixel = b.x * HALF_PIXELS, first_output = b.y * HALF_OUTPUTS;
    const unsigned int warp = b.thread / 32, group = b.thread % 32 / 4, of_group = b.thread % 4;
    const struct half_number *image = from + (size_t)b.z * shape->from.image;
    const bool eights = in_eights(from, &shape->from);
    /* What this thread brings: eight terms of two pixels and of an output. */
    const unsigned int mine = b.thread / 4;
    unsigned int rows[2], columns[2];
    UNROLL
    for (unsigned int i = 0; i < 2; i++) {
        const unsigned int pixel = first_pixel + mine + i * HALF_PIXELS / 2, row = pixel / shape->to.columns;
        /* Behind the last pixel nothing is seen. */
        rows[i] = pixel < pixels ? row * w.stride_rows - w.pad_top : 0x80000000u;
        columns[i] = (pixel - row * shape->to.columns) * w.stride_columns - w.pad_left;
    }
    float sums[EIGHTS][4] = {{0}};
    uint4 seen[2], taken = make_uint4(0, 0, 0, 0);
    ROLLED
    for (unsigned int begin = 0; begin < depth + HALF_DEPTH; begin += HALF_DEPTH) {
        /* Loads of the next terms go on while those before are multiplied. */
        const unsigned int at = begin + of_group * 8;
        if (begin < depth) {
            UNROLL
            for (unsigned int i = 0; i < 2; i++) seen[i] = seen_eight(image, shape, rows[i], columns[i], at, eights);
            if (mine < 8 * EIGHTS) taken = weights_eight(weights, shape, first_output + mine, at);
        }
        if (begin)
            for (unsigned int k = of_group; k < HALF_DEPTH / 2; k += 8) {
                const unsigned int pixel = warp * 16 + group;
                const unsigned int a[4] = {tiles->pixels[pixel][k], tiles->pixels[pixel + 8][k], tiles->pixels[pixel][k + 4],
                                           tiles->pixels[pixel + 8][k + 4]};
                UNROLL
                for (unsigned int i = 0; i < EIGHTS; i++) {
                    const unsigned int two[2] = {tiles->outputs[i * 8 + group][k], tiles->outputs[i * 8 + group][k + 4]};
                    multiply_add(sums[i], a, two);
                }
            }
        __syncthreads();
        UNROLL
        for (unsigned int i = 0; i < 2; i++) *(uint4 *)&tiles->pixels[mine + i * HALF_PIXELS / 2][of_group * 4] = seen[i];
        if (mine < 8 * EIGHTS) *(uint4 *)&tiles->outputs[row_of<EIGHTS>(mine)][of_group * 4] = taken;
        __syncthreads();
    }
    const unsigned int pixel = first_pixel + warp * 16 + group, output = first_output + of_group * 2 * EIGHTS;
    if (pixel < pixels) finish_pixel<EIGHTS, 0>(sums, output, b.z, pixel, bias, residual, to, shape);
    if (pixel + 8 < pixels) finish_pixel<EIGHTS, 2>(sums, output, b.z, pixel + 8, bias, residual, to, shape);
}

static __device__ inline void conv_tiled_of(struct virtual_block b, const struct half_number *from, const struct half_number *weights,
                                            const float *bias, const struct half_number *residual, struct half_number *to,
                                            const struct convolution *shape, union conv_tiles *tiles) {
    if (shape->to.channels - b.y * HALF_OUTPUTS <= 16)
        conv_half_of<2>(b, from, weights, bias, residual, to, shape, &tiles->half);
    else
        conv_half_of<8>(b, from, weights, bias, residual, to, shape, &tiles->half);
}

/* A block of 8 * EIGHTS outputs, of an image in single precision, channel by channel. The sum has HALF_DEPTH
 * terms at most, in the window's order channels, rows, columns. */
template <unsigned int EIGHTS>
static __device__ inline void conv_image_of(struct virtual_block b, const float *image, const struct half_number *weights,
                                            const float *bias, const struct half_number *residual, struct half_number *to,
                                            const struct convolution *shape, struct half_tiles *tiles) {
    const struct window w = shape->window;
    const struct extent in = shape->from;
    const unsigned int of_kernel = w.rows * w.columns, depth = in.channels * of_kernel, pixels = shape->to.rows * shape->to.columns;
    const unsigned int group = b.thread % 32 / 4, of_group = b.thread % 4, first_output = b.y * HALF_OUTPUTS;
    for (unsigned int i = b.thread; i < 8 * EIGHTS * HALF_DEPTH / 2; i += b.threads) {
        const unsigned int mine = i / (HALF_DEPTH / 2), pair = i % (HALF_DEPTH / 2);
        const struct half_number *of_output = weights + (size_t)(first_output + mine) * depth;
        unsigned int both = 0;
        if (first_output + mine < shape->to.channels) {
            if (2 * pair < depth) both = of_output[2 * pair].bits;
            if (2 * pair + 1 < depth) both |= (unsigned int)of_output[2 * pair + 1].bits << 16;
        }
        tiles->outputs[row_of<EIGHTS>(mine)][pair] = both;
    }
    /* Each term's rows, columns, elements from a window's first; one after the last is outside the image. */
    if (b.thread < HALF_DEPTH) {
        const unsigned int channel = b.thread / of_kernel, place = b.thread - channel * of_kernel, row = place / w.columns;
        const unsigned int down = row * w.dilation_rows, across = (place - row * w.columns) * w.dilation_columns;
        *(uint4 *)tiles->pixels[b.thread] = make_uint4(b.thread < depth ? down : 0x80000000u, across,
                                                       channel * in.channel + down * in.columns + across, 0);
    }
    const unsigned int pixel = b.x * HALF_PIXELS + b.thread / 32 * 16 + group;
    unsigned int rows[2], columns[2];
    UNROLL
    for (unsigned int i = 0; i < 2; i++) {
        /* Of one behind the last pixel nothing is kept. */
        const unsigned int seen = pixel + 8 * i < pixels ? pixel + 8 * i : 0, row = seen / shape->to.columns;
        /* Above and left of the image the differences wrap. */
        rows[i] = row * w.stride_rows - w.pad_top;
        columns[i] = (seen - row * shape->to.columns) * w.stride_columns - w.pad_left;
    }
    __syncthreads();
    unsigned int seen[2][4];
    UNROLL
    for (unsigned int quarter = 0; quarter < 4; quarter++) {
        float both[2][2];
        UNROLL
        for (unsigned int j = 0; j < 2; j++) {
            const uint4 term = *(const uint4 *)tiles->pixels[(of_group + 4 * quarter) * 2 + j];
            UNROLL
            for (unsigned int i = 0; i < 2; i++) {
                const bool inside = rows[i] + term.x < in.rows && columns[i] + term.y < in.columns;
                both[i][j] = inside ? image[rows[i] * in.columns + columns[i] + term.z] : 0.0f;
            }
        }
        UNROLL
        for (unsigned int i = 0; i < 2; i++) seen[quarter / 2][quarter % 2 * 2 + i] = pair_of(both[i][0], both[i][1]);
    }
    float sums[EIGHTS][4] = {{0}};
    UNROLL
    for (unsigned int k = 0; k < 2; k++)
        UNROLL
        for (unsigned int i = 0; i < EIGHTS; i++) {
            const unsigned int *row = &tiles->outputs[i * 8 + group][k * 8 + of_group];
            const unsigned int two[2] = {row[0], row[4]};
            multiply_add(sums[i], seen[k], two);
        }
    /* A resident block fills the tiles anew. */
    __syncthreads();
    const unsigned int output = first_output + of_group * 2 * EIGHTS;
    if (pixel < pixels) finish_pixel<EIGHTS, 0>(sums, output, b.z, pixel, bias, residual, to, shape);
    if (pixel + 8 < pixels) finish_pixel<EIGHTS, 2>(sums, output, b.z, pixel + 8, bias, residual, to, shape);
}

static __device__ inline void conv_load_of(struct virtual_block b, const struct slot *slot, const struct half_number *weights,
                                           const float *bias, const struct half_number *residual, struct half_number *to,
                                           const struct convolution *shape, union conv_tiles *tiles) {
    const float *image = tensor_of(slot) + (size_t)b.z * shape->from.image;
    if (shape->to.channels - b.y * HALF_OUTPUTS <= 16)
        conv_image_of<2>(b, image, weights, bias, residual, to, shape, &tiles->half);
    else
        conv_image_of<8>(b, image, weights, bias, residual, to, shape, &tiles->half);
}

#endif /* DOORBELL_TENSOR_CORES_H */
