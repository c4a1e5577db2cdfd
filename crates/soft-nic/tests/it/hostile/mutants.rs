//! Work requests, right and invalid.

use mlx5_layout::SendOpcode;
use mlx5_layout::send_wqe::{AddressVector, DataPointer};
use roce::ServiceType;
use soft_nic::testing::{Data, Region, WorkRequest};

use super::rng::Rng;

/// Bytes of a region that payloads come from or go to.
pub const AREA: u64 = 16 * 1024;

/// What a right work request does to memory, and to which end's.
pub struct Effect {
    /// Where the bytes must be afterwards, in the region of the side that receives them.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// They go to the requester (READ, atomics) instead of the responder.
    pub to_requester: bool,
    /// A receive is consumed.
    pub receives: bool,
    /// New value of an atomic's word at its place.
    pub word: Option<(u64, u64)>,
}

/// Mostly small, sometimes a packet, sometimes more than a record carries.
pub fn length(rng: &mut Rng) -> u64 {
    match rng.below(20) {
        0 => 4097 + rng.below(4000),
        1..=4 => rng.below(1200),
        _ => 1 + rng.below(64),
    }
}

/// A right work request on a queue of this service, with its effect. `near` is the requester's region, `far`
/// the responder's.
pub fn benign(
    rng: &mut Rng,
    service: ServiceType,
    near: &Region,
    far: &Region,
    vector: Option<AddressVector>,
) -> (WorkRequest, Effect) {
    use SendOpcode::*;
    let opcodes: &[SendOpcode] = match service {
        ServiceType::Rc => {
            &[Send, SendImm, RdmaWrite, RdmaWriteImm, RdmaRead, AtomicCompareSwap, AtomicFetchAdd, RdmaWrite]
        }
        ServiceType::Uc => &[Send, SendImm, RdmaWrite, RdmaWriteImm],
        ServiceType::Ud => &[Send, SendImm],
    };
    let opcode = rng.pick(opcodes);
    let len = if service == ServiceType::Ud { 1 + rng.below(1000) } else { length(rng) };
    let mut request = WorkRequest::new(opcode);
    request.datagram = vector;
    request.solicited = rng.one_in(3);
    request.fence = rng.one_in(5);
    request.immediate = (rng.next() as u32).to_be_bytes();
    let at = rng.below(AREA - len);
    if opcode.is_atomic() {
        return atomic(rng, request, near, far);
    }
    let source = rng.below(AREA - len);
    let (local, from) = if opcode == RdmaRead { (at, far) } else { (source, near) };
    let bytes = from.block.bytes((if opcode == RdmaRead { source } else { local }) as usize, len as usize);
    if opcode.has_remote_address() {
        request = request
            .remote(far, AREA * u64::from(opcode != RdmaRead) + if opcode == RdmaRead { source } else { at });
    }
    // Payload is taken from the first area of a region and lands in the second.
    let base = if opcode == RdmaRead { AREA } else { 0 };
    request.data = if opcode != RdmaRead && len <= 200 && rng.one_in(3) {
        vec![Data::Inline(bytes.clone())]
    } else {
        pieces(rng, near, base + local, len)
    };
    let receives = !matches!(opcode, RdmaWrite | RdmaRead);
    let to_requester = opcode == RdmaRead;
    (request, Effect { at: AREA + at, bytes, to_requester, receives, word: None })
}

fn atomic(rng: &mut Rng, request: WorkRequest, near: &Region, far: &Region) -> (WorkRequest, Effect) {
    let place = AREA + 8 * rng.below(AREA / 8);
    let at = AREA + rng.below(AREA - 8);
    let old = far.block.bytes(place as usize, 8);
    let value = old.as_slice().try_into().map_or(0, u64::from_ne_bytes);
    let operand = rng.next();
    let compare = if rng.one_in(2) { value } else { rng.next() };
    let new = match request.opcode {
        SendOpcode::AtomicFetchAdd => value.wrapping_add(operand),
        _ if compare == value => operand,
        _ => value,
    };
    let mut request = request.remote(far, place);
    request.atomic = Some((operand, compare));
    request.data = pieces(rng, near, at, 8);
    let effect = Effect { at, bytes: old, to_requester: true, receives: false, word: Some((place, new)) };
    (request, effect)
}

