//! UDP sockets for packets whose check sum covers their IP header: many datagrams a call, each one with the
//! identification that the kernel will give it.
//!
//! RoCEv2's invariant CRC covers the IPv4 identification (IBTA Annex A17). Linux sends 0 from an unconnected
//! socket that may not fragment (`IP_PMTUDISC_DO`). It counts up from there in the segments that it, or a
//! card, cuts a large datagram into (`UDP_SEGMENT`; `inet_gso_segment`). Seen on 6.18, on a veth pair with
//! offloads off: 0, 1, 2 … for the segments of each call. IPv6 has no such field.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, bind, getsockname, sendmsg};

use super::address::{ADDRESS_BYTES, from_bytes, of_storage};
use super::forks::NoForkSocket;
use super::system;

/// Most segments of one call to the kernel: `UDP_MAX_SEGMENTS` of kernels before 6.9.
const SEGMENTS: usize = 64;

/// Most bytes of one call: an IPv4 datagram of 65,535 bytes less the headers.
const RUN_BYTES: usize = 65_535 - 20 - 8;

/// Most bytes that a datagram may have: MTU 4096 with every header, ICRC and pad, and room to spare.
pub const MAX_DATAGRAM: usize = 4_608;

/// Most messages that one call takes in; each is a datagram, or several of one sender that the kernel left in
/// one piece (`UDP_GRO`) …
const RECEIVED: usize = 16;

/// … and where few come: to lay out sixteen takes a third as long as to learn that none came.
const FEW: usize = 2;

/// So many calls in vain mean that few come.
const IN_VAIN: u8 = 16;

/// Longest message of several datagrams: what one IPv4 datagram may have.
const MAX_MESSAGE: usize = 65_536;

/// What the kernel may hold for us while we are elsewhere; asked for, not insisted on.
const BUFFER_BYTES: i32 = 4 << 20;

/// Datagrams to one address, cut by the kernel from one piece of memory.
#[derive(Debug, Clone, Copy)]
struct Run {
    to: SocketAddr,
    start: usize,
    bytes: usize,
    /// Length of each but the last one.
    segment: usize,
    count: usize,
    /// The last one is shorter, or the run is full: nothing can follow.
    closed: bool,
}

/// Datagrams that wait to be sent, in order.
#[derive(Debug, Default)]
pub struct SendBatch {
    bytes: Vec<u8>,
    runs: Vec<Run>,
    /// One datagram a run: for a kernel that cuts none.
    single: bool,
}

impl SendBatch {
    /// Adds a datagram of `len` bytes, written by `fill`, which is told its IPv4 identification. Returns an
    /// error of `fill`; false: `len` is 0 or above [`MAX_DATAGRAM`]; nothing is added then.
    pub fn push<E>(
        &mut self,
        to: SocketAddr,
        len: usize,
        fill: impl FnOnce(&mut [u8], u16) -> Result<(), E>,
    ) -> Result<bool, E> {
        if len == 0 || len > MAX_DATAGRAM {
            return Ok(false);
        }
        let single = self.single;
        let fits = |run: &&Run| {
            !single && !run.closed && run.to == to && len <= run.segment && run.bytes + len <= RUN_BYTES
        };
        let start = self.bytes.len();
        let joined = self.runs.last().filter(fits).map_or(0, |run| run.count);
        self.bytes.resize(start + len, 0);
        if let Err(error) = fill(&mut self.bytes[start..], joined as u16) {
            self.bytes.truncate(start);
            return Err(error);
        }
        match self.runs.last_mut().filter(|_| joined > 0) {
            Some(run) => {
                run.bytes += len;
                run.count += 1;
                run.closed = len < run.segment || run.count == SEGMENTS;
            }
            None => self.runs.push(Run { to, start, bytes: len, segment: len, count: 1, closed: false }),
        }
        Ok(true)
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Memory that they take, with what describes them.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + self.runs.len() * size_of::<Run>()
    }

