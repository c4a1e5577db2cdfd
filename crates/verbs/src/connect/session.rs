//! The TCP connection: lines of JSON, each waited for with a deadline.

use std::ffi::c_int;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ConnectError, Hello};
use crate::safe::wait_readable;

/// Longest line; a hello of a thousand queue pairs has a tenth of it.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Options: a peer whose host is gone is lost after half a minute, two probes after ten seconds of silence.
const KEEP_ALIVE: [(c_int, c_int, c_int); 5] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 2),
    // In milliseconds; of what was sent and is not acknowledged.
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 30_000),
];
/// How often a stop flag is looked at.
const SLICE: Duration = Duration::from_millis(50);

/// Time limit of a step, and the flag that ends it before.
#[derive(Debug, Clone, Copy)]
pub struct Wait<'a> {
    started: Instant,
    deadline: Instant,
    stop: Option<&'a AtomicBool>,
}

impl Wait<'static> {
    /// From now on for this long, at most a year.
    pub fn at_most(time: Duration) -> Self {
        let started = Instant::now();
        Self { started, deadline: started + time.min(Duration::from_secs(31_536_000)), stop: None }
    }
}

impl<'a> Wait<'a> {
    /// Ends also when the flag is set, within a tenth of a second: for Ctrl-C.
    pub fn unless(self, stop: &'a AtomicBool) -> Self {
        Self { stop: Some(stop), ..self }
    }

    /// Time for the next look: without a flag, all that is left. Error: time is over, or the flag is set.
    fn slice(&self, what: impl FnOnce() -> String) -> Result<Duration, ConnectError> {
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(ConnectError::Stopped { what: what() });
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let seconds = (self.deadline - self.started).as_secs_f64();
            return Err(ConnectError::Deadline { what: what(), seconds });
        }
        Ok(if self.stop.is_some() { left.min(SLICE) } else { left })
    }
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    for (level, option, value) in KEEP_ALIVE {
        // SAFETY: the option's value is an int, which is read before the call returns.
        let set = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of::<c_int>() as libc::socklen_t,
            )
        };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The side that waits for the other.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Binds an address, as `0.0.0.0:18515` or `[::]:18515`. Error: it is in use, or not ours.
    pub fn bind(address: &str) -> Result<Self, ConnectError> {
        let socket = |source| ConnectError::Socket { what: format!("listening on {address}"), source };
        let listener = TcpListener::bind(address).map_err(socket)?;
        listener.set_nonblocking(true).map_err(socket)?;
        Ok(Self(listener))
    }

    /// The address that it has, with the port that was chosen if 0 was asked for.
    pub fn address(&self) -> Result<SocketAddr, ConnectError> {
        self.0
            .local_addr()
            .map_err(|source| ConnectError::Socket { what: "asking for our address".into(), source })
    }

    /// Waits for one peer.
    pub fn accept(&self, wait: Wait<'_>) -> Result<Session, ConnectError> {
        let what = || match self.0.local_addr() {
            Ok(address) => format!("waiting for a peer on {address}"),
            Err(_) => "waiting for a peer".into(),
        };
        loop {
            let slice = wait.slice(what)?;
            if !wait_readable(self.0.as_raw_fd(), slice)? {
                continue;
            }
            match self.0.accept() {
                Ok((stream, peer)) => return Session::new(stream, peer),
                // The peer went away between the look and the accept.
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {}
                Err(source) => return Err(ConnectError::Socket { what: what(), source }),
            }
        }
    }
}

/// A connection to the peer.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    peer: SocketAddr,
    /// Received and not taken yet.
    buffer: Vec<u8>,
    barriers: u64,
}

impl Session {
    /// Connects to a listener, as `host:18515`; tries again until a listener is there.
    pub fn connect(address: &str, wait: Wait<'_>) -> Result<Self, ConnectError> {
        let socket = |source| ConnectError::Socket { what: format!("connecting to {address}"), source };
        let candidates: Vec<SocketAddr> = address.to_socket_addrs().map_err(socket)?.collect();
        let mut last = None;
        loop {
            let slice = match (wait.slice(|| format!("connecting to {address}")), last.take()) {
                (Ok(slice), _) => slice,
                // «Connection refused» says more than that the time is over.
                (Err(ConnectError::Deadline { .. }), Some(source)) => return Err(socket(source)),
                (Err(error), _) => return Err(error),
            };
            for &candidate in &candidates {
                // A slice is too short for a far host: its first packet may be lost.
                match TcpStream::connect_timeout(&candidate, slice.max(Duration::from_millis(500))) {
                    Ok(stream) => return Self::new(stream, candidate),
                    Err(error) => last = Some(error),
                }
            }
            std::thread::sleep(slice.min(SLICE));
        }
    }

