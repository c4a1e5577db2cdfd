//! Responder of an unreliable connection and of datagrams: what it cannot take, it drops unanswered.
//!
//! Follows IBTA vol. 1, its rules for UC and UD.

use super::Responder;
use crate::packet::Position;
use crate::{DropReason, Packet, Refusal, Resources, Status, Verdict};

impl Responder {
    // Unreliable connection: a packet out of sequence voids its message without an answer.

    pub(super) fn unreliable(&mut self, packet: &Packet, resources: &mut impl Resources) -> Verdict {
        let starts = packet.content.position().starts();
        let end = packet.psn.plus(packet.psn_count(self.config.path_mtu_bytes));
        if starts {
            self.expected_psn = packet.psn;
            self.assembly = None;
        }
        if packet.psn != self.expected_psn || !self.take_up(packet) {
            self.assembly = None;
            if !starts {
                return self.drop(DropReason::Hole);
            }
            self.expected_psn = end;
            return self.drop(DropReason::InvalidRequest);
        }
        match self.admit_part(packet, resources) {
            Ok(region) => self.execute(packet, region, resources),
            Err(refusal) => {
                self.assembly = None;
                self.expected_psn = end;
                self.refuse_silently(refusal)
            }
        }
    }

    // Unreliable datagram.

    pub(super) fn datagram(&mut self, packet: &Packet, resources: &mut impl Resources) -> Verdict {
        if packet.deth.qkey != self.config.qkey {
            return self.drop(DropReason::WrongQkey);
        }
        let fits = packet.payload.length <= self.config.path_mtu_bytes;
        if packet.content.position() != Position::Only || !fits || !self.take_up(packet) {
            return self.drop(DropReason::InvalidRequest);
        }
        match self.admit(resources) {
            Ok(region) => self.execute(packet, region, resources),
            Err(refusal) => self.refuse_silently(refusal),
        }
    }

    fn refuse_silently(&mut self, refusal: Refusal) -> Verdict {
        match refusal {
            Refusal::NoReceive => self.drop(DropReason::NoReceive),
            Refusal::Region(_) => self.drop(DropReason::RemoteAccess),
            // The peer gets no answer, but the receive is used up: it ends in error, and with it the QP.
            Refusal::TooLong { .. } => {
                self.fail(None, Status::LocalLength, refusal);
                self.drop(DropReason::TooLong)
            }
            _ => self.drop(DropReason::InvalidRequest),
        }
    }
}
