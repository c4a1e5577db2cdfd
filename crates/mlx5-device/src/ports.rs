//! The ports of all devices: what each is, and what it carried.

use core::net::IpAddr;

use roce::wire::{Gid, ip_of};
use roce::{Packet, count};

use super::ah;
use super::command::AddressVector;
use super::counters::{Counters, PortCounters};
use super::framing;
use super::model::{DeviceConfig, GidEntry, GidKind};
use super::qpn::process_of;
use super::route::{Route, Way};
use crate::carrier::{PathAddress, Unsent};
use crate::config::{LinkLayer, LinkPath, NicConfig};

pub(super) struct Ports {
    /// Every port of every device, those of `mlx5_0` first.
    pub configs: Vec<DeviceConfig>,
    /// What each carried.
    pub counters: Vec<PortCounters>,
    /// Ports of each device.
    pub each: u8,
    pub link_layer: LinkLayer,
    pub path: LinkPath,
    /// Packets can leave.
    pub wire: bool,
}

impl Ports {
    pub(super) fn new(config: &NicConfig, wire: bool) -> Ports {
        let configs = DeviceConfig::all(config);
        Ports {
            counters: vec![PortCounters::default(); configs.len()],
            configs,
            each: config.ports,
            link_layer: config.link_layer,
            path: config.path,
            wire,
        }
    }

    pub(super) fn devices(&self) -> usize {
        self.configs.len() / usize::from(self.each)
    }

    /// Place of the first port of a device.
    pub(super) fn first(&self, device: usize) -> usize {
        device * usize::from(self.each)
    }

    /// Place of a device's port by its number. The error is a sentence.
    pub(super) fn place(&self, device: usize, number: u8) -> Result<usize, String> {
        let devices = self.devices();
        if device >= devices {
            return Err(format!("there is no device mlx5_{device}, this NIC has {devices}"));
        }
        let wanted = number.checked_sub(1).filter(|before| *before < self.each);
        let missing = || format!("port {number} does not exist, mlx5_{device} has {}", self.each);
        wanted.map(|before| self.first(device) + usize::from(before)).ok_or_else(missing)
    }

    /// The way from the port at this place to a queue at an address, and the path as its peer sees it.
    pub(super) fn way_to(&self, port: usize, vector: &AddressVector, qpn: u32) -> (Way, PathAddress) {
        let device = &self.configs[port];
        let source = device.gids.get(usize::from(vector.sgid_index)).or(device.gids.first());
        let dlid = if device.link_layer == LinkLayer::Roce { 0 } else { vector.dlid };
        let dgid = vector.dgid.as_ref();
        let reached = ah::resolve(&self.configs, port, dlid, dgid).filter(|_| self.path != LinkPath::Wire);
        let way = match reached.map(|at| &self.configs[at]) {
            Some(reached) => process_of(qpn, reached.index.into())
                .map_or(Way::Nowhere, |slot| Way::Shared(slot, reached.port)),
            None => self.over_the_wire(source, dgid),
        };
        let path = PathAddress {
            sgid: source.map_or([0; 16], |entry| entry.gid),
            dgid: vector.dgid.unwrap_or_default(),
            slid: device.lid,
            dlid,
            flow_label: vector.flow_label,
            sl: vector.sl,
            traffic_class: vector.traffic_class,
            hop_limit: vector.hop_limit,
            grh: vector.dgid.is_some(),
            to_port: if let Way::Shared(_, port) = way { port } else { 0 },
        };
        (way, path)
    }

    /// The way in packets, which leave from RoCE v2 addresses only.
    fn over_the_wire(&self, source: Option<&GidEntry>, dgid: Option<&[u8; 16]>) -> Way {
        let source = source.filter(|entry| self.wire && entry.kind == GidKind::RoceV2);
        let ends = source.and_then(|entry| ip_of(Gid(entry.gid))).zip(dgid.and_then(|gid| ip_of(Gid(*gid))));
        match ends {
            Some((from, to)) if from.is_ipv4() == to.is_ipv4() => Way::Wire(Route { from, to }),
            _ => Way::Nowhere,
        }
    }

