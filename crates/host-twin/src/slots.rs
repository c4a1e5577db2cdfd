//! Which of a kernel's blocks run.
//!
//! A kernel with `__shared__` variables is compiled a few times, once for each block that can run at a time: a launch
//! takes as many as it has blocks, and waits for them while another launch has them.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// By kernel, the instances that run.
static TAKEN: Mutex<BTreeMap<usize, Vec<usize>>> = Mutex::new(BTreeMap::new());
static GIVEN_BACK: Condvar = Condvar::new();

/// Instances of one kernel, ours until dropped.
#[derive(Debug)]
pub struct Slots {
    kernel: usize,
    /// Which.
    pub instances: Vec<usize>,
}

fn taken() -> MutexGuard<'static, BTreeMap<usize, Vec<usize>>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slots {
    /// `wanted` of a kernel's `all` instances. None when others hold too many of them until `until`.
    pub fn take(kernel: usize, all: usize, wanted: usize, until: Instant) -> Option<Slots> {
        let mut kernels = taken();
        loop {
            let running = kernels.entry(kernel).or_default();
            let free: Vec<usize> = (0..all).filter(|instance| !running.contains(instance)).collect();
            if free.len() >= wanted {
                let instances = free[..wanted].to_vec();
                running.extend(&instances);
                return Some(Slots { kernel, instances });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            kernels = GIVEN_BACK.wait_timeout(kernels, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if let Some(running) = taken().get_mut(&self.kernel) {
            running.retain(|instance| !self.instances.contains(instance));
        }
        GIVEN_BACK.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn blocks_that_run_are_waited_for_and_come_back() {
        let soon = || Instant::now() + Duration::from_millis(20);
        let first = Slots::take(1, 4, 3, soon()).unwrap();
        assert!(Slots::take(1, 4, 2, soon()).is_none());
        let other = Slots::take(2, 4, 4, soon()).unwrap();
        let last = Slots::take(1, 4, 1, soon()).unwrap();
        assert_eq!((&first.instances[..], &last.instances[..]), (&[0, 1, 2][..], &[3][..]));
        drop(other);
        drop(first);
        assert_eq!(Slots::take(1, 4, 3, soon()).unwrap().instances, [0, 1, 2]);
    }
}
