//! What replies do to a requester's queue: which messages they acknowledge, and what is sent again.
//!
//! Follows IBTA vol. 1 §9.7.6 (receiving responses). An acknowledgement covers all before it, but a READ or an atomic only its own
//! response completes: whatever skips that says that the response is lost.

use super::{Acknowledged, Message, Requester, State};
use crate::retry::{Timer, rnr_timer_ns};
use crate::{NakCode, Now, Psn, ReplyVerdict, Status, Ticket};

impl Requester {
    /// How many PSNs after the oldest outstanding one this is; `None` when it is not outstanding (a ghost, §9.7.6).
    pub(super) fn outstanding_offset(&self, psn: Psn) -> Option<u32> {
        if self.state != State::Active || self.done >= self.sent_end {
            return None;
        }
        let oldest = self.message(self.done)?.psn;
        let offset = psn.distance_from(oldest);
        (offset < self.sent_end_psn.distance_from(oldest)).then_some(offset)
    }

    /// Marks done what lies wholly before `end`, counted in PSNs from the oldest outstanding; stops at a READ or an
    /// atomic that starts before it, which only its own response can complete.
    pub(super) fn acknowledge_before(&mut self, end: u32) -> Acknowledged {
        let Some(oldest) = self.message(self.done).map(|message| message.psn) else {
            return Acknowledged::All;
        };
        while self.done < self.sent_end {
            let Some(message) = self.message(self.done) else { break };
            let start = message.psn.distance_from(oldest);
            if message.opcode.wants_response() && start + self.progress.acked < end {
                return Acknowledged::UpToResponse;
            }
            if start + message.psn_count > end {
                self.acknowledge_part(end.saturating_sub(start));
                break;
            }
            self.step_done(false);
        }
        Acknowledged::All
    }

    /// The message at `done` is done.
    pub(super) fn step_done(&mut self, response: bool) {
        if response {
            self.responses_posted -= 1;
            // Not counted when it answers an earlier transmission, and the resend has not come this far.
            if self.done < self.next_send {
                self.responses_outstanding -= 1;
                self.response_psns -= self.message(self.done).map_or(0, |message| message.psn_count);
            }
        }
        self.done += 1;
        self.progress.acked = 0;
        if self.next_send < self.done {
            self.next_send = self.done;
            (self.progress.sent, self.progress.is_cut) = (0, false);
        }
        self.progressed();
    }

    /// All of a message was sent.
    pub(super) fn count_sent(&mut self, message: &Message) {
        if message.opcode.wants_response() {
            self.responses_outstanding += 1;
            self.response_psns += message.psn_count;
        }
    }

    /// Something was acknowledged, which refills the counters and ends a recovery.
    pub(super) fn progressed(&mut self) {
        self.recovering = false;
        self.retries.refill();
        self.rnr_retries.refill();
    }

    /// Where acknowledgement has come to; grows.
    pub(super) fn acknowledged(&self) -> (u64, u32) {
        (self.done, self.progress.acked)
    }

    /// Whether nothing that is not acknowledged was sent since the last going back.
    pub(super) fn nothing_sent(&self) -> bool {
        self.acknowledged() >= (self.next_send, self.progress.sent)
    }

    pub(super) fn count_reply(&mut self, before: (u64, u32), ignored: bool) {
        if self.acknowledged() > before {
            self.counters.useful_replies += 1;
        } else if ignored {
            self.counters.ignored_replies += 1;
        }
    }

    // Replies (IBTA §9.7.6).

    pub(super) fn take_ack(&mut self, offset: u32) -> ReplyVerdict {
        let before = self.acknowledged();
        match self.acknowledge_before(offset + 1) {
            Acknowledged::UpToResponse => self.implied_nak(),
            Acknowledged::All if self.acknowledged() > before => ReplyVerdict::Progress,
            Acknowledged::All => ReplyVerdict::Ignored,
        }
    }

    /// A NAK acknowledges what lies before its PSN.
    pub(super) fn take_nak(&mut self, offset: u32, code: NakCode) -> ReplyVerdict {
        if self.acknowledge_before(offset) == Acknowledged::UpToResponse {
            return self.implied_nak();
        }
        match code {
            NakCode::PsnSequence => {
                let resent = self.resend_once();
                self.counters.sequence_naks += u64::from(resent != ReplyVerdict::Ignored);
                resent
            }
            NakCode::InvalidRequest => self.fail_oldest(Status::RemoteInvalidRequest),
            NakCode::RemoteAccess => self.fail_oldest(Status::RemoteAccess),
            NakCode::RemoteOperation => self.fail_oldest(Status::RemoteOperation),
        }
    }

    pub(super) fn take_rnr_nak(&mut self, now: Now, offset: u32, timer: u8) -> ReplyVerdict {
        if self.acknowledge_before(offset) == Acknowledged::UpToResponse {
            return self.implied_nak();
        }
        // Only a message that consumes a receive can meet a receiver that is not ready, and only one that was sent
        // since the last wait; anything else is an echo.
        let refused = self.message(self.done).is_some_and(|message| message.opcode.takes_receive());
        if !refused || self.nothing_sent() {
            return ReplyVerdict::Ignored;
        }
        self.counters.rnr_naks += 1;
        if !self.rnr_retries.take() {
            return self.fail_oldest(Status::RnrRetryExceeded);
        }
        // The peer answers: RNR retries are counted apart from lost packets.
        self.retries.refill();
        self.go_back();
        self.timer = Timer::Rnr { until: now.after(rnr_timer_ns(timer)) };
        ReplyVerdict::Resend
    }

    /// The response of an atomic acknowledges what lies before its request.
    pub(super) fn take_atomic(&mut self, psn: Psn, offset: u32, old: u64) -> ReplyVerdict {
        let acknowledged = self.acknowledge_before(offset);
        let ticket = self.done;
        let Some(message) = self.message_mut(ticket) else { return ReplyVerdict::Ignored };
        if acknowledged == Acknowledged::UpToResponse && psn.distance_from(message.psn) >= message.psn_count {
            // A later one's: the response to this one is lost.
            return self.implied_nak();
        }
        if !message.opcode.is_atomic() {
            return self.fail_oldest(Status::BadResponse);
        }
        message.atomic_old = old;
        self.step_done(true);
        ReplyVerdict::Response(Ticket(ticket))
    }

    /// Something later was answered, so the response to the READ or atomic at `done` is lost: go back to it.
    pub(super) fn implied_nak(&mut self) -> ReplyVerdict {
        let resent = self.resend_once();
        self.counters.implied_naks += u64::from(resent != ReplyVerdict::Ignored);
        resent
    }

    /// Goes back, once for each loss: until something is acknowledged, further NAKs speak of the transmission that is
    /// being repeated already. Should the repetition be lost too, the timer notices.
    fn resend_once(&mut self) -> ReplyVerdict {
        if self.recovering || matches!(self.timer, Timer::Rnr { .. }) {
            return ReplyVerdict::Ignored;
        }
        if !self.retries.take() {
            return self.fail_oldest(Status::RetryExceeded);
        }
        self.go_back();
        self.shrink_window();
        self.recovering = true;
        ReplyVerdict::Resend
    }

    pub(super) fn go_back(&mut self) {
        self.next_send = self.done;
        (self.progress.sent, self.progress.is_cut) = (self.progress.acked, false);
        (self.responses_outstanding, self.response_psns) = (0, 0);
        self.timer = Timer::Stopped;
    }

    pub(super) fn fail_oldest(&mut self, status: Status) -> ReplyVerdict {
        self.state = State::Failed(status);
        self.timer = Timer::Stopped;
        ReplyVerdict::Failed
    }
}
