//! The records that travel in a channel: a fixed header of words, then what its flags announce.
//!
//! Version [`VERSION`], checked once per channel. Native-endian words (one host), multiples of 8 bytes:
//!
//! | word | request | answer |
//! |---|---|---|
//! | 0 | length in bytes:32, code:8, service:4 + padding:4, flags:8, 0:8 | the same, last byte the syndrome |
//! | 1 | destination QPN:32, source QPN:32 | the same |
//! | 2 | PSN:32, immediate or key as on the wire:32 | PSN:32, MSN:32 |
//! | 3 | remote address | old value of an atomic |
//! | 4 | rkey:32, DMA length:32 | |
//! | 5 | swap or add (atomics), Q_Key (UD) | |
//! | 6 | compare | |
//!
//! Then a datagram's path address (6 words) and the payload, padded. A peer may write anything, at any time:
//! words are loaded once into a copy, whose every number is checked here before use (INV-6, INV-13).

use mlx5_device::carrier::PathAddress;
use roce::packet::{Aeth, AtomicEth, Deth, Reth, Syndrome, Trailer, position_of};
use roce::{Content, Fragment, NakCode, Packet, Position, Psn, ServiceType};

/// Version of what processes of a fabric share: directory, channels, records. Another version cannot join.
pub const VERSION: u32 = 14;
/// Declares places in memory that processes of a fabric share; a change of one is a new version.
macro_rules! places {
    ($($name:ident = $at:expr;)*) => {
        $(pub const $name: usize = $at;)*
        #[cfg(test)]
        pub const ALL: &[usize] = &[$($name),*];
    };
}
pub(in crate::link) use places;

pub const REQUEST_WORDS: usize = 7;
/// Words of an answer's header.
pub const REPLY_WORDS: usize = 4;
pub const PATH_WORDS: usize = 6;
/// Largest payload of one record. Sender and receiver copy at the same time, a record each; with shorter
/// records they wake each other more often, and a copy is over before helpers take part.
pub const MAX_FRAGMENT: usize = 128 * 1024;

/// The same out of a GPU's memory, where each costs microseconds however short it is.
pub const MAX_GPU_FRAGMENT: usize = 192 * 1024;
// What a receiver accepts goes by the longest.
const _: () = assert!(MAX_FRAGMENT <= MAX_GPU_FRAGMENT);
/// Largest record of an ordinary fragment: header, path, the fragment.
pub const MAX_RECORD: usize = 8 * (REQUEST_WORDS + PATH_WORDS) + MAX_FRAGMENT;

/// The same with such a fragment; a ring that is shorter than that carries less at a time.
const MAX_GPU_RECORD: usize = MAX_RECORD + (MAX_GPU_FRAGMENT - MAX_FRAGMENT);

mod flag {
    pub const FIRST: u8 = 1;
    pub const LAST: u8 = 2;
    pub const SOLICITED: u8 = 4;
    pub const ACK_REQUESTED: u8 = 8;
    pub const SECOND_PORT: u8 = 16;
    pub const ALL: u8 = FIRST | LAST | SOLICITED | ACK_REQUESTED | SECOND_PORT;
}

/// What a packet is, by its number in a record.
mod code {
    pub const SEND: u8 = 1;
    pub const SEND_IMM: u8 = 2;
    pub const SEND_INVALIDATE: u8 = 3;
    pub const WRITE: u8 = 4;
    pub const WRITE_IMM: u8 = 5;
    pub const READ: u8 = 6;
    pub const COMPARE_SWAP: u8 = 7;
    pub const FETCH_ADD: u8 = 8;
    pub const READ_RESPONSE: u8 = 9;
    pub const ATOMIC: u8 = 10;
    pub const ACK: u8 = 11;
    pub const RNR_NAK: u8 = 12;
    pub const NAK: u8 = 13;
}

