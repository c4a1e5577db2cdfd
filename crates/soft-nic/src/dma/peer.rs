//! Memory of a peer process, copied once by `process_vm_readv` and `process_vm_writev`.
//!
//! The kernel copies segment by segment and page by page in increasing addresses; inside a page it uses string
//! instructions, whose stores may be seen in another order (one of 10,000 messages of 64 KiB, seen by a reader that
//! waits for a word in the middle). The end of a message, where pollers look, is therefore never left to it: the last
//! bytes go through a buffer and the ordered copy of ours, the last word by a release store.

use std::io;

use super::host::Host;
use super::{Fault, Memory, Order, Segment, Segments, system};

/// Pieces a system call carries: four SGE lists' worth, well below the kernel's limit (IOV_MAX, 1024).
const PIECES: usize = 128;

/// Bytes at the end of a message that are copied in order.
const TAIL: usize = 1024;

/// Times that a copy is tried before a passing error counts.
const TRIES: usize = 4;

/// Why bytes could not be copied between two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The kernel does not let us at the peer's memory: Yama, a security module, a process that made itself undumpable.
    #[error("the kernel refuses access to the memory of process {pid}")]
    Refused {
        /// The peer.
        pid: u32,
    },
    /// The process is gone.
    #[error("process {pid} is gone")]
    Gone {
        /// The peer.
        pid: u32,
    },
    /// The kernel could not copy now, a few times in a row: out of memory, for example. The next copy may succeed, so
    /// the caller gives up this message and nothing else.
    #[error("copying between this process and process {pid}: errno {errno}")]
    Kernel {
        /// The peer.
        pid: u32,
        /// What the kernel said.
        errno: i32,
    },
    /// The peer's side was not mapped.
    #[error("memory of process {pid} cannot be accessed")]
    PeerFault {
        /// The peer.
        pid: u32,
    },
    /// Our side was not mapped.
    #[error(transparent)]
    LocalFault(#[from] Fault),
    /// One side is shorter than the message.
    #[error("{len} bytes do not fit the memory given for them")]
    TooShort {
        /// Bytes to copy.
        len: u64,
    },
}

/// Another process's memory. Holds nothing but the number: whoever uses it watches the process by a pidfd, and numbers
/// are given out in turn, so one cannot come back within the milliseconds between two looks.
#[derive(Debug, Clone, Copy)]
pub struct PeerMemory {
    pid: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    FromPeer,
    ToPeer,
}

impl PeerMemory {
    /// Memory of the process numbered `pid`.
    pub fn new(pid: u32) -> PeerMemory {
        PeerMemory { pid }
    }

    /// Whether the kernel lets us read the word at `addr` of the peer and it is `expected`; asked once per peer.
    pub fn answers(&self, host: &Host, addr: u64, expected: u64) -> bool {
        let mut word = [0u8; 8];
        let to = [Segment { addr: word.as_mut_ptr() as u64, len: 8 }];
        let from = [Segment { addr, len: 8 }];
        self.read(host, &to, &from, 8, Order::Relaxed).is_ok() && u64::from_ne_bytes(word) == expected
    }

    /// Copies `len` bytes of the peer into our memory, the last word by a release store unless relaxed.
    pub fn read(
        &self,
        host: &Host,
        to: &[Segment],
        from: &[Segment],
        len: u64,
        order: Order,
    ) -> Result<(), PeerError> {
        let end = match order {
            Order::Increasing => end_of(to, len),
            Order::Relaxed => None,
        };
        // Without an end to hold back the kernel's copy is all there is.
        let Some(end) = end else {
            return self.transfer(Direction::FromPeer, to, from, len, None);
        };
        let mut bounce = [0u8; TAIL];
        let held = Segment { addr: bounce.as_mut_ptr() as u64, len: end.len };
        self.transfer(Direction::FromPeer, to, from, len, Some(held))?;
        Ok(host.write(end.addr, &bounce[..end.len as usize], false)?)
    }

    /// Copies `len` bytes of ours into the peer's memory. No release store: the answer's record orders it.
    pub fn write(&self, to: &[Segment], from: &[Segment], len: u64) -> Result<(), PeerError> {
        self.transfer(Direction::ToPeer, from, to, len, None)
    }

