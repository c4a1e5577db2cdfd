//! Two ends and a link on a virtual clock, for tests of this crate.
//!
//! A [`Connection`] is both halves of a QP. [`Pair`] joins two [`End`]s by links, [`faults`] are links stacked on links. All of it
//! is deterministic: the same seed gives the same trace (INV-7).

mod connection;
mod end;
mod endpoint;
pub mod faults;
pub mod frame;
mod host;
mod on_wire;
mod pair;

use crate::packet::Outgoing;
use crate::{Now, PacketTransmit, Requester, Responder};

pub use connection::{Arrival, Connection, Event, WorkRequest};
pub use end::End;
pub use endpoint::{EndpointConfig, LocalWork, RKEY, VA};
pub use faults::{Fault, Frame, Kind, Line, Link, Pick, Rng, Wire};
pub use host::Received;
pub use on_wire::OnWire;
pub use pair::{A_QPN, B_QPN, Pair, Side};

impl Requester {
    /// Sends the next packet, of one path MTU at most.
    pub fn poll_packet(&mut self, now: Now) -> Option<PacketTransmit> {
        let transmit = self.next_packet(self.config().path_mtu_bytes)?;
        self.sent_packet(now, &transmit, transmit.fragment.length);
        Some(transmit)
    }
}

impl Responder {
    /// Sends the next packet, of one path MTU at most.
    pub fn poll_packet(&mut self) -> Option<Outgoing> {
        let outgoing = self.next_packet(self.config().path_mtu_bytes)?;
        self.sent_packet(outgoing.packet.payload.length);
        Some(outgoing)
    }
}
