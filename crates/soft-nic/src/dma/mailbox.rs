//! Datagrams between the processes of one user on one host, by abstract Unix names: how connection managers of one fabric
//! reach each other. Such a name is nobody's once its process has ended.
//!
//! Anybody on the host can send to an abstract name, so each datagram comes with its sender's user number, put there by the
//! kernel (`SO_PASSCRED`, unix(7)); others' are dropped.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use super::forks::OwnSocket;
use super::socket::abstract_address;
use super::system;

/// Longest datagram: a MAD with both addresses, and room to spare.
pub const MAX_LETTER: usize = 512;

/// What came out of a look into a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collected {
    /// Datagrams handed on.
    pub letters: usize,
    /// Datagrams of another user, or longer than any of ours.
    pub refused: usize,
}

/// What datagrams are sent from: it has no name, and nobody can answer.
#[derive(Debug)]
pub struct Postbox {
    socket: OwnSocket,
}

impl Postbox {
    /// Opens one. Does not wait.
    ///
    /// Errors: what the kernel says.
    pub fn open() -> io::Result<Postbox> {
        Ok(Postbox { socket: OwnSocket::open(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK)? })
    }

    /// Puts a datagram, in two pieces, into the mailbox of that name. Does not wait.
    ///
    /// Errors: what the kernel says; `ConnectionRefused`: nobody has that name; `WouldBlock`: it is full (a kernel holds ten,
    /// `net.unix.max_dgram_qlen`).
    pub fn post(&self, to: &str, head: &[u8], bytes: &[u8]) -> io::Result<()> {
        let (mut address, len) = abstract_address(to)?;
        let part =
            |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut parts = [part(head), part(bytes)];
        // SAFETY: plain old data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = len as libc::socklen_t;
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        let (number, flags) = (libc::SYS_sendmsg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: all that the message points to lives through the call, with the lengths given; the kernel reads only.
        system::check(unsafe { libc::syscall(number, self.socket.as_raw_fd(), &message, flags) }).map(|_| ())
    }
}

/// A place that others can put datagrams into.
#[derive(Debug)]
pub struct Mailbox {
    postbox: Postbox,
}

impl Mailbox {
    /// Opens the mailbox of this name. Does not wait, so that it can be opened under a lock: a name may outlive its mailbox for a
    /// moment, while a program that another thread is starting holds copies of all descriptors.
    ///
    /// Errors: what the kernel says; `AddrInUse`: somebody has it.
    pub fn open(name: &str) -> io::Result<Mailbox> {
        let (address, len) = abstract_address(name)?;
        let postbox = Postbox::open()?;
        let socket = &postbox.socket;
        system::set_option(socket, libc::SOL_SOCKET, libc::SO_PASSCRED, 1)?;
        // SAFETY: the address lives through the call and has at least `len` bytes.
        system::check(unsafe { libc::syscall(libc::SYS_bind, socket.as_raw_fd(), &address, len) })?;
        Ok(Mailbox { postbox })
    }

    /// Puts a datagram into another's, or into this one; see [`Postbox::post`].
    pub fn post(&self, to: &str, head: &[u8], bytes: &[u8]) -> io::Result<()> {
        self.postbox.post(to, head, bytes)
    }

    /// Waits until something is there, one of the other descriptors can be read, or the time is over.
    pub fn wait(&self, others: &[RawFd], max: Duration) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let own = self.postbox.socket.as_raw_fd();
        let mut entries: Vec<_> = std::iter::once(own).chain(others.iter().copied()).map(entry).collect();
        let milliseconds = max.as_micros().div_ceil(1000).min(60_000) as libc::c_int;
        let (first, count) = (entries.as_mut_ptr(), entries.len());
        // SAFETY: so many valid entries that live through the call. Whatever comes of it, the caller looks.
        unsafe { libc::syscall(libc::SYS_poll, first, count, milliseconds) };
    }

    /// Hands up to `budget` datagrams of this user to `each`.
    pub fn collect(&self, budget: usize, mut each: impl FnMut(&[u8])) -> io::Result<Collected> {
        let mut inbox = [0_u8; MAX_LETTER];
        let mut collected = Collected::default();
        // SAFETY: no arguments, cannot fail.
        let ours = unsafe { libc::geteuid() };
        while collected.letters + collected.refused < budget {
            let mut part = libc::iovec { iov_base: inbox.as_mut_ptr().cast(), iov_len: inbox.len() };
            let mut control = Credentials::default();
            // SAFETY: plain old data.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = size_of::<Credentials>();
            let (number, fd) = (libc::SYS_recvmsg, self.postbox.socket.as_raw_fd());
            // SAFETY: one place of the length that it says, and room for one control message.
            let got = system::check(unsafe { libc::syscall(number, fd, &mut message, libc::MSG_DONTWAIT) });
            let len = match got {
                Ok(len) => (len as usize).min(MAX_LETTER),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            let cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
            let known = control.level == libc::SOL_SOCKET && control.kind == libc::SCM_CREDENTIALS;
            if cut || !known || control.uid != ours {
                collected.refused += 1;
                continue;
            }
            collected.letters += 1;
            each(&inbox[..len]);
        }
        Ok(collected)
    }
}

/// Room for one control message with a `struct ucred`.
#[repr(C, align(8))]
#[derive(Default)]
struct Credentials {
    len: usize,
    level: libc::c_int,
    kind: libc::c_int,
    pid: libc::pid_t,
    uid: libc::uid_t,
    gid: libc::gid_t,
    pad: u32,
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn name(of: &str) -> String {
        format!("softnic-test-{}-{of}", std::process::id())
    }

