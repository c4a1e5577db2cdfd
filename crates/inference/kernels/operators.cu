/*! Operators of models, in single precision, for any GPU and for the host twin.
 *
 * Images lie channel by channel, rows first. A value's images are `stride` elements apart, so that a value may be some channels of a
 * larger one. Structs are those of `src/launch.rs`. All pointers lead to device memory; launches end by themselves.
 */

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

/* Channels, rows and columns of one image. */
struct extent {
    unsigned int channels, rows, columns, stride;
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

static __device__ float activate(struct activation of, float x) {
    switch (of.kind) {
    case ACTIVATION_CLIP: return fminf(fmaxf(x, of.alpha), of.beta);
    case ACTIVATION_SIGMOID: return 1.0f / (1.0f + expf(-x));
    case ACTIVATION_HARD_SIGMOID: return fminf(fmaxf(of.alpha * x + of.beta, 0.0f), 1.0f);
    case ACTIVATION_HARD_SWISH: return x * fminf(fmaxf(x / 6.0f + 0.5f, 0.0f), 1.0f);
    default: return x;
    }
}

#define TILE 64 /* channels and pixels of a block */
#define DEPTH 16 /* of the sum, between barriers */

/* Convolution as a product of matrices: weights times the pixels that each output sees. `residual` and `bias` may be null. For one
 * group. Launch: 256 threads; blocks: pixels / 64, outputs / 64, images. */
extern "C" __global__ void __launch_bounds__(256) conv_tiled(const float *from, const float *weights, const float *bias,
                                                             const float *residual, float *to, struct convolution shape) {
    __shared__ float left[DEPTH][TILE + 4];
    __shared__ float right[DEPTH][TILE + 4];
    const struct window w = shape.window;
    const unsigned int me = threadIdx.x, pixels = shape.to.rows * shape.to.columns, of_kernel = w.rows * w.columns;
    const unsigned int depth = shape.from.channels * of_kernel;
    const unsigned int first_pixel = blockIdx.x * TILE, first_output = blockIdx.y * TILE;
    const float *image = from + (size_t)blockIdx.z * shape.from.stride;
    /* What this thread brings: one pixel, four places of the depth; one place of the depth, four outputs. */
    const unsigned int my_pixel = first_pixel + me % TILE, my_row = my_pixel / shape.to.columns * w.stride_rows;
    const unsigned int my_column = my_pixel % shape.to.columns * w.stride_columns;
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
                if (y < shape.from.rows && x < shape.from.columns)
                    value = image[((size_t)channel * shape.from.rows + y) * shape.from.columns + x];
            }
            right[me / TILE + step * 4][me % TILE] = value;
            at = begin + me % DEPTH;
            value = at < depth && first_output + row < shape.to.channels ? weights[(size_t)(first_output + row) * depth + at] : 0;
            left[me % DEPTH][row] = value;
        }
        __syncthreads();
        for (unsigned int k = 0; k < DEPTH; k++)
            for (unsigned int i = 0; i < 4; i++)
                for (unsigned int j = 0; j < 4; j++) sums[i][j] += left[k][down + i] * right[k][across + j];
        __syncthreads();
    }
    for (unsigned int i = 0; i < 4; i++) {
        unsigned int output = first_output + down + i;
        for (unsigned int j = 0; j < 4; j++) {
            unsigned int pixel = first_pixel + across + j;
            if (output >= shape.to.channels || pixel >= pixels) continue;
            size_t place = (size_t)output * pixels + pixel;
            float sum = sums[i][j] + (bias ? bias[output] : 0);
            if (residual) sum += residual[(size_t)blockIdx.z * shape.residual.stride + place];
            to[(size_t)blockIdx.z * shape.to.stride + place] = activate(shape.activation, sum);
        }
    }
}

