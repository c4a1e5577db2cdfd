//! Seeded weights: values that depend on a tensor's name and on nothing else.
//!
//! The generator is SplitMix64 (Steele, Lea, Flood: *Fast Splittable Pseudorandom Number Generators*, 2014),
//! keyed by the SHA-256 of the name. Only integers and IEEE 754 additions, multiplications and roots are
//! used, so that every machine gets the same bits. Functions of the C library (`ln`, `cos`) differ between
//! machines in the last bit.

use sha2::{Digest, Sha256};

/// Weyl constant of SplitMix64: 2^64 divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The values of one tensor, in order of its elements.
#[derive(Clone, Debug)]
pub struct Stream {
    key: u64,
    index: u64,
}

impl Stream {
    /// The stream that belongs to a name.
    pub fn of(name: &str) -> Stream {
        let digest = Sha256::digest(name.as_bytes());
        let mut key = [0; 8];
        key.copy_from_slice(&digest[..8]);
        Stream { key: u64::from_le_bytes(key), index: 0 }
    }

    /// 64 random bits: the finaliser of SplitMix64 over key and counter.
    pub fn bits(&mut self) -> u64 {
        self.index += 1;
        let mut z = self.key.wrapping_add(self.index.wrapping_mul(GOLDEN));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A value in `low..high`, of 2^24 equally likely ones.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.bits() >> 40) as f32 / (1 << 24) as f32;
        low + (high - low) * unit
    }

    /// About normal, with mean 0: the sum of four 16-bit uniforms (Irwin–Hall), which is exact in integers.
    fn centred_sum(&mut self) -> f32 {
        let bits = self.bits();
        let sum: u64 = (0..4).map(|lane| (bits >> (16 * lane)) & 0xffff).sum();
        sum as f32 - (2 * 0xffff) as f32
    }
}

/// `count` values between `low` and `high`.
pub fn uniform(name: &str, count: usize, low: f32, high: f32) -> Vec<f32> {
    let mut stream = Stream::of(name);
    (0..count).map(|_| stream.uniform(low, high)).collect()
}

/// `count` values, about normal, with mean 0 and the given standard deviation. No value exceeds 3.5 of them.
pub fn normal(name: &str, count: usize, deviation: f64) -> Vec<f32> {
    // The variance of a uniform integer below n is (n² - 1) / 12.
    let sums_deviation = (4.0 * (65536.0 * 65536.0 - 1.0) / 12.0f64).sqrt();
    let scale = (deviation / sums_deviation) as f32;
    let mut stream = Stream::of(name);
    (0..count).map(|_| stream.centred_sum() * scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_splitmix64_of_its_key() {
        // First values of the reference implementation (splitmix64.c by Vigna) for seed 1234567, as many
        // libraries test it.
        let mut stream = Stream { key: 1_234_567, index: 0 };
        let golden = [6_457_827_717_110_365_317u64, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(golden.map(|_| stream.bits()), golden);
    }

    #[test]
    fn values_depend_on_the_name_alone() {
        let alone = normal("conv1.weight", 8, 0.1);
        let other = normal("conv2.weight", 8, 0.1);
        assert_eq!(normal("conv1.weight", 8, 0.1), alone);
        assert_eq!(normal("conv1.weight", 4, 0.1), alone[..4]);
        assert_ne!(alone, other);
    }

    #[test]
    fn moments_are_those_that_were_asked_for() {
        let count = 1 << 18;
        for (name, values, mean, deviation) in [
            ("normal", normal("n", count, 0.25), 0.0, 0.25),
            ("uniform", uniform("u", count, 0.5, 1.5), 1.0, (1.0f64 / 12.0).sqrt()),
        ] {
            let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
            let measured = sum / count as f64;
            let squares: f64 = values.iter().map(|&value| (f64::from(value) - measured).powi(2)).sum();
            let spread = (squares / count as f64).sqrt();
            assert!((measured - mean).abs() < 0.003, "{name}: mean {measured}");
            assert!((spread / deviation - 1.0).abs() < 0.01, "{name}: deviation {spread}");
        }
    }
}
