//! Which descriptors of the program are ours: one word a descriptor, read by every hook, without a lock.
//!
//! A descriptor may leave unseen (a raw system call, a `posix_spawn` action), so a hook asks the kernel
//! whether its entry still holds. A command file is a memfd of a unique size, a directory one of a unique
//! time. A file of the connection manager is a pipe.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use soft_nic::os::{DevicePages, ForgetInChild, log};

use super::raw;

/// Descriptors above are never ours: opening a device there fails with EMFILE.
pub const LIMIT: usize = 1 << 16;

/// Modification time, in seconds, of a memfd that stands for a directory, in a year of no real file; the
/// nanoseconds are the directory's number. Not its size, which RLIMIT_FSIZE bounds.
const DIRECTORY_TIME: i64 = 0x0050_f71c_0000;
const MAX_NUMBER: u32 = (1 << 24) - 1;

static ENTRIES: [AtomicU32; LIMIT] = [const { AtomicU32::new(0) }; LIMIT];
/// One past the highest descriptor that was ever ours.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// The process whose descriptors the table describes, 0 before the first entry. A vfork child shares the
/// table and must not store in it.
static OWNER: AtomicI32 = AtomicI32::new(0);
static AT_FORK: ForgetInChild = ForgetInChild::new(forked);

/// In a fork child, which has a table of its own: what the parent opened is no longer usable.
extern "C" fn forked() {
    OWNER.store(raw::pid(), Ordering::Release);
    for fd in range(0, u32::MAX - 1) {
        match get(fd) {
            Entry::Command(_) => _ = set(fd, Entry::Inherited),
            // A pipe without a writer: the child reads its end when the parent closes it.
            Entry::Manager(_) => _ = set(fd, Entry::Foreign),
            Entry::Foreign | Entry::Directory(_) | Entry::Inherited => {}
        }
    }
}

/// Whether this process may store in the table; the first one to ask owns it.
pub fn is_ours() -> bool {
    let pid = raw::pid();
    if OWNER.load(Ordering::Acquire) == 0 {
        AT_FORK.install();
    }
    let (Ok(owner) | Err(owner)) = OWNER.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire);
    [0, pid].contains(&owner)
}

/// What a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// Not ours.
    Foreign,
    /// An open device file, by number.
    Command(u32),
    /// A directory of the tree, by number.
    Directory(u32),
    /// A device file that the parent had opened before it forked.
    Inherited,
    /// An open file of the connection manager, by number.
    Manager(u32),
}

impl Entry {
    /// Whether it is an open file of this process's NIC.
    pub fn is_file(self) -> bool {
        matches!(self, Self::Command(_) | Self::Manager(_))
    }

    fn word(self) -> u32 {
        match self {
            Self::Foreign => 0,
            Self::Command(number) => 1 << 24 | number & MAX_NUMBER,
            Self::Directory(number) => 2 << 24 | number & MAX_NUMBER,
            Self::Inherited => 3 << 24,
            Self::Manager(number) => 4 << 24 | number & MAX_NUMBER,
        }
    }

    fn of(word: u32) -> Self {
        match word >> 24 {
            1 => Self::Command(word & MAX_NUMBER),
            2 => Self::Directory(word & MAX_NUMBER),
            3 => Self::Inherited,
            4 => Self::Manager(word & MAX_NUMBER),
            _ => Self::Foreign,
        }
    }
}

/// What this descriptor is said to be; one load.
pub fn get(fd: c_int) -> Entry {
    let entry = usize::try_from(fd).ok().and_then(|fd| ENTRIES.get(fd));
    entry.map_or(Entry::Foreign, |entry| Entry::of(entry.load(Ordering::Relaxed)))
}

