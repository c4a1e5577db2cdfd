//! Packets that arrived, as the values of an entry.
//!
//! Those of shared memory are words of its records ([`record`]), those of the wire the headers as they came.

use std::net::{IpAddr, Ipv6Addr};

use mlx5_device::carrier::{Addressing, PathAddress};
use roce::wire::packet::{Extended, MAX_HEADER_BYTES};
use roce::wire::{self, Bth, MAX_PAYLOAD_BYTES};
use roce::{Fragment, Packet, ServiceType};

use super::entry::Tag;
use crate::link::path_of_wire;
use crate::link::record::{self, PATH_WORDS, REPLY_WORDS, REQUEST_WORDS};

pub const DATAGRAM_VALUES: usize = REQUEST_WORDS + PATH_WORDS;

/// Words of the longest headers.
const HEADER_WORDS: usize = MAX_HEADER_BYTES.div_ceil(8);
/// Fragment, length of the headers, two addresses, the headers.
pub const PACKET_VALUES: usize = 6 + HEADER_WORDS;

/// Memory as words, big-endian: most of it is.
#[inline]
pub fn read_words(bytes: &[u8], words: &mut [u64]) {
    words.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, eight)| *word = u64::from_be_bytes(*eight));
}

/// The header of a record as it came. What lies behind an answer's is its payload.
#[inline]
pub fn of_record(words: &[u64; REQUEST_WORDS], is_request: bool) -> [u64; REQUEST_WORDS] {
    let len = if is_request { REQUEST_WORDS } else { REPLY_WORDS };
    std::array::from_fn(|at| if at < len { words[at] } else { 0 })
}

pub fn of_datagram(words: &[u64; REQUEST_WORDS], path: &PathAddress) -> [u64; DATAGRAM_VALUES] {
    let path = record::encode_path(path);
    std::array::from_fn(|at| *words.get(at).unwrap_or_else(|| &path[at - REQUEST_WORDS]))
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
    let mut values = [0; PACKET_VALUES];
    values[..head.len()].copy_from_slice(&head);
    read_words(&headers, &mut values[head.len()..]);
    values
}

/// The packet of an entry's values; `None` for what is none.
pub fn decode(tag: Tag, values: &[u64]) -> Option<(Packet, Addressing)> {
    if tag == Tag::Packet {
        return packet_of(values);
    }
    let (words, path) = values.split_first_chunk::<REQUEST_WORDS>()?;
    let len = words[0] as u32 as usize;
    let decoded =
        [true, false].into_iter().find_map(|is_request| record::decode(words, len, is_request).ok());
    let packet = decoded.filter(|_| matches!(tag, Tag::Record | Tag::Datagram))?;
    let path =
        if record::carries_path(&packet) { Some(record::decode_path(*path.first_chunk()?)) } else { None };
    let to_port = Some(if words[0] & record::SECOND_PORT != 0 { 2 } else { 1 });
    Some((packet, Addressing { path, to_port, addresses: None }))
}

fn packet_of(values: &[u64]) -> Option<(Packet, Addressing)> {
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
    Some((packet, Addressing { path, to_port: None, addresses: Some((from, at)) }))
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
        let addressing = Addressing { path: None, to_port: Some(2), addresses: None };
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
            let words = |packet: &Packet| {
                let mut words = record::encode(packet, packet.payload.length);
                words[0] |= record::SECOND_PORT;
                words
            };
            let recorded = of_record(&words(&packet), content.is_request());
            assert_eq!(decode(Tag::Record, &recorded), Some((packet, addressing)));
            // Datagrams are not answered, and have a Q_Key where atomics have their operand.
            if !content.is_request() || matches!(content, Content::CompareSwap(_) | Content::FetchAdd(_)) {
                continue;
            }
            let datagram = Packet { service: ServiceType::Ud, ..packet };
            let decoded = decode(Tag::Datagram, &of_datagram(&words(&datagram), &path));
            assert_eq!(decoded, Some((datagram, Addressing { path: Some(path), ..addressing })));
        }
    }

    #[test]
    fn values_that_are_no_packet_are_none() {
        let values = record::encode(&Packet::default(), 0);
        for len in 0..values.len() {
            assert_eq!(decode(Tag::Record, &values[..len]), None, "{len} values");
        }
        assert_eq!(decode(Tag::Packet, &[u64::MAX; PACKET_VALUES]), None);
        assert_eq!(decode(Tag::Record, &[u64::MAX; REQUEST_WORDS]), None);
    }

    #[test]
    fn what_lies_behind_an_answer_is_not_kept() {
        let content = Content::ReadResponse { position: Position::Middle, aeth: None };
        let answer = Packet { content, payload: Fragment { offset: 0, length: 100 }, ..Packet::default() };
        let mut words = record::encode(&answer, 100);
        words[REPLY_WORDS..].fill(0x5ec4e7);
        let recorded = of_record(&words, false);
        assert_eq!(recorded[REPLY_WORDS..], [0; REQUEST_WORDS - REPLY_WORDS]);
        assert_eq!(decode(Tag::Record, &recorded).unwrap().0, answer);
    }
}
