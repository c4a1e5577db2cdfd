//! Values as 64-bit words: commands, messages and answers, as a recording has them.
//!
//! Every structure is taken apart with all its fields, so a new field does not compile until it is here too. Words from a file are
//! unchecked: [`Take`] gives `None` for what is no value, and the device checks the rest as it does a program's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use mlx5_device::carrier::{Icrc, Message, PathAddress, Payload, Position, Sent, Unsent};
use mlx5_device::command::*;
use mlx5_device::faults::{Injection, InjectionKind, Settings};
use mlx5_device::memory::{Fault, Order, Segment};
use mlx5_device::threads::ThreadTime;
use mlx5_device::{Span, UarKind};
use mlx5_layout::CqeSyndrome;
use roce::wire::packet::{Extended, MAX_HEADER_BYTES};
use roce::wire::{self, Bth, MAX_PAYLOAD_BYTES};
use roce::{Fragment, Now, Packet, Reply, Request, ServiceType};

use crate::link::record::{self, Form};

/// Longest text that is kept, bytes.
const MAX_TEXT: usize = 4096;

/// Takes the words of a value.
pub trait Sink {
    fn push(&mut self, word: u64);
}

impl Sink for Vec<u64> {
    fn push(&mut self, word: u64) {
        Vec::push(self, word);
    }
}

pub trait Put {
    fn put(&self, out: &mut impl Sink);
}

/// The words of a value.
pub fn words_of(value: &impl Put) -> Vec<u64> {
    let mut words = Vec::new();
    value.put(&mut words);
    words
}

/// Words not yet read.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a>(pub &'a [u64]);

