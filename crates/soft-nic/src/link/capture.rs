//! A capture of what crosses the wire: packets in as a socket knows them, blocks of a pcapng file out.
//!
//! The NIC's thread puts packets into a bounded buffer ([`Capture`]), another takes blocks out
//! ([`CaptureReader`]). The NIC never waits for a disk, and for the other thread only while two words are
//! swapped. What finds no room is dropped and counted, in front of the next packet and in the final
//! statistics. Frames are built here: a UDP socket shows neither Ethernet nor IP header. Addresses, ports and
//! IPv4 identification are true. The UDP checksum is computed: the kernel sends the same, but a remote sender
//! may have written 0. Made up are MAC addresses (02:00 and the IPv4 address, 02 and the end of the IPv6
//! address), TTL 64, DF, type of service, flow label. What the ICRC covers is true: a reader may check it.

pub mod pcapng;

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use pcapng::{CapturedFrame, PACKET_BLOCK_BYTES};
use roce::Now;
use roce::wire::gid_of;
use roce::wire::{Gid, IpHeader, Udp};

use crate::os::locked;

/// Bytes that wait to be taken, at most: some thousand packets, a tenth of a second of 300 Mbit/s.
pub const MAX_WAITING_BYTES: usize = 4 << 20;

/// Ethernet types.
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// A RoCEv2 packet on its way, as a socket knows it. The destination port is 4791.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WirePacket<'a> {
    pub source: IpAddr,
    pub source_port: u16,
    pub destination: IpAddr,
    /// Identification in its IPv4 header, told or found from the ICRC; IPv6 has none.
    pub identification: u16,
    /// From the BTH to the ICRC, both included.
    pub bytes: &'a [u8],
}

impl WirePacket<'_> {
    /// Appends the frame that carried it, from the Ethernet header on. False, with `out` as before: the
    /// addresses are of two families, or it is longer than IP allows.
    pub fn append_frame(&self, out: &mut Vec<u8>) -> bool {
        let (source, destination) = (gid_of(self.source), gid_of(self.destination));
        let Ok(udp_bytes) = u16::try_from(Udp::BYTES + self.bytes.len()) else { return false };
        let Some(mut ip) = IpHeader::between(source, destination, udp_bytes) else { return false };
        if let IpHeader::V4(ip) = &mut ip {
            ip.identification = self.identification;
        }
        out.extend(mac(destination));
        out.extend(mac(source));
        out.extend(if source.ipv4().is_some() { IPV4 } else { IPV6 });
        ip.append_to(out);
        let checksum = checksum(source, destination, udp_bytes, self.source_port, self.bytes);
        out.extend(Udp { checksum, ..Udp::new(self.source_port, udp_bytes) }.emit());
        out.extend(self.bytes);
        true
    }
}

/// A locally administered MAC address, which tells the NIC that a packet is of.
fn mac(of: Gid) -> [u8; 6] {
    match (of.ipv4(), of.0) {
        (Some([a, b, c, d]), _) => [2, 0, a, b, c, d],
        (None, [.., a, b, c, d, e]) => [2, a, b, c, d, e],
    }
}

