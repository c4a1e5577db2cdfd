//! Real packets mutated by seed: nothing panics, every error has its cause, accepted ones are written back.

use std::collections::BTreeMap;

use roce::testing::frame::{Frame, FrameError};
use roce::wire::icrc::{self, check_any_identification};
use roce::wire::{IpHeader, Packet, Udp, WireError};

use crate::pcap::{CAPTURES, packets};

const MUTANTS: usize = 400_000;
const SEED: u64 = 0x0d00_7be1;

/// Seeded random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Changes a packet in one of the ways that a wire or an enemy could.
fn mutate(bytes: &mut Vec<u8>, all: &[Vec<u8>], random: &mut Random) {
    // Most changes fall on headers: payload has nothing to be wrong.
    let place = |random: &mut Random, len: usize| {
        let end = if random.below(4) > 0 { len.min(100) } else { len };
        random.below(end)
    };
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = place(random, bytes.len());
        match random.below(8) {
            0 | 1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = random.next() as u8,
            3 => bytes.truncate(at),
            4 => bytes.extend((0..random.below(64)).map(|_| random.0 as u8)),
            5 => {
                let other = &all[random.below(all.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[at.min(other.len())..]);
            }
            6 => {
                let end = (at + 1 + random.below(8)).min(bytes.len());
                bytes[at..end].fill([0, 0xff][random.below(2)]);
            }
            // The opcode: behind an IPv4 or an IPv6 header, and UDP's.
            _ => {
                let at = if bytes[0] >> 4 == 6 { 48 } else { 28 };
                if at < bytes.len() {
                    bytes[at] = random.next() as u8;
                }
            }
        }
    }
}

