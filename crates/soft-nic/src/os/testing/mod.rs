//! For tests: a deadline, a program's descriptor, another user, a fork child.

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// What must come comes within it, however busy the machine is.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The program's end, for a test that is the program.
pub fn own(fd: RawFd) -> File {
    // SAFETY: the test is the program, and the descriptor is the program's.
    File::from(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes this thread alone one of another user; false without the right to it.
pub fn become_user(user: u32) -> bool {
    // SAFETY: plain numbers; the system call itself changes this thread alone.
    unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) == 0 }
}

/// Runs `check` in a fork child of this process; whether it came back true there.
pub fn true_in_fork_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `check` and leaves without unwinding or running anything of the parent's.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if held { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    status == 0
}
