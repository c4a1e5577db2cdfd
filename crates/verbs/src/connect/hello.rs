//! The line that each side sends: its name, its path, and the queue pairs and regions that it offers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{ConnectError, PROTOCOL, Path, VERSION};
use crate::code::{LinkLayer, Mtu};
use crate::{Gid, Memory, Mr, Qp, QpType};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpOffer {
    pub number: u32,
    /// First PSN that it will send, 24 bits.
    pub psn: u32,
}

impl QpOffer {
    /// Offers a queue pair with a random first PSN, lest packets of an earlier connection pass for its own.
    pub fn new(qp: &Qp) -> Self {
        // The standard library's hash keys are random in each process and differ from call to call.
        let random = RandomState::new().build_hasher().finish();
        Self { number: qp.number(), psn: (random & 0xff_ffff) as u32 }
    }
}

/// A region that the peer may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionOffer {
    /// First byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    pub rkey: u32,
}

impl RegionOffer {
    pub fn new<M: Memory>(region: &Mr<M>) -> Self {
        Self { address: region.address(), bytes: region.len() as u64, rkey: region.rkey() }
    }
}

/// What one side tells the other. `P` is the application's own part, any JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello<P> {
    protocol: String,
    version: u64,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// Path MTU in bytes.
    pub mtu: Mtu,
    /// LID of the port, 0 on Ethernet.
    pub lid: u16,
    /// GID of the port; always on Ethernet.
    pub gid: Option<Gid>,
    /// `ib`, `roce-v1` or `roce-v2`, with the address family.
    pub gid_kind: String,
    /// READs and atomics that this side answers at a time.
    pub max_dest_rd_atomic: u8,
    /// `RC`, `UC` or `UD`.
    pub service: String,
    /// Queue pairs, in the order in which they are connected to the peer's.
    pub queue_pairs: Vec<QpOffer>,
    /// Regions, in an order that the applications know.
    pub regions: Vec<RegionOffer>,
    /// The application's own part.
    pub parameters: P,
}

impl<P> Hello<P> {
    /// What we say.
    pub fn new(
        path: &Path,
        service: QpType,
        queue_pairs: Vec<QpOffer>,
        regions: Vec<RegionOffer>,
        parameters: P,
    ) -> Self {
        Self {
            protocol: PROTOCOL.into(),
            version: VERSION,
            link_layer: path.link_layer,
            mtu: path.mtu,
            lid: path.lid,
            gid: path.gid.map(|entry| entry.gid),
            gid_kind: path.gid_kind(),
            max_dest_rd_atomic: path.max_rd_atomic,
            service: service.to_string(),
            queue_pairs,
            regions,
            parameters,
        }
    }

    /// Refuses a peer that cannot be talked to, by the name of what differs.
    pub(super) fn check<Q>(&self, peer: SocketAddr, theirs: &Hello<Q>) -> Result<(), ConnectError> {
        if self.link_layer != theirs.link_layer {
            return Err(ConnectError::LinkLayer { peer, ours: self.link_layer, theirs: theirs.link_layer });
        }
        if self.mtu != theirs.mtu {
            return Err(ConnectError::Mtu { peer, ours: self.mtu, theirs: theirs.mtu });
        }
        if self.gid_kind != theirs.gid_kind || self.gid.is_some() != theirs.gid.is_some() {
            return Err(ConnectError::Gid {
                peer,
                ours: self.gid_kind.clone(),
                theirs: theirs.gid_kind.clone(),
            });
        }
        let (ours, theirs) = (self.request(), theirs.request());
        if ours != theirs { Err(ConnectError::Request { peer, ours, theirs }) } else { Ok(()) }
    }

    fn request(&self) -> String {
        format!("{} {} queue pair(s)", self.queue_pairs.len(), self.service)
    }
}

impl<P: DeserializeOwned> Hello<P> {
    /// Reads a peer's line: first whether it is ours, then its version, then the rest.
    pub(super) fn parse(peer: SocketAddr, line: &[u8]) -> Result<Self, ConnectError> {
        let text = String::from_utf8_lossy(line);
        let stranger = || ConnectError::Stranger { peer, start: text.chars().take(60).collect() };
        let value: serde_json::Value = serde_json::from_slice(line).map_err(|_| stranger())?;
        if value.get("protocol").and_then(|name| name.as_str()) != Some(PROTOCOL) {
            return Err(stranger());
        }
        let theirs = value.get("version").and_then(serde_json::Value::as_u64).ok_or_else(stranger)?;
        if theirs != VERSION {
            return Err(ConnectError::Version { peer, theirs });
        }
        let malformed = |reason: String| ConnectError::Malformed { peer, what: "a greeting", reason };
        let hello: Self = serde_json::from_value(value).map_err(|e| malformed(e.to_string()))?;
        for offer in &hello.queue_pairs {
            if offer.number > 0xff_ffff || offer.psn > 0xff_ffff {
                let QpOffer { number, psn } = offer;
                return Err(malformed(format!(
                    "queue pair {number:#x} or PSN {psn:#x} has more than 24 bits"
                )));
            }
        }
        Ok(hello)
    }
}
