//! Two ends and a link on a virtual clock, for tests of this crate.
//!
//! A [`Connection`] is both halves of a QP. [`Pair`] joins two [`End`]s by links; [`faults`] are stacked
//! links. All is deterministic: the same seed gives the same trace (INV-7).

mod connection;
mod end;
mod endpoint;
pub mod faults;
pub mod frame;
mod host;
mod on_wire;
mod pair;

use crate::packet::{Aeth, Outgoing, Syndrome};
use crate::{Completion, Content, Now, Packet, PacketTransmit, PostedMessage, Requester, Responder, Ticket};

/// The path MTUs that exist, in bytes.
pub const PATH_MTU_BYTES: [u32; 5] = [256, 512, 1024, 2048, 4096];

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

    /// As [`Requester::post_with`], without anything of the caller's.
    pub fn post(&mut self, message: PostedMessage) -> Ticket {
        self.post_with(message, ())
    }

    /// As [`Requester::poll_completed`].
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.poll_completed().map(|(completion, ())| completion)
    }
}

impl Packet {
    /// Whether it refuses something, for good or for now.
    pub const fn is_nak(&self) -> bool {
        matches!(
            self.content,
            Content::Acknowledge(Aeth { syndrome: Syndrome::Nak(_) | Syndrome::RnrNak { .. }, .. })
        )
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
