//! The records that travel in a channel: a fixed header of words, then what its flags announce.
//!
//! Version [`VERSION`], checked once per channel. All words are native-endian (one host), multiples of 8 bytes:
//!
//! | word | request | answer, a [`Packet`] |
//! |---|---|---|
//! | 0 | length in bytes:32, kind:8, opcode:4 + service:4, flags:8 | length:32, kind:8, what:8, flags:8, syndrome:8 |
//! | 1 | destination QPN:32, source QPN:32 | the same |
//! | 2 | PSN:32, immediate as on the wire:32 | PSN:32, MSN:32 |
//! | 3 | remote address | old value of an atomic, or bytes of a READ |
//! | 4 | rkey:32, message length:32 | |
//! | 5 | fragment offset:32, fragment length:32 | |
//! | 6 | swap or add (atomics), Q_Key (UD) | |
//! | 7 | compare | |
//!
//! After a request's words: the path address (6 words, UD), then the payload. After a reply's: the bytes of a READ. A peer
//! may write anything, at any time: words are loaded once into a copy, and every number in the copy is checked here, before
//! anything uses it (INV-6, INV-13).

use mlx5_device::carrier::PathAddress;
use roce::packet::{Aeth, Deth, Syndrome, position_of};
use roce::{Content, Fragment, NakCode, Opcode, Packet, Position, Psn, Request, ServiceType};

/// Version of what processes of a fabric share: directory, channels, records. A process of another one is refused when it joins.
pub const VERSION: u32 = 10;
/// Words of a request's header.
pub const REQUEST_WORDS: usize = 8;
/// Words of a reply's header.
pub const REPLY_WORDS: usize = 4;
/// Words of a path address.
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

mod kind {
    pub const REQUEST: u8 = 1;
    pub const REPLY: u8 = 2;
}

mod flag {
    pub const SOLICITED: u8 = 1;
    pub const ACK_REQUESTED: u8 = 2;
    pub const PATH: u8 = 4;
    pub const INLINE: u8 = 8;
    pub const FIRST: u8 = 16;
    pub const LAST: u8 = 32;
    pub const SECOND_PORT: u8 = 64;
    pub const REQUEST_ALL: u8 = SOLICITED | ACK_REQUESTED | PATH | INLINE | SECOND_PORT;
    pub const REPLY_ALL: u8 = FIRST | LAST;
}

/// Services by their number in a record.
const SERVICES: [ServiceType; 3] = [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud];

/// Place of a service in [`SERVICES`]. Not the number that packets have for it.
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
    /// A kind, opcode, service, flag or number that this version has not.
    #[error("a record with an unknown value in its first words ({word0:#x} {word1:#x})")]
    Unknown { word0: u64, word1: u64 },
    /// Head and tail that cannot be.
    #[error("a channel with head {head} and tail {tail} in a ring of {capacity}")]
    Positions { head: u64, tail: u64, capacity: u64 },
    /// Payload, fragment and message lengths that contradict each other.
    #[error(
        "a record whose lengths contradict each other: {have} bytes given, fragment {offset}+{length} of {whole}"
    )]
    Payload {
        /// Bytes that the record has or names.
        have: u64,
        offset: u32,
        length: u32,
        whole: u32,
    },
}

/// How the payload of a message to be sent travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Nothing travels.
    None,
    /// So many bytes follow the header.
    Inline(u32),
}

impl Form {
    fn flag(self) -> u8 {
        match self {
            Form::None => 0,
            Form::Inline(_) => flag::INLINE,
        }
    }

    /// Bytes after header and path, padded to a multiple of 8.
    pub fn padded(self) -> usize {
        match self {
            Form::None => 0,
            Form::Inline(len) => (len as usize).next_multiple_of(8),
        }
    }
}

/// Whether the record of a request carries where it came from: only datagrams show it to the receiver.
pub fn carries_path(request: &Request) -> bool {
    request.service == ServiceType::Ud
}

