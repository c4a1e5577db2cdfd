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

/// What a QP of a connection is to be set to (IBTA vol. 1 §12.9.7 has the order). Fields are zeroes until they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpAttributes {
    /// The other end's QPN.
    pub remote_qpn: u32,
    /// First PSN that we receive.
    pub rq_psn: u32,
    /// First PSN that we send.
    pub sq_psn: u32,
    /// The way, `local` being our end.
    pub path: Path,
    /// Path MTU, verbs code 1 to 5.
    pub path_mtu: u8,
    /// Local ACK time-out, code.
    pub ack_timeout: u8,
    /// Retry count.
    pub retry: u8,
    /// RNR retry count.
    pub rnr_retry: u8,
    /// READs and atomics that we hold.
    pub responder_resources: u8,
    /// READs and atomics that we have outstanding.
    pub initiator_depth: u8,
    /// Service of the REQ: 0 RC, 1 UC.
    pub transport: u8,
}

/// What tells one SIDR_REQ from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SidrReqId {
    pub route: Route,
    /// The asking end's number of the request.
    pub request: u32,
    pub transaction: u64,
}

/// A MAD that waits for its answer.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub mad: Box<[u8; MAD_BYTES]>,
    pub timeout_ns: u64,
    pub retries_left: u8,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub id: u32,
    pub remote_id: Option<u32>,
    pub state: State,
    pub route: Route,
    /// Of the exchange that made it.
    pub transaction: u64,
    pub local_qpn: u32,
    pub service: u64,
    /// GUID of our HCA, where we asked.
    pub ca_guid: u64,
    pub attributes: QpAttributes,
    /// How long the other end may take to answer, and how often it is asked again.
    pub response_ns: u64,
    pub retries: u8,
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
    pub(super) fn new(id: u32, state: State, route: Route, transaction: u64) -> Self {
        Self {
            id,
            remote_id: None,
            state,
            route,
            transaction,
            local_qpn: 0,
            service: 0,
            ca_guid: 0,
            attributes: QpAttributes::default(),
            response_ns: 0,
            retries: 0,
            postponed: 0,
            sent: None,
            answer: None,
            timer: None,
            owned: true,
            waits_at: None,
        }
    }

    /// Both ids, in the order of a message that this end sends.
    pub(super) fn ids(&self) -> Ids {
        Ids { local: self.id, remote: self.remote_id.unwrap_or(0) }
    }
}

/// A path seen from its other end.
pub(super) fn turned(path: &Path) -> Path {
    Path {
        local_lid: path.remote_lid,
        remote_lid: path.local_lid,
        local_gid: path.remote_gid,
        remote_gid: path.local_gid,
        ..*path
    }
}

/// What each end knows of its QP from a REQ, before the REP changes some of it.
pub(super) fn of_req(req: &Req, asks: bool) -> QpAttributes {
    let known = QpAttributes {
        path: req.primary,
        path_mtu: req.path_mtu,
        ack_timeout: req.primary.ack_timeout,
        retry: req.retry,
        rnr_retry: req.rnr_retry,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        transport: req.transport,
        ..QpAttributes::default()
    };
    if asks {
        return QpAttributes { rq_psn: req.starting_psn, ..known };
    }
    QpAttributes {
        remote_qpn: req.qpn,
        sq_psn: req.starting_psn,
        path: turned(&req.primary),
        // What they hold, we may have outstanding, and the other way round.
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        ..known
    }
}
