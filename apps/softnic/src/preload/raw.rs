//! System calls without libc's wrappers, which this library replaces; and libc's own functions behind it.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicPtr, Ordering};

/// What a C function gives when it fails.
pub trait Failure {
    const FAILED: Self;
}

macro_rules! failures {
    ($($type:ty: $failed:expr),*) => { $(
        impl Failure for $type {
            const FAILED: $type = $failed;
        }
    )* };
}
failures! { (): (), c_int: -1, c_long: -1, isize: -1 }

impl<T> Failure for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

/// Sets `errno` and returns what C functions fail with.
pub fn fail<T: Failure>(errno: c_int) -> T {
    // SAFETY: takes nothing, and always gives a place.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's own errno.
    unsafe { *place = errno };
    T::FAILED
}

/// The calling thread's `errno`.
pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Puts `errno` back as it was when a hook began, so that a hook's own failures do not show.
pub struct KeepErrno(c_int);

impl KeepErrno {
    /// Remembers the present value.
    pub fn new() -> Self {
        Self(errno())
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        fail(self.0)
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Defers the cancellation of a thread. A verb is no cancellation point (pthreads(7)), but the NIC in it
/// sleeps and reads. The unwinding of a cancelled thread cannot pass a hook.
pub struct Uncancelled(c_int);

impl Uncancelled {
    pub fn new() -> Self {
        /// `PTHREAD_CANCEL_DISABLE` of glibc's `pthread.h`.
        const DISABLED: c_int = 1;
        let mut before = 0;
        // SAFETY: `before` lives through the call, which changes this thread's own state.
        unsafe { pthread_setcancelstate(DISABLED, &mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: as above; the state before is not asked for.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// One system call with libc's convention (-1 and `errno`).
///
/// # Safety
/// As the call's own: pointers that the kernel writes through must be good for it.
macro_rules! syscall {
    ($number:ident $(, $argument:expr)*) => {
        // Whole words: the upper half of a shorter variadic argument is whatever the stack held.
        libc::syscall(libc::$number $(, $argument as usize)*)
    };
}
pub(crate) use syscall;

/// `openat` without the hook. The kernel checks the path's address.
pub fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the kernel only reads through `path`, and answers EFAULT for a bad one.
    unsafe { syscall!(SYS_openat, directory, path, flags, mode) as c_int }
}

/// `close` without the hook.
pub fn close(fd: c_int) -> c_int {
    // SAFETY: closing touches no memory; the program decides which descriptors it closes.
    unsafe { syscall!(SYS_close, fd) as c_int }
}

/// Another descriptor of the same file, the lowest that is free.
pub fn duplicate(fd: BorrowedFd<'_>, close_on_exec: bool) -> c_int {
    let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: plain numbers.
    unsafe { syscall!(SYS_fcntl, fd.as_raw_fd(), command, 0) as c_int }
}

/// `fstat` without the hook.
pub fn fstat(fd: c_int) -> Option<libc::stat> {
    // SAFETY: plain old data, for which zeros are a value.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `found` has room for the answer and lives through the call.
    let result = unsafe { syscall!(SYS_fstat, fd, &raw mut found) };
    (result == 0).then_some(found)
}

/// A memfd with this name (without its terminating zero's worries: a literal).
pub fn memfd(name: &CStr, close_on_exec: bool) -> c_int {
    let flags = if close_on_exec { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: the kernel reads the name, which lives through the call.
    unsafe { syscall!(SYS_memfd_create, name.as_ptr(), flags) as c_int }
}

/// Sets both times of a file; false when the kernel refuses.
pub fn set_time(fd: c_int, seconds: i64, nanoseconds: i64) -> bool {
    let times = [libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds }; 2];
    // SAFETY: a null path means the descriptor itself; the kernel reads the times, which outlive the call.
    unsafe { syscall!(SYS_utimensat, fd, std::ptr::null::<c_char>(), times.as_ptr(), 0) == 0 }
}

/// Process id, from the kernel: libc's may be cached by the program's own libc.
pub fn pid() -> i32 {
    // SAFETY: no arguments, no memory.
    unsafe { syscall!(SYS_getpid) as i32 }
}

/// Functions with an older version for old programs, and the version that programs link today. Before 2.36,
/// RTLD_NEXT without a version finds the older one (glibc bug 14932).
const VERSIONS: [(&CStr, &CStr); 2] = [(c"realpath", c"GLIBC_2.3"), (c"ibv_open_device", c"IBVERBS_1.1")];

/// A function behind this library's, looked up once.
pub struct NextFunction {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl NextFunction {
    /// Names the function, by a text that ends with a zero.
    pub const fn new(name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { panic!("no zero at its end") };
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address, or null when the C library has no such function.
    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        let (next, name) = (libc::RTLD_NEXT, self.name.as_ptr());
        let mut found = std::ptr::null_mut();
        if let Some((_, version)) = VERSIONS.iter().find(|(known, _)| *known == self.name) {
            // SAFETY: two C strings; RTLD_NEXT means "after this library".
            found = unsafe { libc::dlvsym(next, name, version.as_ptr()) };
        }
        if found.is_null() {
            // SAFETY: the name is a C string.
            found = unsafe { libc::dlsym(next, name) };
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Exports one hook under each of its names in the C library. `next` is the C library's own function for the
/// body; where there is none the hook fails with `ENOSYS`.
macro_rules! hooks {
    ($($name:ident),+ => $arguments:tt -> $result:ty $body:block) => {$(
        #[allow(non_snake_case)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name $arguments -> $result $body
    )+};
    ($($name:ident),+ => $arguments:tt -> $result:ty, $next:ident; $body:block) => {
        $($crate::preload::raw::hooks!(@next $name $arguments -> $result, $next; $body);)+
    };
    (@next $name:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty, $next:ident; $body:block) => {
        $crate::preload::raw::hooks!($name => ($($argument: $type),*) -> $result {
            static NEXT: $crate::preload::raw::NextFunction =
                $crate::preload::raw::NextFunction::new(concat!(stringify!($name), "\0"));
            let found = NEXT.get();
            if found.is_null() {
                return $crate::preload::raw::fail(libc::ENOSYS);
            }
            type Next = unsafe extern "C" fn($($type),*) -> $result;
            // SAFETY: the C library's function of this name has this signature.
            let $next = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Next>(found) };
            $body
        });
    };
}
pub(crate) use hooks;

/// Result of a system call that returns a `long`.
pub fn int(result: c_long) -> c_int {
    result as c_int
}
