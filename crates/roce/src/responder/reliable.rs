//! The responder of a reliable connection: what comes in order, what comes too soon, and what comes again.
//!
//! Follows IBTA vol. 1 §9.7.4 (receiving requests; C9-105 for duplicates) and §9.7.5.2.8 (receiver not ready).

use super::{Pending, Responder, State};
use crate::psn::Relation;
use crate::replay::Replay;
use crate::{AsyncEvent, DropReason, NakCode, Refusal, ReplyKind, Request, Resources, Status, Verdict, Work};

impl Responder {
    pub(super) fn reliable(&mut self, request: &Request, resources: &mut impl Resources) -> Verdict {
        match request.psn.relation_to(self.expected_psn) {
            Relation::Expected => self.reliable_expected(request, resources),
            Relation::Ahead => self.gap(),
            Relation::Duplicate => self.duplicate(request, resources),
        }
    }

    fn reliable_expected(&mut self, request: &Request, resources: &mut impl Resources) -> Verdict {
        if self.assembly.is_some() {
            if self.repeats_fragment(request) {
                return self.drop(DropReason::RepeatedFragment);
            }
            if let Some(grant) = self.continued(request) {
                self.state = State::InOrder;
                self.nak = None;
                return self.execute(request, grant, resources);
            }
        }
        if !request.is_first() {
            return self.gap();
        }
        self.assembly = None;
        match self.admit(request, resources) {
            Ok(grant) => {
                self.state = State::InOrder;
                self.nak = None;
                self.execute(request, grant, resources)
            }
            Err(refusal) => self.refuse_reliably(refusal, request),
        }
    }

    pub(super) fn refuse_reliably(&mut self, refusal: Refusal, request: &Request) -> Verdict {
        let (code, event, status) = match refusal {
            Refusal::NoReceive => return self.not_ready(),
            Refusal::Region(_) => (NakCode::RemoteAccess, Some(AsyncEvent::AccessError), Status::Flushed),
            Refusal::TooLong { .. } => (NakCode::InvalidRequest, None, Status::LocalLength),
            _ => (NakCode::InvalidRequest, Some(AsyncEvent::RequestError), Status::Flushed),
        };
        self.refuse(code, event, status, (refusal, *request))
    }

    /// Something before this request is missing: says so once, then keeps silent until it comes.
    pub(super) fn gap(&mut self) -> Verdict {
        if self.state != State::InOrder {
            return self.drop(DropReason::AfterNak);
        }
        self.state = State::GapNaked;
        self.counters.sequence_errors += 1;
        self.nak(ReplyKind::Nak(NakCode::PsnSequence));
        Verdict::Answered
    }

    /// No receive for the expected message (IBTA §9.7.5.2.8): it is to come again later, all after it are dropped.
    fn not_ready(&mut self) -> Verdict {
        self.state = State::NotReady;
        self.counters.rnr_naks += 1;
        self.nak(ReplyKind::RnrNak { timer: self.config.min_rnr_timer & 0x1f });
        Verdict::Answered
    }

    /// A request seen before: WRITEs and SENDs are acknowledged again, READs executed again, atomics answered from the
    /// list.
    pub(super) fn duplicate(&mut self, request: &Request, resources: &mut impl Resources) -> Verdict {
        self.counters.duplicates += 1;
        if !request.opcode.wants_response() {
            self.ack_due = true;
            return Verdict::Answered;
        }
        // The answer to the first copy has not left yet, and does for both.
        let psn = self.last_psn(request);
        if self.responses.iter().any(|response| response.psn == psn) {
            return Verdict::Answered;
        }
        let resources_left = self.replayed_waiting() < usize::from(self.config.max_dest_rd_atomic);
        match self.replays.find(request, self.config.path_mtu_bytes).filter(|_| resources_left) {
            Some(Replay::Atomic { old }) => {
                self.respond(psn, ReplyKind::AtomicResponse { old }, true);
                Verdict::Answered
            }
            Some(Replay::Read { offset }) => match self.region(request, resources) {
                Ok(region) => {
                    (self.pending, self.at_work) = (Pending::Replay, *request);
                    Verdict::Execute(Work::Read { region, offset })
                }
                Err(_) => self.drop(DropReason::UnknownDuplicate),
            },
            None => self.drop(DropReason::UnknownDuplicate),
        }
    }
}