    /// Takes all of them out, to be sent by themselves.
    pub fn take(&mut self) -> SendBatch {
        let single = self.single;
        std::mem::replace(self, SendBatch { single, ..SendBatch::default() })
    }

    /// From now on one datagram a run, if that is what the kernel of `other` needs.
    pub fn learn(&mut self, other: &SendBatch) {
        self.single |= other.single;
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Gives up what waits; returns how many those were.
    pub fn discard(&mut self) -> usize {
        let waiting = self.runs.iter().map(|run| run.count).sum();
        self.forget(self.runs.len());
        waiting
    }

    fn forget(&mut self, runs: usize) {
        let end = self.runs.get(runs).map_or(self.bytes.len(), |run| run.start);
        self.bytes.drain(..end);
        self.runs.drain(..runs);
        self.runs.iter_mut().for_each(|run| run.start -= end);
    }
}

/// What became of a [`SendBatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Posted {
    pub taken: usize,
    /// Datagrams that it refused, with the last reason (an errno): lost, as on a wire.
    pub lost: usize,
    /// That reason.
    pub errno: i32,
}

#[derive(Debug)]
pub struct Datagrams {
    socket: NoForkSocket,
    local: SocketAddr,
    /// Where received messages are put, [`MAX_MESSAGE`] bytes each.
    inbox: Vec<u8>,
    /// Calls in vain that are left until room is made for [`FEW`] only.
    many: u8,
    /// Sends nothing, as if the socket's buffer were full: a loopback interface empties it at once.
    #[cfg(test)]
    pub stalled: bool,
}

impl Datagrams {
    /// Opens a socket at `local`; port 0 lets the kernel choose one.
    ///
    /// Errors: what the kernel says; `EADDRINUSE` when another socket has the port.
    pub fn open(local: SocketAddr) -> io::Result<Datagrams> {
        let domain = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let socket = NoForkSocket::open(domain, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK)?;
        if local.is_ipv4() {
            system::set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        } else {
            system::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
            system::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            // RoCEv2 senders leave the UDP check sum 0; IPv6 sockets drop that unless told otherwise. Ours is
            // the kernel's: a right one does no harm, and without one the kernel cuts no segments.
            system::set_option(&socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
        }
        for (by_right, name) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            // Above the system's limit (net.core.rmem_max) for a process that has the right to it.
            if system::set_option(&socket, libc::SOL_SOCKET, by_right, BUFFER_BYTES).is_err() {
                system::set_option(&socket, libc::SOL_SOCKET, name, BUFFER_BYTES)?;
            }
        }
        bind(socket.as_raw_fd(), &SockaddrStorage::from(local))?;
        let local = of_storage(&getsockname(socket.as_raw_fd())?)
            .ok_or_else(|| io::Error::other("a socket without an IP address"))?;
        // Segments of one piece of memory come in one piece, at least between namespaces of one host: one
        // system call's work, not sixteen packets'. A kernel before 5.0 hands over each by itself.
        let _ = system::set_option(&socket, libc::IPPROTO_UDP, libc::UDP_GRO, 1);
        Ok(Datagrams {
            socket,
            local,
            inbox: vec![0; RECEIVED * MAX_MESSAGE],
            many: 0,
            #[cfg(test)]
            stalled: false,
        })
    }