/* Convolution in groups, one output a thread. Launch: 128 threads; blocks: pixels / 128, outputs, images. */
extern "C" __global__ void __launch_bounds__(128) conv_grouped(const float *from, const float *weights, const float *bias,
                                                               const float *residual, float *to, struct convolution shape) {
    const struct window w = shape.window;
    const unsigned int pixel = blockIdx.x * blockDim.x + threadIdx.x, pixels = shape.to.rows * shape.to.columns;
    const unsigned int output = blockIdx.y, of_group = shape.from.channels / shape.groups;
    if (pixel >= pixels) return;
    const unsigned int row = pixel / shape.to.columns * w.stride_rows, column = pixel % shape.to.columns * w.stride_columns;
    const unsigned int first = output / (shape.to.channels / shape.groups) * of_group;
    const float *image = from + (size_t)blockIdx.z * shape.from.stride;
    float sum = bias ? bias[output] : 0;
    for (unsigned int channel = 0; channel < of_group; channel++)
        for (unsigned int i = 0; i < w.rows; i++) {
            unsigned int y = row + i * w.dilation_rows - w.pad_top;
            if (y >= shape.from.rows) continue;
            for (unsigned int j = 0; j < w.columns; j++) {
                unsigned int x = column + j * w.dilation_columns - w.pad_left;
                if (x >= shape.from.columns) continue;
                sum += weights[((size_t)(output * of_group + channel) * w.rows + i) * w.columns + j] *
                       image[((size_t)(first + channel) * shape.from.rows + y) * shape.from.columns + x];
            }
        }
    size_t place = (size_t)output * pixels + pixel;
    if (residual) sum += residual[(size_t)blockIdx.z * shape.residual.stride + place];
    to[(size_t)blockIdx.z * shape.to.stride + place] = activate(shape.activation, sum);
}

/* Rows times the weights' transpose, a warp an output. `channels` of `from` and `to` are their columns.
 * Launch: 128 threads; blocks: outputs / 4, rows. */
extern "C" __global__ void __launch_bounds__(128) linear(const float *from, const float *weights, const float *bias, float *to,
                                                         struct elements shape) {
    const unsigned int output = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32, depth = shape.from.channels;
    const float *row = from + (size_t)blockIdx.y * shape.from.stride;
    float sum = 0;
    if (output < shape.to.channels)
        for (unsigned int at = lane; at < depth; at += 32) sum += row[at] * weights[(size_t)output * depth + at];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (lane == 0 && output < shape.to.channels)
        to[(size_t)blockIdx.y * shape.to.stride + output] = activate(shape.activation, sum + (bias ? bias[output] : 0));
}

/* The greatest or the mean of a window, one output a thread. Launch: 128 threads; blocks: pixels / 128, channels, images. */
extern "C" __global__ void __launch_bounds__(128) pool(const float *from, float *to, struct pooling shape) {
    const struct window w = shape.window;
    const unsigned int pixel = blockIdx.x * blockDim.x + threadIdx.x, pixels = shape.to.rows * shape.to.columns;
    if (pixel >= pixels) return;
    const unsigned int row = pixel / shape.to.columns * w.stride_rows, column = pixel % shape.to.columns * w.stride_columns;
    const float *image = from + (size_t)blockIdx.z * shape.from.stride +
                         (size_t)blockIdx.y * shape.from.rows * shape.from.columns;
    float most = -__int_as_float(0x7f800000), sum = 0;
    unsigned int seen = 0, with_pads = 0;
    for (unsigned int i = 0; i < w.rows; i++)
        for (unsigned int j = 0; j < w.columns; j++) {
            unsigned int down = row + i * w.dilation_rows, across = column + j * w.dilation_columns;
            unsigned int y = down - w.pad_top, x = across - w.pad_left;
            with_pads += down < shape.padded_rows && across < shape.padded_columns;
            if (y >= shape.from.rows || x >= shape.from.columns) continue;
            float value = image[(size_t)y * shape.from.columns + x];
            most = fmaxf(most, value);
            sum += value;
            seen++;
        }
    float result = shape.mean == 0 ? most : sum / (shape.mean == 1 ? seen : with_pads);
    to[(size_t)blockIdx.z * shape.to.stride + (size_t)blockIdx.y * pixels + pixel] = result;
}

