//! Pipes whose read end the program owns.
//!
//! The NIC keeps a read end of its own (another open file, so never blocking) for two reasons: writing to a
//! pipe that the program closed must not raise SIGPIPE, and unread bytes can be taken back.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// One pipe, seen from the NIC.
#[derive(Debug)]
pub struct Pipe {
    pub inode: u64,
    write: File,
    /// For taking unread events back.
    read: File,
}

impl Pipe {
    /// Makes a pipe; the program's end comes back as a bare number, since the program will close it.
    pub fn new() -> io::Result<(Self, RawFd)> {
        let (program, write) = io::pipe()?;
        // A new open file on the same pipe: its O_NONBLOCK is ours alone.
        let reopen = |fd: RawFd, write: bool| {
            let path = format!("/proc/self/fd/{fd}");
            File::options().read(!write).write(write).custom_flags(libc::O_NONBLOCK).open(path)
        };
        let read = reopen(program.as_raw_fd(), false)?;
        let write = reopen(write.as_raw_fd(), true)?;
        Ok((Self { inode: read.metadata()?.ino(), write, read }, program.into_raw_fd()))
    }

    /// Writes one event whole or not at all (far below PIPE_BUF).
    pub fn put(&mut self, event: &[u8]) -> bool {
        matches!(self.write.write(event), Ok(n) if n == event.len())
    }

    pub fn take_back(&mut self, count: usize) {
        // An empty pipe ends it.
        let _ = io::copy(&mut (&self.read).take(count as u64), &mut io::sink());
    }

    /// Takes out the unread events that `gone` picks; the others keep their order. Returns how many it took.
    pub fn withdraw<const N: usize>(&mut self, gone: impl Fn(&[u8; N]) -> bool) -> u32 {
        let (mut keep, mut taken, mut event) = (Vec::new(), 0, [0; N]);
        while matches!(self.read.read(&mut event), Ok(n) if n == N) {
            if gone(&event) {
                taken += 1;
            } else {
                keep.push(event);
            }
        }
        for event in &keep {
            self.put(event);
        }
        taken
    }
}

/// How many descriptors of this process each pipe has, by inode.
pub fn open_pipes() -> Option<BTreeMap<u64, usize>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").ok()? {
        let target = std::fs::read_link(entry.ok()?.path()).unwrap_or_default();
        let inode =
            target.to_str().and_then(|text| text.strip_prefix("pipe:[")?.strip_suffix(']')?.parse().ok());
        if let Some(inode) = inode {
            *found.entry(inode).or_insert(0) += 1;
        }
    }
    Some(found)
}

pub fn pipe_inode(fd: RawFd) -> Option<u64> {
    let metadata = std::fs::metadata(format!("/proc/self/fd/{fd}")).ok()?;
    (metadata.mode() & libc::S_IFMT == libc::S_IFIFO).then(|| metadata.ino())
}
