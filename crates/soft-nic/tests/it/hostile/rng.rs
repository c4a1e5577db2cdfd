//! Seeded choices: the same seed makes the same mutants.

/// SplitMix64 (public domain, Sebastiano Vigna).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Numbers at which checks change their mind, and some others.
    pub fn edge(&mut self, near: u64) -> u64 {
        match self.below(12) {
            0 => 0,
            1 => 1,
            2 => near.wrapping_add(1),
            3 => near.wrapping_sub(1),
            4 => u64::MAX,
            5 => u64::from(u32::MAX),
            6 => 1 << 31,
            7 => 1 << self.below(64),
            8 => near ^ 1 << self.below(64),
            9 => near.wrapping_mul(2),
            10 => 0x100,
            _ => self.next(),
        }
    }

    /// An address beside this one, or one that no program can have. Nothing between: the NIC stores into a
    /// CQ's record, and other tests' memory lies there.
    pub fn address(&mut self, near: u64) -> u64 {
        match self.edge(near) {
            address if address.abs_diff(near) <= 1 => address,
            address => address | 1 << 63,
        }
    }
}
