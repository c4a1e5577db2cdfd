//! What the kernels of `ordinary.cu` are to compute, in plain Rust.

/// Numbers that depend on nothing but their place: below `limit`.
pub fn numbers(count: usize, limit: u32) -> Vec<u32> {
    let next = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((*state >> 8) % limit)
    };
    std::iter::repeat_n((), count).scan(7, |state, ()| next(state)).collect()
}

/// Fractions of both signs, exact in half precision.
pub fn fractions(count: usize) -> Vec<f32> {
    numbers(count, 129).into_iter().map(|number| (number as f32 - 64.0) / 64.0).collect()
}

/// The product of two matrices, each sum in the order of the tiles.
pub fn product(a: &[f32], b: &[f32], size: usize) -> Vec<f32> {
    let mut c = vec![0.0; size * size];
    for row in 0..size {
        for k in 0..size {
            let left = a[row * size + k];
            for column in 0..size {
                c[row * size + column] += left * b[k * size + column];
            }
        }
    }
    c
}

/// The value of a number in half precision, by its definition (IEEE 754-2019, §3.4).
pub fn half_value(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        31 if mantissa > 0.0 => f64::NAN,
        31 => f64::INFINITY,
        0 => mantissa * 2_f64.powi(-24),
        _ => (1024.0 + mantissa) * 2_f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// The number in half precision that is nearest, of two the even one: by looking at all of them.
pub fn nearest_half(value: f64) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return 0x7fff;
    }
    if magnitude >= 65_520.0 {
        return sign | 0x7c00;
    }
    // The greatest that is not above it, and its neighbour; 65,536 stands for infinity.
    let (mut low, mut high) = (0_u16, 0x7c00_u16);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if half_value(middle) <= magnitude { low = middle } else { high = middle }
    }
    let above = if high == 0x7c00 { 65_536.0 } else { half_value(high) };
    let (down, up) = (magnitude - half_value(low), above - magnitude);
    sign | if down < up || down == up && low.is_multiple_of(2) { low } else { high }
}
