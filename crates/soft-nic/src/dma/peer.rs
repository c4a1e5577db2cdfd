//! Memory of a peer process, copied once by `process_vm_readv`. Nothing here writes to another process's memory.
//!
//! The kernel copies segment by segment and page by page in increasing addresses; inside a page it uses string
//! instructions, whose stores may be seen in another order (one of 10,000 messages of 64 KiB, seen by a reader that
//! waits for a word in the middle). The end of a message, where pollers look, is therefore never left to it: the last
//! bytes go through a buffer and the ordered copy of ours, the last word by a release store.

use std::io;

use super::host::{Host, IN_ORDER};
use super::{Fault, Memory, Order, Segment, Segments, gpu, system};

/// Pieces a system call carries: four SGE lists' worth, well below the kernel's limit (IOV_MAX, 1024).
const PIECES: usize = 128;

/// Bytes at the end of a message that are copied in order.
const TAIL: usize = IN_ORDER as usize;

/// Most bytes of one call: about a millisecond, after which it is asked again whether the copy is still wanted.
const STRETCH: u64 = 4 << 20;

/// Bytes that are on their way to a GPU's memory at a time, by way of ours.
const GPU_PIECE: u64 = 256 << 10;

/// An address where no process has a page: the kernel's half.
const NO_PAGE: u64 = 0xffff_8000_0000_0000;

/// Times that a copy is tried before a passing error counts.
const TRIES: usize = 4;

/// Why bytes could not be copied between two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum PeerError {
    /// The kernel does not let us at the peer's memory: Yama, a security module, a process that made itself undumpable.
    #[error("the kernel refuses access to the memory of process {pid}")]
    Refused { pid: u32 },
    /// The process is gone.
    #[error("process {pid} is gone")]
    Gone { pid: u32 },
    /// The kernel could not copy now, a few times in a row: out of memory, for example. The next copy may succeed, so
    /// the caller gives up this message and nothing else.
    #[error("copying between this process and process {pid}: errno {errno}")]
    Kernel { pid: u32, errno: i32 },
    /// The peer's side was not mapped.
    #[error("memory of process {pid} cannot be accessed")]
    PeerFault { pid: u32 },
    /// Our side was not mapped.
    #[error(transparent)]
    LocalFault(#[from] Fault),
    /// One side is shorter than the message.
    #[error("{len} bytes do not fit the memory given for them")]
    TooShort { len: u64 },
    /// The caller did not want to go on.
    #[error("the copy was stopped")]
    Stopped,
}

/// Another process's memory. Holds nothing but the number: whoever uses it watches the process by a pidfd, and numbers
/// are given out in turn, so one cannot come back within the milliseconds between two looks.
#[derive(Debug, Clone, Copy)]
pub struct PeerMemory {
    pid: u32,
    /// A test wants the kernel to refuse.
    #[cfg(any(test, feature = "testing"))]
    refused: bool,
}

