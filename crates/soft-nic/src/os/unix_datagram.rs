//! Datagrams between processes of one user on one host, by abstract Unix names: how connection managers of
//! one fabric reach each other. The kernel frees such a name when its process ends.
//!
//! Every user of the host can send to an abstract name. So each datagram begins with a key, and the kernel
//! drops one without it in its sender's own call (`SO_ATTACH_FILTER`, socket(7)). A receiver would close the
//! files that came with it, which takes as long as their owner wants (`SO_LINGER`, a user-space file system).

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, UnixAddr, bind, recv, sendto};

use super::forks::NoForkSocket;
use super::system;

/// Longest datagram behind its key: a MAD with both addresses, and room to spare.
pub const MAX_UNIX_DATAGRAM: usize = 512;

const KEY: usize = 8;

/// Datagrams that one call received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceiveCounts {
    pub datagrams: usize,
    /// Datagrams longer than [`MAX_UNIX_DATAGRAM`], or without the key where the kernel has not dropped them.
    pub refused: usize,
}

/// A socket for datagrams with a key secret from other users. Without a name it sends only: no answers.
#[derive(Debug)]
pub struct KeyedSocket {
    socket: NoForkSocket,
    key: [u8; KEY],
}

impl KeyedSocket {
    /// Opens a socket that sends to bound sockets with this key. Does not wait.
    ///
    /// Errors: what the kernel says.
    pub fn unbound(key: u64) -> io::Result<KeyedSocket> {
        let socket = NoForkSocket::open(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK)?;
        Ok(KeyedSocket { socket, key: key.to_be_bytes() })
    }

    /// Binds this abstract name, which other processes send to. Does not wait, so that it can be opened under
    /// a lock: a name may outlive its socket for a moment, while a program that another thread is starting
    /// holds copies of all descriptors.
    ///
    /// Errors: what the kernel says; `AddrInUse`: a socket has that name.
    pub fn bound(name: &str, key: u64) -> io::Result<KeyedSocket> {
        let unbound = KeyedSocket::unbound(key)?;
        let mut program = accepting(key);
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        system::set_option(&unbound.socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter)?;
        bind(unbound.socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        Ok(unbound)
    }

    /// Sends a datagram, in two pieces, to the socket of that name; another key's drops it. Does not wait.
    ///
    /// Errors: what the kernel says; `ConnectionRefused`: no socket has that name; `WouldBlock`: it is full
    /// (a kernel holds ten, `net.unix.max_dgram_qlen`).
    pub fn post(&self, to: &str, head: &[u8], bytes: &[u8]) -> io::Result<()> {
        let address = UnixAddr::new_abstract(to.as_bytes())?;
        let whole = [&self.key, head, bytes].concat();
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        sendto(self.socket.as_raw_fd(), &whole, &address, flags)?;
        Ok(())
    }

    /// Waits until something is there, one of the other descriptors can be read, or the time is over.
    pub fn wait(&self, others: &[RawFd], max: Duration) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let own = self.socket.as_raw_fd();
        let mut entries: Vec<_> = std::iter::once(own).chain(others.iter().copied()).map(entry).collect();
        let milliseconds = max.as_micros().div_ceil(1000).min(60_000) as libc::c_int;
        let (first, count) = (entries.as_mut_ptr(), entries.len());
        // SAFETY: so many valid entries that live through the call. Whatever comes of it, the caller looks.
        unsafe { libc::syscall(libc::SYS_poll, first, count, milliseconds) };
    }

