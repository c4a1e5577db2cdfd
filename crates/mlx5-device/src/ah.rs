//! Address handles and the addresses of a fabric: which device a GID or LID names.
//!
//! libmlx5 builds address vectors itself; on Ethernet it asks the kernel for the MAC address only.

use super::command::{AddressVector, CommandError, ContextId, CreatedAh, Handle, refuse_if};
use super::commands::Answer;
use super::model::DeviceConfig;
use super::nic::Nic;
use crate::carrier::Carrier;
use crate::config::LinkLayer;
use crate::memory::Memory;

#[derive(Debug, Clone, Copy)]
pub(super) struct Ah {
    pub context: ContextId,
    pub pd: u32,
}

pub trait AhCommands {
    fn create_ah(&mut self, context: ContextId, pd: Handle, address: &AddressVector) -> Answer<CreatedAh>;
    fn destroy_ah(&mut self, context: ContextId, ah: Handle) -> Answer<()>;
}

impl<M: Memory, C: Carrier> AhCommands for Nic<M, C> {
    fn create_ah(&mut self, id: ContextId, pd: Handle, vector: &AddressVector) -> Answer<CreatedAh> {
        let pd = self.core.find_pd(id, pd)?;
        let limit = self.core.capabilities.max_ah;
        if self.core.ahs.len() >= limit as usize {
            return Err(CommandError::exhausted("address handles", limit));
        }
        let device = self.core.context(id)?.device;
        let from = self.core.place_of_port(device, vector.port).map_err(CommandError::invalid)?;
        check(&self.core.ports[from], vector)?;
        let to = resolve(&self.core.ports, from, vector.dlid, vector.dgid.as_ref());
        let dmac = to.map_or([0; 6], |port| self.core.ports[port].mac);
        let place = self.core.ahs.insert(Ah { context: id, pd });
        self.core.count_pd(pd, 1);
        Ok(CreatedAh { handle: self.core.context_mut(id)?.ahs.insert(place), dmac })
    }

    fn destroy_ah(&mut self, id: ContextId, handle: Handle) -> Answer<()> {
        let place = self
            .core
            .context_mut(id)?
            .ahs
            .remove(handle)
            .ok_or_else(|| CommandError::no_such("AH", handle))?;
        if let Some(ah) = self.core.ahs.remove(place) {
            debug_assert_eq!(ah.context, id);
            self.core.count_pd(ah.pd, -1);
        }
        Ok(())
    }
}

/// Checks an address vector against the port it leaves by.
pub(super) fn check(device: &DeviceConfig, vector: &AddressVector) -> Result<(), CommandError> {
    let (named, own) = (vector.port, device.port);
    refuse_if!(named != own, EINVAL, "an address of port {named} where port {own} sends");
    let (index, len) = (vector.sgid_index, device.gids.len());
    let beyond = vector.dgid.is_some() && usize::from(index) >= len;
    refuse_if!(beyond, EINVAL, "source GID index {index} is beyond the table of {len}");
    let lacks_grh = device.link_layer == LinkLayer::Roce && vector.dgid.is_none();
    refuse_if!(lacks_grh, EINVAL, "an address on Ethernet needs a GRH");
    Ok(())
}

/// Place of the port that packets with this address reach. Ports have the same addresses in every process of a fabric.
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
