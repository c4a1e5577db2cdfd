//! The ICRC against packets of a kernel, an independent CRC, and what an unknown identification lets through.

use super::*;
use crate::wire::Gid;

/// `rxe-rc.pcap`, packet 1, from its IP header on: SEND Only of 5 bytes.
const SEND_5: &str = "450000344a5c40004011dc480a0900020a090001c12112b7002000000430ffff00000011\
                      8000010001080f161d0000001b55f4b8";
/// Packet 2: its ACK.
const ACK: &str =
    "45000030862940004011a07f0a0900010a090002c12112b7001c00001100ffff00000011000001001f000001215add99";
/// `rxe-rc-ipv6.pcap`, packet 1: the same SEND.
const SEND_5_IPV6: &str = "6000000000201140fd000009000000000000000000000002fd000009000000000000000000000001\
                           c12112b7002000000430ffff000000118000010001080f161d0000009a355baa";

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn split_packet(packet: &[u8]) -> (IpHeader, Udp, &[u8]) {
    let ip = IpHeader::decode(packet).unwrap();
    let datagram = &packet[ip.header_bytes()..];
    (ip, Udp::decode(datagram).unwrap(), &datagram[Udp::BYTES..])
}

fn ipv4(header: IpHeader) -> Ipv4 {
    let IpHeader::V4(header) = header else { panic!("{header:?}") };
    header
}

/// Ethernet's CRC-32 a bit at a time, as its definition has it.
fn plain_crc32(bytes: &[u8]) -> u32 {
    let mut state = u32::MAX;
    for byte in bytes {
        for bit in 0..8 {
            let carry = (state ^ u32::from(byte >> bit)) & 1 == 1;
            state = state >> 1 ^ if carry { 0xedb8_8320 } else { 0 };
        }
    }
    !state
}

/// The masked packet spelled out, not built from our headers.
fn spelled_out(v4: bool, packet: &[u8]) -> u32 {
    let mut masked = vec![0xff; 8];
    masked.extend_from_slice(&packet[..packet.len() - 4]);
    let transport = match v4 {
        true => {
            for at in [1, 8, 10, 11] {
                masked[8 + at] = 0xff;
            }
            20
        }
        false => {
            masked[8] |= 0x0f;
            for at in [1, 2, 3, 7] {
                masked[8 + at] = 0xff;
            }
            40
        }
    };
    for at in [transport + 6, transport + 7, transport + 8 + 4] {
        masked[8 + at] = 0xff;
    }
    plain_crc32(&masked)
}

/// A packet of ours with `payload` bytes, IPv4 or IPv6, with its ICRC.
fn packet(v4: bool, identification: u16, payload: usize) -> Vec<u8> {
    let gid = |last| if v4 { Gid::from_ipv4([192, 0, 2, last]) } else { Gid([last; 16]) };
    let transport_bytes = Bth::BYTES + payload.next_multiple_of(4);
    let udp_bytes = (Udp::BYTES + transport_bytes + ICRC_BYTES) as u16;
    let mut ip = IpHeader::between(gid(1), gid(2), udp_bytes).unwrap();
    if let IpHeader::V4(header) = &mut ip {
        header.identification = identification;
    }
    let udp = Udp::new(0xc123, udp_bytes);
    let mut out = Vec::new();
    ip.append_to(&mut out);
    out.extend_from_slice(&udp.emit());
    let transport = out.len();
    out.extend((0..transport_bytes).map(|at| (at * 31 + at / 7) as u8));
    let icrc = compute(&ip, &udp, &out[transport..]).unwrap();
    out.extend_from_slice(&stored(icrc));
    out
}

/// Seeded random numbers.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// x^8: what one more byte multiplies the CRC's state by.
const X_TO_8: u32 = ONE >> 8;

/// What an identification adds (XOR) to the ICRC of an IPv4 packet with `transport_bytes` of UDP payload
/// before the ICRC: a sender whose kernel numbers a call's segments computes each CRC for 0, and adds this.
fn of_identification(identification: u16, transport_bytes: usize) -> u32 {
    let word = u32::from(identification.swap_bytes());
    let mut crc = word;
    // As many steps as bits follow: x^(8 * bytes) by squaring.
    let mut bytes = bytes_behind_identification(transport_bytes) + 2;
    let mut power = X_TO_8;
    while bytes > 0 {
        if bytes & 1 == 1 {
            crc = multiply(crc, power);
        }
        power = multiply(power, power);
        bytes >>= 1;
    }
    crc
}