/// Services by their number in a record. Not the number that packets of a wire have for it.
const SERVICES: [ServiceType; 3] = [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud];

fn number_of(service: ServiceType) -> u8 {
    match service {
        ServiceType::Rc => 0,
        ServiceType::Uc => 1,
        ServiceType::Ud => 2,
    }
}

/// NAK codes by their number (IBTA §9.7.5.2, AETH syndrome).
const NAKS: [NakCode; 4] =
    [NakCode::PsnSequence, NakCode::InvalidRequest, NakCode::RemoteAccess, NakCode::RemoteOperation];

/// What a record was found to be wrong in. The channel it came from is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Shorter than a header, longer than allowed or than what was published, or no multiple of 8.
    #[error("a record of {len} bytes where {published} are published")]
    Length { len: u32, published: u64 },
    /// A code, service, flag or number that this version has not.
    #[error("a record with an unknown value in its first words ({word0:#x} {word1:#x})")]
    Unknown { word0: u64, word1: u64 },
    /// Head and tail that cannot be.
    #[error("a channel with head {head} and tail {tail} in a ring of {capacity}")]
    Positions { head: u64, tail: u64, capacity: u64 },
}

/// Whether the record of a packet carries where it came from: only datagrams show it to the receiver.
pub fn carries_path(packet: &Packet) -> bool {
    packet.service == ServiceType::Ud
}

/// Bytes in front of a packet's payload.
#[inline(always)]
pub fn head_bytes(packet: &Packet) -> usize {
    let words = if packet.content.is_request() { REQUEST_WORDS } else { REPLY_WORDS };
    8 * (words + if carries_path(packet) { PATH_WORDS } else { 0 })
}

/// Header words of a packet with `carried` bytes of its payload, the first or all. An answer's are the first.
#[inline(always)]
pub fn encode(packet: &Packet, carried: u32) -> [u64; REQUEST_WORDS] {
    let position = packet.content.position();
    let ends = position.ends() && carried == packet.payload.length;
    // What a message ends with comes with its last byte.
    let behind = |plain, trailer| match trailer {
        Trailer::Immediate(imm) if ends => (plain + 1, imm),
        Trailer::Invalidate(key) if ends => (plain + 2, key),
        _ => (plain, [0; 4]),
    };
    let syndrome_of = |aeth: Aeth| match aeth.syndrome {
        Syndrome::Ack => (code::ACK, 0),
        Syndrome::RnrNak { timer } => (code::RNR_NAK, timer),
        Syndrome::Nak(nak) => (code::NAK, nak as u8),
    };
    let of = |reth: Reth| (reth.va, pair(reth.rkey, reth.dma_bytes));
    let (mut syndrome, mut operands) = (0, [packet.deth.qkey.into(), 0]);
    let (code, half, (value, length)) = match packet.content {
        Content::Send { trailer, .. } => {
            let (code, imm) = behind(code::SEND, trailer);
            (code, u32::from_ne_bytes(imm), (0, 0))
        }
        Content::Write { trailer, reth, .. } => {
            let (code, imm) = behind(code::WRITE, trailer);
            (code, u32::from_ne_bytes(imm), of(reth))
        }
        Content::ReadRequest(reth) => (code::READ, 0, of(reth)),
        Content::CompareSwap(eth) | Content::FetchAdd(eth) => {
            operands = [eth.swap_add, eth.compare];
            let swaps = matches!(packet.content, Content::CompareSwap(_));
            let code = if swaps { code::COMPARE_SWAP } else { code::FETCH_ADD };
            (code, 0, (eth.va, pair(eth.rkey, 0)))
        }
        Content::ReadResponse { aeth, .. } => (code::READ_RESPONSE, aeth.map_or(0, |aeth| aeth.msn), (0, 0)),
        Content::AtomicAcknowledge { aeth, old } => (code::ATOMIC, aeth.msn, (old, 0)),
        Content::Acknowledge(aeth) => {
            let code;
            (code, syndrome) = syndrome_of(aeth);
            (code, aeth.msn, (0, 0))
        }
    };
    let flags = if position.starts() { flag::FIRST } else { 0 }
        | if ends { flag::LAST } else { 0 }
        | if packet.solicited && ends { flag::SOLICITED } else { 0 }
        | if packet.ack_requested { flag::ACK_REQUESTED } else { 0 };
    let padded = carried.next_multiple_of(8);
    let kind = number_of(packet.service) | ((padded - carried) as u8) << 4;
    [
        u64::from(head_bytes(packet) as u32 + padded)
            | u64::from(code) << 32
            | u64::from(kind) << 40
            | u64::from(flags) << 48
            | u64::from(syndrome) << 56,
        pair(packet.dst_qpn, packet.deth.src_qpn),
        pair(packet.psn.value(), half),
        value,
        length,
        operands[0],
        operands[1],
    ]
}

