//! Hooks that take a path: open, stat, access, read a link, resolve.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use soft_nic::sysfs;
use soft_nic::sysfs::tree::{Attributes, Node, Tree};

use super::paths::answer;
use super::raw::{self, fail, hooks, syscall};
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
    let kernel = |directory, path| raw::openat(directory, path, flags, mode);
    let follow = flags & libc::O_NOFOLLOW == 0;
    answer(directory, path, follow, kernel, |_, node| open_node(node, flags))
}

/// Opens a node: a file is a memfd with its content, a directory a memfd that only we understand. A device is
/// the memfd of its pages.
fn open_node(node: &Node, flags: c_int) -> Result<c_int, c_int> {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let close_on_exec = flags & libc::O_CLOEXEC != 0;
    match node {
        Node::Directory(_) if writes => Err(libc::EISDIR),
        Node::Directory(number) => Ok(table::open_directory(*number, close_on_exec)),
        _ if flags & libc::O_DIRECTORY != 0 => Err(libc::ENOTDIR),
        Node::File(_) | Node::Port(..) if writes => Err(libc::EACCES),
        Node::File(content) => open_content(content, close_on_exec),
        Node::Port(device, file) => {
            let content =
                sysfs::port_file(*file, virtual_tree().config.link_layer, nic::port_is_down(*device));
            open_content(content.as_bytes(), close_on_exec)
        }
        Node::Link(_) => Err(libc::ELOOP),
        Node::Device(index) => Ok(nic::open(*index, flags)),
        Node::Manager => Ok(manager::open(flags)),
    }
}

fn open_content(content: &[u8], close_on_exec: bool) -> Result<c_int, c_int> {
    let fd = raw::memfd(c"softnic-sysfs", close_on_exec);
    if fd < 0 {
        return Ok(fd);
    }
    // SAFETY: the kernel reads `content`, which lives through the call.
    let written = unsafe { syscall!(SYS_pwrite64, fd, content.as_ptr(), content.len(), 0) };
    if written as usize != content.len() {
        raw::close(fd);
        return Err(libc::ENOMEM);
    }
    // SAFETY: plain numbers.
    unsafe { syscall!(SYS_fchmod, fd, 0o444) };
    Ok(fd)
}

