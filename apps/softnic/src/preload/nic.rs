//! The NIC of this process: made at the first open of a device, gone from a fork child, reported at exit.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

use soft_nic::abi::server::OpenFile;
use soft_nic::abi::uar::{self, Mapping};
use soft_nic::os::{PerProcess, fork_generation, locked, log, log_command};
use soft_nic::runtime::{Process, Report};

use super::raw::{self, fail, syscall};
use super::stats;
use super::table::{self, Entry};
use super::virtual_tree::virtual_tree;

/// A process's NIC with its open files. A fork child never uses its parent's: a lock's holder may be gone.
pub struct Nic {
    /// The process that made it; a child that shares the memory (vfork, clone) must not use it.
    pid: i32,
    /// By it a fork child sees, without a system call, that the NIC is its parent's.
    generation: u32,
    /// Server, device, link and thread.
    pub process: Process,
    /// Each open file, of devices and of the connection manager, by its entry, with its number of
    /// descriptors. The [`OpenFile`] of a connection manager's file is empty: the manager keeps its own.
    files: Mutex<BTreeMap<Entry, (u32, Shared)>>,
    next: AtomicU32,
}

/// Held by a command too while it works on the file.
type Shared = Arc<Mutex<OpenFile>>;

static NIC: AtomicPtr<Nic> = AtomicPtr::new(null_mut());
/// Held while a NIC is made.
static MAKING: PerProcess<Mutex<()>> = PerProcess::empty();
static POLLED_NS: AtomicU64 = AtomicU64::new(0);

/// The NIC of this process, if it has one.
pub fn get() -> Option<&'static Nic> {
    pumped().filter(|nic| nic.pid == raw::pid())
}

/// The NIC for the pump, which runs at every empty poll: needs no system call for the process number. A fork
/// child has none, and a vfork child does not poll.
pub fn pumped() -> Option<&'static Nic> {
    // SAFETY: a NIC is never freed once it stands in the pointer.
    unsafe { NIC.load(Ordering::Acquire).as_ref() }.filter(|nic| nic.generation == fork_generation())
}

/// Adds time that a poll of the program spent in the NIC.
pub fn add_polled_ns(ns: u64) {
    POLLED_NS.fetch_add(ns, Ordering::Relaxed);
}

/// The NIC, made if this is the first open.
pub fn get_or_make() -> Result<&'static Nic, c_int> {
    // A child that shares the parent's memory, as vfork makes it, would make the parent's.
    if !table::is_ours() {
        return Err(libc::EMFILE);
    }
    let _making = locked(MAKING.get());
    get().map_or_else(make, Ok)
}

fn make() -> Result<&'static Nic, c_int> {
    let world = virtual_tree();
    let publish = |report: &Report| stats::append(report, POLLED_NS.load(Ordering::Relaxed));
    let process = Process::start(world.config.clone(), world.machine.clone(), publish).map_err(|error| {
        log(&format!("{error}; the device cannot be opened"));
        libc::ENODEV
    })?;
    let (pid, generation) = (raw::pid(), fork_generation());
    let nic = Nic { pid, generation, process, files: Mutex::default(), next: AtomicU32::new(0) };
    let nic = Box::leak(Box::new(nic));
    NIC.store(nic, Ordering::Release);
    Ok(nic)
}

/// Runs NIC code; a panic in it is an I/O error to the program, and never unwinds into C. `errno` stays, as
/// after a successful system call: libraries set it, clean up, then return. A cancelled thread ends after it.
pub fn guarded<T>(run: impl FnOnce() -> Result<T, c_int>) -> Result<T, c_int> {
    let _keep = (raw::KeepErrno::new(), raw::Uncancelled::new());
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(libc::EIO))
}

impl Nic {
    fn file(&self, number: u32) -> Result<Shared, c_int> {
        let files = locked(&self.files);
        files.get(&Entry::Command(number)).map(|(_, file)| file.clone()).ok_or(libc::EIO)
    }

    /// Gives the program this descriptor of a new open file; closes it if it is too high for the table.
    pub fn give(&self, fd: c_int, entry: Entry, file: OpenFile) -> Result<c_int, c_int> {
        locked(&self.files).insert(entry, (1, Shared::new(file.into())));
        if table::set(fd, entry) {
            return Ok(fd);
        }
        release(entry);
        raw::close(fd);
        Err(libc::EMFILE)
    }
}

/// Opens device `index`. The descriptor duplicates that of the device's pages, so that closing, duplicating
/// and mapping stay the kernel's, also by the program's raw system calls.
pub fn open(index: u8, flags: c_int) -> c_int {
    if flags & libc::O_PATH != 0 {
        let kept = libc::O_PATH | libc::O_CLOEXEC;
        return raw::openat(libc::AT_FDCWD, c"/dev/null".as_ptr(), flags & kept, 0);
    }
    let opened = guarded(|| {
        let nic = get_or_make()?;
        let fd = raw::duplicate(nic.process.server.pages.fd(), flags & libc::O_CLOEXEC != 0);
        let closed = if fd < 0 { raw::errno() == libc::EBADF } else { !table::is_device_file(fd) };
        if closed {
            // Another file of the program's may have the number by now.
            raw::close(fd);
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                log("the program has closed the NIC's own descriptors (closefrom, close_range): this process opens no device any more")
            });
            return Err(libc::ENODEV);
        }
        if fd < 0 {
            return Err(raw::errno());
        }
        let number = nic.next.fetch_add(1, Ordering::Relaxed) & 0x00ff_ffff;
        nic.give(fd, Entry::Command(number), OpenFile::new(index))
    });
    opened.unwrap_or_else(fail)
}

