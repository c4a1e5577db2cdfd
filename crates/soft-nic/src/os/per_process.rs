//! Per-process singletons, re-created after fork: the thread that held a lock in the parent is no thread of the child's.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use super::forks::fork_generation;

/// What fork children forget of their parent, once that is there.
pub struct ForgetInChild(extern "C" fn(), Once);

impl ForgetInChild {
    /// `forget` only uses atomics and plain system calls: it runs in the child before `fork` returns there.
    pub const fn new(forget: extern "C" fn()) -> ForgetInChild {
        ForgetInChild(forget, Once::new())
    }

    /// From here on every fork child forgets.
    pub fn install(&self) {
        // SAFETY: the handler is safe in a fork child, as its maker said.
        self.1.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(self.0)) });
    }
}

/// A singleton of one process, made when it is first asked for, and never freed: in a fork child the parent's stays where it is, and
/// is not used again.
pub struct PerProcess<T>(AtomicPtr<Made<T>>);

struct Made<T> {
    /// Process that it is of.
    generation: u32,
    value: T,
}

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    pub const fn empty() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(null_mut()))
    }

    /// This process's.
    pub fn get(&self) -> &'static T {
        let generation = fork_generation();
        loop {
            let at = self.0.load(Ordering::Acquire);
            // SAFETY: null, or made by a box and never freed.
            if let Some(made) = unsafe { at.as_ref() }
                && made.generation == generation
            {
                return &made.value;
            }
            let new = Box::into_raw(Box::new(Made { generation, value: T::default() }));
            if self.0.compare_exchange(at, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: made just now, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

/// What a lock holds is whole whatever a panicking thread did.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
