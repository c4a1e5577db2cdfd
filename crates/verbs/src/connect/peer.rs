//! The way to the peer that said hello: addresses, and queue pairs to RTR and RTS.

use super::{ConnectError, Hello, Path, QpOffer};
use crate::{AddressAttributes, Qp, RtrAttributes, RtsAttributes};

impl Path {
    /// Way to a peer.
    pub fn address_of<P>(&self, peer: &Hello<P>) -> AddressAttributes {
        AddressAttributes {
            port: self.port,
            lid: peer.lid,
            gid: if self.gid.is_some() { peer.gid } else { None },
            gid_index: self.gid.map_or(0, |entry| entry.index as u8),
            service_level: self.options.service_level,
            traffic_class: self.options.traffic_class,
            hop_limit: self.options.hop_limit,
            flow_label: 0,
        }
    }

    /// Brings a queue pair from INIT over RTR to RTS, with the peer's queue pair `theirs` at the other end.
    pub fn connect<P>(
        &self,
        qp: &Qp,
        ours: QpOffer,
        peer: &Hello<P>,
        theirs: QpOffer,
    ) -> Result<(), ConnectError> {
        qp.to_rtr(&RtrAttributes {
            address: self.address_of(peer),
            peer_qpn: theirs.number,
            mtu: self.mtu,
            expected_psn: theirs.psn,
            max_dest_rd_atomic: self.max_rd_atomic,
            min_rnr_timer: self.options.min_rnr_timer,
        })?;
        qp.to_rts(&RtsAttributes {
            first_psn: ours.psn,
            timeout: self.options.timeout,
            retry_count: self.options.retry_count,
            rnr_retry: self.options.rnr_retry,
            max_rd_atomic: self.max_rd_atomic.min(peer.max_dest_rd_atomic),
        })?;
        Ok(())
    }
}