    /// The socket's number, to be waited for; it stays this object's.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends what waits. What the socket buffer cannot hold stays; an unreachable address loses datagrams, as
    /// a wire does. If the kernel cannot cut runs into segments, this call's are lost, and the batch makes no
    /// more. `shown` sees each datagram the kernel takes, with its IPv4 identification.
    pub fn send(&self, batch: &mut SendBatch, mut shown: impl FnMut(SocketAddr, u16, &[u8])) -> Posted {
        #[cfg(test)]
        if self.stalled {
            return Posted::default();
        }
        let mut posted = Posted::default();
        let mut done = 0;
        for run in &batch.runs {
            let bytes = &batch.bytes[run.start..run.start + run.bytes];
            match self.send_run(run, bytes) {
                Ok(()) => {
                    posted.taken += run.count;
                    let datagrams = bytes.chunks(run.segment).zip(0..);
                    datagrams.for_each(|(bytes, identification)| shown(run.to, identification, bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    posted.lost += run.count;
                    posted.errno = error.raw_os_error().unwrap_or(0);
                    // A device without check sums; their identifications were counted on.
                    batch.single |= run.count > 1 && posted.errno == libc::EIO;
                }
            }
            done += 1;
        }
        batch.forget(done);
        posted
    }

    fn send_run(&self, run: &Run, bytes: &[u8]) -> io::Result<()> {
        let (fd, to, segment) = (self.socket.as_raw_fd(), SockaddrStorage::from(run.to), run.segment as u16);
        let cut = [ControlMessage::UdpGsoSegments(&segment)];
        let control = if run.count > 1 { &cut[..] } else { &[] };
        sendmsg(fd, &[IoSlice::new(bytes)], control, MsgFlags::empty(), Some(&to))?;
        Ok(())
    }

    /// Hands what has arrived to `each`, up to a bounded number: from where, and its bytes. Returns how many.
    /// A datagram above [`MAX_DATAGRAM`] comes with no bytes: no NIC here sent it.
    pub fn receive(&mut self, each: impl FnMut(SocketAddr, &[u8])) -> io::Result<usize> {
        if self.many > 0 { self.take_in::<RECEIVED>(each) } else { self.take_in::<FEW>(each) }
    }

    fn take_in<const ROOM: usize>(&mut self, mut each: impl FnMut(SocketAddr, &[u8])) -> io::Result<usize> {
        let mut names = [[0_u8; ADDRESS_BYTES]; ROOM];
        // SAFETY: plain old data.
        let mut parts: [libc::iovec; ROOM] = unsafe { std::mem::zeroed() };
        // SAFETY: plain old data.
        let mut messages: [libc::mmsghdr; ROOM] = unsafe { std::mem::zeroed() };
        // SAFETY: plain old data.
        let mut controls: [GroMessage; ROOM] = unsafe { std::mem::zeroed() };
        for (at, place) in self.inbox.chunks_exact_mut(MAX_MESSAGE).take(ROOM).enumerate() {
            parts[at] = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() };
            let message = &mut messages[at].msg_hdr;
            message.msg_control = (&raw mut controls[at]).cast();
            message.msg_controllen = size_of::<GroMessage>();
            message.msg_name = (&raw mut names[at]).cast();
            message.msg_namelen = ADDRESS_BYTES as libc::socklen_t;
            message.msg_iov = &mut parts[at];
            message.msg_iovlen = 1;
        }
        let (number, none) = (libc::SYS_recvmmsg, std::ptr::null_mut::<libc::timespec>());
        let (list, count) = (messages.as_mut_ptr(), ROOM);
        let fd = self.socket.as_raw_fd();
        // SAFETY: `count` messages with name, place and control bytes of the lengths they say, none shared.
        let got = system::check(unsafe { libc::syscall(number, fd, list, count, libc::MSG_DONTWAIT, none) });
        let got = match got {
            Ok(got) => (got as usize).min(ROOM),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.many = self.many.saturating_sub(1);
                return Ok(0);
            }
            // An ICMP answer to something sent: no datagram of ours was lost here.
            Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => return Ok(0),
            Err(error) => return Err(error),
        };
        if got >= FEW {
            self.many = IN_VAIN;
        }
        let mut count = 0;
        for (at, place) in self.inbox.chunks_exact(MAX_MESSAGE).take(got).enumerate() {
            let libc::mmsghdr { msg_hdr: message, msg_len: len } = &messages[at];
            let cut = message.msg_flags & libc::MSG_TRUNC != 0;
            let bytes = &place[..if cut { 0 } else { (*len as usize).min(MAX_MESSAGE) }];
            let Some(from) = from_bytes(&names[at]) else { continue };
            // One datagram, unless the kernel says how long each of several is.
            let one = controls[at].segment(message.msg_controllen).unwrap_or(bytes.len().max(1));
            if bytes.is_empty() {
                each(from, bytes);
                count += 1;
            }
            for datagram in bytes.chunks(one) {
                each(from, if datagram.len() > MAX_DATAGRAM { &[] } else { datagram });
                count += 1;
            }
        }
        Ok(count)
    }
}

