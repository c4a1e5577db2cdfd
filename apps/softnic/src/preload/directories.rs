//! Hooks of directory streams. A stream over a directory of the tree is a [`Listing`] in disguise.

use std::ffi::{c_char, c_int, c_long};
use std::ptr::null_mut;

use soft_nic::sysfs::tree::{Node, Tree};

use super::paths::answer;
use super::raw::hooks;
use super::table::{self, Entry};
use super::virtual_tree::virtual_tree;

/// What a `DIR *` of ours points to.
#[repr(C)]
struct Listing {
    /// [`OURS`]. A C library stream (`struct __dirstream`) begins with its descriptor, never negative.
    mark: c_int,
    fd: c_int,
    entries: Vec<libc::dirent>,
    next: usize,
}

const OURS: c_int = -0x5074_0001;

/// The listing behind a stream, if it is ours.
///
/// # Safety
/// The stream is null, or open and used by no other thread (POSIX leaves that to the program).
unsafe fn listing<'a>(stream: *mut libc::DIR) -> Option<&'a mut Listing> {
    // SAFETY: an open stream begins with a number, whosever it is.
    let is_ours = !stream.is_null() && unsafe { stream.cast::<c_int>().read() } == OURS;
    // SAFETY: `open_listing` made the box, and `closedir` has not dropped it.
    is_ours.then(|| unsafe { &mut *stream.cast::<Listing>() })
}

fn open_listing(path: &str, fd: c_int) -> *mut libc::DIR {
    Box::into_raw(Box::new(Listing { mark: OURS, fd, entries: entries(path), next: 0 })).cast()
}

/// What a directory of the tree has, `.` and `..` first.
fn entries(path: &str) -> Vec<libc::dirent> {
    let own = entry(".", &Node::Directory(0), path);
    let above = entry("..", &Node::Directory(0), path.rsplit_once('/').map_or("/", |(above, _)| above));
    let names =
        virtual_tree().tree.children(path).map(|(name, node)| entry(name, node, &format!("{path}/{name}")));
    let mut entries: Vec<libc::dirent> = [own, above].into_iter().chain(names).collect();
    for (position, entry) in entries.iter_mut().enumerate() {
        entry.d_off = position as i64 + 1;
    }
    entries
}

fn entry(name: &str, node: &Node, path: &str) -> libc::dirent {
    // SAFETY: plain old data, for which zeros are a value.
    let mut entry: libc::dirent = unsafe { std::mem::zeroed() };
    let attributes = Tree::attributes(path, node);
    entry.d_ino = attributes.inode;
    // `IFTODT` of `dirent.h`.
    entry.d_type = ((attributes.mode & libc::S_IFMT) >> 12) as u8;
    entry.d_reclen = size_of::<libc::dirent>() as u16;
    for (place, byte) in entry.d_name.iter_mut().zip(name.bytes().take(255)) {
        *place = byte as c_char;
    }
    entry
}

/// The number of a node that must be a directory.
fn directory(node: &Node) -> Result<u32, c_int> {
    if let Node::Directory(number) = node { Ok(*number) } else { Err(libc::ENOTDIR) }
}

hooks!(opendir => (path: *const c_char) -> *mut libc::DIR, next; {
    // SAFETY: the program's own argument, or this library's path.
    let kernel = |_, path| unsafe { next(path) };
    let ours = |path: String, node| {
        let fd = table::open_directory(directory(node)?, true);
        Ok(if fd < 0 { null_mut() } else { open_listing(&path, fd) })
    };
    answer(libc::AT_FDCWD, path, true, kernel, ours)
});

hooks!(fdopendir => (fd: c_int) -> *mut libc::DIR, next; {
    if let Entry::Directory(number) = table::verified(fd)
        && let Some(path) = virtual_tree().tree.directory(number)
    {
        return open_listing(path, fd);
    }
    // SAFETY: the program's own argument.
    unsafe { next(fd) }
});

