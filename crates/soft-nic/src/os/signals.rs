//! How threads begin, and their signal masks: the NIC's take no signal of the program, and a command's faults
//! come through.

use std::io;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// By this name the NIC's threads are told from the program's, and CPU-utilisation figures leave them out.
pub const NIC_THREAD: &str = "softnic-nic";

/// The two signals that the guard of application memory recovers from.
const FAULTS: [Signal; 2] = [Signal::SIGSEGV, Signal::SIGBUS];

/// Others that, if blocked, would end the process instead of reaching the handler that recovers from them.
const OWN: [Signal; 4] = [Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGABRT];

/// A thread that has not begun after this is not waited for any longer.
const BEGINS_WITHIN: Duration = Duration::from_secs(1);

/// Starts a thread of the NIC's that takes no signal of the program: it inherits the mask.
///
/// Returns when the thread has begun and glibc has made its arena. For that glibc calls `munmap`, whose first
/// bytes libfabric overwrites while it opens a device (`prov/util/src/util_mem_hooks.c`): a thread inside it
/// crashes when it comes back from the kernel.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let mut set = SigSet::all();
    FAULTS.into_iter().chain(OWN).for_each(|own| set.remove(own));
    let _before = MaskBefore::change(SigmaskHow::SIG_SETMASK, &set);
    let (begun, begins) = sync_channel(1);
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _ = begun.send(());
        run()
    })?;
    let _ = begins.recv_timeout(BEGINS_WITHIN);
    Ok(thread)
}

/// Lets fault signals through on this thread: the kernel ends a process that faults with them blocked, and a
/// command must survive a bad address on a thread that blocks everything.
pub fn unblock_faults() -> MaskBefore {
    MaskBefore::change(SigmaskHow::SIG_UNBLOCK, &SigSet::from_iter(FAULTS))
}

/// The mask that this thread had; it comes back on drop.
pub struct MaskBefore(Option<SigSet>);

impl MaskBefore {
    fn change(how: SigmaskHow, set: &SigSet) -> Self {
        // Only another `how` is refused.
        Self(set.thread_swap_mask(how).ok())
    }
}

impl Drop for MaskBefore {
    fn drop(&mut self) {
        self.0.as_ref().map(SigSet::thread_set_mask);
    }
}

/// Whether this thread lets fault signals through; asks the kernel once a thread, as the pump is for polling.
pub fn faults_recoverable() -> bool {
    thread_local! {
        static KNOWN: bool = SigSet::thread_get_mask()
            .is_ok_and(|mask| !FAULTS.into_iter().any(|signal| mask.contains(signal)));
    }
    KNOWN.with(|known| *known)
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::os::unix::thread::JoinHandleExt;

    use super::*;

    /// A thread of `std` gives itself its name, and frees for the first time, before what it runs begins.
    #[test]
    fn a_thread_has_begun_when_it_is_there() {
        for turn in 0..100 {
            let name = format!("begun-{turn}");
            let (end, ends) = sync_channel::<()>(0);
            let thread = spawn(&name, move || ends.recv().is_err()).unwrap();
            let mut comm = [0; 16];
            // SAFETY: a thread that runs until `end` goes, and a buffer of this length.
            let result = unsafe {
                libc::pthread_getname_np(thread.as_pthread_t(), comm.as_mut_ptr().cast(), comm.len())
            };
            drop(end);
            assert!(thread.join().unwrap());
            assert_eq!((result, CStr::from_bytes_until_nul(&comm).unwrap().to_str()), (0, Ok(&*name)));
        }
    }

    #[test]
    fn faults_are_let_through_for_a_command_and_the_mask_comes_back() {
        let blocked = || SigSet::thread_get_mask().unwrap().contains(Signal::SIGSEGV);
        std::thread::spawn(move || {
            SigSet::from_iter(FAULTS).thread_block().unwrap();
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
