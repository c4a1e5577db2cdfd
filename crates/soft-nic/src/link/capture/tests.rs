//! Frames around packets of a real kernel, and the buffer between the two threads.

use super::pcapng::{BlockKind, first_block};
use super::*;

/// `rxe-rc.pcap`, packet 1, from its BTH on: SEND of 5 bytes.
const SEND: [u8; 24] = [
    0x04, 0x30, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0x01, 0, 0x01, 0x08, 0x0f, 0x16, 0x1d, 0, 0, 0, 0x1b,
    0x55, 0xf4, 0xb8,
];

fn v4(last: u8) -> IpAddr {
    [10, 9, 0, last].into()
}

fn v6(last: u16) -> IpAddr {
    [0xfd00, 9, 0, 0, 0, 0, 0, last].into()
}

fn packet(bytes: &[u8]) -> WirePacket<'_> {
    WirePacket { source: v4(2), source_port: 0xc121, destination: v4(1), identification: 0x4a5c, bytes }
}

#[test]
fn the_frame_around_a_packet_is_the_kernels_but_for_mac_addresses_and_checksum() {
    let mut frame = Vec::new();
    assert!(packet(&SEND).append_frame(&mut frame));
    // The UDP checksum, which the kernel left 0, worked out by hand: words of the pseudo header,
    // 0xa09+2+0xa09+1+17+32; of the header, 0xc121+0x12b7+0x20; and of the payload.
    let golden = [
        0x02, 0x00, 10, 9, 0, 1, 0x02, 0x00, 10, 9, 0, 2, 0x08, 0x00, // Ethernet
        0x45, 0x00, 0x00, 0x34, 0x4a, 0x5c, 0x40, 0x00, 0x40, 0x11, 0xdc, 0x48, 10, 9, 0, 2, 10, 9, 0,
        1, // IPv4
        0xc1, 0x21, 0x12, 0xb7, 0x00, 0x20, 0x00, 0x00,
    ];
    let (head, rest) = frame.split_at(golden.len());
    assert_eq!((&head[..40], rest), (&golden[..40], &SEND[..]));
    // RFC 1071: summed with the checksum in its place, all words are 0xffff.
    let udp = &frame[34..];
    let words = |bytes: &[u8]| bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum::<u32>();
    let sum = words(&[10, 9, 0, 2, 10, 9, 0, 1]) + 17 + udp.len() as u32 + words(udp);
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
}