/// Hooks of functions that take a stream: what each does with a listing.
macro_rules! stream_hooks {
    ($($($name:ident),+ => ($($argument:ident: $type:ty),*) -> $result:ty, $listing:ident => $does:expr;)*) => {$(
        hooks!($($name),+ => (stream: *mut libc::DIR $(, $argument: $type)*) -> $result, next; {
            // SAFETY: the program's own stream, which one thread uses at a time (readdir(3)).
            match unsafe { listing(stream) } {
                Some($listing) => $does,
                // SAFETY: the program's own arguments.
                None => unsafe { next(stream $(, $argument)*) },
            }
        });
    )*};
}

impl Listing {
    fn next(&mut self) -> Option<&mut libc::dirent> {
        let position = self.next;
        self.next += 1;
        self.entries.get_mut(position)
    }
}

/// Ends a listing, with its descriptor.
///
/// # Safety
/// The program uses the stream no more.
unsafe fn close(listing: *mut Listing) -> c_int {
    // SAFETY: every listing is a box.
    let listing = unsafe { Box::from_raw(listing) };
    // SAFETY: the descriptor belongs to the stream.
    unsafe { libc::close(listing.fd) }
}

/// The re-entrant `readdir`.
///
/// # Safety
/// The program gave room for an entry and for a pointer.
unsafe fn read_into(listing: &mut Listing, room: *mut libc::dirent, result: *mut *mut libc::dirent) -> c_int {
    let given = listing.next().map_or(null_mut(), |found| {
        // SAFETY: as the caller says.
        unsafe { room.write(*found) };
        room
    });
    // SAFETY: as the caller says.
    unsafe { result.write(given) };
    0
}

stream_hooks! {
    readdir, readdir64 => () -> *mut libc::dirent,
        listing => listing.next().map_or(null_mut(), std::ptr::from_mut);
    readdir_r, readdir64_r => (room: *mut libc::dirent, result: *mut *mut libc::dirent) -> c_int,
        // SAFETY: the program's own arguments.
        listing => unsafe { read_into(listing, room, result) };
    dirfd => () -> c_int, listing => listing.fd;
    // SAFETY: the program's own stream.
    closedir => () -> c_int, listing => unsafe { close(listing) };
    rewinddir => () -> (), listing => listing.next = 0;
    seekdir => (position: c_long) -> (), listing => listing.next = usize::try_from(position).unwrap_or(0);
    telldir => () -> c_long, listing => listing.next as c_long;
}

type Filter = Option<unsafe extern "C" fn(*const libc::dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int>;

/// A list as `scandir` gives it: every entry and the list itself from malloc, since the program frees them.
///
/// # Safety
/// The program's own callbacks and a place for the list.
unsafe fn scan(
    path: &str,
    list: *mut *mut *mut libc::dirent,
    filter: Filter,
    compare: Compare,
) -> Result<c_int, c_int> {
    let mut kept: Vec<*mut libc::dirent> = Vec::new();
    for entry in &entries(path) {
        // SAFETY: the program's filter takes an entry.
        if filter.is_some_and(|filter| unsafe { filter(entry) } == 0) {
            continue;
        }
        // SAFETY: asks for room for one entry.
        let copy = unsafe { libc::malloc(size_of::<libc::dirent>()) }.cast::<libc::dirent>();
        if copy.is_null() {
            return Err(libc::ENOMEM);
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
        return Err(libc::ENOMEM);
    }
    // SAFETY: room for the whole list, just allocated.
    unsafe { block.copy_from_nonoverlapping(kept.as_ptr(), kept.len()) };
    // SAFETY: the program gave a place for the list.
    unsafe { list.write(block) };
    Ok(kept.len() as c_int)
}

hooks!(scandir, scandir64 => (
    path: *const c_char, list: *mut *mut *mut libc::dirent, filter: Filter, compare: Compare,
) -> c_int, next; {
    // SAFETY: the program's own arguments, or this library's path.
    let kernel = |_, path| unsafe { next(path, list, filter, compare) };
    answer(libc::AT_FDCWD, path, true, kernel, |path, node| {
        directory(node)?;
        // SAFETY: the program's own arguments.
        unsafe { scan(&path, list, filter, compare) }
    })
});
