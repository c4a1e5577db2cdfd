//! Memory of one launch as its lanes reach it: directly, or through a store buffer where memory is weak.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::host_memory::{HostMemory, change_word};
use crate::memory::{Kind, Memory, Scope, StoreBuffer};
use crate::random::SplitMix;
use crate::{LaunchReport, Visibility};

/// Lanes are numbered through the launch.
pub(crate) struct LaunchMemory(Option<Weak>);

struct Weak {
    buffer: Mutex<StoreBuffer>,
    /// For interruptions: apart from the buffer's choices, which depend on the clock.
    interruptions: Mutex<SplitMix>,
    began: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Weak {
    fn buffer(&self) -> MutexGuard<'_, StoreBuffer> {
        lock(&self.buffer)
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

impl LaunchMemory {
    pub(crate) fn new(visibility: Visibility) -> LaunchMemory {
        let weak = |seed| Weak {
            buffer: Mutex::new(StoreBuffer::new(seed)),
            interruptions: Mutex::new(SplitMix(!seed)),
            began: Instant::now(),
        };
        LaunchMemory(match visibility {
            Visibility::Weak { seed } => Some(weak(seed)),
            Visibility::InOrder => None,
        })
    }

    pub(crate) fn is_weak(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn store(&self, lane: usize, address: u64, bytes: &[u8], kind: Kind) {
        let Some(weak) = &self.0 else { return HostMemory.store(address, bytes) };
        let (mut buffer, now_ns) = (weak.buffer(), weak.now_ns());
        buffer.store(&mut HostMemory, lane, (address, bytes), kind, now_ns);
        buffer.tick(&mut HostMemory, now_ns);
    }

    pub(crate) fn load(&self, lane: usize, address: u64, out: &mut [u8]) {
        match &self.0 {
            Some(weak) => weak.buffer().load(&HostMemory, lane, address, out),
            None => HostMemory.load(address, out),
        }
    }

    /// An atomic: what was there.
    pub(crate) fn change(&self, address: u64, bytes: usize, change: impl Fn(u64) -> u64) -> u64 {
        if let Some(weak) = &self.0 {
            weak.buffer().settle(&mut HostMemory, address, bytes);
        }
        change_word(address, bytes, change)
    }

    pub(crate) fn fence(&self, lane: usize, scope: impl FnOnce() -> Scope) {
        if let Some(weak) = &self.0 {
            weak.buffer().fence(&mut HostMemory, lane, scope());
        }
        fence(Ordering::SeqCst);
    }

    /// These lanes met at a barrier that orders memory.
    pub(crate) fn meet(&self, lanes: impl Iterator<Item = usize>) {
        if let Some(weak) = &self.0 {
            weak.buffer().meet(lanes.collect());
        }
    }

    /// Stores whose time has come go to memory.
    pub(crate) fn tick(&self) {
        if let Some(weak) = &self.0 {
            weak.buffer().tick(&mut HostMemory, weak.now_ns());
        }
    }

    /// A number below `limit` by the seed, for an interruption. None with direct memory, which has no seed.
    pub(crate) fn choose(&self, limit: u64) -> Option<u64> {
        self.0.as_ref().map(|weak| lock(&weak.interruptions).below(limit))
    }

    /// All lanes have ended: what is stored is in memory from now on.
    pub(crate) fn finish(&self) {
        if let Some(weak) = &self.0 {
            weak.buffer().empty(&mut HostMemory);
        }
    }

    pub(crate) fn report(&self) -> LaunchReport {
        let (stored, overtook) = self.0.as_ref().map_or((0, 0), |weak| weak.buffer().counts());
        LaunchReport { stored, overtook }
    }
}