/// `len` bytes from `offset` in one to four entries.
fn pieces(rng: &mut Rng, region: &Region, offset: u64, len: u64) -> Vec<Data> {
    let mut out = Vec::new();
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let rest = end - at;
        let take = if out.len() == 3 || rng.one_in(2) { rest } else { 1 + rng.below(rest) };
        out.push(Data::Pointer(region.pointer(at, take as u32)));
        at += take;
    }
    out
}

/// Spoils one to three things of a WQE: fields by their place and meaning, or any bit.
pub fn spoil(rng: &mut Rng, wqe: &mut Vec<u8>, service: ServiceType) {
    for _ in 0..1 + rng.below(3) {
        let units = wqe.len() / 16;
        let segment = 16 * rng.below(units as u64) as usize;
        match rng.below(12) {
            0 => wqe[1 + rng.below(2) as usize] ^= 1 << rng.below(8),
            1 => wqe[3] = rng.pick(SendOpcode::ALL).to_u8(),
            2 => wqe[3] = rng.next() as u8,
            3 => wqe[4 + rng.below(3) as usize] ^= 1 << rng.below(8),
            4 => wqe[7] = rng.edge(units as u64) as u8,
            5 => wqe[11] = rng.next() as u8,
            6 if service == ServiceType::Ud && units > 3 => {
                let at = 16 + rng.below(48) as usize;
                wqe[at] ^= 1 << rng.below(8);
            }
            // Length, key and address of a pointer; or address, key of a remote address; or operands.
            7 => put32(wqe, segment, rng),
            8 => put32(wqe, segment + 4, rng),
            9 | 6 => put64(wqe, segment + 8, rng),
            10 => {
                let at = rng.below(wqe.len() as u64) as usize;
                wqe[at] ^= 1 << rng.below(8);
            }
            _ => {
                let more = 16 * rng.below(4) as usize;
                let len = (wqe.len() + more).min(63 * 16);
                wqe.resize(len, rng.next() as u8);
                wqe[7] = (len / 16) as u8;
            }
        }
    }
}

fn put32(wqe: &mut [u8], at: usize, rng: &mut Rng) {
    let near = u32::from_be_bytes([wqe[at], wqe[at + 1], wqe[at + 2], wqe[at + 3]]);
    wqe[at..at + 4].copy_from_slice(&(rng.edge(near.into()) as u32).to_be_bytes());
}

fn put64(wqe: &mut [u8], at: usize, rng: &mut Rng) {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&wqe[at..at + 8]);
    let near = u64::from_be_bytes(bytes);
    // Addresses mostly near the right one: just outside, and just inside.
    let value = if rng.one_in(2) {
        near.wrapping_add(rng.below(1 << 17)).wrapping_sub(1 << 16)
    } else {
        rng.edge(near)
    };
    wqe[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// Receive entries, right or invalid; `len` bytes are needed.
pub fn receive(rng: &mut Rng, far: &Region, at: u64, len: u64, invalid: bool) -> Vec<DataPointer> {
    let mut pointers = Vec::new();
    for data in pieces(rng, far, at, len.max(1)) {
        if let Data::Pointer(pointer) = data {
            pointers.push(pointer);
        }
    }
    if invalid {
        let at = rng.below(pointers.len() as u64) as usize;
        let pointer = &mut pointers[at];
        match rng.below(4) {
            0 => pointer.byte_count = rng.edge(pointer.byte_count.into()) as u32,
            1 => pointer.lkey = rng.edge(pointer.lkey.into()) as u32,
            2 => pointer.va = rng.edge(pointer.va),
            _ => pointer.byte_count = (pointer.byte_count / 2).max(1),
        }
    }
    pointers
}
