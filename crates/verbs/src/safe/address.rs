//! The handles by which datagrams find their receiver, and what they are made of.

use std::ptr::NonNull;
use std::sync::Arc;

use super::device::Pd;
use super::gid::Gid;
use crate::result::raw;
use crate::result::{Result, object};

/// Where packets go: what a connected queue pair is given on its way to RTR, and a datagram with each send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddressAttributes {
    /// Local port, counted from 1.
    pub port: u8,
    /// LID of the peer (InfiniBand).
    pub lid: u16,
    /// GID of the peer; needed on Ethernet.
    pub gid: Option<Gid>,
    pub gid_index: u8,
    /// Service level, 0 to 15 (Ethernet: 0 to 7).
    pub service_level: u8,
    /// Traffic class of the GRH or IP header.
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

impl AddressAttributes {
    pub(super) fn to_raw(self) -> raw::ibv_ah_attr {
        let mut raw = raw::ibv_ah_attr {
            dlid: self.lid,
            sl: self.service_level,
            port_num: self.port,
            is_global: self.gid.is_some().into(),
            ..Default::default()
        };
        if let Some(gid) = self.gid {
            raw.grh.dgid = raw::ibv_gid { raw: gid.0 };
            raw.grh.sgid_index = self.gid_index;
            raw.grh.traffic_class = self.traffic_class;
            raw.grh.hop_limit = self.hop_limit;
            raw.grh.flow_label = self.flow_label;
        }
        raw
    }
}

#[derive(Debug)]
struct AhHandle {
    ah: NonNull<raw::ibv_ah>,
    /// The domain outlives the handle.
    _pd: Pd,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for AhHandle {}
// SAFETY: as above.
unsafe impl Sync for AhHandle {}

impl Drop for AhHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is live; requests that name it copied its address vector when they were posted.
        let _ = unsafe { object::destroy_ah(self.ah) };
    }
}

/// The receiver's port of datagrams. Clones are the same handle.
#[derive(Debug, Clone)]
pub struct AddressHandle(Arc<AhHandle>);

impl AddressHandle {
    pub fn new(pd: &Pd, attributes: &AddressAttributes) -> Result<Self> {
        let mut raw = attributes.to_raw();
        // SAFETY: the domain is live.
        let ah =
            unsafe { object::create_ah(pd.raw(), &mut raw) }.map_err(|e| e.of(&format!("{attributes:?}")))?;
        Ok(Self(Arc::new(AhHandle { ah, _pd: pd.clone() })))
    }

    pub(super) fn raw(&self) -> NonNull<raw::ibv_ah> {
        self.0.ah
    }
}
