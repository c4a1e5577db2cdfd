//! The emulated card: PCI identity, capabilities, ports and GIDs of ConnectX-5, 6, 6 Dx and 7.
//!
//! Identities are those of `pci.ids` and of `ibv_devinfo` on the cards; a limit reported here is enforced by
//! the command that it bounds. What this NIC does not do (multicast, type-2A windows) is reported as 0, not
//! as the card's number. The only difference in behaviour between models is in these tables.

use roce::wire::gid_of;

use super::qpn::MAX_QP;
use crate::config::{LinkLayer, Model, NicConfig, defaults};

/// The PCI vendor id of Mellanox Technologies.
pub const PCI_VENDOR: u16 = 0x15b3;

/// The IEEE OUI that `ibv_query_device` gives as vendor.
pub const VENDOR_OUI: u32 = 0x02c9;

/// What tells the cards of a family from others.
pub struct Identity {
    /// PCI device id, which is also `vendor_part_id`; `hca_type` is `MT` and this in decimal.
    pub pci_device: u16,
    /// `fw_ver` as text.
    pub firmware: &'static str,
    /// `board_id`: the PSID.
    pub board_id: &'static str,
    /// `active_speed` of a 4x link, IBTA PortInfo encoding (32 EDR, 64 HDR, 128 NDR).
    pub active_speed: u8,
}

impl Model {
    /// Firmware version, 64 bits as in `ib_uverbs_query_device_resp`: major 32, minor 16, sub-minor 16.
    pub fn firmware_number(self) -> u64 {
        let mut parts = self.identity().firmware.split('.').map(|p| p.parse::<u64>().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        let (major, minor, sub) = (next(), next(), next());
        major << 32 | minor << 16 | sub
    }

    pub fn identity(self) -> Identity {
        let (pci_device, firmware, board_id, active_speed) = match self {
            Model::ConnectX5 => (0x1017, "16.35.1012", "MT_0000000008", 32),
            Model::ConnectX6 => (0x101b, "20.35.1012", "MT_0000000223", 64),
            Model::ConnectX6Dx => (0x101d, "22.35.1012", "MT_0000000359", 64),
            Model::ConnectX7 => (0x1021, "28.35.1012", "MT_0000000838", 128),
        };
        Identity { pci_device, firmware, board_id, active_speed }
    }

    /// Limits and capability bits.
    pub fn capabilities(self) -> Capabilities {
        let common = Capabilities::default();
        match self {
            Model::ConnectX5 => Capabilities { max_pd: 1 << 24, ..common },
            Model::ConnectX6 | Model::ConnectX6Dx | Model::ConnectX7 => common,
        }
    }
}

defaults! {
    /// What `ibv_query_device` shows and the device enforces. The values are those of most models.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Capabilities {
        /// Longest region, bytes.
        max_mr_size: u64 = u64::MAX,
        /// Bit mask of page sizes.
        page_size_cap: u64 = 0xffff_ffff_ffff_f000,
        /// QPs of one device.
        max_qp: u32 = MAX_QP,
        /// Send blocks or receive entries of one QP.
        max_qp_wr: u32 = 32768,
        /// `IBV_DEVICE_*` bits.
        // BAD_PKEY_CNTR, BAD_QKEY_CNTR, PORT_ACTIVE_EVENT, SYS_IMAGE_GUID, RC_RNR_NAK_GEN, MEM_WINDOW,
        // MEM_MGT_EXTENSIONS (invalidation, local and with a SEND), MEM_WINDOW_TYPE_2B.
        device_cap_flags: u32 = 1 << 1 | 1 << 2 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 17 | 1 << 21 | 1 << 24,
        /// Scatter/gather entries of a request.
        max_sge: u32 = 30,
        /// Scatter/gather entries of a READ.
        max_sge_rd: u32 = 30,
        /// CQs of one NIC.
        max_cq: u32 = 1 << 24,
        /// Largest `cqe` of CQ creation (entries minus one).
        max_cqe: u32 = (1 << 22) - 1,
        /// Shared receive queues of one NIC.
        max_srq: u32 = 1 << 23,
        max_srq_wr: u32 = 32767,
        /// Scatter entries of one of these: one pointer's room is the link's.
        max_srq_sge: u32 = 31,
        /// Memory regions of one NIC, windows counted too: their keys are of one space.
        max_mr: u32 = (1 << 24) - 0x10,
        /// The same for windows.
        max_mw: u32 = (1 << 24) - 0x10,
        /// Protection domains of one NIC.
        max_pd: u32 = 1 << 23,
        /// READs and atomics outstanding as responder.
        max_qp_rd_atom: u32 = 16,
        /// READs and atomics outstanding as initiator.
        max_qp_init_rd_atom: u32 = 16,
        /// Responder resources of the NIC.
        max_res_rd_atom: u32 = 16 * MAX_QP,
        /// Address handles.
        max_ah: u32 = i32::MAX as u32,
        /// P_Key table entries.
        max_pkeys: u16 = 1,
        /// Local CA ack delay, code.
        local_ca_ack_delay: u8 = 16,
        max_message_bytes: u32 = 1 << 30,
        /// Largest inline payload of a send WQE.
        max_inline_data: u32 = 956,
        /// Largest receive WQE.
        max_recv_descriptor_bytes: u32 = 512,
    }
}