#[test]
fn golden_packets_have_the_crc_of_the_kernel() {
    for (name, hex, value) in
        [("SEND", SEND_5, 0xb8f4_551b), ("ACK", ACK, 0x99dd_5a21), ("SEND, IPv6", SEND_5_IPV6, 0xaa5b_359a)]
    {
        let packet = bytes(hex);
        let (ip, udp, payload) = split_packet(&packet);
        assert_eq!(split(payload).unwrap().1, value, "{name}");
        assert_eq!(check(&ip, &udp, payload), Ok(()), "{name}");
        assert_eq!(spelled_out(packet[0] >> 4 == 4, &packet), value, "{name}");
    }
}

#[test]
fn any_size_agrees_with_a_crc_of_another_make() {
    for v4 in [true, false] {
        for payload in [0, 1, 3, 4, 16, 63, 64, 255, 1023, 1024, 4096] {
            let packet = packet(v4, 0x1234, payload);
            let (ip, udp, udp_payload) = split_packet(&packet);
            assert_eq!(check(&ip, &udp, udp_payload), Ok(()), "{v4} {payload}");
            assert_eq!(split(udp_payload).unwrap().1, spelled_out(v4, &packet), "{v4} {payload}");
        }
    }
}

#[test]
fn what_routers_change_does_not_change_the_crc_and_all_else_does() {
    for (v4, free) in [
        // Type of service, time to live, header checksum; UDP checksum; FECN, BECN and their byte.
        (true, vec![1, 8, 10, 11, 26, 27, 32]),
        // Traffic class and flow label (but not the version), hop limit; UDP checksum; the BTH's byte.
        (false, vec![1, 2, 3, 7, 46, 47, 52]),
    ] {
        let packet = packet(v4, 7, 8);
        let sum = spelled_out(v4, &packet);
        for at in 0..packet.len() - ICRC_BYTES {
            let mut changed = packet.clone();
            changed[at] ^= 0x11;
            // The spelled-out form is the judge: what it covers is the specification's list.
            let covered = spelled_out(v4, &changed) != sum;
            assert_eq!(covered, !free.contains(&at), "byte {at}, IPv4 {v4}");
            // Ours sees the same, behind the IP header. That header is read and built anew; see below.
            let udp_at = if v4 { 20 } else { 40 };
            let parsed = at >= udp_at && Udp::decode(&changed[udp_at..]).is_ok();
            if parsed {
                let (ip, udp, payload) = split_packet(&changed);
                assert_eq!(check(&ip, &udp, payload).is_err(), covered, "byte {at}, IPv4 {v4}");
            }
            // Of the UDP header, port and length have been refused before.
            let refused = udp_at + 2..udp_at + 6;
            assert!(parsed || at < udp_at || refused.contains(&at), "byte {at}, IPv4 {v4}");
        }
    }
    let header = ipv4(split_packet(&packet(true, 7, 8)).0);
    let other = Ipv4 { tos: 0x55, ttl: 3, ..header };
    assert_eq!(other.masked(), header.masked());
    let IpHeader::V6(header) = split_packet(&packet(false, 7, 8)).0 else { panic!() };
    let other = Ipv6 { traffic_class: 0x55, flow_label: 0xf_5555, hop_limit: 3, ..header };
    assert_eq!(other.masked(), header.masked());
}

#[test]
fn too_short_for_a_crc_is_refused() {
    let packet = packet(true, 9, 0);
    let (ip, udp, payload) = split_packet(&packet);
    assert_eq!(split(&payload[..3]), Err(WireError::Truncated { what: "an ICRC", need: 4, have: 3 }));
    let short = WireError::Truncated { what: "a BTH", need: 12, have: 11 };
    assert_eq!(check(&ip, &udp, &payload[..15]), Err(short));
    assert_eq!(check_any_identification(&ipv4(ip), &udp, &payload[..15]), Err(short));
    let mut wrong = payload.to_vec();
    wrong[12] ^= 1;
    assert!(matches!(check(&ip, &udp, &wrong), Err(WireError::Icrc { .. })));
}

