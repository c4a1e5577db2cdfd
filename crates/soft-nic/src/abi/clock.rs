//! The two clock pages of a context: the running core clock, and how its ticks become wall-clock time.
//!
//! Layouts as libmlx5's `mlx5_query_rt_values` and `mlx5dv_ts_to_ns` read them. The device's clock counts ns
//! of CLOCK_MONOTONIC, as completion timestamps do, so the conversion is an offset. The core clock page is
//! memory, not a register: it is as fresh as the NIC thread's last look (up to 10 ms when the NIC sleeps).

use std::io;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use super::layout::clock_info;
use crate::os::system::PAGE;
use crate::os::{DevicePages, SharedMemory, system};

/// Offset of an `MLX5_IB_MMAP_*` command.
pub const fn offset_of(command: u64) -> u64 {
    (command << 8) * PAGE as u64
}
/// `MLX5_IB_MMAP_CORE_CLOCK`.
pub const MMAP_CORE_CLOCK: u64 = 5;
/// `MLX5_IB_MMAP_CLOCK_INFO`.
pub const MMAP_CLOCK_INFO: u64 = 7;

/// Frequency of the core clock as QUERY_DEVICE says it.
pub const CORE_CLOCK_KHZ: u64 = 1_000_000;

/// Both pages, which programs map read-only.
#[derive(Debug)]
pub struct Clock {
    /// BE32 high half, BE32 low half, at the start.
    core: SharedMemory,
    /// `mlx5_ib_clock_info`.
    info: SharedMemory,
}

impl Clock {
    /// Makes both pages and starts them at the present time.
    pub fn new(pages: &DevicePages) -> io::Result<Self> {
        let clock = Self {
            core: pages.map(offset_of(MMAP_CORE_CLOCK))?,
            info: pages.map(offset_of(MMAP_CLOCK_INFO))?,
        };
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        let now = system::monotonic_ns();
        let put = |offset, value| clock.info.word(offset).store(value, Ordering::Relaxed);
        put(clock_info::nsec, wall);
        put(clock_info::cycles, now);
        // One tick is one nanosecond: multiplier 1 (low half), shift 0 (high half).
        put(clock_info::mult, 1);
        put(clock_info::mask, u64::MAX >> 1);
        put(clock_info::overflow_period, 1 << 40);
        clock.tick(now);
        Ok(clock)
    }

    /// Moves the core clock on.
    pub fn tick(&self, now_ns: u64) {
        self.core.word(0).store(now_ns.to_be(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_clock_is_two_big_endian_halves_and_the_line_passes_through_now() {
        let clock = Clock::new(&DevicePages::new().unwrap()).unwrap();
        clock.tick(0x0102_0304_0506_0708);
        let core = clock.core.word(0).load(Ordering::Relaxed).to_ne_bytes();
        assert_eq!(core, [1, 2, 3, 4, 5, 6, 7, 8]);
        let word = |offset| clock.info.word(offset).load(Ordering::Relaxed);
        // (mult, shift) = (1, 0); sign 0 = stable.
        assert_eq!((word(clock_info::mult), word(clock_info::sign)), (1, 0));
        assert!(word(clock_info::nsec) > 1_600_000_000_000_000_000);
        assert!(system::monotonic_ns() - word(clock_info::cycles) < 1_000_000_000);
    }
}