/// The UDP checksum (RFC 768, RFC 8200 §8.1) over addresses, protocol, length, header and payload; never 0,
/// which means that there is none.
fn checksum(source: Gid, destination: Gid, udp_bytes: u16, source_port: u16, payload: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u64 {
        let pairs = bytes.chunks(2).map(|pair| [pair[0], pair.get(1).copied().unwrap_or(0)]);
        pairs.map(|pair| u64::from(u16::from_be_bytes(pair))).sum()
    };
    let address = |gid: Gid| gid.ipv4().map_or_else(|| words(&gid.0), |address| words(&address));
    let header = Udp::new(source_port, udp_bytes).emit();
    const UDP: u64 = 17;
    let mut sum = address(source) + address(destination) + UDP + u64::from(udp_bytes);
    sum += words(&header) + words(payload);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// Blocks that the reader has not taken, and the statistics of the capture.
#[derive(Debug)]
struct CaptureBuffer {
    blocks: Vec<u8>,
    captured: u64,
    dropped: u64,
    /// Dropped since the last packet that was not.
    gap: u64,
    /// Time of the last packet, or of the beginning, ns since 1970.
    time_ns: u64,
    /// It has as many packets as were wanted, or the NIC has ended it.
    full: bool,
}

/// The NIC's side.
#[derive(Debug)]
pub struct Capture {
    waiting: Arc<Mutex<CaptureBuffer>>,
    /// Time of day at time 0 of the NIC, ns since 1970.
    epoch_ns: u64,
    /// Packets still to be captured.
    left: u64,
    frame: Vec<u8>,
}

/// The reader's side.
#[derive(Debug)]
pub struct CaptureReader(Arc<Mutex<CaptureBuffer>>);

impl Capture {
    /// Begins a capture. `interface`: its name in the file. `now` and `epoch_ns` (ns since 1970) are the same
    /// moment. `packets`: ends by itself after so many; 0: never.
    pub fn begin(interface: &str, now: Now, epoch_ns: u64, packets: u64) -> (Capture, CaptureReader) {
        // All now: the NIC's thread must not copy a growing buffer. Memory never written costs nothing.
        let mut blocks = Vec::with_capacity(MAX_WAITING_BYTES);
        pcapng::begin(&mut blocks, "softnic", interface);
        let waiting =
            CaptureBuffer { blocks, captured: 0, dropped: 0, gap: 0, time_ns: epoch_ns, full: false };
        let waiting = Arc::new(Mutex::new(waiting));
        let left = if packets == 0 { u64::MAX } else { packets };
        let epoch_ns = epoch_ns.saturating_sub(now.0);
        let capture = Capture { waiting: Arc::clone(&waiting), epoch_ns, left, frame: Vec::new() };
        (capture, CaptureReader(waiting))
    }

    /// A packet was given to the kernel.
    pub fn sent(&mut self, now: Now, packet: &WirePacket<'_>) {
        self.record(now, packet, true);
    }

    /// A packet came from the kernel.
    pub fn received(&mut self, now: Now, packet: &WirePacket<'_>) {
        self.record(now, packet, false);
    }

    /// Whether it has all its packets or its reader is gone: it records no more, and another may replace it.
    pub fn is_over(&self) -> bool {
        self.left == 0 || self.is_read()
    }

    /// Ends it; the reader takes what waits.
    pub fn end(self) -> Capture {
        locked(&self.waiting).full = true;
        self
    }

    /// Whether the reader has taken everything and is gone.
    pub fn is_read(&self) -> bool {
        Arc::strong_count(&self.waiting) == 1
    }

    fn record(&mut self, now: Now, packet: &WirePacket<'_>, outbound: bool) {
        if self.is_over() {
            return;
        }
        self.frame.clear();
        let is_whole = packet.append_frame(&mut self.frame);
        let time_ns = self.epoch_ns.saturating_add(now.0);
        let mut waiting = locked(&self.waiting);
        let room = MAX_WAITING_BYTES.saturating_sub(waiting.blocks.len());
        waiting.time_ns = time_ns;
        if !is_whole || self.frame.len() + PACKET_BLOCK_BYTES > room {
            waiting.dropped += 1;
            waiting.gap += 1;
            return;
        }
        let dropped_before = std::mem::take(&mut waiting.gap);
        let frame = CapturedFrame { time_ns, outbound, dropped_before, bytes: &self.frame };
        pcapng::packet(&mut waiting.blocks, &frame);
        waiting.captured += 1;
        self.left -= 1;
        waiting.full = self.left == 0;
    }
}

impl CaptureReader {
    /// Takes the whole blocks that wait. `blocks` is emptied first, and saves the NIC from growing another
    /// buffer. True: nothing more will come.
    pub fn take(&mut self, blocks: &mut Vec<u8>) -> bool {
        blocks.clear();
        blocks.reserve(MAX_WAITING_BYTES);
        let mut waiting = locked(&self.0);
        std::mem::swap(&mut waiting.blocks, blocks);
        // No thread puts anything in while the lock is held, and none is left that could afterwards.
        waiting.full || Arc::strong_count(&self.0) == 1
    }

    pub fn append_statistics(&self, blocks: &mut Vec<u8>) {
        let waiting = locked(&self.0);
        let seen = waiting.captured + waiting.dropped;
        pcapng::statistics(blocks, waiting.time_ns, seen, waiting.dropped);
    }
}

#[cfg(test)]
mod tests;
