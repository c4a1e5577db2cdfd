//! Signal masks of threads: the NIC's threads take no signal of the program, and a command's faults come through.

use std::cell::Cell;

/// Blocks signals while a thread is made, which inherits the mask; the caller's mask comes back on drop.
pub struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Blocks all but the signals that a fault of this thread raises.
    #[allow(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Self {
        // SAFETY: plain old data; filled by the calls below.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `all` is a signal set of ours.
        unsafe { libc::sigfillset(&mut all) };
        // A blocked signal of these kinds would end the process instead of reaching the handler that recovers from it.
        for own in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT] {
            // SAFETY: as above.
            unsafe { libc::sigdelset(&mut all, own) };
        }
        // SAFETY: plain old data; filled by the call below.
        let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: both sets live through the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) };
        Self(before)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// A set of the two signals that the guard of application memory recovers from.
fn faults() -> libc::sigset_t {
    // SAFETY: plain old data; filled by the calls below.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a signal set of ours.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: as above.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

/// Lets fault signals through on this thread: the kernel ends a process that faults with them blocked, and a command must
/// survive a bad address on a thread that blocks everything. The caller's mask comes back on drop.
pub struct UnblockedFaults(libc::sigset_t);

impl UnblockedFaults {
    #[allow(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Self {
        let set = faults();
        // SAFETY: plain old data; filled by the call below.
        let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: both sets live through the call.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, &mut before) };
        Self(before)
    }
}

impl Drop for UnblockedFaults {
    fn drop(&mut self) {
        // SAFETY: the set that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Whether this thread lets fault signals through; asked of the kernel once a thread, since the pump is for polling.
pub fn faults_recoverable() -> bool {
    thread_local! {
        static KNOWN: Cell<Option<bool>> = const { Cell::new(None) };
    }
    KNOWN.with(|known| {
        known.get().unwrap_or_else(|| {
            // SAFETY: plain old data; filled by the call below.
            let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: without a new set this only reads the mask.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask) };
            let clear = [libc::SIGSEGV, libc::SIGBUS].into_iter().all(|signal| {
                // SAFETY: a set of ours and a signal that exists.
                unsafe { libc::sigismember(&mask, signal) == 0 }
            });
            known.set(Some(clear));
            clear
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_let_through_for_a_command_and_the_mask_comes_back() {
        let blocked = || {
            // SAFETY: plain old data; filled by the call below.
            let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: without a new set this only reads the mask.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask) };
            // SAFETY: a set of ours and a signal that exists.
            unsafe { libc::sigismember(&mask, libc::SIGSEGV) == 1 }
        };
        std::thread::spawn(move || {
            let set = faults();
            // SAFETY: this thread's own mask, which ends with it.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
            assert!(!faults_recoverable(), "the pump stays away");
            let guard = UnblockedFaults::new();
            assert!(!blocked());
            drop(guard);
            assert!(blocked());
        })
        .join()
        .expect("no panic");
        assert!(faults_recoverable());
    }
}
