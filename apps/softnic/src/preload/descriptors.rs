//! Hooks on descriptors: close, duplicate, the verbs ioctl, the connection manager's write, the mapping of
//! device pages, the netlink socket.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use soft_nic::abi::attributes::RDMA_VERBS_IOCTL;

use super::raw::{self, fail, hooks, int, syscall};
use super::table::{self, Entry};
use super::{manager, nic};

/// `NETLINK_RDMA`.
const NETLINK_RDMA: c_int = 20;

/// Forgets what a descriptor was, because it is about to be closed or replaced.
fn forget(fd: c_int) {
    forget_as(fd, table::verified(fd));
}

/// The same when it is known what the descriptor was.
fn forget_as(fd: c_int, was: Entry) {
    // In a vfork child the table is the parent's too: there the parent's entry must stay.
    if was == Entry::Foreign || !table::is_ours() {
        return;
    }
    table::set(fd, Entry::Foreign);
    if was.is_file() {
        nic::release(was);
    }
}

/// Runs a call that replaces `new` by a duplicate of `old`; a failed call leaves the entry of `new`.
fn replace(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if old == new {
        return call();
    }
    let was = table::verified(new);
    let result = call();
    if result >= 0 {
        forget_as(new, was);
        duplicated(old, result);
    }
    result
}

fn duplicated(old: c_int, new: c_int) {
    if new < 0 || old == new || table::get(old) == Entry::Foreign {
        return;
    }
    let entry = table::verified(old);
    if table::set(new, entry) && entry.is_file() {
        nic::retain(entry);
    }
}

hooks!(close => (fd: c_int) -> c_int {
    forget(fd);
    raw::close(fd)
});

hooks!(close_range => (first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // CLOSE_RANGE_CLOEXEC only marks.
    if flags & 4 == 0 {
        table::range(first, last).for_each(forget);
    }
    // SAFETY: plain numbers.
    int(unsafe { syscall!(SYS_close_range, first, last, flags) })
});

hooks!(closefrom => (first: c_int) -> (), next; {
    let first = first.max(0) as c_uint;
    table::range(first, c_uint::MAX).for_each(forget);
    // SAFETY: the program's own argument.
    unsafe { next(first as c_int) }
});

hooks!(dup => (old: c_int) -> c_int {
    // SAFETY: plain numbers.
    let new = int(unsafe { syscall!(SYS_dup, old) });
    duplicated(old, new);
    new
});

hooks!(dup2 => (old: c_int, new: c_int) -> c_int {
    // SAFETY: plain numbers.
    replace(old, new, || int(unsafe { syscall!(SYS_dup2, old, new) }))
});

hooks!(dup3 => (old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: plain numbers.
    replace(old, new, || int(unsafe { syscall!(SYS_dup3, old, new, flags) }))
});

// The third argument is a number or a pointer; either is one register. Not a raw system call: libc translates
// F_GETOWN and the lock commands.
hooks!(fcntl, fcntl64 => (fd: c_int, command: c_int, argument: *mut c_void) -> c_int, next; {
    // SAFETY: the program's own arguments.
    let result = unsafe { next(fd, command, argument) };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        duplicated(fd, result);
    }
    result
});

hooks!(ioctl => (fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if table::get(fd) != Entry::Foreign && request == RDMA_VERBS_IOCTL {
        match table::verified(fd) {
            Entry::Command(number) => return nic::ioctl(number, argument as u64),
            Entry::Inherited => return fail(libc::EIO),
            Entry::Foreign | Entry::Directory(_) | Entry::Manager(_) => {}
        }
    }
    // SAFETY: the program's own arguments.
    int(unsafe { syscall!(SYS_ioctl, fd, request, argument) })
});

unsafe extern "C-unwind" {
    /// glibc's name for its own `write`, a cancellation point. The loader resolves it, since a signal handler
    /// may be the first caller.
    fn __write(fd: c_int, bytes: *const c_void, len: usize) -> isize;
}

/// Cancelling a thread unwinds through this frame: it holds nothing to drop, and its ABI allows unwinding.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    if let Entry::Manager(_) = table::get(fd)
        && let Entry::Manager(number) = table::verified(fd)
    {
        return manager::write(number, fd, bytes as u64, len);
    }
    // SAFETY: the program's own arguments.
    unsafe { __write(fd, bytes, len) }
}

hooks!(mmap, mmap64 => (
    address: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64,
) -> *mut c_void {
    if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 && table::get(fd) != Entry::Foreign {
        match table::verified(fd) {
            Entry::Command(number) => return nic::mmap(number, address, length, protection, flags, offset),
            Entry::Inherited => return nic::unmapped(libc::EIO),
            Entry::Foreign | Entry::Directory(_) | Entry::Manager(_) => {}
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { syscall!(SYS_mmap, address, length, protection, flags, fd, offset) as *mut c_void }
});

hooks!(socket => (domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // Discovery by netlink would show the machine's own devices, or none and then never look at sysfs.
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        return fail(libc::EPROTONOSUPPORT);
    }
    // SAFETY: plain numbers.
    int(unsafe { syscall!(SYS_socket, domain, kind, protocol) })
});