/* The mean of each channel, a warp a channel. Launch: 128 threads; blocks: channels / 4, images. */
extern "C" __global__ void __launch_bounds__(128) mean(const float *from, float *to, struct elements shape) {
    const unsigned int channel = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned int pixels = shape.from.rows * shape.from.columns;
    const float *image = from + (size_t)blockIdx.y * shape.from.stride + (size_t)channel * pixels;
    float sum = 0;
    if (channel < shape.from.channels)
        for (unsigned int at = lane; at < pixels; at += 32) sum += image[at];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (lane == 0 && channel < shape.from.channels)
        to[(size_t)blockIdx.y * shape.to.stride + channel] = activate(shape.activation, sum / pixels);
}

/* Sums, products, activations and copies, an element a thread. Launch: 256 threads; blocks: elements of an image / 256, images. */
extern "C" __global__ void __launch_bounds__(256) elementwise(const float *from, const float *second, float *to,
                                                              struct elements shape) {
    const unsigned int at = blockIdx.x * blockDim.x + threadIdx.x, pixels = shape.to.rows * shape.to.columns;
    if (at >= shape.to.channels * pixels) return;
    float value = from[(size_t)blockIdx.y * shape.from.stride + at];
    if (shape.operation) {
        const float *other = second + (size_t)blockIdx.y * shape.second.stride;
        float operand = other[shape.operation == 3 ? at / pixels : at];
        value = shape.operation == 1 ? value + operand : value * operand;
    }
    to[(size_t)blockIdx.y * shape.to.stride + at] = activate(shape.activation, value);
}

/* Channels become blocks of rows and columns, an output a thread. Launch: as `elementwise`. `operation`: the block's side. */
extern "C" __global__ void __launch_bounds__(256) depth_to_space(const float *from, float *to, struct elements shape) {
    const unsigned int at = blockIdx.x * blockDim.x + threadIdx.x, side = shape.operation;
    if (at >= shape.to.channels * shape.to.rows * shape.to.columns) return;
    const unsigned int column = at % shape.to.columns, row = at / shape.to.columns % shape.to.rows;
    const unsigned int channel = (at / shape.to.columns / shape.to.rows * side + row % side) * side + column % side;
    const float *image = from + (size_t)blockIdx.y * shape.from.stride;
    to[(size_t)blockIdx.y * shape.to.stride + at] =
        image[((size_t)channel * shape.from.rows + row / side) * shape.from.columns + column / side];
}

/* A tensor of a slot: it lies `offset` bytes behind the begin of the slot that `*index` names. */
struct slot {
    unsigned char *base;
    const unsigned int *index;
    unsigned long long stride, offset;
};

/* The model's input, from its slot. Launch: as `elementwise`. The slot has the images one behind the other. */
extern "C" __global__ void __launch_bounds__(256) load(struct slot slot, float *to, struct elements shape) {
    const unsigned int at = blockIdx.x * blockDim.x + threadIdx.x, count = shape.to.channels * shape.to.rows * shape.to.columns;
    const float *from = (const float *)(slot.base + *slot.index * slot.stride + slot.offset);
    if (at < count) to[(size_t)blockIdx.y * shape.to.stride + at] = from[(size_t)blockIdx.y * count + at];
}

/* The model's output, to its slot. Launch: as `elementwise`. */
extern "C" __global__ void __launch_bounds__(256) store(struct slot slot, const float *from, struct elements shape) {
    const unsigned int at = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned int count = shape.from.channels * shape.from.rows * shape.from.columns;
    float *to = (float *)(slot.base + *slot.index * slot.stride + slot.offset);
    if (at < count) to[(size_t)blockIdx.y * count + at] = from[(size_t)blockIdx.y * shape.from.stride + at];
}
