//! pcapng, little-endian, times in ns: section header, interface description and statistics, enhanced packet.
//!
//! Follows draft-ietf-opsawg-pcapng §3 (block structure, options), §4.1, 4.2, 4.3 and 4.6 (these four
//! blocks). The tests' golden bytes are worked out from there, and tshark reads them (`tests/it/capture.rs`).
//! Left out: every other block, captures of several interfaces.

mod kind {
    pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
    pub const INTERFACE_DESCRIPTION: u32 = 1;
    pub const INTERFACE_STATISTICS: u32 = 5;
    pub const ENHANCED_PACKET: u32 = 6;
}

/// Option codes: of any block, then of each.
mod option {
    pub const END: u16 = 0;
    pub const SHB_USERAPPL: u16 = 4;
    pub const IF_NAME: u16 = 2;
    pub const IF_TSRESOL: u16 = 9;
    pub const EPB_FLAGS: u16 = 2;
    pub const EPB_DROPCOUNT: u16 = 4;
    pub const ISB_IFRECV: u16 = 4;
    pub const ISB_IFDROP: u16 = 5;
}

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u16 = 1;
/// Times are multiples of 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Bytes of a packet's block beside the frame, options and padding included, at most.
pub const PACKET_BLOCK_BYTES: usize = 60;
/// Longest block of a file of ours: a frame as long as IP allows.
const MAX_BLOCK_BYTES: usize = 128 * 1024;
/// Type and length in front, length behind.
const MIN_BLOCK_BYTES: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapturedFrame<'a> {
    /// Since 1970, ns.
    pub time_ns: u64,
    /// Sent, not received.
    pub outbound: bool,
    /// Frames that are missing between the one before it and this one.
    pub dropped_before: u64,
    /// From the Ethernet header on, without a check sequence.
    pub bytes: &'a [u8],
}

/// Appends the beginning of a file: what wrote it, and on what it was captured.
pub fn begin(out: &mut Vec<u8>, application: &str, interface: &str) {
    block(out, kind::SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0, a section of unknown length.
        out.extend([1, 0, 0, 0]);
        out.extend(u64::MAX.to_le_bytes());
        option(out, option::SHB_USERAPPL, application.as_bytes());
    });
    block(out, kind::INTERFACE_DESCRIPTION, |out| {
        out.extend(ETHERNET.to_le_bytes());
        // Reserved, and no limit on a packet's length.
        out.extend([0; 6]);
        option(out, option::IF_NAME, interface.as_bytes());
        option(out, option::IF_TSRESOL, &[NANOSECONDS]);
    });
}

pub fn packet(out: &mut Vec<u8>, frame: &CapturedFrame<'_>) {
    let length = (frame.bytes.len() as u32).to_le_bytes();
    block(out, kind::ENHANCED_PACKET, |out| {
        of_first_interface(out, frame.time_ns);
        out.extend(length);
        out.extend(length);
        out.extend(frame.bytes);
        pad(out, frame.bytes.len());
        let direction: u32 = if frame.outbound { 2 } else { 1 };
        option(out, option::EPB_FLAGS, &direction.to_le_bytes());
        if frame.dropped_before > 0 {
            option(out, option::EPB_DROPCOUNT, &frame.dropped_before.to_le_bytes());
        }
    });
}

/// Appends what was seen in all, and how much of it is not in the file.
pub fn statistics(out: &mut Vec<u8>, time_ns: u64, seen: u64, dropped: u64) {
    block(out, kind::INTERFACE_STATISTICS, |out| {
        of_first_interface(out, time_ns);
        option(out, option::ISB_IFRECV, &seen.to_le_bytes());
        option(out, option::ISB_IFDROP, &dropped.to_le_bytes());
    });
}

fn of_first_interface(out: &mut Vec<u8>, time_ns: u64) {
    out.extend([0; 4]);
    out.extend(((time_ns >> 32) as u32).to_le_bytes());
    out.extend((time_ns as u32).to_le_bytes());
}

/// A block with its length before and behind; its body ends with options.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    option(out, option::END, &[]);
    let length = ((out.len() - start + 4) as u32).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&length);
    out.extend(length);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    // Names of ours, a few words long.
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    pad(out, value.len());
}

fn pad(out: &mut Vec<u8>, length: usize) {
    out.extend([0; 3].get(..length.next_multiple_of(4) - length).unwrap_or_default());
}

/// What a block is to a program that passes it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    Packet,
    /// Statistics, with the number of frames that are missing so far.
    Statistics {
        dropped: u64,
    },
    Other,
}