#[test]
fn every_identification_explains_its_packet_and_is_found() {
    for payload in [0, 64, 1024, 4096] {
        let (with_zero, behind) = (packet(true, 0, payload), Bth::BYTES + payload);
        let zero_crc = split(split_packet(&with_zero).2).unwrap().1;
        let step = if payload == 64 { 1 } else { 257 };
        for identification in (0..=u16::MAX).step_by(step) {
            let sent = packet(true, identification, payload);
            let (ip, udp, udp_payload) = split_packet(&sent);
            // The receiver does not know it: it is asked with another one.
            let asked = Ipv4 { identification: !identification, ..ipv4(ip) };
            assert_eq!(check_any_identification(&asked, &udp, udp_payload), Ok(identification));
            let added = of_identification(identification, behind);
            assert_eq!(zero_crc ^ added, split(udp_payload).unwrap().1, "{identification:#x}");
        }
    }
}

#[test]
fn longest_distances_are_undone_too() {
    // The two tables meet at multiples of 256 bytes; the longest UDP payload is 65 507 bytes.
    for transport_bytes in [220, 231, 232, 233, 487, 488, 4096 + 40, 65_503] {
        for identification in [0, 1, 0x8000, 0xfffe, 0xabcd] {
            let added = of_identification(identification, transport_bytes);
            let behind = bytes_behind_identification(transport_bytes);
            assert_eq!(identification_of(added, behind), Some(identification), "{transport_bytes}");
        }
    }
}

#[test]
fn random_damage_passes_once_in_65536() {
    const TRIALS: u32 = 1 << 22;
    let sent = packet(true, 0x4a5c, 64);
    let (ip, udp, udp_payload) = split_packet(&sent);
    let (header, mut seed, mut passed, mut damaged) = (ipv4(ip), 1, 0_u32, udp_payload.to_vec());
    for _ in 0..TRIALS {
        // Eight bytes of the payload replaced: every CRC is as likely as any other.
        damaged[20..28].copy_from_slice(&splitmix(&mut seed).to_le_bytes());
        passed += u32::from(check_any_identification(&header, &udp, &damaged).is_ok());
    }
    let expected = TRIALS / 65_536;
    println!(
        "TABLE icrc: of {TRIALS} packets with random damage {passed} pass unknown identification, {expected} expected"
    );
    // Poisson with mean 64: five standard deviations.
    assert!((expected - 40..=expected + 40).contains(&passed), "{passed} of {TRIALS}");
}

/// How many bits behind the identification lies the first whose flip another identification explains.
fn first_single_bit_that_passes() -> usize {
    // A bit d places behind the identification weighs x^-d times what the identification's last bit weighs.
    let mut weight = ONE >> 16;
    (1..)
        .find(|_| {
            weight = undo_bit(weight);
            u16::try_from(weight).is_ok()
        })
        .unwrap()
}

#[test]
fn one_flipped_bit_passes_in_no_packet_that_a_path_mtu_allows() {
    let place = first_single_bit_that_passes();
    println!(
        "TABLE icrc: one flipped bit passes unknown identification {} bytes behind it at the earliest",
        place / 8
    );
    assert_eq!((place - 1) / 8, 26_766, "the number in the module's documentation");
    // A packet long enough to have that place, and its neighbours, which do not pass.
    let passes = |transport_bytes: usize, place: usize| {
        let sent = packet(true, 0x4a5c, transport_bytes - Bth::BYTES);
        let (ip, udp, udp_payload) = split_packet(&sent);
        let mut damaged = udp_payload.to_vec();
        let covered_bits_before = (Ipv4::BYTES - 6 + Udp::BYTES) * 8;
        let bit = place - 1 - covered_bits_before;
        // Within a byte the CRC takes the lowest bit first.
        damaged[bit / 8] ^= 1 << (bit % 8);
        check_any_identification(&ipv4(ip), &udp, &damaged).is_ok()
    };
    assert!(passes(28_000, place));
    assert!(!passes(28_000, place - 1) && !passes(28_000, place + 1));
    // All of a short packet behind the BTH, the masked byte of which would pass.
    for place in (Ipv4::BYTES - 6 + Udp::BYTES + Bth::BYTES) * 8 + 1.. {
        if place > (Ipv4::BYTES - 6 + Udp::BYTES + 256) * 8 {
            break;
        }
        assert!(!passes(256, place), "{place}");
    }
}
