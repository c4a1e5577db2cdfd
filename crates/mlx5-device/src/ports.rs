//! The ports of all devices: what each is, what it carried, and the rate that it is held to.

use core::net::IpAddr;

use roce::{Now, Packet, Request, Transmit};

use super::counters::{Counters, PortCounters};
use super::model::DeviceConfig;
use super::route::Ways;
use super::wire;
use crate::TokenBucket;
use crate::carrier::Unsent;
use crate::config::{LinkPath, NicConfig};

pub(super) struct Ports {
    /// Every port of every device, those of `mlx5_0` first.
    pub configs: Vec<DeviceConfig>,
    /// What each carried.
    pub counters: Vec<PortCounters>,
    pub shapers: Vec<TokenBucket>,
    each: u8,
    path: LinkPath,
    /// Packets can leave.
    pub wire: bool,
}

impl Ports {
    pub(super) fn new(config: &NicConfig, wire: bool, now: Now) -> Ports {
        let configs = DeviceConfig::all(config);
        Ports {
            counters: vec![PortCounters::default(); configs.len()],
            shapers: configs.iter().map(|_| TokenBucket::new(config.rate_gbps, now)).collect(),
            configs,
            each: config.ports,
            path: config.path,
            wire,
        }
    }

    /// Number of devices.
    pub(super) fn devices(&self) -> usize {
        self.configs.len() / usize::from(self.each)
    }

    /// Ports of each device.
    pub(super) fn of_each(&self) -> u8 {
        self.each
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

    /// Which way messages take.
    pub(super) fn ways(&self) -> Ways<'_> {
        Ways { path: self.path, wire: self.wire, ports: &self.configs }
    }

    #[inline(always)]
    pub(super) fn count_sent(
        &mut self,
        counters: &mut Counters,
        port: usize,
        mtu: u32,
        request: &Request,
        transmit: Transmit,
    ) {
        let (layer, length) = (self.configs[port].link_layer, request.length);
        self.charge(counters, port, wire::request_bytes(layer, request.service, request.opcode, length, mtu));
        if transmit.retransmission {
            counters.retransmissions += 1;
        } else {
            counters.messages_sent += 1;
            self.counters[port].messages_sent += 1;
            counters.bytes_sent += if request.opcode.carries_payload() { u64::from(length) } else { 0 };
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
        self.charge(counters, port, wire::packet_framing(to) + *bytes as u64);
        if again {
            counters.retransmissions += 1;
        } else if packet.content.is_request() {
            let message = u64::from(packet.content.position().ends());
            counters.messages_sent += message;
            self.counters[port].messages_sent += message;
            counters.bytes_sent += u64::from(packet.payload.length);
        }
    }

    /// Bytes of wire that something sent takes.
    #[inline(always)]
    fn charge(&mut self, counters: &mut Counters, port: usize, wire: u64) {
        self.shapers[port].spend(wire);
        counters.wire_bytes_sent += wire;
        self.counters[port].wire_bytes_sent += wire;
    }

    /// Something arrived while its port was down.
    #[cold]
    pub(super) fn drop_at(&mut self, counters: &mut Counters, port: usize) {
        counters.dropped_port_down += 1;
        self.counters[port].dropped_port_down += 1;
    }
}
