//! What replies do to a requester's queue: which messages they acknowledge, and what is sent again.
//!
//! Follows IBTA vol. 1 §9.7.6 (receiving responses). An acknowledgement covers all before it, but only its
//! own response completes a READ or an atomic: a reply that skips one says that the response is lost.

use super::{Message, Requester, State};
use crate::message::psn_count;
use crate::packet::Position;
use crate::retry::{Timer, rnr_timer_ns};
use crate::{Fragment, NakCode, Now, Opcode, Psn, ReplyVerdict, Status, Ticket};

/// How far an acknowledgement completes messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acknowledged {
    /// All up to the bound are done.
    All,
    /// The message now at `done` is a READ or an atomic that the bound covers, and its response has not come.
    UpToResponse,
}

impl<W> Requester<W> {
    /// PSNs from the oldest outstanding one to this one; `None` if not outstanding (a ghost, §9.7.6).
    pub(super) fn outstanding_offset(&self, psn: Psn) -> Option<u32> {
        if self.state != State::Active || self.done >= self.sent_end {
            return None;
        }
        let offset = psn.distance_from(self.oldest_psn);
        (offset < self.sent_end_psn.distance_from(self.oldest_psn)).then_some(offset)
    }

    /// Marks messages wholly before `end` done, in PSNs from the oldest outstanding. Stops at a READ or
    /// atomic that starts before it: only its own response completes it.
    fn acknowledge_before(&mut self, end: u32) -> Acknowledged {
        let (mut acknowledged, mut whole, mut packets) = (Acknowledged::All, 0, 0);
        let sent = (self.done - self.front) as usize..(self.sent_end - self.front) as usize;
        for message in self.messages.range(sent) {
            let start = message.psn.distance_from(self.oldest_psn);
            let acked = if whole == 0 { self.progress.acked } else { 0 };
            if message.opcode.wants_response() && start + acked < end {
                acknowledged = Acknowledged::UpToResponse;
                break;
            }
            if start + message.psn_count > end {
                packets = end.saturating_sub(start);
                break;
            }
            whole += 1;
        }
        if whole > 0 {
            self.step_done(whole);
        }
        if packets > self.progress.acked {
            self.advance_to(packets);
        }
        acknowledged
    }

    /// The response to the message at `done` came.
    fn respond_done(&mut self) {
        self.responses_posted -= 1;
        // Not counted when it answers an earlier transmission, and the resend has not come this far.
        if self.done < self.next_send {
            self.responses_outstanding -= 1;
            self.response_psns -= self.message(self.done).map_or(0, |message| message.psn_count);
        }
        self.step_done(1);
    }

    /// So many messages from the one at `done` on are done.
    fn step_done(&mut self, messages: u64) {
        self.set_done(self.done + messages);
        self.progress.acked = 0;
        if self.next_send < self.done {
            self.next_send = self.done;
            (self.progress.sent, self.progress.is_cut) = (0, false);
        }
        self.progressed();
    }

    /// So many packets of the message at `done` are acknowledged, not all of it.
    fn advance_to(&mut self, packets: u32) {
        self.progress.acked = packets;
        if self.next_send == self.done {
            self.progress.sent = self.progress.sent.max(packets);
        }
        self.progressed();
    }

    /// Something was acknowledged, which refills the counters and ends a recovery.
    fn progressed(&mut self) {
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

    // Replies (IBTA §9.7.6).

    pub(super) fn take_ack(&mut self, offset: u32) -> ReplyVerdict {
        let before = self.acknowledged();
        match self.acknowledge_before(offset + 1) {
            Acknowledged::UpToResponse => self.resend_once(),
            Acknowledged::All if self.acknowledged() > before => ReplyVerdict::Progress,
            Acknowledged::All => ReplyVerdict::Ignored,
        }
    }

    /// A NAK acknowledges what lies before its PSN.
    pub(super) fn take_nak(&mut self, offset: u32, code: NakCode) -> ReplyVerdict {
        if self.acknowledge_before(offset) == Acknowledged::UpToResponse {
            return self.resend_once();
        }
        match code {
            NakCode::PsnSequence => self.resend_once(),
            NakCode::InvalidRequest => self.fail_oldest(Status::RemoteInvalidRequest),
            NakCode::RemoteAccess => self.fail_oldest(Status::RemoteAccess),
            NakCode::RemoteOperation => self.fail_oldest(Status::RemoteOperation),
        }
    }

    pub(super) fn take_rnr_nak(&mut self, now: Now, offset: u32, timer: u8) -> ReplyVerdict {
        if self.acknowledge_before(offset) == Acknowledged::UpToResponse {
            return self.resend_once();
        }
        // Only a message that consumes a receive can meet a receiver that is not ready, and only if sent
        // since the last wait; anything else is an echo.
        let refused = self.message(self.done).is_some_and(|message| message.opcode.takes_receive());
        if !refused || self.nothing_sent() {
            return ReplyVerdict::Ignored;
        }
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
            return self.resend_once();
        }
        if !message.opcode.is_atomic() {
            return self.fail_oldest(Status::BadResponse);
        }
        message.atomic_old = old;
        self.respond_done();
        ReplyVerdict::Response(Ticket(ticket))
    }

    /// Takes one packet of a READ response (IBTA §9.7.6): the next in order is placed, an earlier one is a
    /// copy; a later one shows a loss, and the READ is resent from the first missing packet.
    pub(super) fn take_read_response(
        &mut self,
        psn: Psn,
        offset: u32,
        position: Position,
        bytes: u32,
    ) -> ReplyVerdict {
        let acknowledged = self.acknowledge_before(offset);
        let ticket = self.done;
        let Some(&Message { opcode, psn: first, length, .. }) = self.message(ticket) else {
            return ReplyVerdict::Ignored;
        };
        if acknowledged == Acknowledged::UpToResponse {
            return self.resend_once();
        }
        let (index, mtu) = (psn.distance_from(first), self.config.path_mtu_bytes);
        let end = index.saturating_add(psn_count(Opcode::Read, bytes, mtu));
        if end <= self.progress.acked {
            return ReplyVerdict::Ignored;
        }
        // A READ resent from its middle is answered by a first packet there, and the rest of the earlier
        // answer may follow: a position tells whether a packet ends the response, not whether it starts it.
        let start = index * mtu;
        let rest = length.saturating_sub(start);
        let full = bytes == mtu || self.progress.window.is_none() && bytes > 0 && bytes.is_multiple_of(mtu);
        let due = if position.ends() { bytes == rest } else { full && bytes < rest };
        // On a wire a packet is one, whatever its position.
        let due = due && (self.progress.window.is_none() || bytes <= mtu);
        if opcode != Opcode::Read || !due {
            return self.fail_oldest(Status::BadResponse);
        }
        if position.ends() {
            self.respond_done();
        } else {
            self.advance_to(end);
        }
        let fragment = Fragment { offset: start, length: bytes };
        ReplyVerdict::Place { ticket: Ticket(ticket), fragment }
    }

    /// Goes back to `done`, once for each loss. A NAK reports a lost request; an answer to a later message
    /// shows that the response at `done` is lost. Until something is acknowledged, further reports concern
    /// the transmission being repeated. If the repetition is lost too, the timer expires.
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