impl Words<'_> {
    pub fn word(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u64; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

pub trait Take: Sized {
    fn take(words: &mut Words<'_>) -> Option<Self>;
}

macro_rules! integers {
    ($($type:ty),*) => { $(
        impl Put for $type {
            fn put(&self, out: &mut impl Sink) {
                out.push(*self as u64);
            }
        }
        impl Take for $type {
            fn take(words: &mut Words<'_>) -> Option<Self> {
                <$type>::try_from(words.word()?).ok()
            }
        }
    )* };
}
integers!(u8, u16, u32, u64, usize, i32);

/// A structure is its fields in a row.
macro_rules! fields {
    ($($type:ident { $($field:tt),* })*) => { $(
        impl Put for $type {
            fn put(&self, out: &mut impl Sink) {
                let Self { $($field),* } = self;
                $($field.put(out);)*
            }
        }
        impl Take for $type {
            fn take(words: &mut Words<'_>) -> Option<Self> {
                Some(Self { $($field: Take::take(words)?),* })
            }
        }
    )* };
}
fields! {
    AddressVector { dlid, dgid, sgid_index, sl, flow_label, hop_limit, traffic_class, port }
    AllocMw { pd, kind }
    AllocatedMw { handle, rkey }
    AllocatedPd { handle, pdn }
    AllocatedUar { handle, page_id }
    CommandError { errno, reason }
    CreateCq { cqe, cqe_size, buffer, record, user_handle, channel, ignore_overrun }
    CreateQp {
        service, pd, send_cq, recv_cq, srq, cap, user_handle, signal_all, buffer, record, sq_wqe_count, rq_wqe_count,
        rq_wqe_shift, mlx5_flags, user_index, uar_page
    }
    CreateSrq { pd, max_wr, max_sge, user_handle, buffer, record }
    CreatedAh { handle, dmac }
    CreatedCq { handle, cqn }
    CreatedQp { handle, qpn, cap }
    CreatedSrq { handle, srqn, max_wr, max_sge }
    DestroyedCq { completion_events, async_events }
    Fault { addr }
    Fragment { offset, length }
    Injection { qpn, kind }
    ModifyQp {
        mask, state, current_state, path_mtu, qkey, rq_psn, sq_psn, dest_qpn, access, address, pkey_index, port, timeout,
        retry_count, rnr_retry, min_rnr_timer, max_rd_atomic, max_dest_rd_atomic, sq_draining
    }
    ModifySrq { mask, limit }
    MrKeys { handle, lkey, rkey }
    PathAddress { sgid, dgid, slid, dlid, flow_label, sl, traffic_class, hop_limit, grh, to_port }
    Position { channel, offset }
    QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    RegMr { start, length, iova, pd, access }
    ReregMr { mr, flags, start, length, iova, pd, access }
    ResizeCq { cqe, cqe_size, buffer }
    Segment { addr, len }
    Sent { position, carried }
    Settings { loss, seed, delay, rate_gbps, messages_per_second }
    ThreadTime { tid, runnable, cpu_ns }
}

/// A structure of one field without a name.
macro_rules! wrapped {
    ($($type:ident),*) => { $(
        impl Put for $type {
            fn put(&self, out: &mut impl Sink) {
                self.0.put(out);
            }
        }
        impl Take for $type {
            fn take(words: &mut Words<'_>) -> Option<Self> {
                Take::take(words).map($type)
            }
        }
    )* };
}
wrapped!(ContextId, Now, Span);

/// A variant is its place in the list.
macro_rules! variants {
    ($($type:ty: $($variant:ident),*;)*) => { $(
        impl Put for $type {
            fn put(&self, out: &mut impl Sink) {
                let all = [$(Self::$variant),*];
                out.push(all.iter().position(|variant| variant == self).unwrap_or(all.len()) as u64);
            }
        }
        impl Take for $type {
            fn take(words: &mut Words<'_>) -> Option<Self> {
                [$(Self::$variant),*].get(usize::take(words)?).copied()
            }
        }
    )* };
}
variants! {
    Icrc: Right, Wrong;
    Order: Increasing, Relaxed;
    ServiceType: Rc, Uc, Ud;
    UarKind: BlueFlame, NonCached;
}

macro_rules! tuples {
    ($(($($name:ident)*);)*) => { $(
        impl<$($name: Put),*> Put for ($($name,)*) {
            #[allow(non_snake_case, reason = "a value is named after its type")]
            fn put(&self, _out: &mut impl Sink) {
                let ($($name,)*) = self;
                $($name.put(_out);)*
            }
        }
        impl<$($name: Take),*> Take for ($($name,)*) {
            fn take(_words: &mut Words<'_>) -> Option<Self> {
                Some(($($name::take(_words)?,)*))
            }
        }
    )* };
}
tuples! { (); (A); (A B); (A B C); (A B C D); }

impl<T: Put> Put for &T {
    fn put(&self, out: &mut impl Sink) {
        T::put(self, out);
    }
}

impl Put for bool {
    fn put(&self, out: &mut impl Sink) {
        out.push((*self).into());
    }
}

impl Take for bool {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        words.word().map(|word| word != 0)
    }
}

impl Put for f64 {
    fn put(&self, out: &mut impl Sink) {
        out.push(self.to_bits());
    }
}

impl Take for f64 {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        words.word().map(f64::from_bits)
    }
}

impl<T: Put> Put for Option<T> {
    fn put(&self, out: &mut impl Sink) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
}

impl<T: Take> Take for Option<T> {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        if bool::take(words)? { T::take(words).map(Some) } else { Some(None) }
    }
}

impl<T: Put, E: Put> Put for Result<T, E> {
    fn put(&self, out: &mut impl Sink) {
        self.is_err().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }
}

impl<T: Take, E: Take> Take for Result<T, E> {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        if bool::take(words)? { E::take(words).map(Err) } else { T::take(words).map(Ok) }
    }
}

/// Eight bytes a word, without their count.
fn put_bytes(bytes: &[u8], out: &mut impl Sink) {
    let (whole, rest) = bytes.as_chunks();
    whole.iter().for_each(|eight| out.push(u64::from_le_bytes(*eight)));
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        out.push(u64::from_le_bytes(last));
    }
}

