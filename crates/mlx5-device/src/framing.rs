//! What a message would take of a real link, and what a datagram's receiver sees of its headers.
//!
//! Header sizes from IBTA vol. 1, chapter 9, and Annex A17 (RoCEv2), with Ethernet's preamble, start and gap
//! (20 bytes) and InfiniBand's LRH and VCRC. For port rates and wire counters; of headers only a datagram's
//! GRH is built here.

use core::net::IpAddr;

use roce::packet::Trailer;
use roce::wire::icrc::ICRC_BYTES;
use roce::wire::{Gid, Ipv4, Ipv6};
use roce::{Content, GRH_BYTES, Packet, ServiceType};

use super::model::{DeviceConfig, GidKind};
use crate::carrier::PathAddress;
use crate::config::LinkLayer;

/// Bytes before the BTH and behind the payload, of each packet: Ethernet 20 + 14 + 4, IPv4 20, UDP 8;
/// InfiniBand LRH 8, VCRC 2.
fn framing(layer: LinkLayer) -> u64 {
    match layer {
        LinkLayer::Roce => 20 + 14 + 4 + 20 + 8,
        LinkLayer::Ib => 8 + 2,
    }
}

/// Bytes before those that a carrier counts of a packet to this address: Ethernet's preamble, header, check
/// sequence and gap, IP (IPv6 40 bytes, IPv4 20) and UDP.
pub(super) fn packet_framing(to: IpAddr) -> u64 {
    let ip = if to.is_ipv6() { 40 } else { 20 };
    20 + 14 + 4 + ip + 8
}

/// Bytes from BTH to ICRC, of a packet that does not leave.
pub(super) fn bytes_of(packet: &Packet) -> usize {
    let headers = packet.to_wire(&[]).map_or(0, |wire| wire.header_bytes());
    headers + (packet.payload.length as usize).next_multiple_of(4) + ICRC_BYTES
}

const BTH: u64 = 12;
const ICRC: u64 = 4;
const RETH: u64 = 16;
const ATOMIC_ETH: u64 = 28;
const AETH: u64 = 4;
const IMMEDIATE: u64 = 4;
const DETH: u64 = 8;

fn packets(payload: u32, mtu: u32) -> u64 {
    // Most messages are one packet, and a division costs more than all else here.
    if payload <= mtu { 1 } else { u64::from(payload.div_ceil(mtu)) }
}

/// Wire bytes of `carried` bytes of a packet in shared memory, cut by path MTU. Acknowledgements: 0.
#[inline(always)]
pub(super) fn record_bytes(layer: LinkLayer, packet: &Packet, carried: u32, mtu: u32) -> u64 {
    let position = packet.content.position();
    let (starts, ends) = (position.starts(), position.ends() && carried == packet.payload.length);
    let packets = packets(carried, mtu);
    let behind = |trailer| if ends && trailer != Trailer::None { IMMEDIATE } else { 0 };
    let once = match packet.content {
        Content::Send { trailer, .. } => behind(trailer),
        Content::Write { trailer, .. } => behind(trailer) + if starts { RETH } else { 0 },
        Content::ReadRequest(_) => RETH,
        Content::CompareSwap(_) | Content::FetchAdd(_) => ATOMIC_ETH,
        Content::ReadResponse { .. } => AETH * packets.min(u64::from(starts) + u64::from(ends)),
        Content::Acknowledge(_) | Content::AtomicAcknowledge { .. } => return 0,
    };
    let datagram = if packet.service == ServiceType::Ud { DETH } else { 0 };
    packets * (framing(layer) + BTH + ICRC) + once + datagram + u64::from(carried)
}

/// The network header of a datagram, with the number that a responder's CQE has for it on Ethernet (Linux
/// `include/linux/mlx5/device.h`, `MLX5_CQE_ROCE_L3_HEADER_TYPE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum L3Header {
    /// GRH: InfiniBand, and RoCE v1.
    Grh = 0,
    /// IPv6: RoCE v2.
    Ipv6 = 1,
    /// IPv4: RoCE v2.
    Ipv4 = 2,
}

fn l3_header(device: &DeviceConfig, path: &PathAddress) -> L3Header {
    let roce_v2 = device.gids.iter().any(|e| e.gid == path.dgid && e.kind == GidKind::RoceV2);
    match Gid(path.dgid).ipv4() {
        _ if !roce_v2 => L3Header::Grh,
        Some(_) => L3Header::Ipv4,
        None => L3Header::Ipv6,
    }
}

