//! Messages that arrived, as the values of an entry.
//!
//! Those of shared memory are words of its records ([`record`]), packets the headers as they are on the wire.

use std::net::{IpAddr, Ipv6Addr};

use mlx5_device::carrier::{Message, PathAddress};
use roce::wire::packet::{Extended, MAX_HEADER_BYTES};
use roce::wire::{self, Bth, MAX_PAYLOAD_BYTES};
use roce::{Fragment, Packet, Request, ServiceType};

use super::entry::Tag;
use crate::link::path_of_wire;
use crate::link::record::{self, Form, PATH_WORDS, REPLY_WORDS, REQUEST_WORDS};

pub const REQUEST_VALUES: usize = REQUEST_WORDS + 1;
pub const DATAGRAM_VALUES: usize = REQUEST_VALUES + PATH_WORDS;
pub const REPLY_VALUES: usize = REPLY_WORDS + 1;

/// Words of the longest headers.
const HEADER_WORDS: usize = MAX_HEADER_BYTES.div_ceil(8);
/// Fragment, length of the headers, two addresses, the headers.
pub const PACKET_VALUES: usize = 6 + HEADER_WORDS;

/// What the device is told of a message beside it: path, port and bytes of payload.
pub type Facts = (Option<PathAddress>, Option<u8>, u32);

/// Eight bytes of memory, big-endian: most of it is.
#[inline]
pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes[8 * at..].first_chunk().map_or(0, |eight| u64::from_be_bytes(*eight))
}

fn of_port(port: Option<u8>) -> u64 {
    port.map_or(0, |port| u64::from(port) + 1)
}

fn port_of(value: u64) -> Option<Option<u8>> {
    if value == 0 { Some(None) } else { u8::try_from(value - 1).ok().map(Some) }
}

#[inline]
pub fn of_request(request: &Request, port: Option<u8>) -> [u64; REQUEST_VALUES] {
    let carries = request.opcode.carries_payload();
    let form = if carries { Form::Inline(request.fragment.length) } else { Form::None };
    let words = record::encode_request(request, form);
    std::array::from_fn(|at| words.get(at).copied().unwrap_or(of_port(port)))
}

pub fn of_datagram(request: &Request, port: Option<u8>, path: &PathAddress) -> [u64; DATAGRAM_VALUES] {
    let (request, path) = (of_request(request, port), record::encode_path(path));
    std::array::from_fn(|at| *request.get(at).unwrap_or_else(|| &path[at - REQUEST_VALUES]))
}

#[inline]
pub fn of_reply(packet: &Packet, port: Option<u8>) -> [u64; REPLY_VALUES] {
    let words = record::encode_reply(packet, packet.payload.length);
    std::array::from_fn(|at| words.get(at).copied().unwrap_or(of_port(port)))
}

pub fn of_packet(packet: &Packet, from: IpAddr, at: IpAddr) -> [u64; PACKET_VALUES] {
    let Fragment { offset, length } = packet.payload;
    let mut headers = [0; 8 * HEADER_WORDS];
    let payload = &[0; MAX_PAYLOAD_BYTES][..MAX_PAYLOAD_BYTES.min(length as usize)];
    let emitted = packet.to_wire(payload).and_then(|packet| packet.emit_headers(&mut headers).ok());
    let [from, at] = [from, at].map(|address| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    });
    let [from_high, at_high] = [from, at].map(|bits| (bits >> 64) as u64);
    let head = [
        u64::from(offset) | u64::from(length) << 32,
        emitted.unwrap_or(0) as u64,
        from_high,
        from as u64,
        at_high,
        at as u64,
    ];
    std::array::from_fn(|at| head.get(at).copied().unwrap_or_else(|| word_at(&headers, at - head.len())))
}

/// The message of an entry's values; `None` for what is none.
pub fn decode(tag: Tag, values: &[u64]) -> Option<(Message, Facts)> {
    match tag {
        Tag::Request | Tag::Datagram => {
            let (words, rest) = values.split_first_chunk::<REQUEST_WORDS>()?;
            let (port, path) = rest.split_first()?;
            let (request, has_path, form) = record::decode_request(words, words[0] as u32 as usize).ok()?;
            let path = if has_path { Some(record::decode_path(*path.first_chunk()?)) } else { None };
            let len = if form == Form::None { 0 } else { request.fragment.length };
            Some((Message::Request(request), (path, port_of(*port)?, len)))
        }
        Tag::Reply => {
            let (words, rest) = values.split_first_chunk::<REPLY_WORDS>()?;
            let mut header = [0; REQUEST_WORDS];
            header[..REPLY_WORDS].copy_from_slice(words);
            let len = (words[0] as u32 as usize).max(8 * REPLY_WORDS);
            let packet = record::decode_reply(&header, len).ok()?;
            Some((Message::Record(packet), (None, port_of(*rest.first()?)?, packet.payload.length)))
        }
        Tag::Packet => packet_of(values),
        _ => None,
    }
}