calls! {
    open, open64 => (path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int:
        open_at(libc::AT_FDCWD, path, flags, mode);
    __open_2, __open64_2 => (path: *const c_char, flags: c_int) -> c_int: open_at(libc::AT_FDCWD, path, flags, 0);
    openat, openat64 => (at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int:
        open_at(at, path, flags, mode);
    __openat_2, __openat64_2 => (at: c_int, path: *const c_char, flags: c_int) -> c_int: open_at(at, path, flags, 0);
}

/// `fopen` of a node.
fn fopen_node(node: &Node, mode: *const c_char) -> Result<*mut libc::FILE, c_int> {
    // SAFETY: the program passes a C string as mode.
    let text = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let flags = match (text.contains(&b'+'), text.first()) {
        (false, Some(b'r')) => libc::O_RDONLY,
        _ => libc::O_RDWR,
    };
    let close_on_exec = if text.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    if let Node::Directory(_) = node {
        return Err(libc::EISDIR);
    }
    let fd = open_node(node, flags | close_on_exec)?;
    if fd < 0 {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: a descriptor of ours that the stream takes over, and the program's mode string.
    Ok(unsafe { libc::fdopen(fd, mode) })
}

hooks!(fopen, fopen64 => (path: *const c_char, mode: *const c_char) -> *mut libc::FILE, next; {
    // SAFETY: the program's own arguments, or this library's path.
    let kernel = |_, path| unsafe { next(path, mode) };
    answer(libc::AT_FDCWD, path, true, kernel, |_, node| fopen_node(node, mode))
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

/// A `stat…at` call: `give` gives the attributes of what is ours.
fn answer_stat(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    kernel: impl FnOnce(c_int, *const c_char) -> c_int,
    give: impl FnOnce(Attributes) -> Result<c_int, c_int>,
) -> c_int {
    // SAFETY: a null path is allowed with AT_EMPTY_PATH, of a descriptor itself; any other is a C string.
    let is_empty = || path.is_null() || unsafe { *path } == 0;
    if flags & libc::AT_EMPTY_PATH != 0
        && is_empty()
        && let Some(found) = attributes_of(directory)
    {
        return give(found).unwrap_or_else(fail);
    }
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    answer(directory, path, follow, kernel, |path, node| give(Tree::attributes(&path, node)))
}

/// Writes an answer into the program's room.
///
/// # Safety
/// `room` is null, or has room for it.
unsafe fn put<T>(answer: T, room: *mut T) -> Result<c_int, c_int> {
    if room.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: as the caller says.
    unsafe { room.write(answer) };
    Ok(0)
}

/// Attributes of our directory or device behind a descriptor: the kernel would report a file or a pipe.
fn attributes_of(fd: c_int) -> Option<Attributes> {
    if table::get(fd) == Entry::Foreign {
        return None;
    }
    let device =
        |index: u8| Tree::attributes(&format!("/dev/infiniband/uverbs{index}"), &Node::Device(index));
    match table::verified(fd) {
        Entry::Foreign => None,
        Entry::Directory(number) => {
            Some(Tree::attributes(virtual_tree().tree.directory(number)?, &Node::Directory(number)))
        }
        Entry::Command(number) => Some(device(nic::device_of(number).unwrap_or_default())),
        Entry::Inherited => Some(device(0)),
        Entry::Manager(_) => Some(Tree::attributes(manager::PATH, &Node::Manager)),
    }
}

/// `stat` in all its spellings.
unsafe fn stat_at(directory: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
    let kernel = |directory, path| {
        // SAFETY: the program's own arguments, or this library's path and the program's own room.
        int(unsafe { syscall!(SYS_newfstatat, directory, path, out, flags) })
    };
    // SAFETY: the program gave room for a `struct stat`.
    answer_stat(directory, path, flags, kernel, |found| unsafe { put(stat_of(&found), out) })
}

/// `fstat` in all its spellings.
unsafe fn stat_fd(fd: c_int, out: *mut libc::stat) -> c_int {
    match attributes_of(fd) {
        // SAFETY: the program gave room for a `struct stat`.
        Some(found) => unsafe { put(stat_of(&found), out) }.unwrap_or_else(fail),
        // SAFETY: the program's own arguments.
        None => int(unsafe { syscall!(SYS_fstat, fd, out) }),
    }
}

// `struct stat` and `struct stat64` are one on x86-64, and so are all these names. Binaries built against a C
// library before 2.33 call those with underscores, which take a version first.

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

fn statx_of(found: &Attributes) -> libc::statx {
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
    answer
}

hooks!(statx => (
    at: c_int, path: *const c_char, flags: c_int, mask: libc::c_uint, out: *mut libc::statx,
) -> c_int {
    // SAFETY: the program's own arguments, or this library's path and the program's own room.
    let kernel = |at, path| int(unsafe { syscall!(SYS_statx, at, path, flags, mask, out) });
    // SAFETY: the program gave room for a `struct statx`.
    answer_stat(at, path, flags, kernel, |found| unsafe { put(statx_of(&found), out) })
});

/// Whether the access is allowed; the tree is read-only, devices are open to all.
fn access_node(node: &Node, mode: c_int) -> Result<c_int, c_int> {
    let refused = match node {
        Node::Device(_) | Node::Manager => libc::X_OK,
        Node::Directory(_) => libc::W_OK,
        Node::File(_) | Node::Port(..) | Node::Link(_) => libc::W_OK | libc::X_OK,
    };
    if mode & refused != 0 { Err(libc::EACCES) } else { Ok(0) }
}

hooks!(faccessat => (at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, next; {
    // SAFETY: the program's own arguments, or this library's path; libc implements the flags on old kernels.
    let kernel = |at, path| unsafe { next(at, path, mode, flags) };
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    answer(at, path, follow, kernel, |_, node| access_node(node, mode))
});

// The latter two, of one meaning, go by effective ids.
hooks!(access, euidaccess, eaccess => (path: *const c_char, mode: c_int) -> c_int, next; {
    // SAFETY: the program's own arguments, or this library's path.
    let kernel = |_, path| unsafe { next(path, mode) };
    answer(libc::AT_FDCWD, path, true, kernel, |_, node| access_node(node, mode))
});

/// Extended attributes: the tree has none, as sysfs on most machines.
macro_rules! xattr_hooks {
    ($($name:ident, $number:ident, ($($argument:ident: $type:ty),*);)*) => {$(
        hooks!($name => (path: *const c_char $(, $argument: $type)*) -> isize {
            // SAFETY: the program's own arguments, or this library's path.
            let kernel = |_, path| unsafe { syscall!($number, path $(, $argument)*) as isize };
            answer(libc::AT_FDCWD, path, false, kernel, |_, _| Err(libc::ENOTSUP))
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
    let kernel = |directory, path| {
        // SAFETY: the program's own arguments, or this library's path and the program's own room.
        unsafe { syscall!(SYS_readlinkat, directory, path, out, room) as isize }
    };
    answer(directory, path, false, kernel, |_, node| {
        let Node::Link(target) = node else { return Err(libc::EINVAL) };
        let length = target.len().min(room);
        // SAFETY: the program gave `room` bytes at `out`, and no more than that is written.
        unsafe { out.copy_from_nonoverlapping(target.as_ptr().cast(), length) };
        Ok(length as isize)
    })
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
        hooks!($name => (path: *const c_char $(, $argument: $type)*) -> *mut c_char, next; {
            // SAFETY: the program's own arguments, or this library's path.
            let kernel = |_, path| unsafe { next(path $(, $argument)*) };
            answer(libc::AT_FDCWD, path, true, kernel, |path, _| Ok(give_path(path, $out)))
        });
    )*};
}

realpath_hooks! {
    realpath, (out: *mut c_char), out;
    __realpath_chk, (out: *mut c_char, size: usize), out;
    canonicalize_file_name, (), std::ptr::null_mut();
}
