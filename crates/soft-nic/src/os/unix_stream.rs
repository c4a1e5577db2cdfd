//! Abstract stream sockets between two processes of one user, with a deadline on every call (unix(7)).
//!
//! By raw system calls, as in [`system`](super::system): one side is a thread within the user's program.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use super::system::{self, check, new_descriptor};

/// The process at the other end, as the kernel noted when the connection was made (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub pid: u32,
    pub user: u32,
}

#[derive(Debug)]
pub struct Stream(OwnedFd);

/// A socket that waits for connections; its name ends with it.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// A fresh socket with its descriptor out of the way of programs that count on small ones.
fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    new_descriptor!(SYS_socket, libc::AF_UNIX, kind, 0).map(system::moved_high)
}

/// The address of an abstract name, and its length.
pub(super) fn abstract_address(name: &str) -> io::Result<(libc::sockaddr_un, usize)> {
    // SAFETY: plain old data.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays zero: an abstract name.
    let Some(path) = address.sun_path.get_mut(1..=name.len()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    for (to, from) in path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok((address, std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()))
}

/// Waits until the socket is ready; false when the deadline came first.
fn wait(fd: &OwnedFd, events: i16, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        let milliseconds = left.as_millis().min(60_000) as libc::c_int + 1;
        // SAFETY: one valid entry that lives through the call.
        match check(unsafe { libc::syscall(libc::SYS_poll, &mut entry, 1, milliseconds) }) {
            Ok(0) if Instant::now() >= until => return Ok(false),
            Ok(0) => {}
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn peer(fd: &OwnedFd) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `credentials` has the length passed, and both live through the call.
    check(unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::syscall(libc::SYS_getsockopt, fd.as_raw_fd(), level, name, &mut credentials, &mut len)
    })?;
    Ok(Peer { pid: credentials.pid as u32, user: credentials.uid })
}

impl Listener {
    /// Takes the name. Errors: the kernel's; `AddrInUse` when another process has it.
    pub fn bind(name: &str) -> io::Result<Listener> {
        let (address, len) = abstract_address(name)?;
        let fd = socket()?;
        // SAFETY: the address lives through the call and has at least `len` bytes.
        check(unsafe { libc::syscall(libc::SYS_bind, fd.as_raw_fd(), &address, len) })?;
        // SAFETY: plain system call on our descriptor.
        check(unsafe { libc::syscall(libc::SYS_listen, fd.as_raw_fd(), 8) })?;
        Ok(Listener(fd))
    }

    /// The next connection; none when none came within `patience`.
    pub fn accept(&self, patience: Duration) -> io::Result<Option<(Stream, Peer)>> {
        if !wait(&self.0, libc::POLLIN, Instant::now() + patience)? {
            return Ok(None);
        }
        let null = std::ptr::null_mut::<libc::sockaddr>();
        let fd = new_descriptor!(SYS_accept4, self.0.as_raw_fd(), null, null, libc::SOCK_CLOEXEC)?;
        let peer = peer(&fd)?;
        Ok(Some((Stream(fd), peer)))
    }
}

impl Stream {
    /// Connects to the socket of this name.
    ///
    /// Errors: the kernel's; `WouldBlock` when the other side takes no connection within `patience`.
    pub fn connect(name: &str, patience: Duration) -> io::Result<(Stream, Peer)> {
        let (address, len) = abstract_address(name)?;
        let fd = socket()?;
        let time = libc::timeval {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_usec: libc::suseconds_t::from(patience.subsec_micros()),
        };
        system::set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, time)?;
        // SAFETY: the address lives through the call and has at least `len` bytes.
        check(unsafe { libc::syscall(libc::SYS_connect, fd.as_raw_fd(), &address, len) })?;
        let peer = peer(&fd)?;
        Ok((Stream(fd), peer))
    }

    /// What the system call moves once the socket is ready for it.
    fn when_ready(
        &self,
        events: i16,
        until: Instant,
        mut call: impl FnMut(RawFd) -> i64,
    ) -> io::Result<usize> {
        loop {
            if !wait(&self.0, events, until)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match check(call(self.0.as_raw_fd())) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                moved => return Ok(moved? as usize),
            }
        }
    }

    /// Sends all of `bytes`, without a signal when the reader has closed its end.
    ///
    /// Errors: the kernel's, or `TimedOut`.
    pub fn send(&self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        while !bytes.is_empty() {
            let null = std::ptr::null::<libc::sockaddr>();
            let sent = self.when_ready(libc::POLLOUT, until, |fd| {
                // SAFETY: reads no more than the slice has; no address is given.
                unsafe { libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, null, 0) }
            })?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Puts what is there into `bytes`, waiting for the first of it; 0 when the other side went away.
    ///
    /// Errors: the kernel's, or `TimedOut`.
    pub fn receive_some(&self, bytes: &mut [u8], until: Instant) -> io::Result<usize> {
        let (to, len, null) = (bytes.as_mut_ptr(), bytes.len(), std::ptr::null_mut::<libc::sockaddr>());
        self.when_ready(libc::POLLIN, until, |fd| {
            // SAFETY: writes no more than the slice has; no address is asked for.
            unsafe { libc::syscall(libc::SYS_recvfrom, fd, to, len, libc::MSG_DONTWAIT, null, null) }
        })
    }

    /// Fills `bytes`.
    ///
    /// Errors: the kernel's, `TimedOut`, or `UnexpectedEof` when the other side went away first.
    pub fn receive(&self, bytes: &mut [u8], until: Instant) -> io::Result<()> {
        let mut have = 0;
        while have < bytes.len() {
            match self.receive_some(&mut bytes[have..], until)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => have += count,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    fn name(what: &str) -> String {
        format!("softnic-socket-test-{what}-{}", std::process::id())
    }

    #[test]
    fn both_ends_know_the_other_and_no_wait_is_for_ever() {
        let name = name("both");
        let listener = Listener::bind(&name).unwrap();
        assert!(listener.accept(SOON).unwrap().is_none(), "nobody came");
        let (client, server_is) = Stream::connect(&name, SOON).unwrap();
        let (server, client_is) = listener.accept(SOON).unwrap().unwrap();
        let us = Peer { pid: std::process::id(), user: system::user() };
        assert_eq!((server_is, client_is), (us, us));
        client.send(b"abc", Instant::now() + SOON).unwrap();
        let mut bytes = [0; 3];
        server.receive(&mut bytes, Instant::now() + SOON).unwrap();
        assert_eq!(&bytes, b"abc");
        let silent = server.receive(&mut bytes, Instant::now() + SOON).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        let full = server.send(&vec![0; 8 << 20], Instant::now() + SOON).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::TimedOut, "nobody reads");
        drop(client);
        assert!(server.send(b"x", Instant::now() + SOON).is_err(), "an error, and no SIGPIPE");
    }

    #[test]
    fn a_name_ends_with_its_listener_and_a_full_one_is_not_waited_for() {
        let name = name("full");
        assert!(Stream::connect(&name, SOON).is_err(), "nobody has it");
        let listener = Listener::bind(&name).unwrap();
        assert!(Listener::bind(&name).is_err());
        let mut waiting = Vec::new();
        let refused = loop {
            match Stream::connect(&name, SOON) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "a queue of 8");
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(listener);
        assert!(Stream::connect(&name, SOON).is_err());
        assert!(Listener::bind(&"x".repeat(200)).is_err(), "longer than an address");
    }
}
