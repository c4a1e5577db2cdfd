//! The responder of an unreliable connection and of datagrams: what cannot be taken is dropped without an answer.
//!
//! Follows IBTA vol. 1, its rules for UC and UD.

use super::Responder;
use crate::{DropReason, Refusal, Request, Resources, Status, Verdict};

impl Responder {
    // Unreliable connection: a gap loses the message that it is in, without an answer.

    pub(super) fn unreliable(&mut self, request: &Request, resources: &mut impl Resources) -> Verdict {
        if !request.is_first() {
            return match self.continued(request).filter(|_| request.psn == self.expected_psn) {
                Some(grant) => self.execute(request, grant, resources),
                None => {
                    self.assembly = None;
                    self.drop(DropReason::Hole)
                }
            };
        }
        if request.psn != self.expected_psn {
            self.counters.sequence_errors += 1;
            self.expected_psn = request.psn;
        }
        self.assembly = None;
        match self.admit(request, resources) {
            Ok(grant) => self.execute(request, grant, resources),
            Err(refusal) => {
                self.expected_psn = self.last_psn(request).plus(1);
                self.refuse_silently(refusal, request)
            }
        }
    }

    // Unreliable datagram.

    pub(super) fn datagram(&mut self, request: &Request, resources: &mut impl Resources) -> Verdict {
        if request.qkey != self.config.qkey {
            return self.drop(DropReason::WrongQkey);
        }
        if !request.is_whole() || request.length > self.config.path_mtu_bytes {
            return self.drop(DropReason::InvalidRequest);
        }
        match self.admit(request, resources) {
            Ok(grant) => self.execute(request, grant, resources),
            Err(refusal) => self.refuse_silently(refusal, request),
        }
    }

    pub(super) fn refuse_silently(&mut self, refusal: Refusal, request: &Request) -> Verdict {
        match refusal {
            Refusal::NoReceive => self.drop(DropReason::NoReceive),
            Refusal::Region(_) => self.drop(DropReason::RemoteAccess),
            // The peer gets no answer, but the receive is used up: it ends in error, and with it the QP.
            Refusal::TooLong { .. } => {
                self.fail(None, Status::LocalLength, (refusal, *request));
                self.drop(DropReason::TooLong)
            }
            _ => self.drop(DropReason::InvalidRequest),
        }
    }
}