    /// Hands up to `budget` datagrams, without their keys, to `each`.
    pub fn collect(&self, budget: usize, mut each: impl FnMut(&[u8])) -> io::Result<ReceiveCounts> {
        let mut inbox = [0_u8; KEY + MAX_UNIX_DATAGRAM];
        let mut collected = ReceiveCounts::default();
        while collected.datagrams + collected.refused < budget {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
            // The length of the whole datagram, also of one that did not fit.
            let len = match recv(self.socket.as_raw_fd(), &mut inbox, flags) {
                Ok(len) => len,
                Err(Errno::EAGAIN) => break,
                Err(errno) => return Err(errno.into()),
            };
            match inbox.get(..len).and_then(|datagram| datagram.strip_prefix(&self.key)) {
                Some(datagram) => {
                    collected.datagrams += 1;
                    each(datagram);
                }
                None => collected.refused += 1,
            }
        }
        Ok(collected)
    }
}

/// Takes datagrams that begin with this key, and no other.
fn accepting(key: u64) -> [libc::sock_filter; 6] {
    let step =
        |code: u32, k: u32, otherwise: u8| libc::sock_filter { code: code as u16, jt: 0, jf: otherwise, k };
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0);
    let unless = |word, leap| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, word, leap);
    let end = |taken| step(libc::BPF_RET | libc::BPF_K, taken, 0);
    // A load beyond the end drops the datagram too.
    [load(0), unless((key >> 32) as u32, 3), load(4), unless(key as u32, 1), end(u32::MAX), end(0)]
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::os::fd::OwnedFd;
    use std::time::Instant;

    use nix::sys::socket::{ControlMessage, sendmsg};

    use super::*;
    use crate::os::testing::{DEADLINE, true_in_fork_child};

    const KEY_OF_TESTS: u64 = 0x0123_4567_89ab_cdef;

    fn name(of: &str) -> String {
        format!("softnic-test-{}-{of}", std::process::id())
    }

    #[test]
    fn datagrams_of_this_user_arrive_whole_and_in_order() {
        let theirs = KeyedSocket::bound(&name("theirs"), KEY_OF_TESTS).unwrap();
        let ours = KeyedSocket::bound(&name("ours"), KEY_OF_TESTS).unwrap();
        for number in 0..5u8 {
            ours.post(&name("theirs"), &[number], &vec![number; 100 * usize::from(number)]).unwrap();
        }
        let mut got = Vec::new();
        let collected = theirs.collect(3, |datagram| got.push((datagram[0], datagram.len()))).unwrap();
        assert_eq!(collected, ReceiveCounts { datagrams: 3, refused: 0 });
        theirs.collect(100, |datagram| got.push((datagram[0], datagram.len()))).unwrap();
        assert_eq!(got, [(0, 1), (1, 101), (2, 201), (3, 301), (4, 401)]);
    }

    #[test]
    fn too_long_a_datagram_is_refused_and_a_free_name_is_an_error() {
        let theirs = KeyedSocket::bound(&name("long"), KEY_OF_TESTS).unwrap();
        theirs.post(&name("long"), &[1], &[0; MAX_UNIX_DATAGRAM]).unwrap();
        let collected = theirs.collect(9, |_| unreachable!()).unwrap();
        assert_eq!(collected, ReceiveCounts { datagrams: 0, refused: 1 });
        let refused = theirs.post(&name("nobody"), &[], &[]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(
            KeyedSocket::bound(&name("long"), KEY_OF_TESTS).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        assert!(KeyedSocket::bound(&"x".repeat(200), KEY_OF_TESTS).is_err());
    }

    #[test]
    fn a_full_socket_loses_and_does_not_wait() {
        let theirs = KeyedSocket::bound(&name("full"), KEY_OF_TESTS).unwrap();
        let ours = KeyedSocket::bound(&name("sender"), KEY_OF_TESTS).unwrap();
        let sent = (0..10_000).take_while(|_| ours.post(&name("full"), &[7], &[7; 400]).is_ok()).count();
        assert!(sent < 10_000, "it never filled");
        let mut left = 0;
        theirs.collect(usize::MAX, |_| left += 1).unwrap();
        assert_eq!(left, sent);
        ours.post(&name("full"), &[8], &[]).unwrap();
    }

    /// Sends a file along with a datagram and keeps no copy.
    fn send_file(socket: &KeyedSocket, to: &str, key: u64, file: OwnedFd) {
        let (socket, to) = (socket.socket.as_raw_fd(), UnixAddr::new_abstract(to.as_bytes()).unwrap());
        let (key, files) = (key.to_be_bytes(), [file.as_raw_fd()]);
        let (bytes, files) = ([IoSlice::new(&key)], [ControlMessage::ScmRights(&files)]);
        let sent = sendmsg(socket, &bytes, &files, MsgFlags::MSG_DONTWAIT, Some(&to));
        assert_eq!(sent, Ok(8));
    }

    /// The receiver of a datagram closes the files that came with it, and waits as long as that takes.
    #[test]
    fn a_foreign_datagram_and_its_files_end_in_the_sender_s_call() {
        let theirs = KeyedSocket::bound(&name("foreign"), KEY_OF_TESTS).unwrap();
        let foreign = KeyedSocket::unbound(0).unwrap();
        for (key, taken) in
            [(KEY_OF_TESTS, true), (KEY_OF_TESTS ^ 1, false), (KEY_OF_TESTS ^ 1 << 63, false), (0, false)]
        {
            let (mut reader, writer) = io::pipe().unwrap();
            send_file(&foreign, &name("foreign"), key, writer.into());
            let mut entry = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid entry, no wait.
            unsafe { libc::poll(&mut entry, 1, 0) };
            assert_eq!(entry.revents == 0, taken, "the only writer of key {key:#x} waits in the socket");
            let datagrams = theirs.collect(9, |datagram| assert_eq!(datagram, [0; 0])).unwrap().datagrams;
            assert_eq!(datagrams, usize::from(taken), "{key:#x}");
            assert_eq!(reader.read(&mut [0]).unwrap(), 0, "closed by now");
        }
        // Shorter than a key, too.
        for len in [0, 4, 7] {
            let to = UnixAddr::new_abstract(name("foreign").as_bytes()).unwrap();
            let bytes = &KEY_OF_TESTS.to_be_bytes()[..len];
            let sent = sendto(foreign.socket.as_raw_fd(), bytes, &to, MsgFlags::empty());
            assert_eq!(sent, Ok(len));
        }
        assert_eq!(theirs.collect(9, |_| unreachable!()).unwrap(), ReceiveCounts::default());
    }

    #[test]
    fn a_fork_child_does_not_keep_the_name() {
        let theirs = KeyedSocket::bound(&name("forked"), KEY_OF_TESTS).unwrap();
        let raw = theirs.socket.as_raw_fd();
        assert!(true_in_fork_child(|| {
            // SAFETY: asks for a flag of a descriptor that this process may not have.
            unsafe { libc::fcntl(raw, libc::F_GETFD) == -1 }
        }));
        drop(theirs);
        // A program that another test starts may hold a copy for a moment.
        let begun = Instant::now();
        while let Err(error) = KeyedSocket::bound(&name("forked"), KEY_OF_TESTS) {
            assert!(begun.elapsed() < DEADLINE, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_has_no_name_sends_and_a_name_that_is_taken_is_refused_at_once() {
        let theirs = KeyedSocket::bound(&name("taken"), KEY_OF_TESTS).unwrap();
        KeyedSocket::unbound(KEY_OF_TESTS).unwrap().post(&name("taken"), &[1], &[2]).unwrap();
        let mut got = Vec::new();
        let collected = theirs.collect(9, |datagram| got.extend(datagram)).unwrap();
        assert_eq!((collected, got), (ReceiveCounts { datagrams: 1, refused: 0 }, vec![1, 2]));
        let begun = Instant::now();
        for _ in 0..100 {
            assert_eq!(
                KeyedSocket::bound(&name("taken"), KEY_OF_TESTS).unwrap_err().kind(),
                io::ErrorKind::AddrInUse
            );
        }
        // Each would have waited for half a second.
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