/// Corrects lengths, header checksum and ICRC, so that errors behind them are reached. Leaves a mutant
/// without an IP header alone.
fn repair(bytes: &mut [u8]) {
    let length = bytes.len();
    let udp_at = match bytes.first().map(|first| first >> 4) {
        Some(4) if length >= 32 => 20,
        Some(6) if length >= 52 => 40,
        _ => return,
    };
    bytes[udp_at + 4..udp_at + 6].copy_from_slice(&((length - udp_at) as u16).to_be_bytes());
    if udp_at == 40 {
        bytes[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
    } else {
        bytes[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        let (found, computed) = match IpHeader::decode(bytes) {
            Err(FrameError::Ipv4Checksum { found, computed }) => (found, computed),
            _ => (0, 0),
        };
        if found != computed {
            bytes[10..12].copy_from_slice(&computed.to_be_bytes());
        }
    }
    let Ok(ip) = IpHeader::decode(bytes) else { return };
    let Ok(udp) = Udp::decode(&bytes[udp_at..]) else { return };
    let end = length - icrc::ICRC_BYTES;
    if let Some(transport) = bytes.get(udp_at + Udp::BYTES..end)
        && let Ok(icrc) = icrc::compute(&ip, &udp, transport)
    {
        bytes[end..].copy_from_slice(&icrc::stored(icrc));
    }
}

fn cause(error: &FrameError) -> &'static str {
    let error = match error {
        FrameError::Ipv4HeaderWords { .. } => return "IPv4 header words",
        FrameError::Fragment { .. } => return "fragment",
        FrameError::Ipv4Checksum { .. } => return "IPv4 checksum",
        FrameError::NotUdp { .. } => return "not UDP",
        FrameError::NotRoce { .. } => return "not port 4791",
        FrameError::Length { .. } => return "length",
        FrameError::Wire(error) => error,
    };
    match error {
        WireError::Truncated { .. } => "truncated",
        WireError::IpVersion { .. } => "IP version",
        WireError::UnknownOpcode { .. } => "unknown opcode",
        WireError::TransportVersion { .. } => "transport version",
        WireError::Misaligned { .. } => "misaligned",
        WireError::Pad { .. } => "pad count",
        WireError::UnexpectedPayload { .. } => "unexpected payload",
        WireError::Oversized { .. } => "oversized",
        WireError::Icrc { .. } => "ICRC",
        WireError::HeadersDisagree { .. }
        | WireError::IcrcUnexplained { .. }
        | WireError::NotCm { .. }
        | WireError::UnknownAttribute { .. }
        | WireError::PrivateData { .. } => panic!("no error of this decoder: {error}"),
    }
}

/// Whether what was accepted is written back as it came; padding that is not zero is written as zero.
fn written_back(bytes: &[u8], frame: &Frame<'_>) -> &'static str {
    let mut written = Vec::new();
    frame.builder().append_to(&mut written).unwrap();
    let (length, pad) = (written.len(), frame.packet.pad_bytes());
    let padding = length - icrc::ICRC_BYTES - pad..length - icrc::ICRC_BYTES;
    if bytes[padding.clone()].iter().all(|byte| *byte == 0) {
        assert!(written == bytes[..length], "{bytes:02x?}\n{written:02x?}");
        return "accepted";
    }
    assert!(written[..padding.start] == bytes[..padding.start], "{bytes:02x?}\n{written:02x?}");
    "accepted, padding not zero"
}

#[test]
fn mutants_of_real_packets_are_refused_by_cause_or_written_back() {
    let mut all: Vec<Vec<u8>> = CAPTURES.iter().flat_map(|(name, _)| packets(name)).collect();
    // Nothing that a kernel sends is too long for an MTU: a mutant grows out of these.
    all.extend([4097, 5000].map(|payload| {
        let mut long = all[0][..40].to_vec();
        long.resize(40 + payload + 7, 0);
        long
    }));
    let mut random = Random(SEED);
    let (mut reached, mut accepted_opcodes) = (BTreeMap::<&str, [usize; 2]>::new(), BTreeMap::new());
    let mut unexplained = 0;
    for number in 0..MUTANTS {
        let mut bytes = all[random.below(all.len())].clone();
        mutate(&mut bytes, &all, &mut random);
        let repaired = number % 2;
        if repaired == 1 {
            repair(&mut bytes);
        }
        let outcome = match Frame::decode(&bytes) {
            Ok(frame) => {
                *accepted_opcodes.entry(frame.packet.bth.opcode.to_u8()).or_insert(0) += 1;
                written_back(&bytes, &frame)
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                cause(&error)
            }
        };
        reached.entry(outcome).or_default()[repaired] += 1;
        // The other ways in, with the same bytes: none may panic.
        let _ = Packet::decode(&bytes);
        if let Ok(IpHeader::V4(ip)) = IpHeader::decode(&bytes)
            && let Ok(udp) = Udp::decode(&bytes[20..usize::from(ip.total_bytes)])
        {
            let payload = &bytes[28..usize::from(ip.total_bytes)];
            let any = check_any_identification(&ip, &udp, payload);
            unexplained += usize::from(any.is_err());
            assert!(any.is_ok() || outcome != "accepted");
        }
    }
    println!("TABLE wire mutants, seed {SEED:#x}: {MUTANTS} of {} packets", all.len());
    println!("TABLE {:<28} {:>9} {:>9}", "outcome", "as it is", "repaired");
    for (outcome, [plain, repaired]) in &reached {
        println!("TABLE {outcome:<28} {plain:>9} {repaired:>9}");
    }
    println!(
        "TABLE unknown identification: {unexplained} refused; opcodes accepted: {}",
        accepted_opcodes.len()
    );
    assert_eq!(reached.values().flatten().sum::<usize>(), MUTANTS);
    for outcome in [
        "truncated",
        "IP version",
        "IPv4 header words",
        "fragment",
        "IPv4 checksum",
        "not UDP",
        "not port 4791",
        "length",
        "unknown opcode",
        "transport version",
        "misaligned",
        "pad count",
        "unexpected payload",
        "oversized",
        "ICRC",
        "accepted",
        "accepted, padding not zero",
    ] {
        let seen: usize = reached.get(outcome).map_or(0, |counts| counts.iter().sum());
        assert!(seen >= 20, "{outcome}: reached {seen} times");
    }
    assert_eq!(accepted_opcodes.len(), 23 + 12 + 2, "every opcode was accepted in some mutant");
}