/// Header words of a request.
pub fn encode_request(request: &Request, form: Form) -> [u64; REQUEST_WORDS] {
    let path = carries_path(request);
    let len = 8 * (REQUEST_WORDS + if path { PATH_WORDS } else { 0 }) + form.padded();
    // Their numbers are their places in `Opcode::ALL` and `SERVICES`.
    let (opcode, service) = (request.opcode as u8, number_of(request.service));
    let flags = form.flag()
        | if request.solicited { flag::SOLICITED } else { 0 }
        | if request.ack_requested { flag::ACK_REQUESTED } else { 0 }
        | if path { flag::PATH } else { 0 };
    let operand = if path { request.qkey.into() } else { request.swap_add };
    [
        len as u64
            | u64::from(kind::REQUEST) << 32
            | u64::from(opcode | service << 4) << 40
            | u64::from(flags) << 48,
        pair(request.dst_qpn, request.src_qpn),
        pair(request.psn.value(), u32::from_ne_bytes(request.imm)),
        request.remote_va,
        pair(request.rkey, request.length),
        pair(request.fragment.offset, request.fragment.length),
        operand,
        request.compare,
    ]
}

/// Header words of an answer that carries so many bytes: all of its payload, or the first of it.
pub fn encode_reply(packet: &Packet, carried: u32) -> [u64; REPLY_WORDS] {
    let (what, aeth, value) = match packet.content {
        Content::AtomicAcknowledge { aeth, old } => (4, Some(aeth), old),
        Content::ReadResponse { aeth, .. } => (3, aeth, carried.into()),
        Content::Acknowledge(aeth) => (0, Some(aeth), 0),
        _ => (0, None, 0),
    };
    let (what, syndrome) = match aeth.map(|aeth| aeth.syndrome) {
        Some(Syndrome::RnrNak { timer }) => (1, timer),
        Some(Syndrome::Nak(code)) => (2, code as u8),
        _ => (what, 0),
    };
    let position = packet.content.position();
    let last = position.ends() && carried == packet.payload.length;
    let flags = if position.starts() { flag::FIRST } else { 0 } | if last { flag::LAST } else { 0 };
    let total = 8 * REPLY_WORDS as u32 + carried.next_multiple_of(8);
    [
        u64::from(total)
            | u64::from(kind::REPLY) << 32
            | what << 40
            | u64::from(flags) << 48
            | u64::from(syndrome) << 56,
        pair(packet.dst_qpn, packet.deth.src_qpn),
        pair(packet.psn.value(), aeth.map_or(0, |aeth| aeth.msn)),
        value,
    ]
}

/// First word of a request whose destination address is that of the second port of the receiver's device.
pub fn to_second_port(word0: u64) -> u64 {
    word0 | u64::from(flag::SECOND_PORT) << 48
}

/// Whether that is so; of a request's first word, checked.
pub fn is_to_second_port(word0: u64) -> bool {
    word0 >> 48 & u64::from(flag::SECOND_PORT) != 0
}

/// Words of a path address.
pub fn encode_path(path: &PathAddress) -> [u64; PATH_WORDS] {
    let half = |gid: &[u8; 16], i: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&gid[8 * i..8 * i + 8]);
        u64::from_ne_bytes(bytes)
    };
    let small = [path.sl, path.traffic_class, path.hop_limit, u8::from(path.grh)];
    [
        half(&path.sgid, 0),
        half(&path.sgid, 1),
        half(&path.dgid, 0),
        half(&path.dgid, 1),
        u64::from(path.slid) | u64::from(path.dlid) << 16 | u64::from(path.flow_label) << 32,
        u64::from(u32::from_ne_bytes(small)),
    ]
}

/// Path address from its words. Any words are one.
pub fn decode_path(words: [u64; PATH_WORDS]) -> PathAddress {
    let gid = |high: u64, low: u64| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&high.to_ne_bytes());
        bytes[8..].copy_from_slice(&low.to_ne_bytes());
        bytes
    };
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