/// `gid_type` of a GID table entry, with the number that `ib_uverbs_gid_entry` carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    Ib = 0,
    /// RoCE version 1.
    RoceV1 = 1,
    /// RoCE version 2 (UDP).
    RoceV2 = 2,
}

/// One entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// The 16 bytes, network order.
    pub gid: [u8; 16],
    pub kind: GidKind,
}

/// One port of a device, with what `mlx5_N` shows of both. The same in every process of a fabric: `mlx5_0` is
/// one card to all. A port's place in the NIC's row, `mlx5_0`'s first, is its number in the NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Which device it is a port of: N of `mlx5_N`.
    pub index: u8,
    /// The port's number at its device, from 1.
    pub port: u8,
    /// The card family.
    pub model: Model,
    pub link_layer: LinkLayer,
    /// Node and system image GUID of the device, host order.
    pub guid: u64,
    /// MAC address on Ethernet.
    pub mac: [u8; 6],
    /// LID; 0 on Ethernet.
    pub lid: u16,
    /// GID table.
    pub gids: Vec<GidEntry>,
    /// IP addresses of the port's network interface, IPv4 ones mapped: on RoCE its GIDs of version 2.
    pub ips: Vec<[u8; 16]>,
    /// Active MTU, verbs code 1..=5 (256..=4096 bytes).
    pub mtu: u8,
}

impl DeviceConfig {
    /// Every port under this configuration.
    pub fn all(config: &NicConfig) -> Vec<DeviceConfig> {
        (0..config.all_ports()).map(|place| DeviceConfig::new(config, place)).collect()
    }

    /// The port at `place`: MAC ending in `place + 1`, on InfiniBand LID `place + 1`; the `place`-th
    /// addresses after the first. GUID: its device's first port's. RoCE GIDs as on cards: link-local, IPv4,
    /// IPv6, each v1 and v2.
    pub fn new(config: &NicConfig, place: u8) -> DeviceConfig {
        let number = place.wrapping_add(1);
        let mac = [0x0c, 0x42, 0xa1, 0x03, 0x00, number];
        let guid = |last| u64::from_be_bytes([mac[0], mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], last]);
        let port_guid = guid(number);
        let (index, port) = (place / config.ports, place % config.ports + 1);
        let mut ips: Vec<_> = config.addresses(place).map(|address| gid_of(address).0).collect();
        let entry = |gid, kind| GidEntry { gid, kind };
        let (lid, gids) = match config.link_layer {
            LinkLayer::Ib => (u16::from(number), vec![entry(link_local(port_guid), GidKind::Ib)]),
            LinkLayer::Roce => {
                // Modified EUI-64 flips the universal/local bit of the MAC (RFC 4291 appendix A).
                ips.insert(0, link_local(port_guid ^ 1 << 57));
                let both = |gid: &[u8; 16]| [entry(*gid, GidKind::RoceV1), entry(*gid, GidKind::RoceV2)];
                (0, ips.iter().flat_map(both).collect())
            }
        };
        let mtu = config.mtu.trailing_zeros().saturating_sub(7) as u8;
        let guid = guid(number - (port - 1));
        let (model, link_layer) = (config.model, config.link_layer);
        DeviceConfig { index, port, model, link_layer, guid, mac, lid, gids, ips, mtu }
    }

    /// Whether a packet for this GID reaches the device.
    pub fn owns_gid(&self, gid: &[u8; 16]) -> bool {
        self.gids.iter().any(|entry| entry.gid == *gid)
    }
}

fn link_local(interface: u64) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&interface.to_be_bytes());
    gid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_carry_the_ids_of_the_cards() {
        for (model, part, major) in [
            (Model::ConnectX5, 4119, 16),
            (Model::ConnectX6, 4123, 20),
            (Model::ConnectX6Dx, 4125, 22),
            (Model::ConnectX7, 4129, 28),
        ] {
            assert_eq!((model.identity().pci_device, model.firmware_number() >> 32), (part, major));
        }
        // 20.35.1012 as the kernel packs it.
        assert_eq!(Model::ConnectX6.firmware_number(), 20 << 32 | 35 << 16 | 1012);
    }

    #[test]
    fn gid_table_has_the_order_of_a_card() {
        let config =
            NicConfig { ipv4: [192, 0, 2, 1].into(), link_layer: LinkLayer::Roce, ..NicConfig::default() };
        let roce = DeviceConfig::new(&config, 0);
        let kinds: Vec<_> = roce.gids.iter().map(|g| g.kind).collect();
        assert_eq!(kinds, [GidKind::RoceV1, GidKind::RoceV2, GidKind::RoceV1, GidKind::RoceV2]);
        assert_eq!(
            roce.gids[1].gid,
            [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x0e, 0x42, 0xa1, 0xff, 0xfe, 0x03, 0, 1]
        );
        assert_eq!(roce.gids[3].gid[10..], [0xff, 0xff, 192, 0, 2, 1]);
        assert_eq!((roce.lid, roce.mtu), (0, 5));
        let ib = DeviceConfig::new(&NicConfig { mtu: 1024, ..NicConfig::default() }, 1);
        assert_eq!((ib.lid, ib.gids.len(), ib.mtu), (2, 1, 3));
        assert!(ib.owns_gid(&ib.gids[0].gid) && !ib.owns_gid(&roce.gids[0].gid));
    }
}
