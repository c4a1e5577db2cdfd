//! Open files of the connection manager: opened, written to, closed.

use std::ffi::c_int;

use mlx5_device::commands::Answer;
use soft_nic::abi::server::OpenFile;
use soft_nic::os::log_command;

use super::nic::{self, guarded};
use super::raw::{self, fail, syscall};
use super::table::{self, Entry};

/// Where the device is.
pub const PATH: &str = "/dev/infiniband/rdma_cm";

fn errno<T>(answer: Answer<T>) -> Result<T, c_int> {
    answer.map_err(|refused| {
        log_command(|| format!("rdma_cm: {refused}"));
        refused.errno
    })
}

/// Opens the device; the descriptor is the end of a pipe that holds a byte for each event.
pub fn open(flags: c_int) -> c_int {
    let opened = guarded(|| {
        let nic = nic::get_or_make()?;
        let (number, fd) = errno(nic.process.open_manager())?;
        // SAFETY: a descriptor that the program gets next, and plain numbers.
        unsafe { syscall!(SYS_fcntl, fd, libc::F_SETFL, flags & libc::O_NONBLOCK) };
        let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
        // SAFETY: as above.
        unsafe { syscall!(SYS_fcntl, fd, libc::F_SETFD, close_on_exec) };
        nic.give(fd, Entry::Manager(number), OpenFile::default())
    });
    opened.unwrap_or_else(fail)
}

fn file_of(fd: c_int) -> Option<u32> {
    if let Entry::Manager(number) = table::verified(fd) { Some(number) } else { None }
}

/// Ends a call's hold on an open file.
struct Release(Entry);

impl Drop for Release {
    fn drop(&mut self) {
        nic::release(self.0);
    }
}

/// A command.
pub fn write(number: u32, fd: c_int, address: u64, len: usize) -> isize {
    let written = guarded(|| {
        let process = &nic::get().ok_or(libc::EIO)?.process;
        let call = process.manage(|manager| {
            if manager.is_file(number, fd) { errno(manager.read(address, len)) } else { Err(libc::EBADF) }
        })?;
        if !call.is_get_event() {
            process.manage(|manager| errno(manager.run_call(number, &call, &file_of)))?;
            return Ok(call.written);
        }
        errno(call.check_get_event())?;
        // As in a kernel, a call keeps its open file alive: another thread may close its last descriptor.
        nic::retain(Entry::Manager(number));
        let _open = Release(Entry::Manager(number));
        loop {
            // The event's byte: the kernel blocks, or not, as the descriptor says; signals come through.
            let mut byte = 0_u8;
            // SAFETY: room for the one byte that is asked for.
            match unsafe { syscall!(SYS_read, fd, &raw mut byte, 1) } {
                1 => {}
                0 => return Err(libc::EIO),
                _ => return Err(raw::errno()),
            }
            if process.manage(|manager| errno(manager.get_event(number, &call)))? {
                return Ok(call.written);
            }
        }
    });
    written.map_or_else(fail, |len| len as isize)
}