/// Checks a copy of the header of a request, or of a fragment of one, in a record of `len` bytes: the request, whether a path
/// address follows, and what follows after that.
#[inline]
pub fn decode_request(
    words: &[u64; REQUEST_WORDS],
    len: usize,
) -> Result<(Request, bool, Form), RecordError> {
    if (words[0] >> 32) as u8 != kind::REQUEST || len < 8 * REQUEST_WORDS {
        return Err(unknown(words));
    }
    let [_, _, _, _, _, what, flags, zero] = words[0].to_le_bytes();
    let opcode = Opcode::ALL.get(usize::from(what & 0xf)).copied().ok_or_else(|| unknown(words))?;
    let service = SERVICES.get(usize::from(what >> 4)).copied().ok_or_else(|| unknown(words))?;
    let (dst_qpn, src_qpn) = qpns(words)?;
    let (psn, imm) = halves(words[2]);
    let (rkey, length) = halves(words[4]);
    let fragment = Fragment { offset: words[5] as u32, length: (words[5] >> 32) as u32 };
    let path = flags & flag::PATH != 0;
    if flags & !flag::REQUEST_ALL != 0 || psn > 0xff_ffff || zero != 0 || path != (service == ServiceType::Ud)
    {
        return Err(unknown(words));
    }
    let after = len as i64 - 8 * (REQUEST_WORDS + if path { PATH_WORDS } else { 0 }) as i64;
    let form = if flags & flag::INLINE == 0 { Form::None } else { Form::Inline(fragment.length) };
    let (request_bytes, whole) = (u64::from(fragment.offset) + u64::from(fragment.length), u64::from(length));
    // The bytes of READ and atomics travel the other way.
    let carried =
        if opcode.wants_response() { form == Form::None } else { form != Form::None || fragment.length == 0 };
    let form_fits = fragment.length as usize <= MAX_GPU_FRAGMENT || !matches!(form, Form::Inline(_));
    if request_bytes > whole || !form_fits || form.padded() as i64 != after || !carried {
        return Err(RecordError::Payload {
            have: after.max(0) as u64,
            offset: fragment.offset,
            length: fragment.length,
            whole: length,
        });
    }
    let ud = service == ServiceType::Ud;
    let request = Request {
        src_qpn,
        dst_qpn,
        service,
        opcode,
        psn: Psn::new(psn),
        solicited: flags & flag::SOLICITED != 0,
        ack_requested: flags & flag::ACK_REQUESTED != 0,
        imm: imm.to_ne_bytes(),
        remote_va: words[3],
        rkey,
        length,
        swap_add: if ud { 0 } else { words[6] },
        compare: words[7],
        qkey: if ud { words[6] as u32 } else { 0 },
        fragment,
    };
    Ok((request, path, form))
}

