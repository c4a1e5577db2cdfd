/*! 1x1 convolutions and matrix products of few outputs, in single or half precision, with sums in single.
 *
 * A warp computes four pixels of four outputs, or several warps do together, each some terms of the sums.
 */
#ifndef DOORBELL_POINTWISE_H
#define DOORBELL_POINTWISE_H

#define POINTWISE 4 /* outputs and pixels of a product of `pointwise` */
#define POINTWISE_DEPTH 128 /* terms of a sum for which each lane of a warp has one load */
#define POINTWISE_WARPS 8 /* of a block */

/* Four numbers from a multiple of their length, by one load. The twin's memory may begin elsewhere. */
static __device__ inline float4 four(const float *at) {
#ifdef DB_TWIN
    return make_float4(at[0], at[1], at[2], at[3]);
#else
    return *(const float4 *)at;
#endif
}
static __device__ inline float4 four(const struct half_number *at) {
#ifdef DB_TWIN
    return make_float4(number(at[0]), number(at[1]), number(at[2]), number(at[3]));
#else
    const unsigned long long bits = *(const unsigned long long *)at;
    const struct half_number each[4] = {
        {(unsigned short)bits}, {(unsigned short)(bits >> 16)}, {(unsigned short)(bits >> 32)}, {(unsigned short)(bits >> 48)}};
    return make_float4(number(each[0]), number(each[1]), number(each[2]), number(each[3]));
#endif
}

/* The binary logarithm of the warps that share a sum, so that a warp has few loads one after another. */
static __device__ inline unsigned int warps_of_sum(unsigned int depth) {
    return depth <= POINTWISE_DEPTH ? 0 : depth <= 2 * POINTWISE_DEPTH ? 1 : depth <= 4 * POINTWISE_DEPTH ? 2 : 3;
}

/* Adds 2 * HALF numbers over the lanes of a warp, of which there are 4 * HALF. In each round a lane gives
 * another lane half of its numbers and keeps the rest. Lanes 2 n and 2 n + 1 return sum n. */
template <unsigned int HALF> struct lane_sums {
    static __device__ inline float sum(float *sums, unsigned int lane) {
        const bool is_upper = lane & 2 * HALF;
        UNROLL for (unsigned int nth = 0; nth < HALF; nth++) {
            const float given = is_upper ? sums[nth] : sums[nth + HALF], kept = is_upper ? sums[nth + HALF] : sums[nth];
            sums[nth] = kept + __shfl_xor_sync(0xffffffffu, given, (int)(2 * HALF));
        }
        return lane_sums<HALF / 2>::sum(sums, lane);
    }
};
template <> struct lane_sums<0> {
    static __device__ inline float sum(float *sums, unsigned int) { return sums[0] + __shfl_xor_sync(0xffffffffu, sums[0], 1); }
};

/* A 1x1 convolution of too few pixels and outputs for larger tiles to fill a GPU. A warp computes POINTWISE
 * pixels and outputs, or several warps share the terms. `parts`: a number for each pixel, output and warp. */
template <typename T>
static __device__ inline void pointwise_of(struct virtual_block b, const T *from, const T *weights, const float *bias, const T *residual,
                                           T *to, const struct convolution *shape, float *parts) {
    enum { PRODUCT = POINTWISE * POINTWISE };
    const unsigned int depth = shape->from.channels, outputs = shape->to.channels, pixels = shape->to.rows * shape->to.columns;
    const unsigned int lane = b.thread % 32, warp = b.thread / 32, shift = warps_of_sum(depth), warps = 1 << shift;
    const unsigned int first_pixel = b.x * POINTWISE, first_output = ((b.y * POINTWISE_WARPS + warp) >> shift) * POINTWISE;
    const unsigned int part = warp & (warps - 1);
    const unsigned int pixel = first_pixel + lane / 2 / POINTWISE, output = first_output + lane / 2 % POINTWISE;
    const bool is_mine = lane % 2 == 0 && part == 0 && pixel < pixels && output < outputs;
    const T *seen[POINTWISE], *taken[POINTWISE];
    const struct addends addends = addends_of(is_mine, b.z, output, pixel, bias, residual, shape);
    float sums[PRODUCT] = {0}, sum;
    unsigned int at, i, j;
    UNROLL for (i = 0; i < POINTWISE; i++) {
        /* Of one behind the last nothing is kept. */
        seen[i] = from + place_at(&shape->from, b.z, 0, first_pixel + i < pixels ? first_pixel + i : 0);
        taken[i] = weights + (size_t)(first_output + i < outputs ? first_output + i : 0) * depth;
    }
    for (at = (part * 32 + lane) * 4; at < depth; at += warps * POINTWISE_DEPTH) {
        float4 left[POINTWISE], right[POINTWISE];
        UNROLL for (i = 0; i < POINTWISE; i++) {
            left[i] = four(seen[i] + at);
            right[i] = four(taken[i] + at);
        }
        UNROLL for (i = 0; i < POINTWISE; i++)
            UNROLL for (j = 0; j < POINTWISE; j++)
                sums[i * POINTWISE + j] += left[i].x * right[j].x + left[i].y * right[j].y + left[i].z * right[j].z + left[i].w * right[j].w;
    }
    sum = lane_sums<PRODUCT / 2>::sum(sums, lane);
    if (warps > 1) {
        if (lane % 2 == 0) parts[warp * PRODUCT + lane / 2] = sum;
        __syncthreads();
        for (i = 1; i < warps && is_mine; i++) sum += parts[(warp + i) * PRODUCT + lane / 2];
        /* After this barrier a resident block may begin another virtual block, which writes `parts`. */
        __syncthreads();
    }
    if (is_mine) keep(&to[place_at(&shape->to, b.z, output, pixel)], activate(shape->activation, added(sum, addends)));
}

#endif /* DOORBELL_POINTWISE_H */
