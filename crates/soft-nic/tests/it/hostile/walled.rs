//! Memory that knows what the NIC was given, and notes every access elsewhere.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx5_device::memory::{Fault, Memory};
use soft_nic::dma::Host;

#[derive(Default)]
struct Wall {
    /// Start and end, sorted.
    inside: Vec<(u64, u64)>,
    outside: Vec<(u64, u64)>,
}

/// Says what is inside, and what went wrong.
#[derive(Clone, Default)]
pub struct Walls(Arc<Mutex<Wall>>);

impl Walls {
    fn wall(&self) -> MutexGuard<'_, Wall> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on only these places may be touched.
    pub fn set(&self, places: impl Iterator<Item = (u64, u64)>) {
        let mut inside: Vec<_> = places.map(|(start, len)| (start, start + len)).collect();
        inside.sort_unstable();
        self.wall().inside = inside;
    }

    /// Places that were touched and must not have been: address and length.
    pub fn trespasses(&self) -> Vec<(u64, u64)> {
        self.wall().outside.clone()
    }

    fn check(&self, addr: u64, len: u64) {
        let mut wall = self.wall();
        let after = wall.inside.partition_point(|(start, _)| *start <= addr);
        let held = after.checked_sub(1).is_some_and(|i| wall.inside[i].1 >= addr + len);
        if !held && wall.outside.len() < 16 {
            wall.outside.push((addr, len));
        }
    }
}

/// The process's memory behind walls. `probe` may ask anywhere: that is what it is for.
pub struct Walled {
    pub host: Host,
    pub walls: Walls,
    /// Each copy counts as one that took long.
    pub lags: bool,
}

impl Memory for Walled {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.walls.check(addr, out.len() as u64);
        self.host.read(addr, out)
    }
    fn load32(&self, addr: u64) -> Result<u32, Fault> {
        self.walls.check(addr, 4);
        self.host.load32(addr)
    }
    fn store32(&self, addr: u64, value: u32) -> Result<(), Fault> {
        // The one store of a CQ that is being made, into a record that was probed just before.
        self.host.store32(addr, value)
    }
    fn write(&self, addr: u64, bytes: &[u8], relaxed: bool) -> Result<(), Fault> {
        self.walls.check(addr, bytes.len() as u64);
        self.host.write(addr, bytes, relaxed)
    }
    fn compare_swap32(&self, addr: u64, compare: u32, swap: u32) -> Result<u32, Fault> {
        self.walls.check(addr, 4);
        self.host.compare_swap32(addr, compare, swap)
    }
    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.walls.check(addr, 8);
        self.host.compare_swap64(addr, compare, swap)
    }
    fn fetch_add64(&self, addr: u64, add: u64) -> Result<u64, Fault> {
        self.walls.check(addr, 8);
        self.host.fetch_add64(addr, add)
    }
    fn has_lagged(&self) -> bool {
        self.lags
    }
    fn probe(&self, addr: u64, len: u64, write: bool) -> Result<(), Fault> {
        self.host.probe(addr, len, write)
    }
}
