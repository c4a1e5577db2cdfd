//! Every packet of every capture: read, written again byte for byte, its CRC explained.

use sha2::{Digest, Sha256};

use roce::testing::frame::{Frame, port_of_flow_label};
use roce::wire::icrc::{self, check_any_identification};
use roce::wire::udp::DYNAMIC_PORTS;
use roce::wire::{IpHeader, Service, Udp};

use crate::pcap::{CAPTURES, packets, path, text};

#[test]
fn the_data_is_what_was_captured() {
    let mut files = 0;
    for line in text("SHA256SUMS").lines() {
        let (want, name) = line.split_once("  ").unwrap();
        let sum = Sha256::digest(std::fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}")));
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sum, want, "{name}");
        files += 1;
    }
    let there = std::fs::read_dir(path("")).unwrap().count();
    assert_eq!(files + 2, there, "every file but README.md and SHA256SUMS is in the list");
}

#[test]
fn every_packet_is_read_and_written_byte_for_byte() {
    let mut all = 0;
    for (name, count) in CAPTURES {
        let packets = packets(name);
        assert_eq!(packets.len(), count, "{name}");
        for (index, bytes) in packets.iter().enumerate() {
            let frame = Frame::decode(bytes).unwrap_or_else(|error| panic!("{name} {}: {error}", index + 1));
            let mut written = Vec::new();
            frame.builder().append_to(&mut written).unwrap();
            assert!(written == *bytes, "{name} {}:\n{bytes:02x?}\n{written:02x?}", index + 1);
        }
        all += count;
    }
    assert_eq!(all, 643);
}

#[test]
fn the_identification_of_every_ipv4_packet_is_found_from_its_crc() {
    let mut found = 0;
    for (name, _) in CAPTURES {
        for (index, bytes) in packets(name).iter().enumerate() {
            let IpHeader::V4(ip) = IpHeader::decode(bytes).unwrap() else { continue };
            let datagram = &bytes[20..];
            let (udp, payload) = (Udp::decode(datagram).unwrap(), &datagram[Udp::BYTES..]);
            // What a UDP socket knows of it: neither identification nor what is masked.
            let known = roce::wire::Ipv4 { identification: 0, ttl: 0, tos: 0, ..ip };
            let got = check_any_identification(&known, &udp, payload);
            assert_eq!(got, Ok(ip.identification), "{name} {}", index + 1);
            found += 1;
            let mut damaged = payload.to_vec();
            damaged[9] ^= 1;
            assert!(check_any_identification(&known, &udp, &damaged).is_err(), "{name} {}", index + 1);
            assert!(icrc::check(&IpHeader::V4(ip), &udp, &damaged).is_err(), "{name} {}", index + 1);
        }
    }
    assert_eq!(found, 643 - 85, "all but the IPv6 capture");
}

/// Source port of a connection without a flow label: the two QPNs' product folded to a label, the same in
/// both directions. Seen in all captures of connections set up by hand.
fn port_of_connection(local_qpn: u32, remote_qpn: u32) -> u16 {
    let product = local_qpn as u64 * remote_qpn as u64;
    let product = product ^ product >> 20;
    port_of_flow_label((product ^ product >> 40) as u32 & 0xf_ffff)
}

/// Source port of a datagram QP, a multiplicative hash of its own QPN. Seen in all captures of UD and of QP1.
fn port_of_datagram(local_qpn: u32) -> u16 {
    // 2^32 divided by the square of the golden ratio: neighbouring QPNs end far apart.
    (local_qpn.wrapping_mul(0x61c8_8647) >> 18) as u16 | DYNAMIC_PORTS
}

#[test]
fn source_ports_follow_from_qpns_where_no_flow_label_was_given() {
    for (name, _) in CAPTURES {
        let mut checked = 0;
        for (index, bytes) in packets(name).iter().enumerate() {
            let frame = Frame::decode(bytes).unwrap();
            let qpn = frame.packet.bth.dst_qpn;
            // Both ends have the same QPN but for the user-space peer, which also chose its port itself.
            let (local, by_hand) = match (name, qpn) {
                ("rxe-userpeer", 0x777) => (0x11, false),
                ("rxe-userpeer", _) => (0x777, true),
                _ => (qpn, false),
            };
            let ud = frame.packet.bth.opcode.service() == Service::Ud;
            let want = match ud {
                true => port_of_datagram(frame.packet.extended.deth().unwrap().src_qpn),
                false => port_of_connection(local, qpn),
            };
            // Connections of the connection manager have the flow label of their path.
            if by_hand || name == "rxe-cm" && !ud {
                assert_ne!(frame.udp.source_port, want, "{name} {}", index + 1);
                continue;
            }
            assert_eq!(frame.udp.source_port, want, "{name} {}", index + 1);
            checked += 1;
        }
        let rows = [("rxe-cm", 23), ("rxe-userpeer", 12)];
        let want = rows.iter().find(|row| row.0 == name).map(|row| row.1);
        assert_eq!(checked, want.unwrap_or_else(|| CAPTURES.iter().find(|row| row.0 == name).unwrap().1));
    }
}