/// The four bits of a responder's CQE that are the service level on InfiniBand. On Ethernet cards put the
/// kind of network header there; libmlx5 still gives it as `ibv_wc.sl`, and UCX's RoCE datagrams rely on it.
pub(super) fn service_level(device: &DeviceConfig, path: &PathAddress) -> u8 {
    match device.link_layer {
        LinkLayer::Ib => path.sl,
        LinkLayer::Roce => l3_header(device, path) as u8,
    }
}

/// Next header of a GRH (IBTA vol. 1, the GRH's fields).
const IBA_TRANSPORT: u8 = 0x1b;

/// The 40 bytes before a received datagram of `payload` bytes: a GRH, or for RoCE v2 over IPv4 the IPv4
/// header in the last 20. `None`: the datagram came without, and the bytes stay as they are.
pub(super) fn grh(
    device: &DeviceConfig,
    path: &PathAddress,
    payload: u32,
) -> Option<[u8; GRH_BYTES as usize]> {
    if !path.grh {
        return None;
    }
    let PathAddress { sgid, dgid, flow_label, traffic_class, hop_limit, .. } = *path;
    let header = l3_header(device, path);
    let transport = (BTH + DETH + ICRC) as u32 + payload;
    if header == L3Header::Ipv4 {
        let [source, destination] = [sgid, dgid].map(|[.., a, b, c, d]| [a, b, c, d]);
        let ip = Ipv4::of_udp(source, destination, (20 + 8 + transport) as u16);
        let ip = Ipv4 { tos: traffic_class, ttl: hop_limit, ..ip };
        let mut out = [0; GRH_BYTES as usize];
        out[20..].copy_from_slice(&ip.with_checksum().emit());
        return Some(out);
    }
    // A GRH is an IPv6 header with no UDP behind it.
    let is_grh = header == L3Header::Grh;
    let [source, destination] = [sgid, dgid].map(Gid);
    let payload_bytes = (transport + if is_grh { 0 } else { 8 }) as u16;
    let ip =
        Ipv6 { traffic_class, flow_label, hop_limit, ..Ipv6::of_udp(source, destination, payload_bytes) };
    let ip = if is_grh { Ipv6 { next_header: IBA_TRANSPORT, ..ip } } else { ip };
    Some(ip.emit())
}

#[cfg(test)]
mod tests {
    use roce::packet::{Aeth, Deth, Reth, Syndrome};
    use roce::{Fragment, Opcode, Position, Psn};

    use super::*;
    use crate::config::NicConfig;

    #[test]
    fn a_message_takes_its_packets_headers_and_gaps() {
        use LinkLayer::{Ib, Roce};
        use ServiceType::{Rc, Ud};
        // RoCE v2 overhead on Ethernet: 20 + 14 + 20 + 8 + 12 + 4 + 4 = 82; InfiniBand: 8 + 12 + 4 + 2 = 26.
        let packet = |service, content, length| Packet {
            service,
            dst_qpn: 0,
            psn: Psn::new(0),
            ack_requested: false,
            solicited: false,
            deth: Deth::default(),
            content,
            payload: Fragment { offset: 0, length },
        };
        let request =
            |opcode, dma_bytes| Content::request(opcode, [0; 4], Reth { va: 0, rkey: 0, dma_bytes }, [0; 2]);
        for (name, layer, service, opcode, length, mtu, bytes) in [
            ("WRITE of one packet", Roce, Rc, Opcode::Write, 64, 1024, 82 + 16 + 64),
            ("empty SEND", Roce, Rc, Opcode::Send, 0, 1024, 82),
            ("WRITE of three packets", Roce, Rc, Opcode::Write, 2049, 1024, 3 * 82 + 16 + 2049),
            ("WRITE with immediate", Roce, Rc, Opcode::WriteImm, 8, 4096, 82 + 20 + 8),
            ("READ asks only", Roce, Rc, Opcode::Read, 0, 1024, 82 + 16),
            ("atomic", Roce, Rc, Opcode::FetchAdd, 0, 1024, 82 + 28),
            ("datagram", Roce, Ud, Opcode::Send, 100, 1024, 82 + 8 + 100),
            ("SEND on InfiniBand", Ib, Rc, Opcode::Send, 4096, 4096, 26 + 4096),
        ] {
            let packet = packet(service, request(opcode, 1 << 20), length);
            assert_eq!(record_bytes(layer, &packet, length, mtu), bytes, "{name}");
        }
        let aeth = Aeth { syndrome: Syndrome::Ack, msn: 0 };
        let response = |position, length, carried| {
            let content = Content::ReadResponse { position, aeth: Some(aeth) };
            record_bytes(Roce, &packet(Rc, content, length), carried, 1024)
        };
        let whole = 3 * 82 + 8 + 3000;
        assert_eq!(response(Position::Only, 3000, 3000), whole);
        assert_eq!(response(Position::Only, 8, 8), 82 + 4 + 8);
        assert_eq!(response(Position::Only, 3000, 2048) + response(Position::Last, 952, 952), whole);
        assert_eq!(response(Position::Middle, 2048, 2048), 2 * 82 + 2048);
        assert_eq!(record_bytes(Roce, &packet(Rc, Content::Acknowledge(aeth), 0), 0, 1024), 0);
    }

