//! One connection, or one question after a datagram service's QP.

use super::State;
use crate::Now;
use crate::wire::Gid;
use crate::wire::cm::{Ids, Path, Req};
use crate::wire::mad::MAD_BYTES;

/// Both ends of a MAD's way, seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Route {
    pub local: Gid,
    pub remote: Gid,
}

/// Name of a connection: its local communication id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// A MAD that waits for its answer.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub mad: Box<[u8; MAD_BYTES]>,
    pub timeout_ns: u64,
    pub retries_left: u8,
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    pub id: u32,
    pub remote_id: Option<u32>,
    pub state: State,
    pub route: Route,
    /// Of the exchange that made it.
    pub transaction: u64,
    pub local_qpn: u32,
    /// What [`super::Cm::attributes`] says of it.
    pub attributes: Req,
    /// How long the other end may take to answer.
    pub response_ns: u64,
    /// Code that an MRA will say.
    pub postponed: u8,
    pub sent: Option<Sent>,
    /// The answer to a message that was answered already and comes again.
    pub answer: Option<Box<[u8; MAD_BYTES]>>,
    pub timer: Option<Now>,
    /// Whether the program still has it.
    pub owned: bool,
    /// The listener that counts it in its backlog.
    pub waits_at: Option<(u64, Option<Gid>)>,
}

impl Connection {
    /// Both ids, in the order of a message that this end sends.
    pub(super) fn ids(&self) -> Ids {
        Ids { local: self.id, remote: self.remote_id.unwrap_or(0) }
    }
}

/// A REQ as the end that is asked would say it: the path, and what each end holds, seen from there.
pub(super) fn turned(req: &Req) -> Req {
    let path = req.primary;
    Req {
        primary: Path {
            local_lid: path.remote_lid,
            remote_lid: path.local_lid,
            local_gid: path.remote_gid,
            remote_gid: path.local_gid,
            ..path
        },
        // What they hold, we may have outstanding, and the other way round.
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        ..*req
    }
}
