//! Kernel calls that the standard library has not, as safe functions: memfds, futexes, pidfds, thread tuning.
//!
//! Raw system calls where libc's wrapper has a hook that may wait for the NIC (`mmap`, `ioctl`): the NIC must
//! not come back through it with its lock held. Hooks of paths and directories wait for nothing it holds.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_timerslack;
use nix::sys::resource::{RLIM_INFINITY, Resource, UsageWho, getrlimit, getrusage};
use nix::sys::stat::fstat;
use nix::time::ClockId;
use nix::unistd::{Pid, ftruncate};

/// Bytes of a page; x86-64 has no other base size.
pub const PAGE: usize = 4096;

/// What a memfd has whose size never changes.
const SIZE_SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// Descriptors of ours start here, out of the way of programs that count on small numbers or use `select`.
const HIGH_DESCRIPTOR: i32 = 700;

pub fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Makes a system call that gives a new descriptor.
macro_rules! new_descriptor {
    ($number:ident $(, $argument:expr)*) => {{
        // SAFETY: what the arguments point to, if anything, lives through the call, which only reads it.
        let raw = $crate::os::system::check(unsafe { libc::syscall(libc::$number $(, $argument)*) });
        // SAFETY: the kernel just gave us this descriptor.
        raw.map(|raw| unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(raw as i32) })
    }};
}
// Here alone, where unsafe may be: a caller of the macro does not write the word.
pub(in crate::os) use new_descriptor;

pub fn monotonic_ns() -> u64 {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread in ns. A system call, about 0.2 µs.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// How often the calling thread lost its core while it could have gone on (involuntary context switches).
pub fn thread_preemptions() -> u64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches() as u64)
}

/// Time of a clock that every thread has, ns.
#[inline]
fn clock_ns(clock: ClockId) -> u64 {
    clock.now().map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Makes a memfd of `len` bytes whose size can never change again, so that a mapping of it cannot fault.
///
/// Errors: the kernel's (descriptor limit, memory limit).
pub fn memfd(name: &str, len: usize) -> io::Result<OwnedFd> {
    // NOEXEC_SEAL (Linux 6.3) keeps vm.memfd_noexec=2 content; older kernels say EINVAL.
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let sealed = MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);
    let fd = match memfd_create(name, flags | sealed) {
        Err(Errno::EINVAL) => memfd_create(name, flags)?,
        made => made?,
    };
    // Above the limit of file sizes the kernel ends the process (SIGXFSZ).
    if let Some(limit) = limit(Resource::RLIMIT_FSIZE).filter(|limit| *limit < len as u64) {
        return Err(io::Error::other(format!(
            "{len} bytes of shared memory are above this process's limit of file sizes, {limit} (ulimit -f): raise it"
        )));
    }
    ftruncate(&fd, len as i64)?;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(SIZE_SEALS | SealFlag::F_SEAL_SEAL))?;
    Ok(moved_high(fd))
}

/// Errors: a file of this length is above the file size limit; writing it would end the process (SIGXFSZ).
pub fn check_file_size(len: u64) -> io::Result<()> {
    match limit(Resource::RLIMIT_FSIZE).filter(|limit| *limit < len) {
        None => Ok(()),
        Some(limit) => Err(io::Error::other(format!("the limit of file sizes is {limit} bytes (ulimit -f)"))),
    }
}

/// A limit of this process (`getrlimit(2)`), if it has that one.
fn limit(resource: Resource) -> Option<u64> {
    let (limit, _) = getrlimit(resource).ok()?;
    Some(limit).filter(|limit| *limit != RLIM_INFINITY)
}

/// What the kernel said; with the address space limit where that may be why (memory, threads refused).
pub fn refusal(errno: i32) -> String {
    let error = io::Error::from_raw_os_error(errno);
    let limit = limit(Resource::RLIMIT_AS).filter(|_| [libc::ENOMEM, libc::EAGAIN].contains(&errno));
    limit.map_or_else(
        || error.to_string(),
        |limit| format!("{error}; this process's memory is limited to {limit} bytes (ulimit -v): raise it"),
    )
}

/// Moves a descriptor out of the low numbers; leaves it where it is when the limit does not allow.
pub fn moved_high(fd: OwnedFd) -> OwnedFd {
    let high = new_descriptor!(SYS_fcntl, fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    high.unwrap_or(fd)
}

/// Another descriptor of what this number names. Error also: it is not open.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    new_descriptor!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0).map(moved_high)
}

/// Size of a memfd that can neither shrink nor grow, or `None` when it is anything else.
pub fn sealed_len(fd: &OwnedFd) -> Option<usize> {
    let seals = SealFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GET_SEALS).ok()?);
    let stat = fstat(fd).ok().filter(|stat| seals.contains(SIZE_SEALS) && stat.st_uid == user())?;
    Some(stat.st_size as usize)
}

