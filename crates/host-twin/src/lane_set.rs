//! Sets of a launch's lanes.

/// Lanes of one launch at most.
pub const MAX_LANES: usize = 256;

/// A set of lanes, numbered through all blocks of the launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneSet([u64; MAX_LANES / 64]);

impl LaneSet {
    /// One lane.
    pub fn of(lane: usize) -> LaneSet {
        let mut set = LaneSet::default();
        set.0[lane / 64] |= 1 << (lane % 64);
        set
    }

    /// The lanes below `count`.
    pub fn first(count: usize) -> LaneSet {
        (0..count).collect()
    }

    /// Whether the lane is in it.
    pub fn has(&self, lane: usize) -> bool {
        self.0[lane / 64] >> (lane % 64) & 1 == 1
    }

    /// Whether the two have a lane in common.
    pub fn meets(&self, other: LaneSet) -> bool {
        self.0.iter().zip(other.0).any(|(a, b)| a & b != 0)
    }

    /// Takes the other's lanes in.
    pub fn add(&mut self, other: LaneSet) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
    }
}

impl FromIterator<usize> for LaneSet {
    fn from_iter<I: IntoIterator<Item = usize>>(lanes: I) -> LaneSet {
        lanes.into_iter().fold(LaneSet::default(), |mut set, lane| {
            set.add(LaneSet::of(lane));
            set
        })
    }
}
