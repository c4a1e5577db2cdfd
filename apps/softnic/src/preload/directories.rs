//! Hooks of directory streams. A stream over a directory of the tree is a [`Listing`] in disguise.

use std::ffi::{c_char, c_int, c_long};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use soft_nic::os::locked;
use soft_nic::sysfs::tree::{Node, Tree};

use super::paths::{Place, locate};
use super::raw::{fail, fail_null, hooks};
use super::table::{self, Entry};
use super::virtual_tree::virtual_tree;

/// What a `DIR *` of ours points to.
struct Listing {
    index: usize,
    /// Its descriptor, once asked for.
    fd: Option<c_int>,
    entries: Vec<libc::dirent>,
    next: usize,
}

/// Addresses of all listings that programs hold.
static LISTINGS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// How many there are: a program without one pays one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn is_ours(stream: *mut libc::DIR) -> bool {
    COUNT.load(Ordering::Relaxed) > 0 && locked(&LISTINGS).contains(&(stream as usize))
}

/// The listing behind a stream.
///
/// # Safety
/// `is_ours(stream)`, and no other thread uses the stream (POSIX leaves that to the program).
unsafe fn listing<'a>(stream: *mut libc::DIR) -> &'a mut Listing {
    // SAFETY: `is_ours` says that this is a box of ours which was not closed.
    unsafe { &mut *stream.cast::<Listing>() }
}

fn open_listing(path: &str, fd: Option<c_int>) -> *mut libc::DIR {
    let Some(index) = virtual_tree().directory_index(path) else { return fail_null(libc::ENOENT) };
    let own = entry(".", &Node::Directory, path);
    let above = entry("..", &Node::Directory, path.rsplit_once('/').map_or("/", |(above, _)| above));
    let names =
        virtual_tree().tree.children(path).map(|(name, node)| entry(name, node, &format!("{path}/{name}")));
    let mut entries: Vec<libc::dirent> = [own, above].into_iter().chain(names).collect();
    for (position, entry) in entries.iter_mut().enumerate() {
        entry.d_off = position as i64 + 1;
    }
    let stream = Box::into_raw(Box::new(Listing { index, fd, entries, next: 0 }));
    locked(&LISTINGS).push(stream as usize);
    COUNT.fetch_add(1, Ordering::Relaxed);
    stream.cast()
}

fn entry(name: &str, node: &Node, path: &str) -> libc::dirent {
    // SAFETY: plain old data, for which zeros are a value.
    let mut entry: libc::dirent = unsafe { std::mem::zeroed() };
    entry.d_ino = Tree::attributes(path, node).inode;
    entry.d_type = match node {
        Node::Directory => libc::DT_DIR,
        Node::File(_) | Node::Port(..) => libc::DT_REG,
        Node::Link(_) => libc::DT_LNK,
        Node::Device(_) | Node::Manager => libc::DT_CHR,
    };
    entry.d_reclen = size_of::<libc::dirent>() as u16;
    for (place, byte) in entry.d_name.iter_mut().zip(name.bytes().take(255)) {
        *place = byte as c_char;
    }
    entry
}

hooks!(opendir => (path: *const c_char) -> *mut libc::DIR, next or std::ptr::null_mut(); {
    match locate(libc::AT_FDCWD, path, true) {
        // SAFETY: the program's own argument, or a path of ours.
        Place::Kernel(path) => unsafe { next(path.as_ptr()) },
        Place::Error(errno) => fail_null(errno),
        Place::Node(path, Node::Directory) => open_listing(&path, None),
        Place::Node(..) => fail_null(libc::ENOTDIR),
    }
});

hooks!(fdopendir => (fd: c_int) -> *mut libc::DIR, next or std::ptr::null_mut(); {
    if let Entry::Directory(index) = table::verified(fd) {
        let path = virtual_tree().directory(index as usize);
        return path.map_or(std::ptr::null_mut(), |path| open_listing(path, Some(fd)));
    }
    // SAFETY: the program's own argument.
    unsafe { next(fd) }
});

hooks!(closedir => (stream: *mut libc::DIR) -> c_int, next or -1; {
    if is_ours(stream) {
        locked(&LISTINGS).retain(|held| *held != stream as usize);
        COUNT.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: it was a box of ours, and is no longer in the list.
        let listing = unsafe { Box::from_raw(stream.cast::<Listing>()) };
        if let Some(fd) = listing.fd {
            // SAFETY: the descriptor belongs to the stream.
            unsafe { libc::close(fd) };
        }
        return 0;
    }
    // SAFETY: the program's own argument.
    unsafe { next(stream) }
});

hooks!(readdir, readdir64 => (stream: *mut libc::DIR) -> *mut libc::dirent, next or std::ptr::null_mut(); {
    if !is_ours(stream) {
        // SAFETY: the program's own argument.
        return unsafe { next(stream) };
    }
    // SAFETY: ours, as just seen.
    let listing = unsafe { listing(stream) };
    let position = listing.next;
    listing.next += 1;
    listing.entries.get_mut(position).map_or(std::ptr::null_mut(), std::ptr::from_mut)
});