/// Effective user of this process.
pub fn user() -> u32 {
    // SAFETY: cannot fail, touches no memory.
    unsafe { libc::geteuid() }
}

/// Opens a memfd of another process by its path below `/proc`. Never blocks and has no effect, whatever the
/// path leads to: opens only memfds, and a memfd under a lease is refused (`O_NONBLOCK`).
///
/// Errors: the kernel's; `InvalidInput`: no memfd.
pub fn open_memfd(path: &str) -> io::Result<OwnedFd> {
    let place = open(&CString::new(path)?, libc::O_PATH)?;
    // All memfds lie in one file system of the kernel's own.
    if device_of(&place)? != device_of(&memfd("softnic-kind", PAGE)?)? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let place = CString::new(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
    open(&place, libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOCTTY).map(moved_high)
}

/// Not through the interposer's hooks.
pub(super) fn open(path: &CStr, flags: i32) -> io::Result<OwnedFd> {
    new_descriptor!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC)
}

/// Number of a file's file system. Asks no server of a remote or user-space one (`AT_STATX_DONT_SYNC`).
fn device_of(fd: &OwnedFd) -> io::Result<(u32, u32)> {
    // SAFETY: plain old data.
    let mut about: libc::statx = unsafe { std::mem::zeroed() };
    let (number, flags) = (libc::SYS_statx, libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC);
    // SAFETY: an empty C string, and `about`, which lives through the call.
    check(unsafe {
        libc::syscall(number, fd.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_TYPE, &mut about)
    })?;
    Ok((about.stx_dev_major, about.stx_dev_minor))
}

/// A number that cannot be guessed (getrandom(2)).
///
/// Errors: the kernel's.
pub fn secret() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: writes no more than `bytes` has; so few come whole.
    check(unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) })?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Sleeps until `word` is no longer `expected`, a wake-up, or the time-out. The word may be shared.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let (sec, nsec) = (timeout.as_secs() as libc::time_t, timeout.subsec_nanos().into());
    let time = libc::timespec { tv_sec: sec, tv_nsec: nsec };
    // SAFETY: word and time live through the call; any outcome (woken, changed, timed out): "look again".
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &time) };
}

pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word lives through the call; the kernel reads nothing from it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// A handle on another process that stays with that process, even when its number is used again.
///
/// Errors: `ESRCH` when there is none, `EMFILE`…
pub fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    new_descriptor!(SYS_pidfd_open, pid, 0).map(moved_high)
}

/// Whether a read would not wait; of a pidfd: its process has ended. About 0.2 µs.
pub fn is_readable(fd: &impl AsRawFd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry, no wait. A raw call: the C library's is a place where threads are cancelled.
    let ready = unsafe { libc::syscall(libc::SYS_poll, &mut poll, 1, 0) };
    ready == 1 && poll.revents & libc::POLLIN != 0
}

/// Tunes the calling thread for short sleeps: timers to the nanosecond instead of 50 µs late, and a
/// scheduling slice of 0.1 ms.
///
/// The slice matters where programs spin on every core. Since Linux 6.12 a waking thread with a shorter slice
/// than the running one preempts it at once; before, and for refusals, the thread runs with the usual slice.
/// No rights are needed, the priority stays what it was.
pub fn tune_thread() {
    let _ = set_timerslack(1);
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: plain old data.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: `attr` has the size passed.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &mut attr, size, 0) };
    if got != 0 || attr.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attr.size = size;
    attr.sched_runtime = 100_000;
    // SAFETY: `attr` is complete and lives through the call.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0) };
}

/// Sets an option of a socket; `value` has the type that the kernel knows for it.
pub(super) fn set_option<T: Copy>(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: T,
) -> io::Result<()> {
    let (number, len) = (libc::SYS_setsockopt, size_of_val(&value));
    // SAFETY: `value` lives through the call and has the length passed.
    check(unsafe { libc::syscall(number, socket.as_raw_fd(), level, name, &value, len) }).map(|_| ())
}

/// In place of a number of a thread.
const THIS_THREAD: Pid = Pid::from_raw(0);

/// Cores that the calling thread may run on; 1 when the kernel does not say.
pub fn allowed_cores() -> usize {
    let count = |cores: CpuSet| (0..CpuSet::count()).filter(|core| cores.is_set(*core) == Ok(true)).count();
    sched_getaffinity(THIS_THREAD).map_or(1, count)
}

/// Moves the calling thread to another core that it may run on, if there is one; it may come back later. What
/// another thread sets in between is lost, and the earlier set stays.
pub fn leave_core() {
    let (Ok(all), Ok(here)) = (sched_getaffinity(THIS_THREAD), sched_getcpu()) else { return };
    let mut others = all;
    if others.unset(here).is_ok() {
        // An empty set is refused, and nothing changes.
        let _ = sched_setaffinity(THIS_THREAD, &others);
        let _ = sched_setaffinity(THIS_THREAD, &all);
    }
}