    /// `carried` bytes of a packet left, which take so many of the wire. Messages end with their last packet.
    #[inline(always)]
    pub(super) fn count(
        &mut self,
        counters: &mut Counters,
        port: usize,
        packet: &Packet,
        (wire, carried): (u64, u32),
        again: bool,
    ) {
        let ends = packet.content.position().ends() && carried == packet.payload.length;
        let own = &mut self.counters[port];
        count(&mut own.wire_bytes_sent, wire);
        if again {
            counters.retransmissions += 1;
        } else if packet.content.is_request() {
            count(&mut own.messages_sent, ends.into());
            count(&mut counters.bytes_sent, carried.into());
        }
    }

    /// A packet left to this address; `taken`: its bytes, from BTH to ICRC.
    pub(super) fn count_packet(
        &mut self,
        counters: &mut Counters,
        port: usize,
        to: IpAddr,
        taken: &Result<usize, Unsent>,
        packet: &Packet,
        again: bool,
    ) {
        let Ok(bytes) = taken else {
            // No header says that, or no port has that address: lost on the way.
            counters.lost_unreachable += 1;
            return;
        };
        let wire = framing::packet_framing(to) + *bytes as u64;
        self.count(counters, port, packet, (wire, packet.payload.length), again);
    }

    /// Something arrived while its port was down.
    #[cold]
    pub(super) fn drop_at(&mut self, counters: &mut Counters, port: usize) {
        counters.dropped_port_down += 1;
        self.counters[port].dropped_port_down += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_is_chosen_by_where_the_peer_is_and_can_be_forced() {
        let config =
            NicConfig { link_layer: LinkLayer::Roce, ipv4: [10, 0, 0, 1].into(), ..NicConfig::default() };
        let gids = DeviceConfig::new(&config, 0).gids;
        let (own, link_local, version_1) = (gids[3], gids[1], gids[2]);
        let gid = |ip: [u8; 4]| std::net::Ipv4Addr::from(ip).to_ipv6_mapped().octets();
        let (here, there) = (gid([10, 0, 0, 1]), gid([10, 0, 0, 2]));
        let six: [u8; 16] = "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
        let qpn = 5 << 17 | 0x40;
        let route = |to: [u8; 4]| Way::Wire(Route { from: [10, 0, 0, 1].into(), to: to.into() });
        for (name, path, wire, source, dgid, wanted) in [
            ("a process of this host", LinkPath::Auto, true, own, here, Way::Shared(5, 1)),
            ("the same, forced", LinkPath::Wire, true, own, here, route([10, 0, 0, 1])),
            ("another host", LinkPath::Auto, true, own, there, route([10, 0, 0, 2])),
            ("another host without a wire", LinkPath::Shm, false, own, there, Way::Nowhere),
            ("from a RoCE v1 address", LinkPath::Wire, true, version_1, there, Way::Nowhere),
            ("from a link-local address", LinkPath::Wire, true, link_local, there, Way::Nowhere),
            ("to a link-local address", LinkPath::Wire, true, own, link_local.gid, Way::Nowhere),
            ("to the other family", LinkPath::Auto, true, own, six, Way::Nowhere),
        ] {
            let ports = Ports::new(&NicConfig { path, ..config.clone() }, wire);
            let index = ports.configs[0]
                .gids
                .iter()
                .position(|entry| entry.gid == source.gid && entry.kind == source.kind);
            let vector = AddressVector {
                sgid_index: index.unwrap() as u8,
                dgid: Some(dgid),
                ..AddressVector::default()
            };
            assert_eq!(ports.way_to(0, &vector, qpn).0, wanted, "{name}");
        }
    }
}
