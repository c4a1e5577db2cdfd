//! Address handles and the addresses of a fabric: which port a GID or LID names.
//!
//! libmlx5 builds address vectors itself; on Ethernet it asks the kernel for the MAC address only.

use super::command::{AddressVector, Answer, refuse_if};
use super::model::DeviceConfig;
use crate::config::LinkLayer;

/// Checks an address vector against the port it leaves by.
pub(super) fn check(device: &DeviceConfig, vector: &AddressVector) -> Answer<()> {
    let (named, own) = (vector.port, device.port);
    refuse_if!(named != own, EINVAL, "an address of port {named} where port {own} sends");
    let (index, len) = (vector.sgid_index, device.gids.len());
    let beyond = vector.dgid.is_some() && usize::from(index) >= len;
    refuse_if!(beyond, EINVAL, "source GID index {index} is beyond the table of {len}");
    let lacks_grh = device.link_layer == LinkLayer::Roce && vector.dgid.is_none();
    refuse_if!(lacks_grh, EINVAL, "an address on Ethernet needs a GRH");
    Ok(())
}

/// Place of the port that packets with this address reach. All processes of a fabric have the same addresses.
pub(super) fn resolve(
    devices: &[DeviceConfig],
    from: usize,
    dlid: u16,
    dgid: Option<&[u8; 16]>,
) -> Option<usize> {
    let layer = devices.get(from)?.link_layer;
    let owns = |device: &DeviceConfig| match (layer, dgid) {
        // A switch forwards by LID; the GID is looked at by the port that the LID names.
        (LinkLayer::Ib, gid) => device.lid == dlid && gid.is_none_or(|gid| device.owns_gid(gid)),
        (LinkLayer::Roce, Some(gid)) => device.owns_gid(gid),
        (LinkLayer::Roce, None) => false,
    };
    devices.iter().position(owns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NicConfig;

    fn pair(link_layer: LinkLayer) -> Vec<DeviceConfig> {
        let config = NicConfig { link_layer, ..NicConfig::default() };
        (0..2).map(|i| DeviceConfig::new(&config, i)).collect()
    }

    #[test]
    fn addresses_name_the_device_that_owns_them() {
        let (ib, roce) = (pair(LinkLayer::Ib), pair(LinkLayer::Roce));
        let (own, other) = (ib[0].gids[0].gid, ib[1].gids[0].gid);
        for (name, devices, dlid, dgid, wanted) in [
            ("LID", &ib, 2, None, Some(1)),
            ("LID of nobody", &ib, 9, None, None),
            ("LID and its GID", &ib, 1, Some(own), Some(0)),
            ("LID and another's GID", &ib, 1, Some(other), None),
            ("GID on Ethernet", &roce, 0, Some(roce[1].gids[3].gid), Some(1)),
            ("GID of nobody", &roce, 0, Some([7; 16]), None),
            ("LID on Ethernet", &roce, 1, None, None),
        ] {
            assert_eq!(resolve(devices, 0, dlid, dgid.as_ref()), wanted, "{name}");
        }
    }

    #[test]
    fn vectors_are_checked_against_the_port() {
        let (ib, roce) = (pair(LinkLayer::Ib), pair(LinkLayer::Roce));
        let vector = AddressVector { port: 1, dlid: 2, ..AddressVector::default() };
        assert!(check(&ib[0], &vector).is_ok());
        assert!(check(&roce[0], &vector).is_err(), "no GRH");
        assert!(check(&ib[0], &AddressVector { port: 2, ..vector }).is_err());
        let with_grh = AddressVector { dgid: Some([1; 16]), sgid_index: 4, ..vector };
        assert!(check(&roce[0], &with_grh).is_err(), "index past the table");
        assert!(check(&roce[0], &AddressVector { sgid_index: 3, ..with_grh }).is_ok());
    }
}
