//! Pages of the host that the copy engine may write and read by itself: regions of the program and rings of the NIC.
//!
//! Registering pages with CUDA takes 0.4 ms and more, so it is done once for a region, when a long message between it and a GPU
//! is first met. A program that registers the same pages with CUDA after that is refused by the driver
//! (`CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`); before, they are used as they are.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::engine::LIMIT;
use super::worker::{Worker, locked};
use crate::dma::system::fork_generation;

/// Shorter ones are not noted: what they take is staged.
pub const LEAST: u64 = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No GPU was met.
    Plain,
    /// GPUs see it.
    Registered,
    /// The driver would not: it is staged.
    Refused,
}

struct Entry {
    users: usize,
    state: State,
}

/// By first byte and length.
static NOTED: Mutex<BTreeMap<(u64, u64), Entry>> = Mutex::new(BTreeMap::new());
static REGISTERED: AtomicUsize = AtomicUsize::new(0);

/// A run of pages that stays as long as this lives.
#[derive(Debug)]
pub struct HostPages {
    start: u64,
    len: u64,
    generation: u32,
}

impl HostPages {
    /// Notes a region in the host's memory; `None`: too short to matter.
    pub fn note(start: u64, len: u64) -> Option<HostPages> {
        if len < LEAST {
            return None;
        }
        let entry = || Entry { users: 0, state: State::Plain };
        locked(&NOTED).entry((start, len)).or_insert_with(entry).users += 1;
        Some(HostPages { start, len, generation: fork_generation() })
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        if self.generation != fork_generation() {
            return;
        }
        let key = (self.start, self.len);
        let mut noted = locked(&NOTED);
        let Some(entry) = noted.get_mut(&key) else { return };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        let registered = entry.state == State::Registered;
        noted.remove(&key);
        if registered {
            REGISTERED.fetch_sub(1, Ordering::Relaxed);
            if let Ok(worker) = Worker::of_this_process() {
                // The driver may wait for the program's kernels; the pages are the program's to unmap in any case.
                worker.post(move |hands| hands.unregister(key.0, key.1)).wait(LIMIT);
            }
        }
    }
}

/// Whether the copy engine may use `addr..addr + len`: they lie in noted pages, which are registered now if they were not.
pub fn are_visible(card: u32, addr: u64, len: u64) -> bool {
    let mut noted = locked(&NOTED);
    let end = addr.saturating_add(len);
    // Regions may lie in each other; the one that begins last is looked at first.
    let holds = |(key, _): &(&(u64, u64), &mut Entry)| lies_in(**key, addr, end);
    let mut holding: Vec<_> = noted.range_mut(..=(addr, u64::MAX)).filter(holds).collect();
    if holding.iter().any(|(_, entry)| entry.state == State::Registered) {
        return true;
    }
    let Some((key, entry)) = holding.iter_mut().rev().find(|(_, entry)| entry.state == State::Plain) else {
        return false;
    };
    let Ok(worker) = Worker::of_this_process() else { return false };
    let (start, len) = **key;
    let answer = worker.post(move |hands| hands.register(card, start, len)).wait(LIMIT);
    let registered = matches!(answer, Some(Ok(())));
    entry.state = if registered { State::Registered } else { State::Refused };
    REGISTERED.fetch_add(usize::from(registered), Ordering::Relaxed);
    registered
}

/// Whether `addr..end` lies in a region's range, whatever length the program gave it.
fn lies_in((start, len): (u64, u64), addr: u64, end: u64) -> bool {
    start <= addr && end <= start.saturating_add(len)
}

/// Runs of pages that GPUs see because of this.
pub fn registered() -> usize {
    REGISTERED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_leaves_the_address_space_is_no_overflow() {
        for (range, addr, end, inside) in [
            ((0x1000, 0x1000), 0x1000, 0x2000, true),
            ((0x1000, 0x1000), 0x1001, 0x2001, false),
            ((0x1000, 0x1000), 0xfff, 0x1800, false),
            ((0x1000, u64::MAX), 0x1000, 0x2000, true),
            ((u64::MAX, u64::MAX), 0x1000, 0x2000, false),
        ] {
            assert_eq!(lies_in(range, addr, end), inside, "{range:x?} {addr:#x}..{end:#x}");
        }
    }
}
