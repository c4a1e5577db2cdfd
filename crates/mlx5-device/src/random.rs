//! Numbers by seed, for injected losses and what must differ but need not be secret: splitmix64 (Steele et
//! al. 2014; public domain by S. Vigna).

/// The next number of the sequence that `state` stands in.
pub fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The same as a number in 0..1, of 53 bits.
pub fn chance(state: &mut u64) -> f64 {
    (draw(state) >> 11) as f64 / (1_u64 << 53) as f64
}
