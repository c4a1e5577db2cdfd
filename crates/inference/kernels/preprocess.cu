/*! An image of bytes becomes a model's input: what `crates/zoo/src/preprocess.rs` does, on the GPU.
 *
 * The image lies in a slot: rows from the top, three bytes a pixel. Its extents are a peer's word, which may
 * change at any time. A thread reads them once and checks what it read; `status` tells of a refused image.
 */

/* Its words are written by `words` in src/engine/preprocess.rs. */
struct preprocessing {
    /* Rows and columns of the crop, and of the image before; 0 columns: resized_rows is the shorter edge. */
    unsigned int rows, columns, resized_rows, resized_columns;
    /* 1: blue, green, red. 1: channels are the fastest axis. */
    unsigned int channels, swapped, channels_last;
    /* No image has more bytes, and no edge more pixels. */
    unsigned int most_bytes, most_pixels;
    /* What each channel takes of red, green and blue; what is subtracted and divided by. */
    float weights[9], mean[3], deviation[3];
};

/* Two neighbours on one axis, and how much the second one counts. */
struct sample {
    unsigned int first, second;
    float share;
};

static __device__ struct sample sample_at(unsigned int place, unsigned int resized, unsigned int extent) {
    float centre = (place + 0.5f) * ((float)extent / (float)resized) - 0.5f;
    centre = fminf(fmaxf(centre, 0.0f), (float)(extent - 1));
    struct sample at;
    at.first = (unsigned int)centre;
    at.second = at.first + 1 < extent ? at.first + 1 : extent - 1;
    at.share = centre - (float)at.first;
    return at;
}

static __device__ float mix(struct sample at, float first, float second) { return first + (second - first) * at.share; }

/* A pixel of the crop a thread. Launch: 128 threads; blocks: columns / 128, rows. `extents`: rows and columns
 * of the image. `status` becomes 1 if a thread refuses the image; its part of the input is zeros. */
extern "C" __global__ void __launch_bounds__(128) preprocess(const unsigned char *image, const volatile unsigned int *extents, float *to,
                                                             unsigned int *status, struct preprocessing p) {
    const unsigned int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    const unsigned long long height = extents[0], width = extents[1];
    if (x >= p.columns) return;
    bool good = height - 1 < p.most_pixels && width - 1 < p.most_pixels && height * width * 3 <= p.most_bytes;
    unsigned int rows = p.resized_rows, columns = p.resized_columns;
    if (good && columns == 0) {
        columns = height <= width ? (unsigned int)(rows * width / height) : rows;
        rows = height <= width ? rows : (unsigned int)(rows * height / width);
    }
    good = good && rows >= p.rows && columns >= p.columns && rows <= p.most_pixels && columns <= p.most_pixels;
    float colours[3] = {0};
    if (good) {
        struct sample row = sample_at((rows - p.rows) / 2 + y, rows, height);
        struct sample column = sample_at((columns - p.columns) / 2 + x, columns, width);
        for (unsigned int colour = 0; colour < 3; colour++) {
            unsigned int byte = p.swapped ? 2 - colour : colour;
            const unsigned char *above = image + row.first * width * 3 + byte, *below = image + row.second * width * 3 + byte;
            float first = mix(column, above[column.first * 3], above[column.second * 3]);
            colours[colour] = mix(row, first, mix(column, below[column.first * 3], below[column.second * 3]));
        }
    } else {
        *status = 1;
    }
    for (unsigned int channel = 0; channel < p.channels; channel++) {
        const float *weights = p.weights + channel * 3;
        float mixed = weights[0] * colours[0] + weights[1] * colours[1] + weights[2] * colours[2];
        float value = (mixed / 255.0f - p.mean[channel]) / p.deviation[channel];
        unsigned int place = p.channels_last ? (y * p.columns + x) * p.channels + channel : (channel * p.rows + y) * p.columns + x;
        to[place] = good ? value : 0.0f;
    }
}
