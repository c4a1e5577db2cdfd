//! The clock of a device, by which its completions are stamped.
//!
//! Follows `mlx5dv_get_clock_info(3)` and `mlx5dv_ts_to_ns` of rdma-core's `mlx5dv.h`: the kernel keeps a
//! line through a recent moment, from which a timestamp's distance is multiplied and shifted.

use super::device::Context;
use crate::result::{Result, object};

/// How timestamps become time, as of a moment: ask again after some seconds, since clocks run apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    nsec: u64,
    last_cycles: u64,
    frac: u64,
    mult: u32,
    shift: u32,
    mask: u64,
}

impl Context {
    /// How the device's timestamps become time now. Error: no mlx5 device; a kernel that shows no clock.
    pub fn clock(&self) -> Result<Clock> {
        // SAFETY: the context is live.
        let raw = unsafe { object::clock_info(self.raw()) }.map_err(|error| error.of(self.name()))?;
        Ok(Clock {
            nsec: raw.nsec,
            last_cycles: raw.last_cycles,
            frac: raw.frac,
            mult: raw.mult,
            shift: raw.shift,
            mask: raw.mask,
        })
    }
}

impl Clock {
    /// Nanoseconds since 1970, by the system's clock, of a completion's timestamp.
    pub fn unix_ns(&self, timestamp: u64) -> u64 {
        let (ahead, behind) = (
            timestamp.wrapping_sub(self.last_cycles) & self.mask,
            self.last_cycles.wrapping_sub(timestamp) & self.mask,
        );
        let scaled = |cycles: u64| u128::from(cycles) * u128::from(self.mult);
        let shifted = |scaled: u128| (scaled >> self.shift.min(127)) as u64;
        // What is further ahead than half the counter's range was before.
        match ahead > self.mask / 2 {
            true => self.nsec.wrapping_sub(shifted(scaled(behind).saturating_sub(self.frac.into()))),
            false => self.nsec.wrapping_add(shifted(scaled(ahead) + u128::from(self.frac))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_before_and_behind_the_line_s_moment_become_time() {
        // 156.25 MHz as the kernel scales it: 6.4 ns a cycle, 2^21 × 6.4; a counter of 48 bits.
        let clock = Clock {
            nsec: 1_000_000,
            last_cycles: 5_000,
            frac: 1 << 20,
            mult: 13_421_773,
            shift: 21,
            mask: (1 << 48) - 1,
        };
        for (timestamp, ns) in [
            (5_000, 1_000_000),
            (5_010, 1_000_064),
            (4_990, 1_000_000 - 63),
            // Behind the counter's end.
            ((1 << 48) - 5_000, 1_000_000 - 64_000 + 1),
        ] {
            let found = clock.unix_ns(timestamp);
            assert!(found.abs_diff(ns) <= 1, "{timestamp}: {found}, not {ns}");
        }
    }
}