impl<const N: usize> Put for [u8; N] {
    fn put(&self, out: &mut impl Sink) {
        put_bytes(self, out);
    }
}

impl<const N: usize> Take for [u8; N] {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        take_bytes(words, N)?.try_into().ok()
    }
}

impl Put for &[u8] {
    fn put(&self, out: &mut impl Sink) {
        self.len().put(out);
        put_bytes(self, out);
    }
}

fn take_bytes(words: &mut Words<'_>, len: usize) -> Option<Vec<u8>> {
    let (bytes, rest) = words.0.split_at_checked(len.div_ceil(8))?;
    words.0 = rest;
    let mut bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(len);
    Some(bytes)
}

impl Take for Vec<u8> {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        let len = usize::take(words)?;
        take_bytes(words, len)
    }
}

impl Put for String {
    fn put(&self, out: &mut impl Sink) {
        (&self.as_bytes()[..self.len().min(MAX_TEXT)]).put(out);
    }
}

impl Take for String {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        Some(String::from_utf8_lossy(&Vec::take(words)?).into_owned())
    }
}

impl<T: Put> Put for Vec<T> {
    fn put(&self, out: &mut impl Sink) {
        self.len().put(out);
        self.iter().for_each(|value| value.put(out));
    }
}

impl Take for Vec<ThreadTime> {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        (0..usize::take(words)?).map(|_| ThreadTime::take(words)).collect()
    }
}

impl Put for &[Segment] {
    fn put(&self, out: &mut impl Sink) {
        self.len().put(out);
        self.iter().for_each(|segment| segment.put(out));
    }
}

/// An IPv4 address is one word.
impl Put for IpAddr {
    fn put(&self, out: &mut impl Sink) {
        match self {
            IpAddr::V4(address) => out.push(address.to_bits().into()),
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                [u64::MAX, (bits >> 64) as u64, bits as u64].into_iter().for_each(|word| out.push(word));
            }
        }
    }
}

impl Take for IpAddr {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        let first = words.word()?;
        if let Ok(bits) = u32::try_from(first) {
            return Some(IpAddr::V4(Ipv4Addr::from_bits(bits)));
        }
        let [high, low] = words.array()?;
        Some(IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))))
    }
}

impl Put for Unsent {
    fn put(&self, out: &mut impl Sink) {
        match self {
            Unsent::Full => out.push(0),
            Unsent::Unreachable => out.push(1),
            Unsent::Fault(fault) => (2_u64, fault).put(out),
            Unsent::Failed(syndrome) => (3_u64, syndrome.to_u8()).put(out),
        }
    }
}

impl Take for Unsent {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        Some(match words.word()? {
            0 => Unsent::Full,
            1 => Unsent::Unreachable,
            2 => Unsent::Fault(Fault::take(words)?),
            3 => Unsent::Failed(CqeSyndrome::from_u8(u8::take(words)?)?),
            _ => return None,
        })
    }
}

impl Put for InjectionKind {
    fn put(&self, out: &mut impl Sink) {
        match self {
            InjectionKind::Drop(psn) => (0_u64, psn).put(out),
            InjectionKind::ErrorCqe(syndrome) => (1_u64, syndrome.to_u8()).put(out),
            InjectionKind::CorruptCrc => out.push(2),
            InjectionKind::DelayRead(us) => (3_u64, us).put(out),
        }
    }
}

impl Take for InjectionKind {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        Some(match words.word()? {
            0 => InjectionKind::Drop(Take::take(words)?),
            1 => InjectionKind::ErrorCqe(CqeSyndrome::from_u8(u8::take(words)?)?),
            2 => InjectionKind::CorruptCrc,
            3 => InjectionKind::DelayRead(Take::take(words)?),
            _ => return None,
        })
    }
}