/// A control message with one number, laid out as `CMSG_SPACE` asks: a header, then the number; whole words.
#[repr(C, align(8))]
struct GroMessage {
    head: libc::cmsghdr,
    value: libc::c_int,
}

impl GroMessage {
    const BYTES: usize = size_of::<libc::cmsghdr>() + size_of::<libc::c_int>();

    /// Length of each of several datagrams left in one piece (`UDP_GRO`); `said`: bytes the kernel filled in.
    fn segment(&self, said: usize) -> Option<usize> {
        let libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type, .. } = self.head;
        let of_gro = (Self::BYTES, libc::IPPROTO_UDP, libc::UDP_GRO);
        let is_it = said >= Self::BYTES && (cmsg_len, cmsg_level, cmsg_type) == of_gro;
        usize::try_from(self.value).ok().filter(|value| is_it && *value > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing::DEADLINE;
    use std::time::Instant;

    fn pair(at: &str) -> (Datagrams, Datagrams) {
        let at: SocketAddr = at.parse().unwrap();
        (Datagrams::open(at).unwrap(), Datagrams::open(at).unwrap())
    }

    impl SendBatch {
        fn len(&self) -> usize {
            self.runs.iter().map(|run| run.count).sum()
        }

        /// All that waits, one datagram behind the other.
        pub fn waiting(&self) -> &[u8] {
            &self.bytes
        }

        /// Adds a datagram by a `fill` that cannot fail; false: it was refused for its length.
        fn add(&mut self, to: SocketAddr, len: usize, fill: impl FnOnce(&mut [u8], u16)) -> bool {
            let Ok(added) = self.push(to, len, |bytes, identification| {
                fill(bytes, identification);
                Ok::<(), std::convert::Infallible>(())
            });
            added
        }
    }

    const UNSHOWN: fn(SocketAddr, u16, &[u8]) = |_, _, _| ();

    /// What arrives until there are `count`, or nothing more comes.
    fn take(socket: &mut Datagrams, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let (mut got, begun) = (Vec::new(), Instant::now());
        while got.len() < count && begun.elapsed() < DEADLINE {
            socket.receive(|from, bytes| got.push((from, bytes.to_vec()))).unwrap();
        }
        got
    }

    /// Sends datagrams of many sizes over the loopback interface at `at`, and wants them back.
    fn come_as_they_were_pushed(at: &str) {
        let (ours, mut theirs) = pair(at);
        let mut batch = SendBatch::default();
        // Equal ones, a short one that ends their run, a longer one, and one more than a run may have.
        let sizes = [[1000; 5].as_slice(), &[300, 1000, 4096, 1], &[64; SEGMENTS + 1]].concat();
        for (number, len) in sizes.iter().enumerate() {
            assert!(batch.add(theirs.local(), *len, |bytes, _| bytes.fill(number as u8)));
        }
        assert_eq!(batch.len(), sizes.len());
        assert_eq!(ours.send(&mut batch, UNSHOWN), Posted { taken: sizes.len(), ..Posted::default() });
        assert!(batch.is_empty());
        let got = take(&mut theirs, sizes.len());
        let wanted: Vec<_> =
            sizes.iter().enumerate().map(|(n, len)| (ours.local(), vec![n as u8; *len])).collect();
        assert!(got == wanted, "{at}: {} of {}", got.len(), wanted.len());
    }

    #[test]
    fn datagrams_come_as_they_were_pushed() {
        come_as_they_were_pushed("127.0.0.1:0");
    }

    #[test]
    fn datagrams_come_as_they_were_pushed_over_ipv6() {
        measure::need!(Datagrams::open("[::1]:0".parse().unwrap()).is_ok(), "IPv6 on the loopback interface");
        come_as_they_were_pushed("[::1]:0");
    }

    #[test]
    fn each_datagram_is_told_the_identification_that_its_segment_will_have() {
        let (one, other): (SocketAddr, SocketAddr) =
            ("127.0.0.1:4791".parse().unwrap(), "127.0.0.2:4791".parse().unwrap());
        let mut batch = SendBatch::default();
        let mut said = Vec::new();
        for (to, len) in
            [(one, 500), (one, 500), (one, 200), (one, 500), (other, 500), (other, 501), (other, 501)]
        {
            assert!(batch.add(to, len, |_, identification| said.push(identification)));
        }
        assert_eq!(said, [0, 1, 2, 0, 0, 0, 1]);
        said.clear();
        let mut batch = SendBatch::default();
        for _ in 0..SEGMENTS + 2 {
            assert!(batch.add(one, 64, |_, identification| said.push(identification)));
        }
        assert_eq!(said[SEGMENTS - 2..], [62, 63, 0, 1]);
        let mut batch = SendBatch::default();
        said.clear();
        for _ in 0..17 {
            assert!(batch.add(one, 4200, |_, identification| said.push(identification)));
        }
        assert_eq!(said[14..], [14, 0, 1], "65,507 bytes hold fifteen");
    }

    #[test]
    fn what_is_too_long_is_refused_going_out_and_marked_coming_in() {
        let (ours, mut theirs) = pair("127.0.0.1:0");
        let mut batch = SendBatch::default();
        for len in [0, MAX_DATAGRAM + 1, usize::MAX] {
            assert!(!batch.add(theirs.local(), len, |_, _| unreachable!()));
        }
        let plain = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        plain.send_to(&[7; MAX_DATAGRAM + 1], theirs.local()).unwrap();
        plain.send_to(&[8; MAX_DATAGRAM], theirs.local()).unwrap();
        let got = take(&mut theirs, 2);
        assert_eq!((got[0].1.len(), got[1].1.len()), (0, MAX_DATAGRAM));
        drop(ours);
    }

    #[test]
    fn what_is_left_goes_later_and_in_order() {
        let (ours, mut theirs) = pair("127.0.0.1:0");
        let mut batch = SendBatch::default();
        for number in 0..4u8 {
            // Every second one is longer: a run each.
            assert!(batch.add(theirs.local(), 10 + usize::from(number), |bytes, _| bytes.fill(number)));
        }
        assert_eq!(batch.runs.len(), 4);
        batch.forget(2);
        assert_eq!((batch.len(), batch.bytes.len()), (2, 12 + 13));
        assert_eq!(ours.send(&mut batch, UNSHOWN).taken, 2);
        let got = take(&mut theirs, 2);
        assert_eq!([&got[0].1, &got[1].1], [&vec![2; 12], &vec![3; 13]]);
    }

    #[test]
    fn nobody_there_loses_and_the_port_in_use_is_said() {
        let (ours, theirs) = pair("127.0.0.1:0");
        let gone = theirs.local();
        assert_eq!(Datagrams::open(gone).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        drop(theirs);
        let mut ours = ours;
        for _ in 0..3 {
            let mut batch = SendBatch::default();
            assert!(batch.add(gone, 10, |_, _| ()));
            ours.send(&mut batch, UNSHOWN);
            assert_eq!(ours.receive(|_, _| ()).unwrap(), 0);
        }
        let mut batch = SendBatch::default();
        assert!(batch.add("255.255.255.255:4791".parse().unwrap(), 10, |_, _| ()));
        let posted = ours.send(&mut batch, UNSHOWN);
        assert_eq!((posted.taken, posted.lost), (0, 1), "{posted:?}");
    }
}