/// Checks a copy of the header of an answer in a record of `len` bytes.
#[inline]
pub fn decode_reply(words: &[u64; REQUEST_WORDS], len: usize) -> Result<Packet, RecordError> {
    if (words[0] >> 32) as u8 != kind::REPLY {
        return Err(unknown(words));
    }
    let [_, _, _, _, _, what, flags, syndrome] = words[0].to_le_bytes();
    let (dst_qpn, src_qpn) = qpns(words)?;
    let (psn, msn) = halves(words[2]);
    let aeth = |syndrome| Aeth { syndrome, msn };
    let position = position_of(flags & flag::FIRST != 0, flags & flag::LAST != 0);
    let content = match what {
        0 => Content::Acknowledge(aeth(Syndrome::Ack)),
        1 => Content::Acknowledge(aeth(Syndrome::RnrNak { timer: syndrome & 0x1f })),
        2 => {
            let code = NAKS.get(usize::from(syndrome)).ok_or_else(|| unknown(words))?;
            Content::Acknowledge(aeth(Syndrome::Nak(*code)))
        }
        3 => Content::ReadResponse {
            position,
            aeth: (position != Position::Middle).then(|| aeth(Syndrome::Ack)),
        },
        4 => Content::AtomicAcknowledge { aeth: aeth(Syndrome::Ack), old: words[3] },
        _ => return Err(unknown(words)),
    };
    if flags & !flag::REPLY_ALL != 0 || psn > 0xff_ffff || content.position() != position {
        return Err(unknown(words));
    }
    let length = if what == 3 { words[3] } else { 0 };
    let have = (len - 8 * REPLY_WORDS) as u64;
    if length.checked_next_multiple_of(8) != Some(have) {
        return Err(RecordError::Payload { have, offset: 0, length: length as u32, whole: 0 });
    }
    Ok(Packet {
        service: ServiceType::Rc,
        dst_qpn,
        psn: Psn::new(psn),
        ack_requested: false,
        solicited: false,
        deth: Deth { qkey: 0, src_qpn },
        content,
        // It is in the record, and so far shorter than 4 GiB.
        payload: Fragment { offset: 0, length: length as u32 },
    })
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn qpns(words: &[u64; REQUEST_WORDS]) -> Result<(u32, u32), RecordError> {
    let (dst, src) = halves(words[1]);
    if (dst | src) >> 24 == 0 { Ok((dst, src)) } else { Err(unknown(words)) }
}

/// A record that says what cannot be said.
#[cold]
pub fn unknown(words: &[u64; REQUEST_WORDS]) -> RecordError {
    RecordError::Unknown { word0: words[0], word1: words[1] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request whose every field is different.
    fn request(service: ServiceType, opcode: Opcode) -> Request {
        let ud = service == ServiceType::Ud;
        Request {
            src_qpn: 0x12_3456,
            dst_qpn: 0xfe_dcba,
            service,
            opcode,
            psn: Psn::new(0xab_cdef),
            solicited: true,
            ack_requested: false,
            imm: [1, 2, 3, 4],
            remote_va: 0x1122_3344_5566_7788,
            rkey: 0x99aa_bbcc,
            length: 100,
            swap_add: if ud { 0 } else { 0xdead_beef_0000_0001 },
            compare: 0x0102_0304_0506_0708,
            qkey: if ud { 0x1111_2222 } else { 0 },
            fragment: Fragment { offset: 40, length: 60 },
        }
    }

    fn total(request: &Request, form: Form) -> usize {
        8 * (REQUEST_WORDS + if carries_path(request) { PATH_WORDS } else { 0 }) + form.padded()
    }

    #[test]
    fn a_request_comes_out_as_it_went_in() {
        for service in SERVICES {
            for opcode in Opcode::ALL {
                for form in [Form::Inline(60), Form::None] {
                    if (form == Form::None) != opcode.wants_response() {
                        continue;
                    }
                    let sent = request(service, opcode);
                    let words = encode_request(&sent, form);
                    let len = record_len(words[0], 1 << 20).unwrap();
                    assert_eq!(len, total(&sent, form), "{service:?} {opcode:?} {form:?}");
                    let (got, path, got_form) = decode_request(&words, len).unwrap();
                    assert_eq!((got, got_form), (sent, form));
                    assert_eq!(path, service == ServiceType::Ud);
                }
            }
        }
    }

    #[test]
    fn an_answer_comes_out_as_it_went_in() {
        let aeth = |syndrome| Aeth { syndrome, msn: 0xff_fffe };
        let read = |position, with| Content::ReadResponse {
            position,
            aeth: if with { Some(aeth(Syndrome::Ack)) } else { None },
        };
        let naks = NAKS.map(|code| (Content::Acknowledge(aeth(Syndrome::Nak(code))), 0));
        let others = [
            (Content::Acknowledge(aeth(Syndrome::Ack)), 0),
            (Content::Acknowledge(aeth(Syndrome::RnrNak { timer: 31 })), 0),
            (Content::AtomicAcknowledge { aeth: aeth(Syndrome::Ack), old: u64::MAX - 1 }, 0),
            (read(Position::Only, true), 0),
            (read(Position::First, true), 4096),
            (read(Position::Middle, false), 8192),
            (read(Position::Last, true), 33),
        ];
        for (content, length) in naks.into_iter().chain(others) {
            let sent = Packet {
                service: ServiceType::Rc,
                dst_qpn: 0xff_ffff,
                psn: Psn::new(7),
                ack_requested: false,
                solicited: false,
                deth: Deth { qkey: 0, src_qpn: 1 },
                content,
                payload: Fragment { offset: 0, length },
            };
            let mut words = [0; REQUEST_WORDS];
            words[..REPLY_WORDS].copy_from_slice(&encode_reply(&sent, length));
            let len = record_len(words[0], 1 << 20).unwrap();
            assert_eq!(decode_reply(&words, len), Ok(sent));
            if content.position().ends() && length > 0 {
                words[..REPLY_WORDS].copy_from_slice(&encode_reply(&sent, length - 1));
                let got = decode_reply(&words, record_len(words[0], 1 << 20).unwrap()).unwrap();
                assert!(!got.content.position().ends(), "the rest of it is to come");
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
        let sent = request(ServiceType::Rc, Opcode::Write);
        let good = encode_request(&sent, Form::Inline(60));
        let len = good[0] as u32 as usize;
        assert!(decode_request(&good, len).is_ok());
        assert!(decode_reply(&good, len).is_err(), "a request among the replies");
        let byte =
            |n: u32, value: u64| move |w: &mut [u64; 8]| w[0] = w[0] & !(0xff << (8 * n)) | value << (8 * n);
        type Change = Box<dyn Fn(&mut [u64; 8])>;
        let cases: Vec<(&str, Change)> = vec![
            ("kind 0", Box::new(byte(4, 0))),
            ("kind 3", Box::new(byte(4, 3))),
            ("opcode 8", Box::new(byte(5, 8))),
            ("service 3", Box::new(byte(5, 0x33))),
            ("an unknown flag", Box::new(byte(6, 0x80 | 8))),
            ("a reply's flag", Box::new(byte(6, 32 | 8))),
            ("a flag without a meaning", Box::new(byte(6, 8 | 16))),
            ("a path without UD", Box::new(byte(6, 4 | 8))),
            ("a payload that is not there", Box::new(byte(6, 0))),
            ("a last byte", Box::new(byte(7, 1))),
            ("a destination beyond 24 bits", Box::new(|w| w[1] |= 1 << 24)),
            ("a source beyond 24 bits", Box::new(|w| w[1] |= 1 << 63)),
            ("a PSN beyond 24 bits", Box::new(|w| w[2] |= 1 << 24)),
            ("a fragment beyond the message", Box::new(|w| w[5] = 41 | (60 << 32))),
            ("a fragment that wraps", Box::new(|w| w[5] = 0xffff_ffff | (60 << 32))),
            ("more inline bytes than the record has", Box::new(|w| w[5] = (65 << 32) | 35)),
            ("fewer inline bytes than the record has", Box::new(|w| w[5] = 8 << 32)),
        ];
        for (name, change) in cases {
            let mut words = good;
            change(&mut words);
            let decoded = decode_request(&words, len);
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
        for round in 0..300_000u64 {
            let opcode = Opcode::ALL[round as usize % 8];
            let service = SERVICES[round as usize / 8 % 3];
            let mut words = encode_request(&request(service, opcode), Form::Inline(60));
            for _ in 0..random(&mut state) % 4 {
                let (word, bit) = (random(&mut state) as usize % 8, random(&mut state) % 64);
                words[word] ^= 1 << bit;
            }
            let Ok(len) = record_len(words[0], 4096) else { continue };
            match decode_request(&words, len) {
                Ok((request, _, form)) => {
                    accepted += 1;
                    assert!(
                        request.fragment.offset as u64 + request.fragment.length as u64
                            <= request.length as u64
                    );
                    assert!(total(&request, form) == len, "{request:?} {form:?} in {len} bytes");
                }
                Err(_) => refused += 1,
            }
            if let Ok(packet) = decode_reply(&words, len) {
                assert!(packet.payload.length as usize + 8 * REPLY_WORDS <= len);
            }
        }
        assert!(accepted > 50_000 && refused > 50_000, "{accepted} accepted, {refused} refused");
    }
}
