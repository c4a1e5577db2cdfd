//! Memory that knows what the NIC was given, and notes every access elsewhere.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx5_device::memory::{Fault, Memory};
use soft_nic::dma::Host;

#[derive(Default)]
struct Ranges {
    /// Start and end, sorted.
    inside: Vec<(u64, u64)>,
    outside: Vec<(u64, u64)>,
}

/// Says what is inside, and what went wrong.
#[derive(Clone, Default)]
pub struct AccessCheck(Arc<Mutex<Ranges>>);

impl AccessCheck {
    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on only these places may be touched.
    pub fn set(&self, places: impl Iterator<Item = (u64, u64)>) {
        let mut inside: Vec<_> = places.map(|(start, len)| (start, start + len)).collect();
        inside.sort_unstable();
        self.ranges().inside = inside;
    }

    /// Places that were touched and must not have been: address and length.
    pub fn outside(&self) -> Vec<(u64, u64)> {
        self.ranges().outside.clone()
    }

    fn check(&self, addr: u64, len: u64) {
        let mut ranges = self.ranges();
        let after = ranges.inside.partition_point(|(start, _)| *start <= addr);
        let held = after.checked_sub(1).is_some_and(|i| ranges.inside[i].1 >= addr + len);
        if !held && ranges.outside.len() < 16 {
            ranges.outside.push((addr, len));
        }
    }
}

/// The process's memory with each access checked. `probe` may ask anywhere: that is what it is for.
pub struct CheckedMemory {
    pub host: Host,
    pub accesses: AccessCheck,
    /// Each copy counts as one that took long.
    pub lags: bool,
}

impl Memory for CheckedMemory {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.accesses.check(addr, out.len() as u64);
        self.host.read(addr, out)
    }
    fn load32(&self, addr: u64) -> Result<u32, Fault> {
        self.accesses.check(addr, 4);
        self.host.load32(addr)
    }
    fn store32(&self, addr: u64, value: u32) -> Result<(), Fault> {
        // The one store of a CQ that is being made, into a record that was probed just before.
        self.host.store32(addr, value)
    }
    fn write(&self, addr: u64, bytes: &[u8], relaxed: bool) -> Result<(), Fault> {
        self.accesses.check(addr, bytes.len() as u64);
        self.host.write(addr, bytes, relaxed)
    }
    fn compare_swap32(&self, addr: u64, compare: u32, swap: u32) -> Result<u32, Fault> {
        self.accesses.check(addr, 4);
        self.host.compare_swap32(addr, compare, swap)
    }
    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.accesses.check(addr, 8);
        self.host.compare_swap64(addr, compare, swap)
    }
    fn fetch_add64(&self, addr: u64, add: u64) -> Result<u64, Fault> {
        self.accesses.check(addr, 8);
        self.host.fetch_add64(addr, add)
    }
    fn has_lagged(&self) -> bool {
        self.lags
    }
    fn probe(&self, addr: u64, len: u64, write: bool) -> Result<(), Fault> {
        self.host.probe(addr, len, write)
    }
}