    /// `held`: where the last bytes of the local side go for now.
    fn transfer(
        &self,
        direction: Direction,
        local: &[Segment],
        peer: &[Segment],
        len: u64,
        held: Option<Segment>,
    ) -> Result<(), PeerError> {
        let (mut local, mut peer) = (Segments::new(local), Segments::new(peer));
        let direct = len - held.map_or(0, |h| h.len);
        let mut done = 0;
        while done < len {
            let mut ours = Pieces::new();
            let mut theirs = Pieces::new();
            let mut probe = local.clone();
            ours.fill(&mut probe, direct.saturating_sub(done));
            if let Some(held) = held
                && done + ours.len >= direct
            {
                let kept = (done + ours.len) - direct;
                ours.push(Segment { addr: held.addr + kept, len: held.len - kept });
            }
            theirs.fill(&mut peer.clone(), ours.len);
            if ours.len == 0 || theirs.len == 0 {
                return Err(PeerError::TooShort { len });
            }
            ours.shorten(theirs.len);
            let mut tries = 1..TRIES;
            let moved = loop {
                match self.call(direction, &ours, &theirs) {
                    Err(PeerError::Kernel { .. }) if tries.next().is_some() => {}
                    result => break result?,
                }
            };
            done += moved;
            local.advance(moved);
            peer.advance(moved);
        }
        Ok(())
    }

    fn call(&self, direction: Direction, ours: &Pieces, theirs: &Pieces) -> Result<u64, PeerError> {
        let number = match direction {
            Direction::FromPeer => libc::SYS_process_vm_readv,
            Direction::ToPeer => libc::SYS_process_vm_writev,
        };
        let (local, remote) = (ours.as_ptr(), theirs.as_ptr());
        // SAFETY: both lists live through the call; the kernel checks every address and writes only to what the device
        // named as a destination: application memory it may write, or the bounce word.
        let moved =
            unsafe { libc::syscall(number, self.pid, local, ours.count, remote, theirs.count, 0usize) };
        if moved > 0 {
            return Ok(moved as u64);
        }
        let error = if moved == 0 { Some(libc::EFAULT) } else { io::Error::last_os_error().raw_os_error() };
        Err(match error {
            Some(libc::EFAULT) => self.whose_fault(direction, ours),
            error => self.named(error.unwrap_or(0)),
        })
    }

    /// Only what says "never" counts as a refusal, since that lasts: payloads are staged from then on.
    fn named(&self, errno: i32) -> PeerError {
        let pid = self.pid;
        match errno {
            libc::ESRCH => PeerError::Gone { pid },
            // ENOSYS: a kernel without these calls, or a sandbox that hides them.
            libc::EPERM | libc::ENOSYS => PeerError::Refused { pid },
            errno => PeerError::Kernel { pid, errno },
        }
    }

    /// EFAULT does not say which side; ask for our own, page by page would be too slow and first is what failed.
    fn whose_fault(&self, direction: Direction, ours: &Pieces) -> PeerError {
        let write = direction == Direction::FromPeer;
        for piece in ours.as_slice() {
            if let Err(fault) = system::populate(piece.iov_base as u64, piece.iov_len as u64, write) {
                return PeerError::LocalFault(fault);
            }
        }
        PeerError::PeerFault { pid: self.pid }
    }
}

/// The last bytes of the first `len` bytes of these segments, as far as they are in one piece.
fn end_of(segments: &[Segment], len: u64) -> Option<Segment> {
    let mut walk = Segments::new(segments);
    let mut left = len;
    while let Some(piece) = walk.peek(left) {
        walk.advance(piece.len);
        left -= piece.len;
        if left == 0 {
            let tail = piece.len.min(TAIL as u64);
            return Some(Segment { addr: piece.addr + (piece.len - tail), len: tail });
        }
    }
    None
}

/// A bounded list of pieces for one system call.
struct Pieces {
    list: [libc::iovec; PIECES],
    count: usize,
    len: u64,
}

