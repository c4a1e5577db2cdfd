//! Responder of an unreliable connection and of datagrams: what it cannot take, it drops unanswered.
//!
//! Follows IBTA vol. 1, its rules for UC and UD.

use super::Responder;
use super::requests::describe;
use crate::packet::Position;
use crate::{DropReason, Failure, Packet, Refusal, Resources, Status, Verdict};

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
            return self.refuse_silently(self.misfit(packet));
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
            let (came, own) = (packet.deth.qkey, self.config.qkey);
            self.at_work = describe(packet, packet.deth.src_qpn, None).unwrap_or_default();
            return self.refuse_silently(Refusal::Qkey { came, own });
        }
        let fits = packet.payload.length <= self.config.path_mtu_bytes;
        if !self.take_up(packet) || packet.content.position() != Position::Only || !fits {
            return self.refuse_silently(self.misfit(packet));
        }
        match self.admit(resources) {
            Ok(region) => self.execute(packet, region, resources),
            Err(refusal) => self.refuse_silently(refusal),
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse_silently(&mut self, refusal: Refusal) -> Verdict {
        let reason = match refusal {
            // Ordinary for datagrams: counters say it.
            Refusal::NoReceive => return self.drop(DropReason::NoReceive),
            Refusal::Qkey { .. } => DropReason::WrongQkey,
            Refusal::Region(_) => DropReason::RemoteAccess,
            // The peer gets no answer, but the receive is used up: it ends in error, and with it the QP.
            Refusal::TooLong { .. } => {
                self.fail(None, Status::LocalLength, refusal);
                return self.drop(DropReason::TooLong);
            }
            _ => DropReason::InvalidRequest,
        };
        self.failure = Some(Failure { receive: None, event: None, why: refusal, request: self.at_work });
        self.drop(reason)
    }
}
