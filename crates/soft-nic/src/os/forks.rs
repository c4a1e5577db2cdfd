//! What a fork child must not have of its parent: it learns that it is a child, closes the sockets that have
//! an address, and begins per-process singletons anew.
//!
//! A child has its parent's memory and descriptors but none of its threads: a lock that one of them held
//! stays locked. A bound socket would keep its address for as long as the child lives.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use nix::sys::socket::{UnixAddr, bind};

use super::system::{moved_high, new_descriptor};

/// Forks that led to this process, counted from its ancestors. A `Link` remembers it: a child sees another
/// number and keeps away from its parent's rings.
pub fn fork_generation() -> u32 {
    static GENERATION: AtomicU32 = AtomicU32::new(0);
    static HOOKED: Once = Once::new();
    extern "C" fn before() {
        lock_forks();
    }
    extern "C" fn in_parent() {
        FORKS_LOCKED.store(false, Ordering::Release);
    }
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        for place in &OWN {
            let raw = place.swap(FREE, Ordering::Relaxed);
            if raw >= 0 {
                // SAFETY: closes the child's copy of a socket whose owner the child has not.
                unsafe { libc::syscall(libc::SYS_close, raw) };
            }
        }
        FORKS_LOCKED.store(false, Ordering::Release);
    }
    HOOKED.call_once(|| {
        // SAFETY: the handlers only use atomics and plain system calls, which are safe in a fork child.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}

/// Taken while such a socket comes or goes, and by `fork`: a child closes exactly the sockets it inherited.
static FORKS_LOCKED: AtomicBool = AtomicBool::new(false);

/// Sockets that a process may have: two for each of 32 addresses, those of the connection manager, and as
/// many again for a program, such as a test, that has several NICs.
const MOST: usize = 256;

/// Sockets that fork children close: a descriptor, or `FREE`.
static OWN: [AtomicI32; MOST] = [const { AtomicI32::new(FREE) }; MOST];
const FREE: i32 = -1;

/// Held for three system calls at most, so waiting for it is short.
fn lock_forks() {
    while FORKS_LOCKED.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// A socket of this process alone: a fork child, which might live for ever and keep its address, closes it in
/// its fork handler.
#[derive(Debug)]
pub struct NoForkSocket {
    socket: Option<OwnedFd>,
    entry: usize,
    /// Process that opened it: in a fork child the entry and the number may be another socket's.
    generation: u32,
}

impl NoForkSocket {
    /// Opens a socket; close-on-exec is added.
    ///
    /// Errors: the kernel's; `ResourceBusy` when this process has too many of these.
    pub fn open(domain: libc::c_int, kind: libc::c_int) -> io::Result<NoForkSocket> {
        // The handlers must be there before the socket is.
        fork_generation();
        lock_forks();
        let made = Self::register(domain, kind | libc::SOCK_CLOEXEC);
        FORKS_LOCKED.store(false, Ordering::Release);
        made
    }

    /// Binds an abstract name: only one process can have it, and the kernel frees it when that process ends.
    /// `None`: it is taken, or too many threads of this process try at once.
    ///
    /// Errors: the kernel's, or a name that is too long.
    pub fn lock(name: &str) -> io::Result<Option<NoForkSocket>> {
        let bound = || -> io::Result<NoForkSocket> {
            let socket = NoForkSocket::open(libc::AF_UNIX, libc::SOCK_DGRAM)?;
            bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
            Ok(socket)
        };
        match bound() {
            Err(error) if matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::AddrInUse) => {
                Ok(None)
            }
            bound => bound.map(Some),
        }
    }

    /// Only with the lock.
    fn register(domain: libc::c_int, kind: libc::c_int) -> io::Result<NoForkSocket> {
        let Some(entry) = OWN.iter().position(|place| place.load(Ordering::Relaxed) == FREE) else {
            return Err(io::ErrorKind::ResourceBusy.into());
        };
        let socket = moved_high(new_descriptor!(SYS_socket, domain, kind, 0)?);
        OWN[entry].store(socket.as_raw_fd(), Ordering::Relaxed);
        Ok(NoForkSocket { socket: Some(socket), entry, generation: fork_generation() })
    }
}

impl AsRawFd for NoForkSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_ref().map_or(FREE, AsRawFd::as_raw_fd)
    }
}

impl Drop for NoForkSocket {
    fn drop(&mut self) {
        let socket = self.socket.take();
        if self.generation != fork_generation() {
            // Closed by the child's handler.
            socket.into_iter().for_each(|socket| _ = socket.into_raw_fd());
            return;
        }
        lock_forks();
        OWN[self.entry].store(FREE, Ordering::Relaxed);
        drop(socket);
        FORKS_LOCKED.store(false, Ordering::Release);
    }
}

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

/// A singleton of one process, made when first asked for, never freed: in a fork child the parent's stays
/// where it is, unused.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing::true_in_fork_child;

    fn is_open(raw: RawFd) -> bool {
        // SAFETY: asks for a flag of a descriptor that this process may not have.
        unsafe { libc::fcntl(raw, libc::F_GETFD) != -1 }
    }

    #[test]
    fn a_fork_child_has_none_of_its_parent_s_sockets_and_keeps_its_own() {
        let ours = NoForkSocket::open(libc::AF_UNIX, libc::SOCK_DGRAM).unwrap();
        let raw = ours.as_raw_fd();
        assert!(true_in_fork_child(move || {
            let closed = !is_open(raw);
            let new = NoForkSocket::open(libc::AF_UNIX, libc::SOCK_DGRAM).unwrap();
            // The inherited one goes, and takes nothing along that has its number now.
            drop(ours);
            closed && is_open(new.as_raw_fd())
        }));
    }
}
