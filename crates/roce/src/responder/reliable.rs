//! The responder of a reliable connection: what comes in order, what comes too soon, and what comes again.
//!
//! Follows IBTA vol. 1 §9.7.4 (receiving requests; C9-105: duplicates), §9.7.5.2.8 (receiver not ready).

use super::requests::describe;
use super::{Responder, State};
use crate::packet::Syndrome;
use crate::psn::Relation;
use crate::{AsyncEvent, DropReason, NakCode, Opcode, Packet, Refusal, Resources, Status, Verdict};

impl Responder {
    #[inline(always)]
    pub(super) fn reliable(&mut self, packet: &Packet, resources: &mut impl Resources) -> Verdict {
        match packet.psn.relation_to(self.expected_psn) {
            Relation::Expected => {}
            Relation::Ahead => return self.gap(),
            Relation::Duplicate => return self.duplicate(packet, resources),
        }
        if !self.take_up(packet) {
            return self.refuse_reliably(self.misfit(packet));
        }
        match self.admit_part(packet, resources) {
            Ok(region) => {
                self.state = State::InOrder;
                self.nak = None;
                self.execute(packet, region, resources)
            }
            Err(refusal) => self.refuse_reliably(refusal),
        }
    }

    #[cold]
    fn refuse_reliably(&mut self, refusal: Refusal) -> Verdict {
        let (code, event, status) = match refusal {
            Refusal::NoReceive => return self.not_ready(),
            Refusal::Region(_) => (NakCode::RemoteAccess, Some(AsyncEvent::AccessError), Status::Flushed),
            Refusal::TooLong { .. } => (NakCode::InvalidRequest, None, Status::LocalLength),
            _ => (NakCode::InvalidRequest, Some(AsyncEvent::RequestError), Status::Flushed),
        };
        self.refuse(code, event, status, refusal)
    }

    /// Something before this request is missing: says so once, then keeps silent until it comes.
    #[cold]
    pub(super) fn gap(&mut self) -> Verdict {
        if self.state != State::InOrder {
            return self.drop(DropReason::AfterNak);
        }
        self.state = State::GapNaked;
        self.nak(Syndrome::Nak(NakCode::PsnSequence));
        Verdict::Answered
    }

    /// No receive for the expected message (IBTA §9.7.5.2.8): it must be resent, all after it are dropped.
    fn not_ready(&mut self) -> Verdict {
        self.state = State::NotReady;
        self.nak(Syndrome::RnrNak { timer: self.config.min_rnr_timer & 0x1f });
        Verdict::Answered
    }

    /// A request seen before (C9-105): WRITEs and SENDs are acknowledged again, READs executed again, atomics
    /// answered from the list. A READ whose response is being sent restarts where it is asked for again.
    #[cold]
    fn duplicate(&mut self, packet: &Packet, resources: &mut impl Resources) -> Verdict {
        let path_mtu_bytes = self.config.path_mtu_bytes;
        let end = packet.psn.plus(packet.psn_count(path_mtu_bytes));
        // Several packets at once, and the first of them came before: the others are missing.
        let is_both = packet.payload.length > 0 && end.relation_to(self.expected_psn) == Relation::Ahead;
        if is_both && self.state == State::InOrder {
            return self.gap();
        }
        self.counters.duplicates += 1;
        // What a middle or last packet belongs to does not matter, it was executed.
        let described = describe(packet, packet.deth.src_qpn, None);
        let Some(request) = described.filter(|request| request.opcode.wants_response() && !is_both) else {
            self.ack_due = true;
            return Verdict::Answered;
        };
        let reads = &mut self.outbound.reads;
        if request.opcode == Opcode::Read
            && reads.iter_mut().any(|stream| stream.rewind(&request, path_mtu_bytes))
        {
            return Verdict::Answered;
        }
        // The answer to the first copy has not left yet, and does for both.
        let psn = self.last_psn(&request);
        if self.responses.iter().any(|response| response.psn == psn) {
            return Verdict::Answered;
        }
        let resources_left = self.waiting(true) < usize::from(self.config.max_dest_rd_atomic);
        match self.executed.find(&request, path_mtu_bytes).filter(|_| resources_left) {
            Some(old @ Some(_)) => {
                self.respond(psn, old, true);
                Verdict::Answered
            }
            Some(None) => match self.region(&request, resources) {
                Ok(region) => {
                    self.outbound.begin_read(&request, region, path_mtu_bytes);
                    self.respond(psn, None, true);
                    Verdict::Answered
                }
                Err(_) => self.drop(DropReason::UnknownDuplicate),
            },
            None => self.drop(DropReason::UnknownDuplicate),
        }
    }
}