#[test]
fn ipv6_has_its_own_header_and_its_own_type() {
    let (source, destination) = (v6(2), v6(1));
    let mut frame = Vec::new();
    assert!(WirePacket { source, destination, ..packet(&SEND) }.append_frame(&mut frame));
    assert_eq!(frame[..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd]);
    assert_eq!(frame[14..22], [0x60, 0, 0, 0, 0, 32, 17, 64]);
    assert_eq!(frame[22..38], [0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_ne!(frame[60..62], [0, 0], "over IPv6 a checksum is not optional");
    assert_eq!(frame[62..], SEND);
}

#[test]
fn what_is_no_packet_makes_no_frame() {
    let mut frame = vec![7];
    let long = vec![0; 65_536 - 20 - 8];
    assert!(!packet(&long).append_frame(&mut frame), "longer than IPv4 can say");
    assert!(packet(&long[1..]).append_frame(&mut Vec::new()));
    assert!(!WirePacket { source: v6(1), ..packet(&SEND) }.append_frame(&mut frame), "two families");
    assert_eq!(frame, [7]);
}

#[test]
fn a_checksum_of_nothing_but_ones_is_not_written_as_none() {
    // One word of payload that makes the sum 0xffff.
    let sum = |payload: [u8; 2]| {
        let WirePacket { source_port, .. } = packet(&[]);
        checksum(Gid::from_ipv4([10, 9, 0, 2]), Gid::from_ipv4([10, 9, 0, 1]), 10, source_port, &payload)
    };
    let without = sum([0, 0]);
    assert_eq!(sum(without.to_be_bytes()), 0xffff);
}

/// Kinds of all blocks, and the frames' lengths.
fn blocks(bytes: &[u8]) -> Vec<(BlockKind, usize)> {
    let (mut all, mut rest) = (Vec::new(), bytes);
    while let Some((kind, block)) = first_block(rest).unwrap() {
        all.push((kind, block.len()));
        rest = &rest[block.len()..];
    }
    assert!(rest.is_empty(), "whole blocks only");
    all
}

#[test]
fn packets_come_out_in_order_with_time_and_direction() {
    let (mut capture, mut captured) = Capture::begin("wire", Now(1_000), 5_000_000_000, 0);
    capture.sent(Now(1_500), &packet(&SEND));
    capture.received(Now(1_501), &packet(&SEND[..20]));
    let mut taken = Vec::new();
    assert!(!captured.take(&mut taken));
    let kinds = blocks(&taken);
    assert_eq!(kinds[2..], [(BlockKind::Packet, 66 + 2 + 44), (BlockKind::Packet, 62 + 2 + 44)]);
    let first = kinds[0].1 + kinds[1].1;
    // 5 s and 500 ns: upper and lower word.
    assert_eq!(taken[first + 12..first + 20], [1, 0, 0, 0, 0xf4, 0xf3, 0x05, 0x2a]);
    let direction = |end: usize| taken[end - 12];
    assert_eq!((direction(first + kinds[2].1), direction(taken.len())), (2, 1));
    assert!(!captured.take(&mut taken) && taken.is_empty(), "once each");
    drop(capture);
    assert!(captured.take(&mut taken) && taken.is_empty());
    captured.append_statistics(&mut taken);
    assert_eq!(blocks(&taken), [(BlockKind::Statistics { dropped: 0 }, 52)]);
}

#[test]
fn a_reader_that_is_late_loses_packets_and_is_told_how_many() {
    let (mut capture, mut captured) = Capture::begin("wire", Now(0), 0, 0);
    let bytes = [5; 4000];
    let mut sent = 0;
    while locked(&capture.waiting).dropped < 3 {
        capture.sent(Now(sent), &packet(&bytes));
        sent += 1;
        assert!(sent < 2000, "a bounded buffer");
    }
    let mut taken = Vec::new();
    captured.take(&mut taken);
    assert!(taken.len() <= MAX_WAITING_BYTES && taken.len() > MAX_WAITING_BYTES - 5000);
    assert_eq!(blocks(&taken).len() as u64, 2 + sent - 3);
    let room = locked(&capture.waiting).blocks.capacity();
    assert!(room >= MAX_WAITING_BYTES, "nothing grows in the NIC's thread");
    capture.sent(Now(sent), &packet(&SEND));
    capture.sent(Now(sent), &packet(&SEND));
    captured.take(&mut taken);
    // Twelve bytes more where packets are missing.
    let lengths: Vec<_> = blocks(&taken).iter().map(|block| block.1).collect();
    assert_eq!(lengths, [112 + 12, 112]);
    assert_eq!(taken[108..112], [3, 0, 0, 0], "packets that are missing");
    taken.clear();
    captured.append_statistics(&mut taken);
    assert_eq!(blocks(&taken)[0].0, BlockKind::Statistics { dropped: 3 });
}

#[test]
fn a_capture_ends_after_its_packets_with_its_reader_and_with_its_nic() {
    let (mut capture, mut captured) = Capture::begin("wire", Now(0), 0, 2);
    for _ in 0..3 {
        capture.sent(Now(0), &packet(&SEND));
    }
    assert!(capture.is_over());
    let mut taken = Vec::new();
    assert!(captured.take(&mut taken), "nothing more will come");
    assert_eq!(blocks(&taken).len(), 4, "section, interface, two packets");
    let ending = capture.end();
    assert!(!ending.is_read());
    drop(captured);
    assert!(ending.is_read());

    let (mut capture, captured) = Capture::begin("wire", Now(0), 0, 0);
    assert!(!capture.is_over());
    drop(captured);
    assert!(capture.is_over());
    capture.sent(Now(0), &packet(&SEND));
    assert_eq!(locked(&capture.waiting).captured, 0, "nobody reads it");
}