/// Set in the first word where the destination address is that of the second port of the receiver's device.
pub const SECOND_PORT: u64 = (flag::SECOND_PORT as u64) << 48;

pub fn encode_path(path: &PathAddress) -> [u64; PATH_WORDS] {
    let [sgid, dgid] = [path.sgid, path.dgid].map(u128::from_ne_bytes);
    let small = [path.sl, path.traffic_class, path.hop_limit, u8::from(path.grh)];
    [
        sgid as u64,
        (sgid >> 64) as u64,
        dgid as u64,
        (dgid >> 64) as u64,
        u64::from(path.slid) | u64::from(path.dlid) << 16 | u64::from(path.flow_label) << 32,
        u64::from(u32::from_ne_bytes(small)),
    ]
}

/// Path address from its words. Any words are one.
pub fn decode_path(words: [u64; PATH_WORDS]) -> PathAddress {
    let gid = |low: u64, high: u64| (u128::from(low) | u128::from(high) << 64).to_ne_bytes();
    let [sl, traffic_class, hop_limit, grh] = (words[5] as u32).to_ne_bytes();
    PathAddress {
        sgid: gid(words[0], words[1]),
        dgid: gid(words[2], words[3]),
        slid: words[4] as u16,
        dlid: (words[4] >> 16) as u16,
        flow_label: (words[4] >> 32) as u32 & 0xf_ffff,
        sl,
        traffic_class,
        hop_limit,
        grh: grh & 1 != 0,
        to_port: 0,
    }
}

/// Length of the record whose first word this is, checked against what is published.
pub fn record_len(word0: u64, published: u64) -> Result<usize, RecordError> {
    let len = word0 as u32;
    let least = 8 * REPLY_WORDS;
    let fits = (least..=MAX_GPU_RECORD).contains(&(len as usize)) && u64::from(len) <= published;
    if fits && len.is_multiple_of(8) { Ok(len as usize) } else { Err(RecordError::Length { len, published }) }
}

