//! Packets that arrived, as the values of an entry.
//!
//! Those of shared memory are words of its records ([`record`]), those of the wire the headers as they are there.

use std::net::{IpAddr, Ipv6Addr};

use mlx5_device::carrier::PathAddress;
use roce::wire::packet::{Extended, MAX_HEADER_BYTES};
use roce::wire::{self, Bth, MAX_PAYLOAD_BYTES};
use roce::{Fragment, Packet, ServiceType};

use super::entry::Tag;
use crate::link::path_of_wire;
use crate::link::record::{self, PATH_WORDS, REQUEST_WORDS};

pub const RECORD_VALUES: usize = REQUEST_WORDS + 1;
pub const DATAGRAM_VALUES: usize = RECORD_VALUES + PATH_WORDS;

/// Words of the longest headers.
const HEADER_WORDS: usize = MAX_HEADER_BYTES.div_ceil(8);
/// Fragment, length of the headers, two addresses, the headers.
pub const PACKET_VALUES: usize = 6 + HEADER_WORDS;

/// What the device is told of a packet beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub path: Option<PathAddress>,
    pub to_port: Option<u8>,
    /// On the wire: where it came from, and where to.
    pub addresses: Option<(IpAddr, IpAddr)>,
}

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
pub fn of_record(packet: &Packet, port: Option<u8>) -> [u64; RECORD_VALUES] {
    let words = record::encode(packet, packet.payload.length);
    std::array::from_fn(|at| words.get(at).copied().unwrap_or(of_port(port)))
}

pub fn of_datagram(packet: &Packet, port: Option<u8>, path: &PathAddress) -> [u64; DATAGRAM_VALUES] {
    let (words, path) = (of_record(packet, port), record::encode_path(path));
    std::array::from_fn(|at| *words.get(at).unwrap_or_else(|| &path[at - RECORD_VALUES]))
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

/// The packet of an entry's values; `None` for what is none.
pub fn decode(tag: Tag, values: &[u64]) -> Option<(Packet, Facts)> {
    if tag == Tag::Packet {
        return packet_of(values);
    }
    let (words, rest) = values.split_first_chunk::<REQUEST_WORDS>()?;
    let (port, path) = rest.split_first()?;
    let len = words[0] as u32 as usize;
    let decoded =
        [true, false].into_iter().find_map(|is_request| record::decode(words, len, is_request).ok());
    let packet = decoded.filter(|_| matches!(tag, Tag::Record | Tag::Datagram))?;
    let path =
        if record::carries_path(&packet) { Some(record::decode_path(*path.first_chunk()?)) } else { None };
    Some((packet, Facts { path, to_port: port_of(*port)?, addresses: None }))
}

fn packet_of(values: &[u64]) -> Option<(Packet, Facts)> {
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
    Some((packet, Facts { path, to_port: None, addresses: Some((from, at)) }))
}

#[cfg(test)]
mod tests {
    use roce::packet::{Aeth, Deth, Reth, Syndrome};
    use roce::{Content, NakCode, Opcode, Position, Psn};

    use super::*;

    #[test]
    fn packets_of_every_kind_are_decoded_as_they_were() {
        let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 4 };
        let ack = Aeth { syndrome: Syndrome::Ack, ..aeth };
        let answers = [
            Content::Acknowledge(ack),
            Content::Acknowledge(aeth),
            Content::ReadResponse { position: Position::Only, aeth: Some(ack) },
            Content::AtomicAcknowledge { aeth: ack, old: 5 },
        ];
        let reth = Reth { va: 1 << 40, rkey: 7, dma_bytes: 100 };
        let requests = Opcode::ALL.map(|opcode| Content::request(opcode, [1, 2, 3, 4], reth, [5, 6]));
        let path = PathAddress { dlid: 5, dgid: [7; 16], hop_limit: 3, grh: true, ..PathAddress::default() };
        let facts = Facts { path: None, to_port: Some(2), addresses: None };
        for content in answers.into_iter().chain(requests) {
            let carries = matches!(
                content,
                Content::Send { .. } | Content::Write { .. } | Content::ReadResponse { .. }
            );
            let packet = Packet {
                dst_qpn: 2,
                psn: Psn::new(3),
                deth: Deth { qkey: 0, src_qpn: 1 },
                content,
                payload: Fragment { offset: 0, length: if carries { 100 } else { 0 } },
                ..Packet::default()
            };
            assert_eq!(decode(Tag::Record, &of_record(&packet, Some(2))), Some((packet, facts)));
            // Datagrams are not answered, and have a Q_Key where atomics have their operand.
            if !content.is_request() || matches!(content, Content::CompareSwap(_) | Content::FetchAdd(_)) {
                continue;
            }
            let datagram = Packet { service: ServiceType::Ud, ..packet };
            let decoded = decode(Tag::Datagram, &of_datagram(&datagram, Some(2), &path));
            assert_eq!(decoded, Some((datagram, Facts { path: Some(path), ..facts })));
        }
    }

    #[test]
    fn values_that_are_no_packet_are_none() {
        let values = of_record(&Packet::default(), Some(1));
        for len in 0..values.len() {
            assert_eq!(decode(Tag::Record, &values[..len]), None, "{len} values");
        }
        assert_eq!(decode(Tag::Packet, &[u64::MAX; PACKET_VALUES]), None);
        assert_eq!(decode(Tag::Record, &[u64::MAX; RECORD_VALUES]), None);
    }
}
