//! Hooks that take a path: open, stat, access, read a link, resolve.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use soft_nic::sysfs;
use soft_nic::sysfs::tree::{Attributes, Node, Tree};

use super::paths::{Place, locate};
use super::raw::{self, fail, fail_null, hooks, next_function, syscall};
use super::table::{self, Entry};
use super::virtual_tree::virtual_tree;
use super::{manager, nic, raw::int};

/// Hooks that are a call of one function of ours each.
macro_rules! calls {
    ($($($name:ident),+ => $arguments:tt -> $result:ty: $call:expr;)*) => {$(
        hooks!($($name),+ => $arguments -> $result {
            // SAFETY: the program's own arguments.
            unsafe { $call }
        });
    )*};
}

/// `open` in all its spellings.
///
/// # Safety
/// The path is null or a C string.
unsafe fn open_at(directory: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    match locate(directory, path, flags & libc::O_NOFOLLOW == 0) {
        Place::Kernel(path) => raw::openat(path.directory, path.as_ptr(), flags, mode),
        Place::Error(errno) => fail(errno),
        Place::Node(path, node) => open_node(&path, node, flags),
    }
}

/// Opens a node: a file is a memfd with its content, a directory a memfd that only we understand, a device the memfd
/// of its pages.
pub fn open_node(path: &str, node: &Node, flags: c_int) -> c_int {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let close_on_exec = flags & libc::O_CLOEXEC != 0;
    match node {
        Node::Directory if writes => fail(libc::EISDIR),
        Node::Directory => match virtual_tree().directory_index(path) {
            Some(index) => table::open_directory(index, close_on_exec),
            None => fail(libc::ENOENT),
        },
        _ if flags & libc::O_DIRECTORY != 0 => fail(libc::ENOTDIR),
        Node::File(_) | Node::Port(..) if writes => fail(libc::EACCES),
        Node::File(content) => open_content(content, close_on_exec),
        Node::Port(device, file) => {
            let content =
                sysfs::port_file(*file, virtual_tree().config.link_layer, nic::port_is_down(*device));
            open_content(content.as_bytes(), close_on_exec)
        }
        Node::Link(_) => fail(libc::ELOOP),
        Node::Device(index) => nic::open(*index, flags),
        Node::Manager => manager::open(flags),
    }
}

fn open_content(content: &[u8], close_on_exec: bool) -> c_int {
    let fd = raw::memfd(c"softnic-sysfs", close_on_exec);
    if fd < 0 {
        return fd;
    }
    // SAFETY: the kernel reads `content`, which lives through the call.
    let written = unsafe { syscall!(SYS_pwrite64, fd, content.as_ptr(), content.len(), 0) };
    if written as usize != content.len() {
        raw::close(fd);
        return fail(libc::ENOMEM);
    }
    // SAFETY: plain numbers.
    unsafe { syscall!(SYS_fchmod, fd, 0o444) };
    fd
}