// The re-entrant form.
hooks!(readdir_r, readdir64_r => (
    stream: *mut libc::DIR, room: *mut libc::dirent, result: *mut *mut libc::dirent,
) -> c_int, next or libc::ENOSYS; {
    if !is_ours(stream) {
        // SAFETY: the program's own arguments.
        return unsafe { next(stream, room, result) };
    }
    // SAFETY: ours, as just seen.
    let listing = unsafe { listing(stream) };
    let found = listing.entries.get(listing.next).copied();
    listing.next += 1;
    let given = if let Some(found) = found {
        // SAFETY: the program gave room for an entry.
        unsafe { room.write(found) };
        room
    } else {
        std::ptr::null_mut()
    };
    // SAFETY: the program gave room for the pointer.
    unsafe { result.write(given) };
    0
});

hooks!(dirfd => (stream: *mut libc::DIR) -> c_int, next or -1; {
    if is_ours(stream) {
        // SAFETY: ours, as just seen.
        let listing = unsafe { listing(stream) };
        if listing.fd.is_none() {
            let fd = table::open_directory(listing.index, true);
            if fd < 0 {
                return fd;
            }
            listing.fd = Some(fd);
        }
        return listing.fd.unwrap_or(-1);
    }
    // SAFETY: the program's own argument.
    unsafe { next(stream) }
});

hooks!(rewinddir => (stream: *mut libc::DIR) -> (), next or Default::default(); {
    if is_ours(stream) {
        // SAFETY: ours, as just seen.
        unsafe { listing(stream) }.next = 0;
        return;
    }
    // SAFETY: the program's own argument.
    unsafe { next(stream) }
});

hooks!(seekdir => (stream: *mut libc::DIR, position: c_long) -> (), next or Default::default(); {
    if is_ours(stream) {
        // SAFETY: ours, as just seen.
        unsafe { listing(stream) }.next = usize::try_from(position).unwrap_or(0);
        return;
    }
    // SAFETY: the program's own arguments.
    unsafe { next(stream, position) }
});

hooks!(telldir => (stream: *mut libc::DIR) -> c_long, next or -1; {
    if is_ours(stream) {
        // SAFETY: ours, as just seen.
        return unsafe { listing(stream) }.next as c_long;
    }
    // SAFETY: the program's own argument.
    unsafe { next(stream) }
});

type Filter = Option<unsafe extern "C" fn(*const libc::dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int>;

/// A list as `scandir` gives it: every entry and the list itself from malloc, since the program frees them.
///
/// # Safety
/// The program's own callbacks and a place for the list.
unsafe fn scan(path: &str, list: *mut *mut *mut libc::dirent, filter: Filter, compare: Compare) -> c_int {
    let stream = open_listing(path, None);
    if stream.is_null() {
        return -1;
    }
    // SAFETY: just opened.
    let entries = unsafe { listing(stream) }.entries.clone();
    // SAFETY: just opened, and no other code has it.
    unsafe { closedir(stream) };
    let mut kept: Vec<*mut libc::dirent> = Vec::new();
    for entry in &entries {
        // SAFETY: the program's filter takes an entry.
        if filter.is_some_and(|filter| unsafe { filter(entry) } == 0) {
            continue;
        }
        // SAFETY: asks for room for one entry.
        let copy = unsafe { libc::malloc(size_of::<libc::dirent>()) }.cast::<libc::dirent>();
        if copy.is_null() {
            return fail(libc::ENOMEM);
        }
        // SAFETY: room for one entry, just allocated.
        unsafe { copy.write(*entry) };
        kept.push(copy);
    }
    if let Some(compare) = compare {
        kept.sort_by(|a, b| {
            let (mut a, mut b) = (a.cast_const(), b.cast_const());
            // SAFETY: the program's order takes the addresses of two pointers to entries.
            unsafe { compare(&raw mut a, &raw mut b) }.cmp(&0)
        });
    }
    // SAFETY: asks for room for the list (never 0 bytes).
    let block = unsafe { libc::malloc((kept.len() + 1) * size_of::<*mut libc::dirent>()) };
    let block = block.cast::<*mut libc::dirent>();
    if block.is_null() {
        return fail(libc::ENOMEM);
    }
    // SAFETY: room for the whole list, just allocated.
    unsafe { block.copy_from_nonoverlapping(kept.as_ptr(), kept.len()) };
    // SAFETY: the program gave a place for the list.
    unsafe { list.write(block) };
    kept.len() as c_int
}

hooks!(scandir, scandir64 => (
    path: *const c_char, list: *mut *mut *mut libc::dirent, filter: Filter, compare: Compare,
) -> c_int, next or -1; {
    match locate(libc::AT_FDCWD, path, true) {
        // SAFETY: the program's own arguments, or a path of ours.
        Place::Kernel(path) => unsafe { next(path.as_ptr(), list, filter, compare) },
        Place::Error(errno) => fail(errno),
        // SAFETY: the program's own arguments.
        Place::Node(path, Node::Directory) => unsafe { scan(&path, list, filter, compare) },
        Place::Node(..) => fail(libc::ENOTDIR),
    }
});
