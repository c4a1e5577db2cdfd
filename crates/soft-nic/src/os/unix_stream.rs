//! Abstract stream sockets between two processes of one user, with a deadline on every call (unix(7)).
//!
//! One side is a thread of the user's program. Of all calls made here the interposer hooks only `close`.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::{PeerCredentials, ReceiveTimeout};
use nix::sys::socket::{Backlog, MsgFlags, UnixAddr, bind, connect, getsockopt, listen, send, setsockopt};
use nix::sys::time::TimeVal;

use super::system::{self, new_descriptor};

/// Bytes of one system call that sends.
const PIECE: usize = 32 << 10;

/// The process at the other end, as the kernel noted when the connection was made (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub pid: u32,
    pub user: u32,
}

#[derive(Debug)]
pub struct Stream(UnixStream);

/// A socket that waits for connections; its name ends with it.
#[derive(Debug)]
pub struct Listener(UnixListener);

/// A fresh socket with its descriptor out of the way of programs that count on small ones.
fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    new_descriptor!(SYS_socket, libc::AF_UNIX, kind, 0).map(system::moved_high)
}

/// Makes a call that is told how long it may wait, again where a signal ended it.
fn before<T>(until: Instant, mut call: impl FnMut(Duration) -> io::Result<T>) -> io::Result<T> {
    loop {
        // A limit of zero would be none.
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        match call(left) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            done => return done,
        }
    }
}

impl Listener {
    /// Takes the name. Errors: the kernel's; `AddrInUse` when another process has it.
    pub fn bind(name: &str) -> io::Result<Listener> {
        let fd = socket()?;
        bind(fd.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        listen(&fd, Backlog::new(8)?)?;
        Ok(Listener(fd.into()))
    }

    /// The next connection; none when none came within `patience`.
    pub fn accept(&self, patience: Duration) -> io::Result<Option<(Stream, Peer)>> {
        let accepted = before(Instant::now() + patience, |left| {
            let limit = TimeVal::new(left.as_secs() as i64, left.subsec_micros().into());
            setsockopt(&self.0, ReceiveTimeout, &limit)?;
            self.0.accept()
        });
        match accepted {
            Ok((stream, _)) => Stream::to_peer(stream).map(Some),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Stream {
    /// Connects to the socket of this name.
    ///
    /// Errors: the kernel's; `WouldBlock` when the other side takes no connection within `patience`.
    pub fn connect(name: &str, patience: Duration) -> io::Result<(Stream, Peer)> {
        let stream = UnixStream::from(socket()?);
        stream.set_write_timeout(Some(patience))?;
        connect(stream.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        Stream::to_peer(stream)
    }

    fn to_peer(stream: UnixStream) -> io::Result<(Stream, Peer)> {
        let credentials = getsockopt(&stream, PeerCredentials)?;
        Ok((Stream(stream), Peer { pid: credentials.pid() as u32, user: credentials.uid() }))
    }

    /// Sends all of `bytes`, without a signal when the reader has closed its end. In pieces: the kernel
    /// counts its limit anew for each buffer of some 32 KiB that it waits for.
    ///
    /// Errors: the kernel's, or `TimedOut`.
    pub fn send(&self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let piece = &bytes[..bytes.len().min(PIECE)];
            let sent = before(until, |left| {
                self.0.set_write_timeout(Some(left))?;
                Ok(send(self.0.as_raw_fd(), piece, MsgFlags::MSG_NOSIGNAL)?)
            })?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Puts what is there into `bytes`, waiting for the first of it; 0 when the other side went away.
    ///
    /// Errors: the kernel's, or `TimedOut`.
    pub fn receive_some(&self, bytes: &mut [u8], until: Instant) -> io::Result<usize> {
        before(until, |left| {
            self.0.set_read_timeout(Some(left))?;
            (&self.0).read(bytes)
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
    use crate::os::testing::DEADLINE;

    /// Of waits that end without what they wait for.
    const SOON: Duration = Duration::from_millis(20);

    fn name(what: &str) -> String {
        format!("softnic-socket-test-{what}-{}", std::process::id())
    }

    #[test]
    fn both_ends_know_the_other_and_no_wait_is_for_ever() {
        let name = name("both");
        let listener = Listener::bind(&name).unwrap();
        assert!(listener.accept(SOON).unwrap().is_none(), "nobody came");
        let (client, server_is) = Stream::connect(&name, DEADLINE).unwrap();
        let (server, client_is) = listener.accept(DEADLINE).unwrap().unwrap();
        let us = Peer { pid: std::process::id(), user: system::user() };
        assert_eq!((server_is, client_is), (us, us));
        client.send(b"abc", Instant::now() + DEADLINE).unwrap();
        let mut bytes = [0; 3];
        server.receive(&mut bytes, Instant::now() + DEADLINE).unwrap();
        assert_eq!(&bytes, b"abc");
        let silent = server.receive(&mut bytes, Instant::now() + SOON).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        let full = server.send(&vec![0; 8 << 20], Instant::now() + SOON).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::TimedOut, "nobody reads");
        drop(client);
        assert!(server.send(b"x", Instant::now() + SOON).is_err(), "an error, and no SIGPIPE");
    }

    #[test]
    fn a_reader_that_is_slow_does_not_hold_a_sender_beyond_its_deadline() {
        let name = name("slow");
        let listener = Listener::bind(&name).unwrap();
        let (client, _) = Stream::connect(&name, DEADLINE).unwrap();
        let (server, _) = listener.accept(DEADLINE).unwrap().unwrap();
        // Seconds, for all of it.
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 64 << 10];
            while client.receive(&mut bytes, Instant::now() + DEADLINE).is_ok() {
                std::thread::sleep(SOON);
            }
        });
        let late = server.send(&vec![0; 8 << 20], Instant::now() + 10 * SOON).map_err(|error| error.kind());
        assert_eq!(late, Err(io::ErrorKind::TimedOut));
        drop(server);
        reader.join().unwrap();
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
