//! The connection manager: MADs and commands in, MADs and events out. No clock, no socket.
//!
//! IBTA vol. 1 chapter 12, Annex A11 (services named by IP ports), as public sources give them. Each
//! state's answer to each message follows Linux's `drivers/infiniband/core/cm.c` and its traffic in
//! `crates/roce/tests/data`. [`Cm::handle_mad`] and commands ([`Cm::connect`], [`Cm::accept`] …) change a
//! connection's [`State`]. [`Cm::poll_transmit`] gives MADs, [`Cm::poll_event`] events; [`Cm::poll_timeout`]
//! says when [`Cm::handle_timeout`] is due. An unanswered request is resent as often as the REQ says; a
//! repeated one is answered again. An ended connection keeps its names for a while ([`State::TimeWait`]).
//! Left out: alternate paths (LAP, APR), RD and XRC, redirection.
//!
//! Local communication ids carry the process's slot in their upper 7 bits, so that a process can forward MADs
//! by the id in them.

mod absent;
mod active;
mod connection;
mod datagram;
mod ending;
mod names;
mod passive;
mod peer;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod timer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::Now;
use crate::wire::Gid;
use crate::wire::cm::{CmMad, Dreq, Ids, Message, Mra, Rej, Rep, Req, SidrRep, SidrReq, reason};
use crate::wire::mad::MAD_BYTES;

pub use absent::refuse;
use connection::{Connection, Sent};
pub use connection::{ConnectionId, Route};
use names::Names;
pub use names::slot_of;
pub use peer::{Cause, CmCounters, CmDrop, CmError, Event, Taken};
pub use state::State;

/// What a time code multiplies (IBTA vol. 1 §12.6).
const TIME_UNIT_NS: u64 = 4_096;

/// Nanoseconds of a 5-bit time code: the unit times 2 to it.
pub const fn code_ns(code: u8) -> u64 {
    TIME_UNIT_NS << (code & 31)
}

/// Code of a local ACK timeout: two packet lifetimes and the other end's delay, as Linux computes it.
pub const fn ack_timeout(target_ack_delay: u8, packet_life_time: u8) -> u8 {
    let base = packet_life_time + 1;
    let code = if base >= target_ack_delay {
        base + (target_ack_delay >= packet_life_time) as u8
    } else {
        target_ack_delay + (base >= target_ack_delay.saturating_sub(1)) as u8
    };
    if code < 31 { code } else { 31 }
}

/// What one connection manager is told once.
#[derive(Debug, Clone, Copy)]
pub struct CmConfig {
    /// Slot of the process, 7 bits: the upper bits of its communication ids.
    pub slot: u8,
    /// Where ids begin to count, and the upper half of transactions.
    pub seed: u64,
    /// Connections, those that end included; what comes beyond them is dropped and will be asked again.
    pub max_connections: usize,
}

/// A MAD with the addresses of both QP1s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressedMad {
    pub from: Gid,
    pub to: Gid,
    pub mad: Box<[u8; MAD_BYTES]>,
}

/// A program that listens to a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Listener {
    /// Most requests that the program has not answered yet.
    backlog: usize,
    waiting: usize,
}

/// What tells one SIDR_REQ from another: its way, the asking end's number of it, and its transaction.
type SidrReqId = (Route, u32, u64);

/// A connection manager.
#[derive(Debug, Default)]
pub struct Cm {
    max_connections: usize,
    names: Names,
    connections: BTreeMap<u32, Connection>,
    /// By service, and address: none for every address.
    listeners: BTreeMap<(u64, Option<Gid>), Listener>,
    /// By the other end's address and communication id.
    by_peer: BTreeMap<(Gid, u32), u32>,
    /// By the other end's address and QPN.
    by_qpn: BTreeMap<(Gid, u32), u32>,
    timers: BTreeSet<(Now, u32)>,
    /// The latest SIDR_REPs, the oldest first, for SIDR_REQs that come again.
    sidr_reps: VecDeque<(SidrReqId, Box<[u8; MAD_BYTES]>)>,
    outgoing: VecDeque<AddressedMad>,
    events: VecDeque<Event>,
    counters: CmCounters,
}

impl Cm {
    /// One without connections.
    pub fn new(config: CmConfig) -> Self {
        let CmConfig { slot, seed, max_connections } = config;
        Self { max_connections, names: Names::new(slot, seed), ..Self::default() }
    }

    /// Listens to a service, at one address or at all. Error: a program listens there already.
    pub fn listen(&mut self, service: u64, address: Option<Gid>, backlog: usize) -> Result<(), CmError> {
        if self.listeners.contains_key(&(service, address)) {
            return Err(CmError::InUse { service });
        }
        self.listeners.insert((service, address), Listener { backlog, waiting: 0 });
        Ok(())
    }

    /// Ends it; requests that wait stay.
    pub fn unlisten(&mut self, service: u64, address: Option<Gid>) {
        self.listeners.remove(&(service, address));
    }

    /// Takes a MAD that arrived at QP1. The error says why it was dropped; it is counted.
    pub fn handle_mad(&mut self, now: Now, route: Route, mad: &[u8]) -> Taken {
        let decoded = CmMad::decode(mad).map_err(|_| CmDrop::Malformed);
        let taken = decoded.and_then(|mad| self.take(now, route, &mad));
        match taken {
            Ok(()) => self.counters.taken += 1,
            Err(drop) => self.counters.count(drop),
        }
        taken
    }

    fn take(&mut self, now: Now, route: Route, mad: &CmMad<'_>) -> Taken {
        match &mad.message {
            Message::Req(req) => self.take_req(now, route, mad, req),
            Message::Mra(mra) => self.take_mra(now, route, mra),
            Message::Rej(rej) => self.take_rej(now, route, mad, rej),
            Message::Rep(rep) => self.take_rep(now, route, mad, rep),
            Message::Rtu(ids) => self.take_rtu(route, mad, *ids),
            Message::Dreq(dreq) => self.take_dreq(now, route, mad, dreq),
            Message::Drep(ids) => self.take_drep(now, route, mad, *ids),
            Message::SidrReq(req) => self.take_sidr_req(route, mad, req),
            Message::SidrRep(rep) => self.take_sidr_rep(route, mad, rep),
        }
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<AddressedMad> {
        self.outgoing.pop_front()
    }

    /// The next thing that a program is to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Cm::handle_timeout`] is due, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Now> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// QP attributes for this connection (order: IBTA vol. 1 §12.9.7) in the form of the other end's REQ: its
    /// QPN and our first PSN (zeroes until known), the path, and each end's resources, seen from our end.
    pub fn attributes(&self, id: ConnectionId) -> Option<Req> {
        self.connections.get(&id.0).map(|connection| connection.attributes)
    }

    pub fn counters(&self) -> CmCounters {
        self.counters
    }

    /// Connections there are, those that end included.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }
}

/// A MAD ready to be sent. Error: more private data than its kind has room for.
fn encode(transaction: u64, message: Message, private: &[u8]) -> Result<Box<[u8; MAD_BYTES]>, CmError> {
    let mad = CmMad { transaction, message, private };
    mad.encode().map(Box::new).map_err(|_| CmError::PrivateData { have: private.len() })
}

/// A refusal.
fn rej(ids: Ids, message: u8, why: u16, info: &[u8]) -> Rej {
    let mut room = [0; 72];
    let count = info.len().min(room.len());
    room[..count].copy_from_slice(&info[..count]);
    Rej { ids, message, reason: why, info_bytes: count as u8, info: room }
}