impl Pieces {
    fn new() -> Pieces {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Pieces { list: [empty; PIECES], count: 0, len: 0 }
    }

    fn push(&mut self, piece: Segment) {
        if self.count < PIECES {
            self.list[self.count] =
                libc::iovec { iov_base: piece.addr as *mut _, iov_len: piece.len as usize };
            self.count += 1;
            self.len += piece.len;
        }
    }

    /// Takes pieces until `len` bytes, the end, or one free place is left (for the held word).
    fn fill(&mut self, from: &mut Segments<'_>, len: u64) {
        while self.count < PIECES - 1
            && self.len < len
            && let Some(piece) = from.peek(len - self.len)
        {
            from.advance(piece.len);
            self.push(piece);
        }
    }

    /// Cuts the list to `len` bytes.
    fn shorten(&mut self, len: u64) {
        while self.len > len {
            let last = &mut self.list[self.count - 1];
            let cut = (self.len - len).min(last.iov_len as u64);
            last.iov_len -= cut as usize;
            self.len -= cut;
            if last.iov_len == 0 {
                self.count -= 1;
            }
        }
    }

    fn as_slice(&self) -> &[libc::iovec] {
        &self.list[..self.count]
    }

    fn as_ptr(&self) -> *const libc::iovec {
        self.list.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(bytes: &[u8]) -> Segment {
        Segment { addr: bytes.as_ptr() as u64, len: bytes.len() as u64 }
    }

    #[test]
    fn scattered_pieces_of_any_cut_arrive_whole_and_in_place() {
        let host = Host::new().unwrap();
        let peer = PeerMemory::new(std::process::id());
        let source: Vec<u8> = (0..5000u32).map(|i| (i * 7 % 251) as u8).collect();
        for (ours, theirs) in [(1, 1), (3, 7), (200, 1), (1, 200), (300, 299)] {
            let target = vec![0u8; source.len()];
            let cut = |bytes: &[u8], n: usize| {
                bytes.chunks(bytes.len().div_ceil(n)).map(segment).collect::<Vec<_>>()
            };
            let len = source.len() as u64;
            peer.read(&host, &cut(&target, ours), &cut(&source, theirs), len, Order::Increasing).unwrap();
            assert_eq!(target, source, "{ours} local pieces, {theirs} of the peer");
            let target = vec![0u8; source.len()];
            peer.write(&cut(&target, theirs), &cut(&source, ours), len).unwrap();
            assert_eq!(target, source, "writing, {ours} local pieces, {theirs} of the peer");
        }
    }

    #[test]
    fn only_what_lasts_counts_as_a_refusal() {
        let peer = PeerMemory::new(7);
        for errno in [libc::EPERM, libc::ENOSYS] {
            assert_eq!(peer.named(errno), PeerError::Refused { pid: 7 });
        }
        for errno in [libc::ENOMEM, libc::EINVAL, libc::EINTR] {
            assert_eq!(peer.named(errno), PeerError::Kernel { pid: 7, errno });
        }
    }

    #[test]
    fn each_refusal_has_its_name() {
        let host = Host::new().unwrap();
        let mut byte = [0u8; 8];
        let ours = [Segment { addr: byte.as_mut_ptr() as u64, len: 8 }];
        let nowhere = [Segment { addr: 8, len: 8 }];
        let me = std::process::id();
        let peer = PeerMemory::new(me);
        let read = |to: &[Segment], from: &[Segment], len| peer.read(&host, to, from, len, Order::Increasing);
        assert_eq!(read(&ours, &nowhere, 8), Err(PeerError::PeerFault { pid: me }));
        assert_eq!(peer.write(&ours, &nowhere, 8), Err(PeerError::LocalFault(Fault { addr: 8 })));
        assert_eq!(read(&ours, &ours, 9), Err(PeerError::TooShort { len: 9 }));
        let nobody = PeerMemory::new(0x3fff_fff0);
        let gone = nobody.read(&host, &ours, &ours, 8, Order::Relaxed);
        assert_eq!(gone, Err(PeerError::Gone { pid: 0x3fff_fff0 }));
    }
}