impl PeerMemory {
    /// Memory of the process numbered `pid`.
    pub fn new(pid: u32) -> PeerMemory {
        PeerMemory {
            pid,
            #[cfg(any(test, feature = "testing"))]
            refused: false,
        }
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The same, as if the kernel refused it from now on.
    #[cfg(any(test, feature = "testing"))]
    pub fn refused(self) -> PeerMemory {
        PeerMemory { refused: true, ..self }
    }

    /// Whether the kernel lets us read the peer's memory. Nothing is read: the kernel checks the right first, and then finds no page.
    pub fn is_allowed(&self) -> bool {
        let mut byte = 0u8;
        let (mut ours, mut theirs) = (Pieces::new(), Pieces::new());
        ours.push(Segment { addr: &raw mut byte as u64, len: 1 });
        theirs.push(Segment { addr: NO_PAGE, len: 1 });
        matches!(self.call(&ours, &theirs), Err(PeerError::PeerFault { .. }))
    }

    /// Copies `len` bytes of the peer into our memory, the last word by a release store unless relaxed. `go_on` is asked every
    /// few MiB, and before the last bytes become visible.
    pub fn read(
        &self,
        host: &Host,
        to: &[Segment],
        from: &[Segment],
        len: u64,
        order: Order,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), PeerError> {
        if gpu::touched_by(to) {
            return self.read_staged(host, to, from, len, order, go_on);
        }
        let end = match order {
            Order::Increasing => end_of(to, len),
            Order::Relaxed => None,
        };
        // Without an end to hold back the kernel's copy is all there is.
        let Some(end) = end else {
            return self.transfer(to, from, len, None, go_on);
        };
        let mut bounce = [0u8; TAIL];
        let held = Segment { addr: bounce.as_mut_ptr() as u64, len: end.len };
        self.transfer(to, from, len, Some(held), go_on)?;
        if !go_on() {
            return Err(PeerError::Stopped);
        }
        Ok(host.write(end.addr, &bounce[..end.len as usize], false)?)
    }

    /// Into memory that the kernel cannot write, a GPU's: by way of ours, in pieces.
    fn read_staged(
        &self,
        host: &Host,
        to: &[Segment],
        from: &[Segment],
        len: u64,
        order: Order,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), PeerError> {
        let mut bounce = vec![0u8; len.min(GPU_PIECE) as usize];
        let (mut to, mut from) = (Segments::new(to), Segments::new(from));
        let mut left = len;
        while left > 0 {
            let Some(target) = to.peek(left.min(GPU_PIECE)) else { return Err(PeerError::TooShort { len }) };
            let held = [Segment { addr: bounce.as_mut_ptr() as u64, len: target.len }];
            let mut theirs = Vec::new();
            let mut wanted = target.len;
            while let Some(piece) = from.peek(wanted) {
                from.advance(piece.len);
                wanted -= piece.len;
                theirs.push(piece);
            }
            self.transfer(&held, &theirs, target.len, None, go_on)?;
            left -= target.len;
            if left == 0 && !go_on() {
                return Err(PeerError::Stopped);
            }
            let piece_order = if left == 0 { order } else { Order::Relaxed };
            host.copy(&[target], &held, target.len, piece_order)?;
            to.advance(target.len);
        }
        Ok(())
    }

    /// `held`: where the last bytes of the local side go for now.
    fn transfer(
        &self,
        local: &[Segment],
        peer: &[Segment],
        len: u64,
        held: Option<Segment>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), PeerError> {
        let (mut local, mut peer) = (Segments::new(local), Segments::new(peer));
        let direct = len - held.map_or(0, |h| h.len);
        let mut done = 0;
        while done < len {
            if !go_on() {
                return Err(PeerError::Stopped);
            }
            let mut ours = Pieces::new();
            let mut theirs = Pieces::new();
            let mut probe = local.clone();
            ours.fill(&mut probe, direct.saturating_sub(done).min(STRETCH));
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
                match self.call(&ours, &theirs) {
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

    fn call(&self, ours: &Pieces, theirs: &Pieces) -> Result<u64, PeerError> {
        #[cfg(any(test, feature = "testing"))]
        if self.refused {
            return Err(PeerError::Refused { pid: self.pid });
        }
        let (number, local, remote) = (libc::SYS_process_vm_readv, ours.as_ptr(), theirs.as_ptr());
        // SAFETY: both lists live through the call; the kernel checks every address and writes only to what the device
        // named as a destination: application memory it may write, or the bounce word.
        let moved =
            unsafe { libc::syscall(number, self.pid, local, ours.count, remote, theirs.count, 0usize) };
        if moved > 0 {
            return Ok(moved as u64);
        }
        let error = if moved == 0 { Some(libc::EFAULT) } else { io::Error::last_os_error().raw_os_error() };
        Err(match error {
            Some(libc::EFAULT) => self.whose_fault(ours),
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
    fn whose_fault(&self, ours: &Pieces) -> PeerError {
        for piece in ours.as_slice() {
            if let Err(fault) = system::populate(piece.iov_base as u64, piece.iov_len as u64, true) {
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
            let (to, from) = (cut(&target, ours), cut(&source, theirs));
            peer.read(&host, &to, &from, len, Order::Increasing, &|| true).unwrap();
            assert_eq!(target, source, "{ours} local pieces, {theirs} of the peer");
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
        let read = |to: &[Segment], from: &[Segment], len| {
            peer.read(&host, to, from, len, Order::Increasing, &|| true)
        };
        assert_eq!(read(&ours, &nowhere, 8), Err(PeerError::PeerFault { pid: me }));
        assert_eq!(read(&nowhere, &ours, 8), Err(PeerError::LocalFault(Fault { addr: 8 })));
        assert_eq!(read(&ours, &ours, 9), Err(PeerError::TooShort { len: 9 }));
        let nobody = PeerMemory::new(0x3fff_fff0);
        let gone = nobody.read(&host, &ours, &ours, 8, Order::Relaxed, &|| true);
        assert_eq!(gone, Err(PeerError::Gone { pid: 0x3fff_fff0 }));
        assert_eq!([peer, nobody, peer.refused()].map(|peer| peer.is_allowed()), [true, false, false]);
    }

    #[test]
    fn a_copy_that_is_not_wanted_any_more_stops_before_its_end_can_be_seen() {
        let host = Host::new().unwrap();
        let peer = PeerMemory::new(std::process::id());
        let source = vec![7u8; 3 * STRETCH as usize];
        for granted in 0..=5 {
            let target = vec![0u8; source.len()];
            let looks = std::cell::Cell::new(0);
            let go_on = || looks.replace(looks.get() + 1) < granted;
            let len = source.len() as u64;
            let (to, from) = ([segment(&target)], [segment(&source)]);
            let copied = peer.read(&host, &to, &from, len, Order::Increasing, &go_on);
            let stretches = granted.min(3) as usize;
            let held = if stretches == 3 { TAIL } else { 0 };
            let end = if copied.is_ok() { source.len() } else { stretches * STRETCH as usize - held };
            assert_eq!(copied, if granted < 4 { Err(PeerError::Stopped) } else { Ok(()) }, "{granted} looks");
            assert!(target[..end].iter().all(|byte| *byte == 7), "{granted} looks");
            assert!(target[end..].iter().all(|byte| *byte == 0), "{granted} looks");
        }
    }
}
