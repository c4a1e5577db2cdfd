//! Per-process singletons, re-created after fork: the thread that held a lock in the parent is no thread of the child's.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

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

/// A singleton of one process, made when it is first asked for, and never freed.
pub struct PerProcess<T>(AtomicPtr<T>, &'static ForgetInChild);

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    /// `forgets` calls [`PerProcess::forget`] of it.
    pub const fn new(forgets: &'static ForgetInChild) -> PerProcess<T> {
        PerProcess(AtomicPtr::new(null_mut()), forgets)
    }

    /// This process's.
    pub fn get(&self) -> &'static T {
        let mut at = self.0.load(Ordering::Acquire);
        if at.is_null() {
            // The handler that forgets it in a child must be there before it is.
            self.1.install();
            let new = Box::into_raw(Box::<T>::default());
            match self.0.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => at = new,
                Err(other) => {
                    at = other;
                    // SAFETY: made just now, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(new) });
                }
            }
        }
        // SAFETY: made by a box, and never freed.
        unsafe { &*at }
    }

    /// In a fork child: the parent's stays where it is, and is not used again.
    pub fn forget(&self) {
        self.0.store(null_mut(), Ordering::Release);
    }
}

/// What a lock holds is whole whatever a panicking thread did.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
