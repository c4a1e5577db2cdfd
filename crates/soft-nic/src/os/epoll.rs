//! One-shot epoll over sockets that are polled otherwise: one wait for all; each reports only once armed.
//!
//! A NIC going to sleep arms it; a thread that does nothing else waits, and is woken once. What came before
//! is reported too, so nothing falls between last look and sleep. A NIC at work arms nothing: no wake-ups.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::time::Duration;

use super::forks::locked;
use super::system::{check, moved_high, new_descriptor};

#[derive(Debug)]
pub struct OneShotEpoll {
    epoll: OwnedFd,
    sockets: Mutex<Vec<RawFd>>,
    /// So many calls fail, as they do where the user has no watches left (`fs.epoll.max_user_watches`).
    #[cfg(test)]
    pub failing: std::sync::atomic::AtomicU32,
}

impl OneShotEpoll {
    /// An epoll instance without sockets.
    ///
    /// Errors: the kernel's (descriptor limit).
    pub fn new() -> io::Result<OneShotEpoll> {
        Ok(OneShotEpoll {
            epoll: moved_high(new_descriptor!(SYS_epoll_create1, libc::EPOLL_CLOEXEC)?),
            sockets: Mutex::new(Vec::new()),
            #[cfg(test)]
            failing: Default::default(),
        })
    }

    /// Adds a socket, which counts from the next [`OneShotEpoll::arm`] on; one added before stays. The kernel
    /// forgets a closed socket.
    ///
    /// Errors: the kernel's.
    pub fn add(&self, socket: RawFd) -> io::Result<()> {
        #[cfg(test)]
        if self.failing.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            self.failing.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let mut sockets = locked(&self.sockets);
        match self.control(libc::EPOLL_CTL_ADD, socket, 0) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            other => other?,
        }
        if !sockets.contains(&socket) {
            sockets.push(socket);
        }
        Ok(())
    }

    /// Has the next packet of each socket, or one that waits there already, end a wait once.
    pub fn arm(&self) {
        let sockets = locked(&self.sockets);
        for socket in sockets.iter() {
            // A socket that was closed reports nothing any more.
            let _ = self.control(libc::EPOLL_CTL_MOD, *socket, libc::EPOLLIN as u32);
        }
    }

    /// Waits until something armed has come, `max` at most; true when it has.
    ///
    /// Errors: the kernel's, but for signals: the descriptor is gone.
    pub fn wait(&self, max: Duration) -> io::Result<bool> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let ms = i32::try_from(max.as_millis()).unwrap_or(i32::MAX);
        let (number, epoll, none) = (libc::SYS_epoll_pwait, self.epoll.as_raw_fd(), std::ptr::null::<u8>());
        // SAFETY: room for one event that lives through the call, and no signal mask.
        match check(unsafe { libc::syscall(number, epoll, &mut event, 1, ms, none, 8) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
            Ok(count) => Ok(count > 0),
        }
    }

    fn control(&self, what: libc::c_int, socket: RawFd, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events | libc::EPOLLONESHOT as u32, u64: socket as u64 };
        let (number, epoll) = (libc::SYS_epoll_ctl, self.epoll.as_raw_fd());
        // SAFETY: the event lives through the call; a number that is no descriptor is an error.
        check(unsafe { libc::syscall(number, epoll, what, socket, &mut event) }).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Instant;

    #[test]
    fn what_came_and_what_comes_is_reported_once_and_only_when_armed() {
        let (ours, theirs) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let epoll = OneShotEpoll::new().unwrap();
        epoll.add(ours.as_raw_fd()).unwrap();
        epoll.add(ours.as_raw_fd()).unwrap();
        let (soon, long) = (Duration::from_millis(20), Duration::from_secs(40));
        theirs.send_to(b"before", ours.local_addr().unwrap()).unwrap();
        assert!(!epoll.wait(soon).unwrap(), "not armed");
        epoll.arm();
        assert!(epoll.wait(long).unwrap(), "what came before");
        assert!(!epoll.wait(soon).unwrap(), "reported once");
        let mut bytes = [0; 8];
        ours.recv(&mut bytes).unwrap();
        epoll.arm();
        assert!(!epoll.wait(soon).unwrap(), "nothing came");
        theirs.send_to(b"after", ours.local_addr().unwrap()).unwrap();
        let begun = Instant::now();
        assert!(epoll.wait(long).unwrap() && begun.elapsed() < long / 2);
    }
}