/// The first block of a stream; `None`: it is not whole yet. Errors: bytes that are no block, as a sentence.
pub fn first_block(bytes: &[u8]) -> Result<Option<(BlockKind, &[u8])>, String> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
    let (Some(kind), Some(length)) = (word(0), word(4)) else { return Ok(None) };
    let length = length as usize;
    if !length.is_multiple_of(4) || !(MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&length) {
        return Err(format!("a block of type {kind:#x} and {length} bytes"));
    }
    let Some(block) = bytes.get(..length) else { return Ok(None) };
    let kind = match kind {
        kind::ENHANCED_PACKET => BlockKind::Packet,
        kind::INTERFACE_STATISTICS => {
            // Interface and time, then ifrecv with its 8 bytes, then ifdrop: as `statistics` writes them.
            let dropped = block.get(36..44).and_then(|count| count.try_into().ok());
            BlockKind::Statistics { dropped: dropped.map_or(0, u64::from_le_bytes) }
        }
        _ => BlockKind::Other,
    };
    Ok(Some((kind, block)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand from the draft: §4.1 figure 9, §4.2 figure 10.
    const BEGINNING: [u8; 84] = [
        0x0a, 0x0d, 0x0d, 0x0a, 44, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, // version 1.0
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // length of the section
        4, 0, 7, 0, b's', b'o', b'f', b't', b'n', b'i', b'c', 0, 0, 0, 0, 0, 44, 0, 0, 0, //
        1, 0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, // Ethernet, any length
        2, 0, 4, 0, b'w', b'i', b'r', b'e', 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0,
    ];

    #[test]
    fn a_file_begins_with_section_and_interface() {
        let mut out = Vec::new();
        begin(&mut out, "softnic", "wire");
        assert_eq!(out, BEGINNING);
    }

    #[test]
    fn a_packet_is_its_time_its_lengths_its_bytes_and_its_direction() {
        // Figure 11, with a time of 2^32 + 2 ns and five bytes.
        let mut out = Vec::new();
        let frame =
            CapturedFrame { time_ns: (1 << 32) + 2, outbound: true, dropped_before: 0, bytes: b"bytes" };
        packet(&mut out, &frame);
        let golden = [
            6, 0, 0, 0, 52, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0, //
            b'b', b'y', b't', b'e', b's', 0, 0, 0, 2, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0, 52, 0, 0, 0,
        ];
        assert_eq!(out, golden);
        out.clear();
        packet(&mut out, &CapturedFrame { outbound: false, dropped_before: 258, bytes: b"four", ..frame });
        let golden = [
            6, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, //
            b'f', b'o', b'u', b'r', 2, 0, 4, 0, 1, 0, 0, 0, // received
            4, 0, 8, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0,
        ];
        assert_eq!(out, golden);
        assert!(out.len() <= 4 + PACKET_BLOCK_BYTES);
    }

    #[test]
    fn statistics_say_what_is_missing() {
        let mut out = Vec::new();
        statistics(&mut out, 7, 300, 44);
        let golden = [
            5, 0, 0, 0, 52, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, // interface 0, 7 ns
            4, 0, 8, 0, 44, 1, 0, 0, 0, 0, 0, 0, 5, 0, 8, 0, 44, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 52, 0, 0,
            0,
        ];
        assert_eq!(out, golden);
        assert_eq!(first_block(&out), Ok(Some((BlockKind::Statistics { dropped: 44 }, &golden[..]))));
    }

    #[test]
    fn a_stream_is_cut_into_its_blocks() {
        let mut out = Vec::new();
        begin(&mut out, "softnic", "wire");
        packet(&mut out, &CapturedFrame { time_ns: 1, outbound: true, dropped_before: 0, bytes: &[9; 1000] });
        let mut kinds = Vec::new();
        let mut rest = &out[..];
        while let Some((kind, block)) = first_block(rest).unwrap() {
            kinds.push(kind);
            rest = &rest[block.len()..];
        }
        assert_eq!(kinds, [BlockKind::Other, BlockKind::Other, BlockKind::Packet]);
        assert!(rest.is_empty());
        for len in 0..44 {
            assert_eq!(first_block(&out[..len]), Ok(None), "{len} bytes of 44");
        }
        for length in [0_u32, 8, 13, 1 << 20, u32::MAX] {
            let mut bad = out.clone();
            bad[4..8].copy_from_slice(&length.to_le_bytes());
            assert!(first_block(&bad).is_err(), "{length}");
        }
    }
}