    #[test]
    fn letters_of_this_user_arrive_whole_and_in_order() {
        let theirs = Mailbox::open(&name("theirs")).unwrap();
        let ours = Mailbox::open(&name("ours")).unwrap();
        for number in 0..5u8 {
            ours.post(&name("theirs"), &[number], &vec![number; 100 * usize::from(number)]).unwrap();
        }
        let mut got = Vec::new();
        let collected = theirs.collect(3, |letter| got.push((letter[0], letter.len()))).unwrap();
        assert_eq!(collected, Collected { letters: 3, refused: 0 });
        theirs.collect(100, |letter| got.push((letter[0], letter.len()))).unwrap();
        assert_eq!(got, [(0, 1), (1, 101), (2, 201), (3, 301), (4, 401)]);
    }

    #[test]
    fn too_long_a_letter_is_refused_and_nobody_s_name_is_an_error() {
        let theirs = Mailbox::open(&name("long")).unwrap();
        theirs.post(&name("long"), &[1], &[0; MAX_LETTER]).unwrap();
        let collected = theirs.collect(9, |_| unreachable!()).unwrap();
        assert_eq!(collected, Collected { letters: 0, refused: 1 });
        let refused = theirs.post(&name("nobody"), &[], &[]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(Mailbox::open(&name("long")).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(Mailbox::open(&"x".repeat(200)).is_err());
    }

    #[test]
    fn a_full_mailbox_loses_and_does_not_wait() {
        let theirs = Mailbox::open(&name("full")).unwrap();
        let ours = Mailbox::open(&name("sender")).unwrap();
        let sent = (0..10_000).take_while(|_| ours.post(&name("full"), &[7], &[7; 400]).is_ok()).count();
        assert!(sent < 10_000, "it never filled");
        let mut left = 0;
        theirs.collect(usize::MAX, |_| left += 1).unwrap();
        assert_eq!(left, sent);
        ours.post(&name("full"), &[8], &[]).unwrap();
    }

    #[test]
    fn letters_of_another_user_are_refused() {
        let theirs = Mailbox::open(&name("private")).unwrap();
        let to = name("private");
        // SAFETY: no arguments, cannot fail.
        let root = unsafe { libc::geteuid() } == 0;
        measure::need!(root, "root, to become another user");
        assert!(system::true_in_fork_child(|| {
            // SAFETY: changes the user of this child alone.
            let left = unsafe { libc::syscall(libc::SYS_setuid, 65_534) } == 0;
            left && Mailbox::open(&name("stranger"))
                .is_ok_and(|mailbox| mailbox.post(&to, &[1], &[2]).is_ok())
        }));
        let collected = theirs.collect(9, |_| unreachable!()).unwrap();
        assert_eq!(collected, Collected { letters: 0, refused: 1 });
    }

    #[test]
    fn a_fork_child_does_not_keep_the_name() {
        let theirs = Mailbox::open(&name("forked")).unwrap();
        let raw = theirs.postbox.socket.as_raw_fd();
        assert!(system::true_in_fork_child(|| {
            // SAFETY: asks for a flag of a descriptor that this process may not have.
            unsafe { libc::fcntl(raw, libc::F_GETFD) == -1 }
        }));
        drop(theirs);
        // A program that another test starts may hold a copy for a moment.
        let begun = Instant::now();
        while let Err(error) = Mailbox::open(&name("forked")) {
            assert!(begun.elapsed() < Duration::from_secs(5), "{error}");
            system::nap(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_has_no_name_sends_and_a_name_that_is_taken_is_refused_at_once() {
        let theirs = Mailbox::open(&name("taken")).unwrap();
        Postbox::open().unwrap().post(&name("taken"), &[1], &[2]).unwrap();
        let mut got = Vec::new();
        let collected = theirs.collect(9, |letter| got.extend(letter)).unwrap();
        assert_eq!((collected, got), (Collected { letters: 1, refused: 0 }, vec![1, 2]));
        let begun = Instant::now();
        for _ in 0..100 {
            assert_eq!(Mailbox::open(&name("taken")).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        }
        // Each would have waited for half a second.
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