calls! {
    open, open64 => (path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int:
        open_at(libc::AT_FDCWD, path, flags, mode);
    __open_2, __open64_2 => (path: *const c_char, flags: c_int) -> c_int: open_at(libc::AT_FDCWD, path, flags, 0);
    openat, openat64 => (at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int:
        open_at(at, path, flags, mode);
    __openat_2, __openat64_2 => (at: c_int, path: *const c_char, flags: c_int) -> c_int: open_at(at, path, flags, 0);
}

/// `fopen` of a node; `None` when the path is not ours.
fn fopen_node(path: *const c_char, mode: *const c_char) -> Option<*mut libc::FILE> {
    let (path, node) = match locate(libc::AT_FDCWD, path, true) {
        Place::Kernel(_) => return None,
        Place::Error(errno) => return Some(fail_null(errno)),
        Place::Node(path, node) => (path, node),
    };
    // SAFETY: the program passes a C string as mode.
    let text = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let flags = match (text.contains(&b'+'), text.first()) {
        (false, Some(b'r')) => libc::O_RDONLY,
        _ => libc::O_RDWR,
    };
    let close_on_exec = if text.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    if *node == Node::Directory {
        return Some(fail_null(libc::EISDIR));
    }
    let fd = open_node(&path, node, flags | close_on_exec);
    if fd < 0 {
        return Some(std::ptr::null_mut());
    }
    // SAFETY: a descriptor of ours that the stream takes over, and the program's mode string.
    Some(unsafe { libc::fdopen(fd, mode) })
}

hooks!(fopen, fopen64 => (path: *const c_char, mode: *const c_char) -> *mut libc::FILE, next or std::ptr::null_mut(); {
    // SAFETY: the program's own arguments.
    fopen_node(path, mode).unwrap_or_else(|| unsafe { next(path, mode) })
});

fn stat_of(attributes: &Attributes) -> libc::stat {
    // SAFETY: plain old data, for which zeros are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_dev = 0x15;
    stat.st_ino = attributes.inode;
    stat.st_mode = attributes.mode;
    stat.st_nlink = 1;
    stat.st_size = attributes.size as i64;
    stat.st_blksize = 4096;
    stat.st_rdev = libc::makedev(attributes.device.0, attributes.device.1);
    (stat.st_atime, stat.st_mtime, stat.st_ctime) = (attributes.time, attributes.time, attributes.time);
    stat
}

/// What an `…at` call means, when it is about something of ours.
fn attributes_at(directory: c_int, path: *const c_char, flags: c_int) -> Result<Attributes, Place> {
    // SAFETY: a null path is allowed with AT_EMPTY_PATH, of a descriptor itself; any other is a C string.
    let is_empty = || path.is_null() || unsafe { *path } == 0;
    if flags & libc::AT_EMPTY_PATH != 0
        && is_empty()
        && let Some(found) = attributes_of(directory)
    {
        return Ok(found);
    }
    match locate(directory, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0) {
        Place::Node(path, node) => Ok(Tree::attributes(&path, node)),
        other => Err(other),
    }
}

/// Attributes of a descriptor that is a directory or a device of ours: the kernel would speak of a file, or a pipe.
fn attributes_of(fd: c_int) -> Option<Attributes> {
    if table::get(fd) == Entry::Foreign {
        return None;
    }
    let device =
        |index: u8| Tree::attributes(&format!("/dev/infiniband/uverbs{index}"), &Node::Device(index));
    match table::verified(fd) {
        Entry::Foreign => None,
        Entry::Directory(index) => {
            Some(Tree::attributes(virtual_tree().directory(index as usize)?, &Node::Directory))
        }
        Entry::Command(number) => Some(device(nic::device_of(number).unwrap_or_default())),
        Entry::Inherited => Some(device(0)),
        Entry::Manager(_) => Some(Tree::attributes(manager::PATH, &Node::Manager)),
    }
}

/// `stat` in all its spellings.
unsafe fn stat_at(directory: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
    match attributes_at(directory, path, flags) {
        Ok(found) => {
            if out.is_null() {
                return fail(libc::EFAULT);
            }
            // SAFETY: the program gave room for a `struct stat`.
            unsafe { out.write(stat_of(&found)) };
            0
        }
        Err(Place::Kernel(path)) => {
            // SAFETY: the program's own arguments, or a path of ours and the program's own room.
            int(unsafe { syscall!(SYS_newfstatat, path.directory, path.as_ptr(), out, flags) })
        }
        Err(Place::Error(errno)) => fail(errno),
        Err(Place::Node(..)) => fail(libc::EIO),
    }
}

/// `fstat` in all its spellings.
unsafe fn stat_fd(fd: c_int, out: *mut libc::stat) -> c_int {
    match attributes_of(fd) {
        Some(found) if !out.is_null() => {
            // SAFETY: the program gave room for a `struct stat`.
            unsafe { out.write(stat_of(&found)) };
            0
        }
        // SAFETY: the program's own arguments.
        _ => int(unsafe { syscall!(SYS_fstat, fd, out) }),
    }
}

// `struct stat` and `struct stat64` are one on x86-64, and so are all these names. Those that begin with underscores are
// called by binaries built against a C library before 2.33, with a version in front.

calls! {
    stat, stat64 => (path: *const c_char, out: *mut libc::stat) -> c_int: stat_at(libc::AT_FDCWD, path, out, 0);
    lstat, lstat64 => (path: *const c_char, out: *mut libc::stat) -> c_int:
        stat_at(libc::AT_FDCWD, path, out, libc::AT_SYMLINK_NOFOLLOW);
    fstat, fstat64 => (fd: c_int, out: *mut libc::stat) -> c_int: stat_fd(fd, out);
    fstatat, fstatat64 => (at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int:
        stat_at(at, path, out, flags);
    __xstat, __xstat64 => (_version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int:
        stat_at(libc::AT_FDCWD, path, out, 0);
    __lxstat, __lxstat64 => (_version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int:
        stat_at(libc::AT_FDCWD, path, out, libc::AT_SYMLINK_NOFOLLOW);
    __fxstat, __fxstat64 => (_version: c_int, fd: c_int, out: *mut libc::stat) -> c_int: stat_fd(fd, out);
    __fxstatat, __fxstatat64 => (_version: c_int, at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int:
        stat_at(at, path, out, flags);
}

hooks!(statx => (
    at: c_int, path: *const c_char, flags: c_int, mask: libc::c_uint, out: *mut libc::statx,
) -> c_int {
    match attributes_at(at, path, flags) {
        Ok(found) if !out.is_null() => {
            // SAFETY: plain old data, for which zeros are a value.
            let mut answer: libc::statx = unsafe { std::mem::zeroed() };
            answer.stx_mask = libc::STATX_BASIC_STATS;
            answer.stx_blksize = 4096;
            answer.stx_nlink = 1;
            answer.stx_mode = found.mode as u16;
            answer.stx_ino = found.inode;
            answer.stx_size = found.size;
            (answer.stx_rdev_major, answer.stx_rdev_minor) = found.device;
            answer.stx_dev_minor = 0x15;
            for time in [&mut answer.stx_atime, &mut answer.stx_mtime, &mut answer.stx_ctime] {
                time.tv_sec = found.time;
            }
            // SAFETY: the program gave room for a `struct statx`.
            unsafe { out.write(answer) };
            0
        }
        Ok(_) => fail(libc::EFAULT),
        Err(Place::Kernel(path)) => {
            // SAFETY: the program's own arguments, or a path of ours and the program's own room.
            int(unsafe { syscall!(SYS_statx, path.directory, path.as_ptr(), flags, mask, out) })
        }
        Err(Place::Error(errno)) => fail(errno),
        Err(Place::Node(..)) => fail(libc::EIO),
    }
});

/// Whether the access is allowed; the tree is read-only, devices are open to all.
fn access_node(node: &Node, mode: c_int) -> c_int {
    let refused = match node {
        Node::Device(_) | Node::Manager => libc::X_OK,
        Node::Directory => libc::W_OK,
        Node::File(_) | Node::Port(..) | Node::Link(_) => libc::W_OK | libc::X_OK,
    };
    if mode & refused != 0 { fail(libc::EACCES) } else { 0 }
}

hooks!(access => (path: *const c_char, mode: c_int) -> c_int {
    match locate(libc::AT_FDCWD, path, true) {
        // SAFETY: the kernel checks the path.
        Place::Kernel(path) => int(unsafe { syscall!(SYS_access, path.as_ptr(), mode) }),
        Place::Error(errno) => fail(errno),
        Place::Node(_, node) => access_node(node, mode),
    }
});

hooks!(faccessat => (at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, next or -1; {
    match locate(at, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0) {
        // SAFETY: the program's own arguments, or a path of ours; libc knows how to ask with flags on old kernels.
        Place::Kernel(path) => unsafe { next(path.directory, path.as_ptr(), mode, flags) },
        Place::Error(errno) => fail(errno),
        Place::Node(_, node) => access_node(node, mode),
    }
});

// `access` with effective ids, under both its names.
hooks!(euidaccess, eaccess => (path: *const c_char, mode: c_int) -> c_int, next or -1; {
    match locate(libc::AT_FDCWD, path, true) {
        // SAFETY: the program's own arguments, or a path of ours.
        Place::Kernel(path) => unsafe { next(path.as_ptr(), mode) },
        Place::Error(errno) => fail(errno),
        Place::Node(_, node) => access_node(node, mode),
    }
});

/// Extended attributes: the tree has none, as sysfs on most machines.
macro_rules! xattr_hooks {
    ($($name:ident, $number:ident, ($($argument:ident: $type:ty),*);)*) => {$(
        hooks!($name => (path: *const c_char $(, $argument: $type)*) -> isize {
            match locate(libc::AT_FDCWD, path, false) {
                // SAFETY: the program's own arguments, or a path of ours.
                Place::Kernel(path) => unsafe { syscall!($number, path.as_ptr() $(, $argument)*) as isize },
                Place::Error(errno) => fail(errno) as isize,
                Place::Node(..) => fail(libc::ENOTSUP) as isize,
            }
        });
    )*};
}

xattr_hooks! {
    getxattr, SYS_getxattr, (name: *const c_char, value: *mut c_void, size: usize);
    lgetxattr, SYS_lgetxattr, (name: *const c_char, value: *mut c_void, size: usize);
    listxattr, SYS_listxattr, (list: *mut c_char, size: usize);
    llistxattr, SYS_llistxattr, (list: *mut c_char, size: usize);
}

/// `readlink` in all its spellings.
unsafe fn readlink_at(directory: c_int, path: *const c_char, out: *mut c_char, room: usize) -> isize {
    match locate(directory, path, false) {
        // SAFETY: the program's own arguments, or a path of ours and the program's own room.
        Place::Kernel(path) => unsafe {
            syscall!(SYS_readlinkat, path.directory, path.as_ptr(), out, room) as isize
        },
        Place::Error(errno) => fail(errno) as isize,
        Place::Node(_, Node::Link(target)) => {
            let length = target.len().min(room);
            // SAFETY: the program gave `room` bytes at `out`, and no more than that is written.
            unsafe { out.copy_from_nonoverlapping(target.as_ptr().cast(), length) };
            length as isize
        }
        Place::Node(..) => fail(libc::EINVAL) as isize,
    }
}

calls! {
    readlink => (path: *const c_char, out: *mut c_char, room: usize) -> isize:
        readlink_at(libc::AT_FDCWD, path, out, room);
    readlinkat => (at: c_int, path: *const c_char, out: *mut c_char, room: usize) -> isize:
        readlink_at(at, path, out, room);
    // Never more than the buffer that the compiler saw.
    __readlink_chk => (path: *const c_char, out: *mut c_char, room: usize, size: usize) -> isize:
        readlink_at(libc::AT_FDCWD, path, out, room.min(size));
    __readlinkat_chk => (at: c_int, path: *const c_char, out: *mut c_char, room: usize, size: usize) -> isize:
        readlink_at(at, path, out, room.min(size));
}

/// `realpath` of a node: into the program's PATH_MAX bytes, or memory that it will free.
fn give_path(path: String, out: *mut c_char) -> *mut c_char {
    let Ok(path) = CString::new(path) else { return std::ptr::null_mut() };
    if out.is_null() {
        // SAFETY: a C string of ours; the program frees the copy.
        return unsafe { libc::strdup(path.as_ptr()) };
    }
    let bytes = path.as_bytes_with_nul();
    // SAFETY: `realpath` demands PATH_MAX bytes of room, and no path of the tree is near that.
    unsafe { out.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    out
}

/// `realpath` in all its spellings: the arguments behind the path, and where the answer goes.
macro_rules! realpath_hooks {
    ($($name:ident, ($($argument:ident: $type:ty),*), $out:expr;)*) => {$(
        hooks!($name => (path: *const c_char $(, $argument: $type)*) -> *mut c_char {
            match locate(libc::AT_FDCWD, path, true) {
                Place::Kernel(path) => {
                    let next = next_function!($name, fn(*const c_char $(, $type)*) -> *mut c_char, std::ptr::null_mut());
                    // SAFETY: the program's own arguments, or a path of ours.
                    unsafe { next(path.as_ptr() $(, $argument)*) }
                }
                Place::Error(errno) => fail_null(errno),
                Place::Node(path, _) => give_path(path, $out),
            }
        });
    )*};
}

realpath_hooks! {
    realpath, (out: *mut c_char), out;
    __realpath_chk, (out: *mut c_char, size: usize), out;
    canonicalize_file_name, (), std::ptr::null_mut();
}