/// The same, after asking the kernel; an entry that is no longer true is forgotten.
pub fn verified(fd: c_int) -> Entry {
    let entry = get(fd);
    let still = match entry {
        Entry::Foreign => return entry,
        Entry::Command(_) | Entry::Inherited => is_device_file(fd),
        Entry::Directory(number) => raw::fstat(fd).is_some_and(|found| {
            (found.st_mtime, found.st_mtime_nsec) == (DIRECTORY_TIME, i64::from(number))
        }),
        // Which pipe it is, the connection manager looks at.
        Entry::Manager(_) => {
            raw::fstat(fd).is_some_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFIFO)
        }
    };
    if !still {
        set(fd, Entry::Foreign);
        return Entry::Foreign;
    }
    entry
}

/// Whether this is a descriptor of the file that holds devices' pages.
pub fn is_device_file(fd: c_int) -> bool {
    let size = DevicePages::BYTES as i64;
    raw::fstat(fd).is_some_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFREG && found.st_size == size)
}

/// Says what a descriptor is; false when it is too high to be ours, or the table is another process's.
pub fn set(fd: c_int, entry: Entry) -> bool {
    let Some(place) = usize::try_from(fd).ok().and_then(|fd| ENTRIES.get(fd)) else { return false };
    if !is_ours() {
        return false;
    }
    if entry != Entry::Foreign {
        HIGHEST.fetch_max(fd as u32 + 1, Ordering::Relaxed);
    }
    place.store(entry.word(), Ordering::Relaxed);
    true
}

/// Descriptors from `first` to `last` that may be ours.
pub fn range(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = HIGHEST.load(Ordering::Relaxed).min(last.saturating_add(1));
    (first..end).map(|fd| fd as c_int).filter(|fd| get(*fd) != Entry::Foreign)
}

/// Makes a descriptor that stands for a directory. Logs the first failure, except EMFILE and ENFILE.
pub fn open_directory(number: u32, close_on_exec: bool) -> c_int {
    let fd = raw::memfd(c"softnic-directory", close_on_exec);
    let marked = fd >= 0 && raw::set_time(fd, DIRECTORY_TIME, i64::from(number));
    if marked && set(fd, Entry::Directory(number)) {
        return fd;
    }
    let (call, errno) = match (fd >= 0, marked) {
        (false, _) => ("memfd_create", raw::errno()),
        (true, false) => ("utimensat", raw::errno()),
        (true, true) => ("no room for one more", libc::EMFILE),
    };
    raw::close(fd);
    if !matches!(errno, libc::EMFILE | libc::ENFILE) {
        static SAID: Once = Once::new();
        let error = std::io::Error::from_raw_os_error(errno);
        SAID.call_once(|| log(&format!("the devices' folders cannot be opened: {call}: {error}")));
    }
    raw::fail(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_kind_and_number() {
        for entry in [
            Entry::Foreign,
            Entry::Command(0),
            Entry::Command(77),
            Entry::Directory(3),
            Entry::Inherited,
            Entry::Manager(9),
        ] {
            assert_eq!(Entry::of(entry.word()), entry);
        }
    }

    #[test]
    fn a_vfork_child_stores_nothing_in_its_parents_table() {
        extern "C" fn child(fd: *mut std::ffi::c_void) -> c_int {
            set(fd as c_int, Entry::Inherited);
            set(fd as c_int, Entry::Foreign);
            0
        }
        let fd = open_directory(6, true);
        let mut stack = vec![0_u128; 4096];
        let top = stack.as_mut_ptr_range().end.cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the child has a stack of its own and ends before this thread goes on.
        let pid = unsafe { libc::clone(child, top, flags, fd as usize as *mut std::ffi::c_void) };
        assert!(pid > 0);
        // SAFETY: our own child; its status is not asked for.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        assert_eq!(get(fd), Entry::Directory(6));
        raw::close(fd);
    }

    #[test]
    fn a_descriptor_that_became_something_else_is_forgotten() {
        let fd = open_directory(5, true);
        assert_eq!(verified(fd), Entry::Directory(5));
        raw::close(fd);
        assert_eq!(get(fd), Entry::Directory(5));
        assert_eq!(verified(fd), Entry::Foreign);
        assert_eq!(get(fd), Entry::Foreign);
        assert_eq!(get(-1), Entry::Foreign);
        assert_eq!(get(i32::MAX), Entry::Foreign);
    }
}