fn packet_of(values: &[u64]) -> Option<(Message, Facts)> {
    let ([fragment, len, from_high, from, at_high, at], headers) = values.split_first_chunk()?;
    let [from, at] = [(from_high, from), (at_high, at)]
        .map(|(high, low)| Ipv6Addr::from_bits(u128::from(*high) << 64 | u128::from(*low)).to_canonical());
    let headers: Vec<u8> = headers.iter().flat_map(|word| word.to_be_bytes()).collect();
    let headers = headers.get(..usize::try_from(*len).ok()?)?;
    let bth = Bth::parse(headers).ok()?;
    let extended = Extended::parse(bth.opcode.headers(), &headers[Bth::BYTES..]).ok()?;
    let fragment = Fragment { offset: *fragment as u32, length: (fragment >> 32) as u32 };
    let payload = [0; MAX_PAYLOAD_BYTES];
    let payload = payload.get(..fragment.length as usize)?;
    let packet = Packet::from_wire(&wire::Packet { bth, extended, payload })?;
    let packet = Packet { payload: fragment, ..packet };
    let path = (packet.service == ServiceType::Ud).then(|| path_of_wire(from, at));
    Some((Message::Packet { packet, from, at }, (path, None, fragment.length)))
}

#[cfg(test)]
mod tests {
    use roce::packet::{Aeth, Deth, Syndrome};
    use roce::{Content, NakCode, Opcode, Position, Psn};

    use super::*;

    #[test]
    fn messages_of_every_kind_are_decoded_as_they_were() {
        let [ack, nak] =
            [Syndrome::Ack, Syndrome::Nak(NakCode::RemoteAccess)].map(|syndrome| Aeth { syndrome, msn: 4 });
        for (content, length) in [
            (Content::Acknowledge(ack), 0),
            (Content::Acknowledge(nak), 0),
            (Content::ReadResponse { position: Position::Only, aeth: Some(ack) }, 100),
            (Content::AtomicAcknowledge { aeth: ack, old: 5 }, 0),
        ] {
            let answer = Packet {
                service: ServiceType::Rc,
                dst_qpn: 2,
                psn: Psn::new(3),
                ack_requested: false,
                solicited: false,
                deth: Deth { qkey: 0, src_qpn: 1 },
                content,
                payload: Fragment { offset: 0, length },
            };
            let values = of_reply(&answer, Some(2));
            assert_eq!(decode(Tag::Reply, &values), Some((Message::Record(answer), (None, Some(2), length))));
        }
        let path = PathAddress { dlid: 5, dgid: [7; 16], hop_limit: 3, grh: true, ..PathAddress::default() };
        for opcode in Opcode::ALL {
            let fragment = Fragment { offset: 0, length: 100 };
            let request = Request { opcode, length: 100, fragment, ..Request::default() };
            let len = if opcode.carries_payload() { 100 } else { 0 };
            let decoded = decode(Tag::Request, &of_request(&request, Some(1)));
            assert_eq!(decoded, Some((Message::Request(request), (None, Some(1), len))), "{opcode}");
            let datagram = Request { service: ServiceType::Ud, ..request };
            let decoded = decode(Tag::Datagram, &of_datagram(&datagram, Some(1), &path));
            assert_eq!(decoded, Some((Message::Request(datagram), (Some(path), Some(1), len))), "{opcode}");
        }
    }

    #[test]
    fn values_that_are_no_message_are_none() {
        let values = of_request(&Request::default(), Some(1));
        for len in 0..values.len() {
            assert_eq!(decode(Tag::Request, &values[..len]), None, "{len} values");
        }
        assert_eq!(decode(Tag::Packet, &[u64::MAX; PACKET_VALUES]), None);
        assert_eq!(decode(Tag::Reply, &[u64::MAX; REPLY_VALUES]), None);
    }
}
