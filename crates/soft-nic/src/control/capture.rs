//! A running capture: pcapng blocks follow the answer on the same connection, as long as the client reads.
//!
//! The NIC's end sends what waits every few milliseconds, and statistics when nothing came for a while. So
//! each end knows that the other is there, and every wait has a deadline.

use std::io;
use std::time::{Duration, Instant};

use super::Request;
use super::client::{CallError, call};
use crate::link::capture::CaptureReader;
use crate::link::capture::pcapng::{BlockKind, first_block};
use crate::link::{FabricMember, FabricView};
use crate::os::unix_stream::Stream;

/// Between two looks of the NIC's end for packets.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Without packets, it sends statistics so often, so that the client knows that it runs.
const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// Deadline for the client to read, and for the NIC to send.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes read in one call.
const CHUNK: usize = 256 * 1024;

/// The NIC's end: sends everything until the capture ends. Errors: the client disconnected, or does not read.
pub(super) fn stream(stream: &Stream, mut captured: CaptureReader) -> io::Result<()> {
    let (mut blocks, mut sent) = (Vec::new(), Instant::now());
    loop {
        let over = captured.take(&mut blocks);
        if over || blocks.is_empty() && sent.elapsed() >= KEEPALIVE_INTERVAL {
            captured.append_statistics(&mut blocks);
        }
        if !blocks.is_empty() {
            stream.send(&blocks, Instant::now() + TIMEOUT)?;
            sent = Instant::now();
        }
        if over {
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The client's end.
#[derive(Debug)]
pub struct Blocks {
    stream: Stream,
    pid: u32,
    bytes: Vec<u8>,
    /// Bytes of `bytes` that were given out.
    used: usize,
}

/// Asks the NIC in `member` for its packets, `packets` of them or, for 0, all while the result lives.
pub fn call_for_packets(view: &FabricView, member: &FabricMember, packets: u64) -> Result<Blocks, CallError> {
    let ((), stream) = call(view, member, &Request::Capture { packets })?;
    Ok(Blocks { stream, pid: member.pid, bytes: Vec::new(), used: 0 })
}

impl Blocks {
    /// The next whole block and its kind; `None` when the NIC has sent all or has ended. A block that it
    /// began and did not end is left out.
    pub fn next_block(&mut self) -> Result<Option<(BlockKind, &[u8])>, CallError> {
        let pid = self.pid;
        loop {
            match first_block(&self.bytes[self.used..]) {
                Err(reason) => return Err(CallError::Malformed { pid, reason }),
                Ok(Some((kind, block))) => {
                    let start = self.used;
                    self.used += block.len();
                    return Ok(Some((kind, &self.bytes[start..self.used])));
                }
                Ok(None) => {}
            }
            self.bytes.drain(..self.used);
            self.used = 0;
            let have = self.bytes.len();
            self.bytes.resize(have + CHUNK, 0);
            let got = self.stream.receive_some(&mut self.bytes[have..], Instant::now() + TIMEOUT);
            self.bytes.truncate(have + got.as_ref().copied().unwrap_or(0));
            match got {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(CallError::TimedOut { pid, seconds: TIMEOUT.as_secs() });
                }
                // As when it ends by a signal with something unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(CallError::Kernel { pid, error }),
            }
        }
    }

    /// Whether another block can be had without waiting.
    pub fn has_next(&self) -> bool {
        matches!(first_block(&self.bytes[self.used..]), Ok(Some(_)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use roce::Now;

    use super::*;
    use crate::link::capture::{Capture, WirePacket};
    use crate::os::testing::DEADLINE;
    use crate::os::unix_stream::Listener;

    /// A capture whose NIC's end runs in a thread, and its caller.
    fn under_way(what: &str, packets: u64) -> (Capture, Blocks, std::thread::JoinHandle<io::Result<()>>) {
        let name = format!("softnic-capture-test-{what}-{}", std::process::id());
        let listener = Listener::bind(&name).unwrap();
        let (theirs, _) = Stream::connect(&name, DEADLINE).unwrap();
        let (ours, _) = listener.accept(DEADLINE).unwrap().unwrap();
        let (capture, captured) = Capture::begin("wire", Now(0), 0, packets);
        let thread = std::thread::spawn(move || stream(&theirs, captured));
        (capture, Blocks { stream: ours, pid: 7, bytes: Vec::new(), used: 0 }, thread)
    }

    fn packet(bytes: &[u8]) -> WirePacket<'_> {
        let at = |last| IpAddr::from([10, 9, 0, last]);
        WirePacket { source: at(1), source_port: 0xc000, destination: at(2), identification: 0, bytes }
    }

    /// Blocks until there is one that is `wanted`; all that came.
    fn until(blocks: &mut Blocks, wanted: impl Fn(BlockKind) -> bool) -> Vec<BlockKind> {
        let mut kinds = Vec::new();
        while let Some((kind, _)) = blocks.next_block().unwrap() {
            kinds.push(kind);
            if wanted(kind) {
                break;
            }
        }
        kinds
    }

    #[test]
    fn packets_come_as_blocks_and_silence_as_statistics() {
        let (mut capture, mut blocks, thread) = under_way("blocks", 0);
        capture.sent(Now(1), &packet(&[1; 5000]));
        let kinds = until(&mut blocks, |kind| kind == BlockKind::Packet);
        assert_eq!(kinds, [BlockKind::Other, BlockKind::Other, BlockKind::Packet]);
        let nothing = BlockKind::Statistics { dropped: 0 };
        assert_eq!(until(&mut blocks, |kind| kind == nothing), [nothing], "a sign of life");
        capture.received(Now(2), &packet(&[2; 100]));
        let ending = capture.end();
        let rest = until(&mut blocks, |_| false);
        let tail = &rest[rest.len() - 2..];
        assert_eq!(tail, [BlockKind::Packet, nothing], "the last packet, and what was seen in all");
        thread.join().unwrap().unwrap();
        assert!(ending.is_read());
    }

    #[test]
    fn a_capture_of_so_many_packets_ends_by_itself() {
        let (mut capture, mut blocks, thread) = under_way("packets", 3);
        (0..5).for_each(|at| capture.sent(Now(at), &packet(&[1; 64])));
        let kinds = until(&mut blocks, |_| false);
        assert_eq!(kinds.iter().filter(|kind| **kind == BlockKind::Packet).count(), 3);
        assert_eq!(kinds.last(), Some(&BlockKind::Statistics { dropped: 0 }));
        thread.join().unwrap().unwrap();
        assert!(capture.is_over());
    }

    #[test]
    fn a_caller_that_goes_away_ends_it_and_one_that_sees_half_a_block_gives_whole_ones_out() {
        let (capture, blocks, thread) = under_way("away", 0);
        drop(blocks);
        assert!(thread.join().unwrap().is_err(), "found out when it sends the next sign of life");
        assert!(capture.is_over());

        let name = format!("softnic-capture-test-half-{}", std::process::id());
        let listener = Listener::bind(&name).unwrap();
        let (theirs, _) = Stream::connect(&name, DEADLINE).unwrap();
        let (ours, _) = listener.accept(DEADLINE).unwrap().unwrap();
        let mut bytes = Vec::new();
        crate::link::capture::pcapng::begin(&mut bytes, "softnic", "wire");
        theirs.send(&bytes[..bytes.len() - 1], Instant::now() + DEADLINE).unwrap();
        drop(theirs);
        let mut blocks = Blocks { stream: ours, pid: 7, bytes: Vec::new(), used: 0 };
        assert_eq!(until(&mut blocks, |_| false), [BlockKind::Other]);
    }

    #[test]
    fn what_is_no_block_is_nonsense() {
        let name = format!("softnic-capture-test-nonsense-{}", std::process::id());
        let listener = Listener::bind(&name).unwrap();
        let (theirs, _) = Stream::connect(&name, DEADLINE).unwrap();
        let (ours, _) = listener.accept(DEADLINE).unwrap().unwrap();
        theirs.send(&[0xff; 64], Instant::now() + DEADLINE).unwrap();
        let mut blocks = Blocks { stream: ours, pid: 7, bytes: Vec::new(), used: 0 };
        assert!(matches!(blocks.next_block(), Err(CallError::Malformed { pid: 7, .. })));
    }
}