/// Checks a copy of the header of a record of `len` bytes in the lane of requests, or of answers. The
/// packet's payload is behind [`head_bytes`].
#[inline(always)]
pub fn decode(words: &[u64; REQUEST_WORDS], len: usize, is_request: bool) -> Result<Packet, RecordError> {
    let [_, _, _, _, code, kind, flags, syndrome] = words[0].to_le_bytes();
    let (dst_qpn, src_qpn) = halves(words[1]);
    let (psn, half) = halves(words[2]);
    let (rkey, dma_bytes) = halves(words[4]);
    let service = SERVICES.get(usize::from(kind & 0xf)).copied().ok_or_else(|| unknown(words))?;
    let position = position_of(flags & flag::FIRST != 0, flags & flag::LAST != 0);
    let reth = Reth { va: words[3], rkey, dma_bytes };
    let of_first = if position.starts() { reth } else { Reth::default() };
    let atomic = AtomicEth { va: words[3], rkey, swap_add: words[5], compare: words[6] };
    let aeth = |syndrome| Aeth { syndrome, msn: half };
    let trailer = match code {
        code::SEND_IMM | code::WRITE_IMM => Trailer::Immediate(half.to_ne_bytes()),
        code::SEND_INVALIDATE => Trailer::Invalidate(half.to_ne_bytes()),
        _ => Trailer::None,
    };
    let content = match code {
        code::SEND..=code::SEND_INVALIDATE => Content::Send { position, trailer },
        code::WRITE..=code::WRITE_IMM => Content::Write { position, reth: of_first, trailer },
        code::READ => Content::ReadRequest(reth),
        code::COMPARE_SWAP => Content::CompareSwap(atomic),
        code::FETCH_ADD => Content::FetchAdd(atomic),
        code::READ_RESPONSE => {
            let has_aeth = position != Position::Middle;
            Content::ReadResponse { position, aeth: has_aeth.then(|| aeth(Syndrome::Ack)) }
        }
        code::ATOMIC => Content::AtomicAcknowledge { aeth: aeth(Syndrome::Ack), old: words[3] },
        code::ACK => Content::Acknowledge(aeth(Syndrome::Ack)),
        code::RNR_NAK => Content::Acknowledge(aeth(Syndrome::RnrNak { timer: syndrome & 0x1f })),
        code::NAK => {
            let nak = NAKS.get(usize::from(syndrome)).ok_or_else(|| unknown(words))?;
            Content::Acknowledge(aeth(Syndrome::Nak(*nak)))
        }
        _ => return Err(unknown(words)),
    };
    let carries = matches!(code, code::SEND..=code::WRITE_IMM | code::READ_RESPONSE);
    let (qpns, padding) = (dst_qpn | src_qpn, usize::from(kind >> 4));
    let mut packet = Packet {
        service,
        dst_qpn,
        psn: Psn::new(psn),
        ack_requested: flags & flag::ACK_REQUESTED != 0,
        solicited: flags & flag::SOLICITED != 0,
        deth: Deth { qkey: if service == ServiceType::Ud { words[5] as u32 } else { 0 }, src_qpn },
        content,
        payload: Fragment::default(),
    };
    let length = len.checked_sub(head_bytes(&packet) + padding);
    let fits = length.is_some_and(|length| carries || length == 0) && padding < 8;
    if (qpns | psn) > 0xff_ffff
        || flags & !flag::ALL != 0
        || content.is_request() != is_request
        || !is_request && service != ServiceType::Rc
        || content.position() != position
        || trailer != Trailer::None && !position.ends()
        || !fits
    {
        return Err(unknown(words));
    }
    // A record is far shorter than 4 GiB.
    packet.payload.length = length.unwrap_or(0) as u32;
    Ok(packet)
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// A record that says what cannot be said.
#[cold]
pub fn unknown(words: &[u64; REQUEST_WORDS]) -> RecordError {
    RecordError::Unknown { word0: words[0], word1: words[1] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Packet> {
        let eth =
            AtomicEth { va: 1 << 63 | 8, rkey: 0x99aa_bbcc, swap_add: u64::MAX - 1, compare: 0x0102_0304 };
        let reth = Reth { va: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, dma_bytes: 1 << 31 };
        let aeth = |syndrome| Aeth { syndrome, msn: 0xff_fffe };
        let none = Reth::default();
        let (imm, key) = (Trailer::Immediate([1, 2, 3, 4]), Trailer::Invalidate([9, 8, 7, 6]));
        use Position::{First, Last, Middle, Only};
        let send = |position, trailer| (Content::Send { position, trailer }, 4096);
        let write = |position, reth, trailer| (Content::Write { position, reth, trailer }, 60);
        let read = |position, with: bool, length| {
            (Content::ReadResponse { position, aeth: with.then(|| aeth(Syndrome::Ack)) }, length)
        };
        let contents = vec![
            send(Only, Trailer::None),
            send(First, Trailer::None),
            send(Middle, Trailer::None),
            send(Last, imm),
            send(Only, key),
            write(Only, reth, imm),
            write(First, reth, Trailer::None),
            write(Middle, none, Trailer::None),
            write(Last, none, imm),
            write(Last, none, Trailer::None),
            (Content::ReadRequest(reth), 0),
            (Content::CompareSwap(eth), 0),
            (Content::FetchAdd(eth), 0),
            read(Only, true, 0),
            read(First, true, 4096),
            read(Middle, false, 8192),
            read(Last, true, 33),
            (Content::AtomicAcknowledge { aeth: aeth(Syndrome::Ack), old: u64::MAX - 1 }, 0),
            (Content::Acknowledge(aeth(Syndrome::Ack)), 0),
            (Content::Acknowledge(aeth(Syndrome::RnrNak { timer: 31 })), 0),
        ];
        let naks = NAKS.map(|code| (Content::Acknowledge(aeth(Syndrome::Nak(code))), 0));
        let contents: Vec<_> = contents.into_iter().chain(naks).collect();
        SERVICES.into_iter().flat_map(move |service| {
            let contents = contents.clone();
            // Datagrams have a Q_Key in the place of an atomic's operand. Only RC is answered.
            let is_there = move |content: &Content| match service {
                ServiceType::Rc => true,
                ServiceType::Uc => content.is_request(),
                ServiceType::Ud => {
                    content.is_request() && !matches!(content, Content::CompareSwap(_) | Content::FetchAdd(_))
                }
            };
            contents.into_iter().filter(move |(content, _)| is_there(content)).map(
                move |(content, length)| Packet {
                    service,
                    dst_qpn: 0xfe_dcba,
                    psn: Psn::new(0xab_cdef),
                    ack_requested: service == ServiceType::Rc,
                    solicited: content.position().ends(),
                    deth: Deth {
                        qkey: if service == ServiceType::Ud { 0x1111_2222 } else { 0 },
                        src_qpn: 0x12_3456,
                    },
                    content,
                    payload: Fragment { offset: 0, length },
                },
            )
        })
    }

    /// Decodes the words of a record as its receiver does.
    fn decoded(words: &[u64; REQUEST_WORDS], is_request: bool) -> Result<Packet, RecordError> {
        decode(words, record_len(words[0], 1 << 20)?, is_request)
    }

    #[test]
    fn a_packet_comes_out_as_it_went_in_and_with_less_than_all_its_bytes_does_not_end() {
        for sent in all() {
            let is_request = sent.content.is_request();
            let words = encode(&sent, sent.payload.length);
            assert_eq!(decoded(&words, is_request), Ok(sent));
            assert!(decoded(&words, !is_request).is_err(), "{sent:?} in the other lane");
            let unreliable = encode(&Packet { service: ServiceType::Uc, ..sent }, sent.payload.length);
            assert_eq!(decoded(&unreliable, is_request).is_ok(), is_request, "{sent:?} on UC");
            if sent.payload.length > 0 {
                let got = decoded(&encode(&sent, sent.payload.length - 1), is_request).unwrap();
                assert_eq!(got.payload.length, sent.payload.length - 1);
                assert_eq!(got.content.position().starts(), sent.content.position().starts());
                assert!(!got.content.position().ends() && !got.solicited, "the rest of {sent:?} is to come");
            }
        }
    }

    #[test]
    fn a_path_address_comes_out_as_it_went_in() {
        let sent = PathAddress {
            sgid: std::array::from_fn(|i| i as u8),
            dgid: std::array::from_fn(|i| 0xff - i as u8),
            slid: 0x1234,
            dlid: 0xfedc,
            flow_label: 0xf_edcb,
            sl: 5,
            traffic_class: 0xe0,
            hop_limit: 64,
            grh: true,
            to_port: 0,
        };
        assert_eq!(decode_path(encode_path(&sent)), sent);
        assert_eq!(decode_path(encode_path(&PathAddress::default())), PathAddress::default());
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        let sent = all().find(|sent| matches!(sent.content, Content::Write { .. })).unwrap();
        let good = encode(&sent, 60);
        assert!(decoded(&good, true).is_ok());
        let byte =
            |n: u32, value: u64| move |w: &mut Words| w[0] = w[0] & !(0xff << (8 * n)) | value << (8 * n);
        type Words = [u64; REQUEST_WORDS];
        type Change = Box<dyn Fn(&mut Words)>;
        let read = encode(&Packet { content: Content::ReadRequest(Reth::default()), ..sent }, 0);
        let cases: Vec<(&str, Change)> = vec![
            ("code 0", Box::new(byte(4, 0))),
            ("code 14", Box::new(byte(4, 14))),
            ("an answer's code", Box::new(byte(4, code::ACK.into()))),
            ("service 3", Box::new(byte(5, 0x43))),
            ("8 bytes of padding", Box::new(byte(5, 0x80))),
            ("an unknown flag", Box::new(byte(6, 32 | 3))),
            ("an immediate before the end", Box::new(byte(6, flag::FIRST.into()))),
            ("a destination beyond 24 bits", Box::new(|w| w[1] |= 1 << 24)),
            ("a source beyond 24 bits", Box::new(|w| w[1] |= 1 << 63)),
            ("a PSN beyond 24 bits", Box::new(|w| w[2] |= 1 << 24)),
            ("a datagram without room for its path", Box::new(|w| w[0] = w[0] & !0xff_ffff | 64 | 2 << 40)),
            ("a READ with bytes", Box::new(move |w| *w = [read[0] + 8, w[1], w[2], w[3], w[4], w[5], w[6]])),
            (
                "a READ that does not end",
                Box::new(move |w| *w = [read[0] & !(2 << 48), w[1], w[2], w[3], w[4], w[5], w[6]]),
            ),
        ];
        for (name, change) in cases {
            let mut words = good;
            change(&mut words);
            let decoded = decoded(&words, true);
            assert!(decoded.is_err(), "{name}: {decoded:?}");
        }
        for (name, word0, published) in [
            ("empty", 0, 4096),
            ("shorter than a header", 24, 4096),
            ("not a multiple of 8", 36, 4096),
            ("longer than published", 64, 56),
            ("longer than any", MAX_GPU_RECORD as u64 + 8, 1 << 20),
            ("4 GiB", 0xffff_fff8, u64::MAX),
        ] {
            assert!(record_len(word0, published).is_err(), "{name}");
        }
    }

    /// 64-bit steps of a seeded generator (splitmix64, public domain, Vigna 2015).
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[test]
    fn mutants_of_records_never_panic_and_what_is_accepted_keeps_its_bounds() {
        let mut state = 2;
        let (mut accepted, mut refused) = (0, 0);
        let all: Vec<Packet> = all().collect();
        for round in 0..300_000usize {
            let sent = &all[round % all.len()];
            let mut words = encode(sent, sent.payload.length);
            for _ in 0..random(&mut state) % 4 {
                let (word, bit) = (random(&mut state) as usize % REQUEST_WORDS, random(&mut state) % 64);
                words[word] ^= 1 << bit;
            }
            let Ok(len) = record_len(words[0], 16_384) else { continue };
            match decode(&words, len, sent.content.is_request()) {
                Ok(packet) => {
                    accepted += 1;
                    let end = head_bytes(&packet) + packet.payload.length as usize;
                    assert!(end <= len && len < end + 8, "{packet:?} in {len} bytes");
                }
                Err(_) => refused += 1,
            }
        }
        assert!(accepted > 50_000 && refused > 30_000, "{accepted} accepted, {refused} refused");
    }
}