/// The bytes of inline data; of other payload only where it lies.
impl Put for Payload<'_> {
    fn put(&self, out: &mut impl Sink) {
        match self {
            Payload::Nothing => out.push(0),
            Payload::Inline(bytes) => (1_u64, bytes).put(out),
            Payload::Segments(segments) => (2_u64, segments).put(out),
        }
    }
}

/// A payload that is read past.
pub struct AnyPayload;

impl Take for AnyPayload {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        let count = match words.word()? {
            0 => 0,
            1 => usize::take(words)?.div_ceil(8),
            2 => usize::take(words)?.checked_mul(2)?,
            _ => return None,
        };
        words.0 = words.0.get(count..)?;
        Some(AnyPayload)
    }
}

/// As a record of shared memory has it.
impl Put for Request {
    fn put(&self, out: &mut impl Sink) {
        let carries = self.opcode.carries_payload();
        let form = if carries { Form::Inline(self.fragment.length) } else { Form::None };
        record::encode_request(self, form).into_iter().for_each(|word| out.push(word));
    }
}

impl Take for Request {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        let mut header = words.array()?;
        // Without its payload: the device asks for all that is left of a message, and a record carries less.
        let length = (header[5] >> 32) as u32;
        header[5] &= 0xffff_ffff;
        let lens = [record::REQUEST_WORDS, record::REQUEST_WORDS + record::PATH_WORDS];
        let (request, ..) = lens.iter().find_map(|len| record::decode_request(&header, 8 * len).ok())?;
        let fragment = Fragment { length, ..request.fragment };
        let end = u64::from(fragment.offset) + u64::from(length);
        (end <= request.length.into()).then_some(Request { fragment, ..request })
    }
}

/// A reply with the piece of its answer that comes with it: offset, length, and whether it is the last.
pub struct ReplyPiece(pub Reply, pub u32, pub u32, pub bool);

impl Put for ReplyPiece {
    fn put(&self, out: &mut impl Sink) {
        let ReplyPiece(reply, offset, len, last) = self;
        record::encode_reply(reply, *offset, *len, *last).into_iter().for_each(|word| out.push(word));
    }
}

impl Take for ReplyPiece {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        let mut header = [0; record::REQUEST_WORDS];
        header[..record::REPLY_WORDS].copy_from_slice(&words.array::<{ record::REPLY_WORDS }>()?);
        let len = (header[0] as u32 as usize).max(8 * record::REPLY_WORDS);
        let piece = record::decode_reply(&header, len).ok()?;
        Some(ReplyPiece(piece.reply, piece.offset, piece.len, piece.last))
    }
}

/// The headers as they are on the wire, and which bytes of its message it carries.
impl Put for Packet {
    fn put(&self, out: &mut impl Sink) {
        let mut headers = [0; MAX_HEADER_BYTES];
        let payload = &[0; MAX_PAYLOAD_BYTES][..MAX_PAYLOAD_BYTES.min(self.payload.length as usize)];
        let emitted = self.to_wire(payload).and_then(|packet| packet.emit_headers(&mut headers).ok());
        (self.payload, &headers[..emitted.unwrap_or(0)]).put(out);
    }
}

impl Take for Packet {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        let (fragment, headers) = <(Fragment, Vec<u8>)>::take(words)?;
        let bth = Bth::parse(&headers).ok()?;
        let extended = Extended::parse(bth.opcode.headers(), &headers[Bth::BYTES..]).ok()?;
        let payload = [0; MAX_PAYLOAD_BYTES];
        let payload = payload.get(..fragment.length as usize)?;
        let packet = Packet::from_wire(&wire::Packet { bth, extended, payload })?;
        Some(Packet { payload: fragment, ..packet })
    }
}

