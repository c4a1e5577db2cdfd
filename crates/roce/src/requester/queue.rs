//! The messages that a requester holds, and which of them may go now.
//!
//! Follows IBTA vol. 1 on posting: depth of READs and atomics, fences, and half of the PSN space.

use super::{Message, Requester, State};
use crate::message::{MAX_MESSAGE_BYTES, psn_count};
use crate::psn::HALF_SPACE;
use crate::retry::Timer;
use crate::{PostedMessage, RequesterConfig, ServiceType, Status, Ticket};

impl<W> Requester<W> {
    pub(super) fn end(&self) -> u64 {
        self.front + self.messages.len() as u64
    }

    /// All before this ticket is done.
    pub(super) fn set_done(&mut self, done: u64) {
        self.done = done;
        self.oldest_psn = self.message(done).map_or(self.next_psn, |message| message.psn);
    }

    pub(super) fn message(&self, ticket: u64) -> Option<&Message<W>> {
        self.messages.get(usize::try_from(ticket.checked_sub(self.front)?).ok()?)
    }

    pub(super) fn message_mut(&mut self, ticket: u64) -> Option<&mut Message<W>> {
        self.messages.get_mut(usize::try_from(ticket.checked_sub(self.front)?).ok()?)
    }

    #[inline(always)]
    pub(super) fn push(&mut self, posted: PostedMessage, failure: Option<Status>, work_request: W) -> Ticket {
        let PostedMessage { opcode, length, fence } = posted;
        let ticket = Ticket(self.end());
        let psn_count = psn_count(opcode, length.min(MAX_MESSAGE_BYTES), self.config.path_mtu_bytes);
        self.messages.push_back(Message {
            opcode,
            fence,
            psn: self.next_psn,
            psn_count,
            length,
            atomic_old: 0,
            failure,
            work_request,
        });
        if failure.is_none() {
            self.next_psn = self.next_psn.plus(psn_count);
        }
        self.responses_posted += u32::from(opcode.wants_response());
        ticket
    }

    /// Why the service cannot carry the message at all. This includes a READ on a QP of initiator depth 0 (it
    /// would wait for ever) and a datagram longer than a packet.
    pub(super) fn refusal(&self, message: &PostedMessage) -> Option<Status> {
        let RequesterConfig { service, path_mtu_bytes, max_rd_atomic, .. } = self.config;
        let PostedMessage { opcode, length, .. } = *message;
        if !opcode.allowed_on(service)
            || (opcode.wants_response() && max_rd_atomic == 0)
            || (opcode.is_atomic() && length != 8)
        {
            return Some(Status::LocalQpOperation);
        }
        let longest = if service == ServiceType::Ud { path_mtu_bytes } else { MAX_MESSAGE_BYTES };
        (length > longest).then_some(Status::LocalLength)
    }

    /// The message that may go now.
    #[inline(always)]
    pub(super) fn next_to_send(&self) -> Option<&Message<W>> {
        let stopped = self.state != State::Active || self.next_send > self.failed;
        if stopped || matches!(self.timer, Timer::Rnr { .. }) {
            return None;
        }
        let message = self.message(self.next_send)?;
        let in_window = self.next_send - self.done < u64::from(self.config.window_messages);
        // With more than half of the space outstanding, a responder could not tell old from new.
        let in_space = message.psn.distance_from(self.oldest_psn) + message.psn_count <= HALF_SPACE;
        (message.failure.is_none() && in_window && in_space && !self.is_held(message)).then_some(message)
    }

    /// Whether the message waits for READs and atomics to be answered: for its fence, or at the depth limit.
    #[inline(always)]
    fn is_held(&self, message: &Message<W>) -> bool {
        let is_response = message.opcode.wants_response();
        if !message.fence && !is_response {
            return false;
        }
        let depth = u32::from(self.config.max_rd_atomic);
        message.fence && self.responses_outstanding > 0 || is_response && self.responses_outstanding >= depth
    }
}
