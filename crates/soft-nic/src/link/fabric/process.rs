//! Processes of the fabric as `/proc` and a pidfd show them: is one still the process that took its slot?

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use crate::os::system;

#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
}

impl Process {
    pub fn has_ended(&self) -> bool {
        system::is_readable(&self.pidfd)
    }
}

impl AsRawFd for Process {
    /// Can be read once it has ended (pidfd_open(2)).
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

/// The process that has a slot, as the directory says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotOwner {
    pub pid: u32,
    /// Counts the slot's owners.
    pub generation: u32,
    /// Start time of the process in clock ticks after boot, so that a reused number is noticed.
    pub(super) start: u64,
    /// Where its stack begins: another place after `exec`. 0: the kernel does not say.
    pub(super) stack: u64,
    /// Tells its MAD socket from those of other processes with its number.
    pub cookie: u64,
    /// The number under which it has the directory open, plus one.
    pub(super) descriptor: u32,
}

impl SlotOwner {
    /// Starts watching the process, if it is still the one that took the slot.
    ///
    /// Errors: the kernel's; `ESRCH` or `ENOENT` when it has ended.
    pub fn watch(&self) -> io::Result<Process> {
        let pidfd = system::pidfd_open(self.pid)?;
        // After the pidfd is open: what is read now belongs to the process that the pidfd holds, or to none.
        let origin = Origin::of(self.pid);
        let alive = !system::is_readable(&pidfd) && origin?.start == self.start;
        if alive { Ok(Process { pidfd }) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    }

    /// Whether the slot's process lives. Without a descriptor or memory to ask with, it counts as alive.
    pub(super) fn lives(&self) -> bool {
        self.watch().map_or_else(|error| is_shortage(&error), |_| true)
    }
}

/// When a process began, and where its present program's stack does.
pub(super) struct Origin {
    pub start: u64,
    pub stack: u64,
}

impl Origin {
    /// Fields 22 and 28 of `stat` (proc(5)), counted behind the command, which may hold anything.
    pub fn of(pid: u32) -> io::Result<Origin> {
        let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
        let fields = || {
            let end = stat.iter().rposition(|b| *b == b')')?;
            let mut fields = std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace();
            let start = fields.nth(19)?.parse().ok()?;
            Some(Origin { start, stack: fields.nth(5)?.parse().ok()? })
        };
        fields().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The descriptors of a process: its number, the path of each below `/proc`, and what that leads to.
///
/// Errors: they cannot be seen, or it has ended.
pub fn descriptors_of(pid: u32) -> io::Result<impl Iterator<Item = (u32, PathBuf, PathBuf)>> {
    let paths = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten().map(|entry| entry.path());
    Ok(paths.filter_map(move |path| std::fs::read_link(&path).ok().map(|target| (pid, path, target))))
}

/// Every descriptor that this user may see.
pub fn descriptors() -> impl Iterator<Item = (u32, PathBuf, PathBuf)> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Processes of others, and those that end while we look, show none.
    pids.flat_map(|pid| descriptors_of(pid).into_iter().flatten())
}

/// Whether we lack descriptors or memory: that says nothing of a process that was asked about.
pub(in super::super) fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing::true_in_fork_child;

    impl Process {
        /// A child of a test.
        pub fn of(pid: u32) -> Process {
            Process { pidfd: system::pidfd_open(pid).unwrap() }
        }
    }

    #[test]
    fn a_process_without_descriptors_takes_no_other_for_ended() {
        let pid = std::process::id();
        let start = Origin::of(pid).unwrap().start;
        let ours = SlotOwner { pid, generation: 1, start, stack: 0, cookie: 0, descriptor: 0 };
        assert!(ours.lives() && !SlotOwner { start: start + 1, ..ours }.lives());
        assert!(!SlotOwner { pid: u32::MAX >> 1, ..ours }.lives(), "no process has that number");
        // With no descriptor left, and with one.
        for spare in 0..2 {
            assert!(true_in_fork_child(|| {
                let mut held = Vec::new();
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    held.push(file);
                }
                held.truncate(held.len() - spare);
                ours.lives()
            }));
        }
    }
}