impl Put for Message {
    fn put(&self, out: &mut impl Sink) {
        match self {
            Message::Request(request) => (0_u64, request).put(out),
            Message::Reply { reply, offset, last } => {
                (1_u64, ReplyPiece(*reply, *offset, 0, *last), *offset).put(out);
            }
            Message::Packet { packet, from, at } => (2_u64, packet, from, at).put(out),
        }
    }
}

impl Take for Message {
    fn take(words: &mut Words<'_>) -> Option<Self> {
        Some(match words.word()? {
            0 => Message::Request(Request::take(words)?),
            1 => {
                let (ReplyPiece(reply, _, _, last), offset) = Take::take(words)?;
                Message::Reply { reply, offset, last }
            }
            2 => {
                let (packet, from, at) = Take::take(words)?;
                Message::Packet { packet, from, at }
            }
            _ => return None,
        })
    }
}

/// Path, port and bytes of payload of a message that arrived.
pub type Facts = (Option<PathAddress>, Option<u8>, u32);

/// Numbers of the commands that say what an object is.
pub mod number {
    pub const CLOSE: u64 = 2;
    pub const CREATE_CQ: u64 = 10;
    pub const RESIZE_CQ: u64 = 11;
    pub const DESTROY_CQ: u64 = 12;
    pub const CREATE_QP: u64 = 13;
    pub const MODIFY_QP: u64 = 14;
    pub const DESTROY_QP: u64 = 15;
}

#[cfg(test)]
mod tests {
    use mlx5_device::carrier::Message;
    use roce::{NakCode, Opcode, Psn, ReplyKind};

    use super::*;

    fn back<T: Put + Take>(value: &T) -> Option<T> {
        let words = words_of(value);
        let mut rest = Words(&words);
        let back = T::take(&mut rest);
        assert!(rest.0.is_empty(), "{} words are left", rest.0.len());
        back
    }

    #[test]
    fn what_is_put_is_taken_and_one_word_short_is_none() {
        let address = AddressVector { dgid: Some([7; 16]), port: 1, ..AddressVector::default() };
        let command = ModifyQp { mask: 5, dest_qpn: 9, address, sq_draining: true, ..ModifyQp::default() };
        let words = words_of(&command);
        assert_eq!(format!("{:?}", back(&command).unwrap()), format!("{command:?}"));
        for len in 0..words.len() {
            assert!(ModifyQp::take(&mut Words(&words[..len])).is_none(), "{len} words");
        }
        let settings = Settings { rate_gbps: Some(None), loss: Some(0.25), ..Settings::default() };
        assert_eq!(back(&settings), Some(settings));
        let refused: mlx5_device::Answer<u32> =
            Err(CommandError { errno: 22, reason: "QP 7 does not exist".into() });
        assert_eq!(back(&refused), Some(refused));
        for address in ["10.0.0.1", "fd00::1"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(back(&address), Some(address));
        }
        assert_eq!(back(&[1_u8, 2, 3, 4, 5, 6]), Some([1, 2, 3, 4, 5, 6]));
    }

    #[test]
    fn messages_of_every_kind_are_taken_as_they_were_put() {
        let reply = Reply { src_qpn: 1, dst_qpn: 2, psn: Psn::new(3), msn: 4, kind: ReplyKind::Ack };
        let nak = ReplyKind::Nak(NakCode::RemoteAccess);
        for kind in [ReplyKind::Ack, nak, ReplyKind::ReadResponse, ReplyKind::AtomicResponse { old: 5 }] {
            let message = Message::Reply { reply: Reply { kind, ..reply }, offset: 4096, last: true };
            assert_eq!(back(&message), Some(message));
        }
        for opcode in Opcode::ALL {
            for service in [ServiceType::Rc, ServiceType::Ud] {
                for length in [100, 1 << 20] {
                    let fragment = Fragment { offset: 0, length };
                    let request = Request { opcode, service, length, fragment, ..Request::default() };
                    assert_eq!(back(&Message::Request(request)), Some(Message::Request(request)), "{opcode}");
                }
            }
        }
    }
}