/// Which device this file is of, if it is open in this process.
pub fn device_of(number: u32) -> Option<u8> {
    let file = get()?.file(number).ok()?;
    let device = locked(&file).device;
    Some(device)
}

/// A descriptor of an open file was closed; with the last one goes the file.
pub fn release(entry: Entry) {
    // Another process that shares our memory (a vfork child) closes its own descriptor, not our file.
    let Some(nic) = get() else { return };
    let _keep = raw::KeepErrno::new();
    let mut files = locked(&nic.files);
    if let Some((count, _)) = files.get_mut(&entry)
        && *count > 1
    {
        *count -= 1;
        return;
    }
    let closed = files.remove(&entry);
    drop(files);
    let Some((_, file)) = closed else {
        return log_command(|| format!("close of a file that is not open: {entry:?}"));
    };
    let _ = guarded(|| {
        if let Entry::Manager(number) = entry {
            nic.process.manage(|manager| manager.close(number));
        } else {
            let open = std::mem::take(&mut *locked(&file));
            nic.process.command(|server| server.close(open));
        }
        Ok(())
    });
}

/// A descriptor of an open file was duplicated.
pub fn retain(entry: Entry) {
    if let Some(nic) = get()
        && let Some((count, _)) = locked(&nic.files).get_mut(&entry)
    {
        *count += 1;
    }
}

pub fn ioctl(number: u32, address: u64) -> c_int {
    let done = guarded(|| {
        let nic = get().ok_or(libc::EIO)?;
        let file = nic.file(number)?;
        let mut open = locked(&file);
        nic.process
            .command(|server| soft_nic::abi::ioctl(server, &mut open, address))
            .map_err(|error| error.errno)
    });
    done.map_or_else(fail, |()| 0)
}

/// Maps a page of a device file.
pub fn mmap(
    number: u32,
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    offset: i64,
) -> *mut c_void {
    let mapped = guarded(|| {
        let nic = get().ok_or(libc::EIO)?;
        let file = nic.file(number)?;
        let open = locked(&file);
        let found = uar::mapping(&open, offset as u64, length);
        let mapping = found.map_err(|error| {
            log_command(|| error.to_string());
            error.errno
        })?;
        // The kernel refuses private and executable mappings of device pages, and writable ones of the clock.
        if flags & libc::MAP_SHARED == 0 || protection & libc::PROT_EXEC != 0 {
            return Err(libc::EINVAL);
        }
        if protection & libc::PROT_WRITE != 0 && mapping == Mapping::Clock {
            return Err(libc::EPERM);
        }
        use std::os::fd::AsRawFd;
        let fd = nic.process.server.pages.fd().as_raw_fd();
        // SAFETY: the program asked for this mapping at this address, as it would of the kernel.
        let page = unsafe { syscall!(SYS_mmap, address, length, protection, flags, fd, offset) };
        if page == -1 {
            return Err(raw::errno());
        }
        // As the kernel's VM_DONTCOPY: a fork child must not ring the parent's doorbells.
        // SAFETY: advice about the mapping just made.
        unsafe { syscall!(SYS_madvise, page, length, libc::MADV_DONTFORK) };
        Ok(page as *mut c_void)
    });
    mapped.unwrap_or_else(unmapped)
}

/// Fails as `mmap` does.
pub fn unmapped(errno: c_int) -> *mut c_void {
    let () = fail(errno);
    libc::MAP_FAILED
}

/// Whether the port of device `index` is down. Without an open device there is no NIC, and ports are up.
pub fn port_is_down(index: u8) -> bool {
    let asked = |nic: &Nic| guarded(|| Ok(nic.process.command(|server| server.port_is_down(index))));
    get().is_some_and(|nic| asked(nic).unwrap_or(false))
}

/// The program ends by `_exit`, perhaps in a signal handler: touches no heap and no lock.
pub fn leave() {
    if let Some(nic) = get() {
        nic.process.leave();
    }
}

/// The program is about to end: let what it completed reach its peers, and report the counters.
pub fn end() {
    let Some(nic) = get() else { return };
    let _ = guarded(|| {
        if let Some(ended) = nic.process.end() {
            stats::append(&ended, POLLED_NS.load(Ordering::Relaxed));
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_cancelled_thread_ends_its_call_first() {
        let calls = || {
            // SAFETY: without arguments.
            let this = unsafe { libc::pthread_self() };
            // SAFETY: a thread that runs; it would end at the next point where threads are cancelled.
            unsafe { libc::pthread_cancel(this) };
            let done = guarded(|| {
                std::thread::sleep(Duration::from_millis(1));
                Ok(7)
            });
            // Nor does it end in what the test does behind it.
            std::mem::forget(raw::Uncancelled::new());
            done
        };
        assert_eq!(std::thread::spawn(calls).join().expect("a thread that ended by itself"), Ok(7));
    }
}
