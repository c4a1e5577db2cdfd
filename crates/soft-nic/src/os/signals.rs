//! Signal masks of threads: the NIC's threads take no signal of the program, and a command's faults come through.

use std::cell::Cell;
use std::io;
use std::thread::JoinHandle;

/// By this name the NIC's threads are told from the program's, and CPU-utilisation figures leave them out.
pub const NIC_THREAD: &str = "softnic-nic";

/// Starts a thread of the NIC's that takes no signal of the program: it inherits the mask.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // SAFETY: plain old data; filled by the calls below.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a signal set of ours.
    unsafe { libc::sigfillset(&mut set) };
    // A blocked signal of these kinds would end the process instead of reaching the handler that recovers from it.
    for own in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT] {
        // SAFETY: as above.
        unsafe { libc::sigdelset(&mut set, own) };
    }
    let _before = MaskBefore::change(libc::SIG_SETMASK, &set);
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// Lets fault signals through on this thread: the kernel ends a process that faults with them blocked, and a command must
/// survive a bad address on a thread that blocks everything.
pub fn unblock_faults() -> MaskBefore {
    MaskBefore::change(libc::SIG_UNBLOCK, &faults())
}

/// The mask that this thread had; it comes back on drop.
pub struct MaskBefore(libc::sigset_t);

impl MaskBefore {
    fn change(how: libc::c_int, set: &libc::sigset_t) -> Self {
        // SAFETY: plain old data; filled by the call below.
        let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: both sets live through the call.
        unsafe { libc::pthread_sigmask(how, set, &mut before) };
        Self(before)
    }
}

impl Drop for MaskBefore {
    fn drop(&mut self) {
        // SAFETY: the set that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// The two signals that the guard of application memory recovers from.
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
            let guard = unblock_faults();
            assert!(!blocked());
            drop(guard);
            assert!(blocked());
        })
        .join()
        .expect("no panic");
        assert!(faults_recoverable());
    }
}