    fn new(stream: TcpStream, peer: SocketAddr) -> Result<Self, ConnectError> {
        let socket = |source| ConnectError::Socket { what: format!("talking to {peer}"), source };
        stream.set_nonblocking(false).map_err(socket)?;
        stream.set_nodelay(true).map_err(socket)?;
        // A line fits in the socket's buffer, so that a write waits only for a peer that reads nothing.
        stream.set_write_timeout(Some(Duration::from_secs(5))).map_err(socket)?;
        keep_alive(&stream).map_err(socket)?;
        Ok(Self { stream, peer, buffer: Vec::new(), barriers: 0 })
    }

    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Ends the connection from another thread: one that waits here finds it closed.
    pub fn closer(&self) -> Result<Closer, ConnectError> {
        let what = || format!("talking to {}", self.peer);
        let stream =
            self.stream.try_clone().map_err(|source| ConnectError::Socket { what: what(), source })?;
        Ok(Closer(stream))
    }

    /// Exchanges hellos with the peer. Refuses an incompatible peer, and names what differs.
    pub fn exchange<P>(&mut self, ours: &Hello<P>, wait: Wait<'_>) -> Result<Hello<P>, ConnectError>
    where
        P: Serialize + DeserializeOwned,
    {
        self.send(ours)?;
        let line = self.line("a greeting", wait)?;
        let theirs = Hello::parse(self.peer, &line)?;
        ours.check(self.peer, &theirs)?;
        Ok(theirs)
    }

    /// Sends a line of the application.
    pub fn send<T: Serialize>(&mut self, value: &T) -> Result<(), ConnectError> {
        let peer = self.peer;
        let socket = |source| ConnectError::Socket { what: format!("writing to {peer}"), source };
        let mut line = serde_json::to_vec(value).map_err(|e| socket(e.into()))?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(socket)
    }

    /// Waits for a line of the application. `what` names it in errors: «a report».
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        what: &'static str,
        wait: Wait<'_>,
    ) -> Result<T, ConnectError> {
        let line = self.line(what, wait)?;
        let peer = self.peer;
        serde_json::from_slice(&line).map_err(|e| ConnectError::Malformed {
            peer,
            what,
            reason: e.to_string(),
        })
    }

    /// Waits until the peer has come to its barrier of the same number too.
    pub fn barrier(&mut self, wait: Wait<'_>) -> Result<(), ConnectError> {
        #[derive(Serialize, serde::Deserialize)]
        struct Barrier {
            barrier: u64,
        }
        self.barriers += 1;
        self.send(&Barrier { barrier: self.barriers })?;
        let Barrier { barrier } = self.receive("a barrier", wait)?;
        if barrier == self.barriers {
            return Ok(());
        }
        let reason = format!("it is at barrier {barrier}, we are at {}", self.barriers);
        Err(ConnectError::Malformed { peer: self.peer, what: "a barrier", reason })
    }

    /// Whether the peer is still there: false once it closed or died, and where it sends without end. Lines
    /// that came meanwhile are kept, up to the length that one may have.
    pub fn is_alive(&mut self) -> bool {
        match wait_readable(self.stream.as_raw_fd(), Duration::ZERO) {
            Ok(true) => self.buffer.len() <= MAX_LINE_BYTES && !matches!(self.fill(), Ok(0) | Err(_)),
            Ok(false) => true,
            Err(_) => false,
        }
    }

    /// One read into the buffer: how many bytes came, 0 at the end.
    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 4096];
        let count = self.stream.read(&mut piece)?;
        self.buffer.extend_from_slice(&piece[..count]);
        Ok(count)
    }

    fn line(&mut self, what: &'static str, wait: Wait<'_>) -> Result<Vec<u8>, ConnectError> {
        let peer = self.peer;
        let socket = |source| ConnectError::Socket { what: format!("reading from {peer}"), source };
        let mut searched = 0;
        loop {
            let found = self.buffer[searched..].iter().position(|&byte| byte == b'\n');
            if let Some(end) = found.map(|at| searched + at) {
                let rest = self.buffer.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.truncate(end);
                return Ok(line);
            }
            searched = self.buffer.len();
            if searched > MAX_LINE_BYTES {
                let start = String::from_utf8_lossy(&self.buffer).chars().take(60).collect();
                return Err(ConnectError::Stranger { peer, start });
            }
            let slice = wait.slice(|| format!("waiting for {what} from {peer}"))?;
            if !wait_readable(self.stream.as_raw_fd(), slice)? {
                continue;
            }
            match self.fill() {
                Ok(0) => return Err(ConnectError::Closed { peer, what }),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A peer that was killed with unread data resets the connection: the same to us.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(ConnectError::Closed { peer, what });
                }
                Err(source) => return Err(socket(source)),
            }
        }
    }
}

/// Ends a [`Session`] that another thread has.
#[derive(Debug)]
pub struct Closer(TcpStream);

impl Closer {
    pub fn close(&self) {
        // A connection that has ended already is not connected any more.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests;
