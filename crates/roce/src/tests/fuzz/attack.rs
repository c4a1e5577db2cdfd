//! What an enemy on the wire does to packets: changes, splices, forges headers; flips, cuts, adds bytes.

use super::world::{Flying, REGIONS, Reached, VA, count};
use crate::packet::{Aeth, AtomicEth, Deth, Reth, Syndrome, Trailer};
use crate::testing::Rng;
use crate::testing::frame::{Frame, FrameBuilder, FrameError};
use crate::wire::{Gid, IpHeader, Position, Udp, icrc};
use crate::{Content, Fragment, NakCode, Packet, Psn, ServiceType};

/// Longest payload made up; the wire has 4096.
const LONGEST: u64 = 4096;

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// Small numbers, numbers around a power of two, any number.
fn number(rng: &mut Rng) -> u32 {
    match rng.below(3) {
        0 => rng.below(5000) as u32,
        1 => (1u32 << rng.below(32)).wrapping_add(rng.below(3) as u32).wrapping_sub(1),
        _ => rng.next_u64() as u32,
    }
}

fn position(rng: &mut Rng) -> Position {
    pick(rng, &[Position::First, Position::Middle, Position::Last, Position::Only])
}

fn reth(rng: &mut Rng) -> Reth {
    let (key, first, bytes, _) = pick(rng, &REGIONS);
    let va = match rng.below(4) {
        0 => rng.next_u64(),
        _ => VA + first as u64 + rng.below(bytes as u64 + 8),
    };
    let rkey = if rng.below(8) == 0 { number(rng) } else { key };
    Reth { va, rkey, dma_bytes: number(rng) }
}

fn atomic(rng: &mut Rng) -> AtomicEth {
    let Reth { va, rkey, .. } = reth(rng);
    let va = if rng.below(4) > 0 { va & !7 } else { va };
    AtomicEth { va, rkey, swap_add: rng.next_u64(), compare: rng.below(2) }
}

fn trailer(rng: &mut Rng) -> Trailer {
    match rng.below(4) {
        0 => Trailer::Immediate([6; 4]),
        1 => Trailer::Invalidate(number(rng).to_be_bytes()),
        _ => Trailer::None,
    }
}

fn aeth(rng: &mut Rng) -> Aeth {
    let codes =
        [NakCode::PsnSequence, NakCode::InvalidRequest, NakCode::RemoteAccess, NakCode::RemoteOperation];
    let syndrome = match rng.below(8) {
        0 => Syndrome::RnrNak { timer: rng.below(12) as u8 },
        1 => Syndrome::Nak(pick(rng, &codes)),
        _ => Syndrome::Ack,
    };
    Aeth { syndrome, msn: number(rng) & 0xff_ffff }
}

fn content(rng: &mut Rng) -> Content {
    match rng.below(8) {
        0 | 1 => Content::Send { position: position(rng), trailer: trailer(rng) },
        2 => Content::Write { position: position(rng), reth: reth(rng), trailer: trailer(rng) },
        3 => Content::ReadRequest(reth(rng)),
        4 => Content::CompareSwap(atomic(rng)),
        5 => Content::ReadResponse { position: position(rng), aeth: Some(aeth(rng)) },
        6 => Content::Acknowledge(aeth(rng)),
        _ => Content::AtomicAcknowledge { aeth: aeth(rng), old: rng.next_u64() },
    }
}

/// A PSN near, some way off, half the space away, anywhere.
fn psn(rng: &mut Rng, from: Psn) -> Psn {
    match rng.below(6) {
        0 => from.plus(1),
        1 => from.minus(1),
        2 => from.plus(rng.below(40) as u32),
        3 => from.minus(rng.below(40) as u32),
        4 => from.plus((1 << 23) - 1 + rng.below(3) as u32),
        _ => Psn::new(rng.next_u64() as u32),
    }
}

/// Changes what a packet says, in one way or some; `other` is one that flew before.
pub(super) fn change(rng: &mut Rng, flying: &Flying, other: &Flying) -> Flying {
    let (mut packet, mut payload) = flying.clone();
    for _ in 0..=rng.below(2) {
        match rng.below(12) {
            0 | 1 => packet.psn = psn(rng, packet.psn),
            2 => packet.content = content(rng),
            3 => packet.content = other.0.content,
            4 => payload = other.1.clone(),
            5 => payload.truncate(rng.below(payload.len() as u64 + 1) as usize),
            6 => payload.resize(rng.below(LONGEST + 1) as usize, 0x5a),
            7 => packet.service = pick(rng, &[ServiceType::Rc, ServiceType::Uc, ServiceType::Ud]),
            8 => packet.deth = Deth { qkey: number(rng), src_qpn: number(rng) & 0xff_ffff },
            9 => packet.ack_requested = !packet.ack_requested,
            _ => change_headers(rng, &mut packet),
        }
    }
    packet.payload = Fragment { offset: 0, length: payload.len() as u32 };
    (packet, payload)
}

/// A request by an attacker that knows which PSN is expected; mostly a READ or an atomic that is granted.
pub(super) fn aimed(rng: &mut Rng, service: ServiceType, expected: Psn) -> Flying {
    let (rkey, first, ..) = REGIONS[0];
    let va = VA + first as u64 + (rng.below(0x1000) & !7);
    let content = match rng.below(8) {
        0 => content(rng),
        1 | 2 => Content::FetchAdd(AtomicEth { va, rkey, swap_add: 1, compare: 0 }),
        _ => Content::ReadRequest(Reth { va, rkey, dma_bytes: rng.below(0x800) as u32 }),
    };
    let payload = if content.is_request() && rng.below(8) == 0 { vec![7; 256] } else { Vec::new() };
    let packet = Packet {
        service,
        dst_qpn: 0,
        psn: if rng.below(4) == 0 { expected.minus(1) } else { expected },
        ack_requested: true,
        solicited: false,
        deth: Deth::default(),
        content,
        payload: Fragment { offset: 0, length: payload.len() as u32 },
    };
    (packet, payload)
}

