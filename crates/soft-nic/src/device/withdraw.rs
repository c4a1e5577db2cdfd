//! Memory that goes back to the program: what a peer may still copy from it is taken back before the command returns.
//!
//! A card touches none of it any more once `dereg_mr`, `destroy_qp`, or a move to RESET or ERR has returned. A queue that goes
//! to ERR by itself takes back what it sent, before its first flush CQE, and no more: an answer to a READ that it had lent may
//! be copied until `dereg_mr`, `destroy_qp`, or a move that the program makes.
//! Payloads above the link's limit are copied by the receiver (see [`Loan`]); everything else was copied when it was sent.
//! A queue that lives on meets a region that is gone when it next touches it: local protection error of the work request,
//! remote access error to the peer whose READ it was (IBTA vol. 1 §9.9.2, §9.9.3).
//!
//! [`Loan`]: crate::link::Loan

use roce::Status;

use super::core::Core;
use super::qp::{Answer, LentAnswer, Qp};
use super::sq::SendRequest;
use crate::dma::Memory;
use crate::link::TakenBack;

impl SendRequest {
    /// Nobody reads its memory afterwards.
    pub(super) fn take_back(&mut self) -> TakenBack {
        self.loan.take().map_or(TakenBack::TooLate, |loan| loan.take_back())
    }
}

impl<M: Memory> Core<M> {
    /// Takes back the payloads of everything that was sent and is not completed.
    pub(super) fn withdraw_sends(&mut self, qp: &mut Qp) {
        let overdue = |request: &mut Box<SendRequest>| request.take_back() == TakenBack::Overdue;
        let count = qp.sq.outstanding.iter_mut().filter_map(|request| overdue(request).then_some(())).count();
        self.say_overdue(qp.qpn, count);
    }

    /// Takes back the answers to READs, and answers none of those that wait.
    pub(super) fn withdraw_answers(&mut self, qp: &mut Qp) {
        let overdue = |lent: &LentAnswer| lent.loan.take_back() == TakenBack::Overdue;
        let count = qp.lent_answers.drain(..).filter(overdue).count();
        qp.drop_replies();
        qp.partial_reply = None;
        self.say_overdue(qp.qpn, count);
    }

    /// A region is gone: no queue touches it any more, and no peer.
    pub(super) fn revoke(&mut self, key: u32) {
        for place in 0..self.qps.bound() {
            let Some(mut qp) = self.qps.take(place) else { continue };
            self.revoke_sends(&mut qp, key);
            self.revoke_answers(&mut qp, key);
            self.qps.put(qp);
        }
    }

    fn revoke_sends(&mut self, qp: &mut Qp, key: u32) {
        let mut overdue = 0;
        let mut touched = false;
        let named = |request: &&mut Box<SendRequest>| request.keys.contains(&key);
        for request in qp.sq.outstanding.iter_mut().chain(&mut qp.sq.held).filter(named) {
            request.revoked = true;
            touched = true;
            let taken = request.take_back();
            overdue += usize::from(taken == TakenBack::Overdue);
            // What the receiver has got is out; the rest of these never arrives.
            if taken != TakenBack::TooLate
                && let Some(requester) = &mut qp.requester
            {
                requester.fail(request.ticket, Status::LocalProtection);
            }
        }
        if touched {
            self.schedule.heat(qp, self.now);
        }
        self.say_overdue(qp.qpn, overdue);
    }

    pub(super) fn revoke_answers(&mut self, qp: &mut Qp, key: u32) {
        for answer in qp.answers.iter_mut().filter(|answer| answer.key == key) {
            answer.revoked = true;
        }
        let mut overdue = 0;
        let mut first = None;
        qp.lent_answers.retain(|lent| {
            if lent.answer.key != key {
                return true;
            }
            let taken = lent.loan.take_back();
            overdue += usize::from(taken == TakenBack::Overdue);
            if taken != TakenBack::TooLate && first.is_none() {
                first = Some((lent.answer, lent.reply));
            }
            false
        });
        self.say_overdue(qp.qpn, overdue);
        let Some((answer, reply)) = first.filter(|_| qp.state.answers_requests()) else { return };
        // The reply is on its way without its bytes, so a NAK goes after it, before all that is still to be answered.
        qp.answers.push_front(Answer { revoked: true, ..answer });
        qp.partial_reply = Some(reply);
        if !qp.replying {
            qp.replying = true;
            self.schedule.replying.push(qp.place);
        }
    }

    pub(super) fn say_overdue(&mut self, qpn: u32, count: usize) {
        if count > 0 {
            self.log.line(&format!(
                "softnic: QP {qpn:#x}: its peer holds {count} payloads and does not let go; the channel to it is closed"
            ));
        }
    }
}
