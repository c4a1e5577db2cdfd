//! Which way a message takes: through shared memory to a process of this fabric, in packets to an address, or nowhere.

use core::net::IpAddr;

use roce::wire::Gid;
use roce::wire::ip_of;

use super::ah;
use super::model::{DeviceConfig, GidEntry, GidKind};
use super::qpn::process_of;
use crate::config::LinkPath;

/// Two addresses that packets travel between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    pub from: IpAddr,
    pub to: IpAddr,
}

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// No process that can be reached has the address.
    Nowhere,
    /// A process of this fabric, by its slot, and the port of its device that has the address.
    Shared(u8, u8),
    /// Over the wire.
    Wire(Route),
}

impl Way {
    pub(super) fn peer(self) -> Option<u8> {
        if let Way::Shared(slot, _) = self { Some(slot) } else { None }
    }

    pub(super) fn route(self) -> Option<Route> {
        if let Way::Wire(route) = self { Some(route) } else { None }
    }
}

/// What the ways of one NIC depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways<'a> {
    /// As configured.
    pub path: LinkPath,
    /// Packets can leave.
    pub wire: bool,
    pub ports: &'a [DeviceConfig],
}

impl Ways<'_> {
    /// The way from a port, by its place, to a queue at an address. `source` is the GID that the sender names as its own.
    pub(super) fn to(
        &self,
        port: usize,
        source: Option<&GidEntry>,
        dlid: u16,
        dgid: Option<&[u8; 16]>,
        qpn: u32,
    ) -> Way {
        if self.path != LinkPath::Wire
            && let Some(reached) = ah::resolve(self.ports, port, dlid, dgid).and_then(|at| self.ports.get(at))
        {
            let slot = process_of(qpn, reached.index.into());
            return slot.map_or(Way::Nowhere, |slot| Way::Shared(slot, reached.port));
        }
        let source = source.filter(|entry| self.wire && entry.kind == GidKind::RoceV2);
        let ends = source.and_then(|entry| ip_of(Gid(entry.gid))).zip(dgid.and_then(|gid| ip_of(Gid(*gid))));
        match ends {
            Some((from, to)) if from.is_ipv4() == to.is_ipv4() => Way::Wire(Route { from, to }),
            _ => Way::Nowhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LinkLayer, NicConfig};

    #[test]
    fn the_way_is_chosen_by_where_the_peer_is_and_can_be_forced() {
        let config =
            NicConfig { link_layer: LinkLayer::Roce, ipv4: [10, 0, 0, 1].into(), ..NicConfig::default() };
        let devices = [DeviceConfig::new(&config, 0)];
        let own = devices[0].gids[3];
        let (link_local, version_1) = (devices[0].gids[1], devices[0].gids[2]);
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
            let ways = Ways { path, wire, ports: &devices };
            assert_eq!(ways.to(0, Some(&source), 0, Some(&dgid), qpn), wanted, "{name}");
        }
    }
}