/// Another number, or place, within the same kind of packet.
fn change_headers(rng: &mut Rng, packet: &mut Packet) {
    match &mut packet.content {
        Content::Send { position: at, trailer: last } => match rng.below(2) {
            0 => *at = position(rng),
            _ => *last = trailer(rng),
        },
        Content::Write { position: at, reth: eth, trailer: last } => match rng.below(4) {
            0 => *at = position(rng),
            1 => *last = trailer(rng),
            2 => eth.dma_bytes = number(rng),
            _ => *eth = reth(rng),
        },
        Content::ReadRequest(eth) => match rng.below(2) {
            0 => eth.dma_bytes = number(rng),
            _ => *eth = reth(rng),
        },
        Content::CompareSwap(eth) | Content::FetchAdd(eth) => *eth = atomic(rng),
        Content::ReadResponse { position: at, .. } => *at = position(rng),
        Content::Acknowledge(eth) | Content::AtomicAcknowledge { aeth: eth, .. } => *eth = aeth(rng),
    }
}

/// Addresses of the wire, which nobody looks at.
fn ip(version: u64) -> IpHeader {
    let gid = |last| match version {
        4 => Gid::from_ipv4([10, 9, 0, last]),
        _ => Gid([0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
    };
    IpHeader::between(gid(1), gid(2), 0).expect("two addresses of one kind")
}

/// The packet as bytes from the IP header on, or `None` when no opcode says that.
pub(super) fn bytes_of(rng: &mut Rng, (packet, payload): &Flying) -> Option<Vec<u8>> {
    let mut packet = packet.to_wire(payload)?;
    // What an opcode has no room for is not there.
    packet.payload = if packet.bth.opcode.kind().carries_payload() { packet.payload } else { &[] };
    let mut bytes = Vec::new();
    let version = if rng.below(2) == 0 { 4 } else { 6 };
    let frame = FrameBuilder { ip: ip(version), source_port: 0xc000, udp_checksum: 0, packet };
    frame.append_to(&mut bytes).ok()?;
    Some(bytes)
}

/// Damages bytes; half of the time the damage is covered up: lengths, checksum and ICRC are made right again.
pub(super) fn damage(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.below(3) {
        let at = rng.below(rng.clone().below(bytes.len() as u64) + 1) as usize;
        match rng.below(7) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            2 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
            3 => bytes.truncate(at),
            4 => bytes.extend((0..rng.below(16)).map(|byte| byte as u8)),
            5 => {
                bytes.truncate(at);
                bytes.extend_from_slice(&other[at.min(other.len())..]);
            }
            // The BTH: opcode, flags with the pad count; and what follows it first.
            _ => {
                let bth = if bytes.first().is_some_and(|byte| byte >> 4 == 6) { 48 } else { 28 };
                let (offset, kept) = pick(rng, &[(0, 0), (1, 0xcf), (12, 0)]);
                if let Some(byte) = bytes.get_mut(bth + offset) {
                    *byte = *byte & kept | rng.next_u64() as u8 & !kept;
                }
            }
        }
    }
    if rng.below(2) == 0 {
        // The length too, mostly: a packet is a multiple of 4 bytes.
        let length = if rng.below(6) > 0 { bytes.len() & !3 } else { bytes.len() };
        bytes.truncate(length);
        repair(bytes);
    }
}

/// Makes lengths, checksum and ICRC of a damaged packet right, as far as there is one.
fn repair(bytes: &mut [u8]) {
    let v4 = bytes.first().is_some_and(|byte| byte >> 4 == 4);
    let fresh = ip(if v4 { 4 } else { 6 });
    let (start, length) = (fresh.header_bytes(), bytes.len());
    let Some(udp_bytes) = length.checked_sub(start).filter(|rest| *rest >= Udp::BYTES + icrc::ICRC_BYTES)
    else {
        return;
    };
    let Ok(ip) = fresh.with_payload_bytes(udp_bytes) else { return };
    let udp = Udp::new(0xc000, udp_bytes as u16);
    let mut headers = Vec::new();
    ip.append_to(&mut headers);
    headers.extend(udp.emit());
    bytes[..headers.len()].copy_from_slice(&headers);
    let end = length - icrc::ICRC_BYTES;
    if let Ok(icrc) = icrc::compute(&ip, &udp, &bytes[start + Udp::BYTES..end]) {
        bytes[end..].copy_from_slice(&icrc::stored(icrc));
    }
}

/// What a device makes of bytes: the packet, or a count of why not.
pub(super) fn read(bytes: &[u8], reached: &mut Reached) -> Option<Flying> {
    let frame = match Frame::decode(bytes) {
        Ok(frame) => frame,
        Err(error) => {
            let error = match error {
                FrameError::Wire(error) => format!("{error:?}"),
                error => format!("{error:?}"),
            };
            count(reached, format!("refuses {}", error.split([' ', '{']).next().unwrap_or("")));
            return None;
        }
    };
    let Some(packet) = Packet::from_wire(&frame.packet) else {
        count(reached, "refuses a reserved AETH");
        return None;
    };
    Some((packet, frame.packet.payload.to_vec()))
}