    #[test]
    fn a_datagram_over_ipv4_shows_an_ipv4_header_with_a_right_checksum() {
        let config = NicConfig { link_layer: LinkLayer::Roce, ..NicConfig::default() };
        let device = DeviceConfig::new(&config, 0);
        let path = PathAddress {
            sgid: device.gids[3].gid,
            dgid: device.gids[3].gid,
            hop_limit: 64,
            grh: true,
            ..PathAddress::default()
        };
        let grh = grh(&device, &path, 100).expect("a GRH");
        assert_eq!(grh[..20], [0; 20]);
        // RFC 791: the one's complement sum over a right header is all ones.
        let words = grh[20..].chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum = words.sum::<u32>();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(
            (grh[20], grh[22..24].to_vec(), grh[28], grh[29]),
            (0x45, vec![0, 20 + 8 + 24 + 100], 64, 17)
        );
    }

    #[test]
    fn a_datagram_over_ipv6_shows_the_header_in_front_of_udp() {
        let config = NicConfig { link_layer: LinkLayer::Roce, ..NicConfig::default() };
        let device = DeviceConfig::new(&config, 0);
        let path = PathAddress {
            sgid: [0xa; 16],
            dgid: device.gids[0].gid,
            // Wider than its place.
            flow_label: 0xfff1_2345,
            traffic_class: 0xa5,
            hop_limit: 9,
            grh: true,
            ..PathAddress::default()
        };
        let header = grh(&device, &path, 100).unwrap();
        assert_eq!(header[..8], [0x6a, 0x51, 0x23, 0x45, 0, 132, 17, 9]);
        assert_eq!((&header[8..24], &header[24..]), (&[0xa; 16][..], &device.gids[0].gid[..]));
    }

    #[test]
    fn on_ethernet_the_service_level_of_a_completion_is_the_kind_of_network_header() {
        let config = NicConfig { link_layer: LinkLayer::Roce, ..NicConfig::default() };
        let (roce, ib) = (DeviceConfig::new(&config, 0), DeviceConfig::new(&NicConfig::default(), 0));
        let v1 = DeviceConfig { gids: roce.gids.iter().copied().step_by(2).collect(), ..roce.clone() };
        let (local, v4) = (roce.gids[0].gid, roce.gids[2].gid);
        for (name, device, dgid, wanted) in [
            ("RoCE v1", &v1, v4, 0),
            ("IPv6", &roce, local, 1),
            ("IPv4", &roce, v4, 2),
            ("InfiniBand", &ib, local, 5),
        ] {
            let path = PathAddress { sl: 5, grh: true, dgid, ..PathAddress::default() };
            assert_eq!(service_level(device, &path), wanted, "{name}");
        }
    }

    #[test]
    fn infiniband_shows_a_grh_only_when_one_was_sent() {
        let device = DeviceConfig::new(&NicConfig::default(), 0);
        let path =
            PathAddress { grh: true, dgid: device.gids[0].gid, flow_label: 5, ..PathAddress::default() };
        let bytes = grh(&device, &path, 4).expect("a GRH");
        assert_eq!(bytes[..8], [0x60, 0, 0, 5, 0, 28, 0x1b, 0]);
        assert_eq!(bytes[24..], device.gids[0].gid);
        assert_eq!(grh(&device, &PathAddress { grh: false, ..path }, 4), None);
    }
}
