//! Requester half of a connection: posted messages in, transmissions and completions out.
//!
//! Follows IBTA vol. 1 on generating requests, §9.7.6 (receiving responses), its rules for unreliable
//! service, and §9.9.2 (requester's errors). Resends by going back to the oldest unacknowledged packet. Keeps
//! messages in `queue`, sends in `transmit`, takes replies in `replies`. Left out: end-to-end credits.
//!
//! Acknowledgements are cumulative and responses arrive in order, so the queue is done up to a point and not
//! after it. Four tickets say where each message is:
//! ```text
//!   front ≤ done ≤ next_send ≤ sent_end ≤ end of the queue
//!     polled │ done, not yet polled │ on its way │ to send again │ never sent
//! ```

mod progress;
mod queue;
mod replies;
mod transmit;

use std::collections::VecDeque;

use self::progress::Progress;
pub use self::progress::SendWindow;
pub use self::transmit::PacketTransmit;
use crate::packet::{Aeth, Content, Packet, Syndrome};
use crate::retry::{Budget, Timer, ack_timeout_ns};
use crate::{
    Completion, Now, Opcode, PostedMessage, Psn, ReplyVerdict, RequesterConfig, ServiceType, Status, Ticket,
};

/// The life of a requester. IBTA §9.9.2: after an error nothing is sent, the rest is flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Sending.
    Active,
    /// The oldest message that is not done failed; its completion was not polled yet.
    Failed(Status),
    /// Everything left completes as flushed.
    Flushing,
}

#[derive(Debug)]
struct Message<W> {
    opcode: Opcode,
    fence: bool,
    psn: Psn,
    psn_count: u32,
    length: u32,
    atomic_old: u64,
    /// Set when it must not be sent: it fails when all before it are done.
    failure: Option<Status>,
    work_request: W,
}

/// See the module. Each message keeps the caller's part of its work request, `W`. Call order: `post_with`,
/// then `next_packet` until `None`; after `handle_*`, `poll_completed` until `None`, and `next_packet` again.
#[derive(Debug)]
pub struct Requester<W = ()> {
    config: RequesterConfig,
    state: State,
    messages: VecDeque<Message<W>>,
    /// Ticket of the queue's front.
    front: u64,
    done: u64,
    next_send: u64,
    sent_end: u64,
    /// The first message that failed while it was sent: nothing behind it goes out.
    failed: u64,
    next_psn: Psn,
    /// PSN of the message at `done`; the next one's, if there is none.
    oldest_psn: Psn,
    /// PSN after the last one ever sent.
    sent_end_psn: Psn,
    /// How far into the messages at `done` and `next_send` that is.
    progress: Progress,
    /// READs and atomics in the queue, not done.
    responses_posted: u32,
    /// READs and atomics in `done..next_send`.
    responses_outstanding: u32,
    /// PSNs of these, all of them.
    response_psns: u32,
    timer: Timer,
    /// A resend was started by a NAK and nothing was acknowledged since: more NAKs of the same are echoes.
    recovering: bool,
    retries: Budget,
    rnr_retries: Budget,
}

impl<W> Requester<W> {
    /// A requester with nothing posted, over shared memory: none is lost, one may have the bytes of several.
    pub fn new(config: RequesterConfig) -> Requester<W> {
        let config = RequesterConfig { path_mtu_bytes: config.path_mtu_bytes.max(1), ..config };
        Requester {
            config,
            state: State::Active,
            messages: VecDeque::new(),
            front: 0,
            done: 0,
            next_send: 0,
            sent_end: 0,
            failed: u64::MAX,
            next_psn: config.first_psn,
            oldest_psn: config.first_psn,
            sent_end_psn: config.first_psn,
            progress: Progress::default(),
            responses_posted: 0,
            responses_outstanding: 0,
            response_psns: 0,
            timer: Timer::Stopped,
            recovering: false,
            retries: Budget::transport(config.retry_count),
            rnr_retries: Budget::rnr(config.rnr_retry),
        }
    }

    /// A requester on a wire, with so many packets in flight.
    pub fn by_packet(config: RequesterConfig, window: SendWindow) -> Requester<W> {
        let mut requester = Requester::new(config);
        (requester.progress.window, requester.progress.lost_at) = (Some(window), config.first_psn);
        requester
    }

    // Getters.

    /// Whether a message of this kind would be sent without waiting: there is room, no fence holds it, and
    /// `max_rd_atomic` allows it. If not, leave the work request in its queue.
    pub fn can_post(&self, opcode: Opcode, fence: bool) -> bool {
        let room = self.messages.len() < self.config.window_messages as usize;
        let fenced = fence && self.responses_posted > 0;
        let too_deep = opcode.wants_response()
            && self.responses_posted >= u32::from(self.config.max_rd_atomic)
            && self.responses_posted > 0;
        room && !fenced && !too_deep
    }

    /// Ticket that the next `post` gives.
    pub fn next_ticket(&self) -> Ticket {
        Ticket(self.end())
    }

    /// Ticket of the oldest message whose completion was not polled yet; the next one's, if there is none.
    pub fn oldest_ticket(&self) -> Ticket {
        Ticket(self.front)
    }

    /// What was posted with a message, until its completion is polled.
    pub fn work_request_mut(&mut self, ticket: Ticket) -> Option<&mut W> {
        self.message_mut(ticket.0).map(|message| &mut message.work_request)
    }

    /// What was posted with each message whose completion was not polled yet, oldest first.
    pub fn work_requests_mut(&mut self) -> impl Iterator<Item = &mut W> {
        self.messages.iter_mut().map(|message| &mut message.work_request)
    }

    /// PSN that the next posted message gets (`sq_psn` of a query).
    pub fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// Nothing posted that was not completed and polled: a send queue that is drained (SQD).
    pub fn is_idle(&self) -> bool {
        self.messages.is_empty()
    }

    /// Messages posted whose completion was not polled yet.
    pub fn outstanding(&self) -> usize {
        self.messages.len()
    }

    /// Whether an error or `enter_error` ended the sending.
    pub fn is_failed(&self) -> bool {
        self.state != State::Active
    }

    /// How it was made.
    pub fn config(&self) -> &RequesterConfig {
        &self.config
    }

    /// Messages that room was allocated for.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.messages.capacity()
    }

    // Commands.

    /// Queues a message. Ask `can_post` first: what exceeds `window_messages` waits. A message that the
    /// service cannot carry is not sent, and completes in its turn with the error.
    pub fn post_with(&mut self, message: PostedMessage, work_request: W) -> Ticket {
        let failure = self.refusal(&message);
        self.push(message, failure, work_request)
    }

    /// Queues a message that failed before sending (a gather address, a malformed work request). It completes
    /// with `status` when all before it are done, and ends the sending.
    pub fn post_failed_with(&mut self, opcode: Opcode, status: Status, work_request: W) -> Ticket {
        self.push(PostedMessage { opcode, length: 0, fence: false }, Some(status), work_request)
    }

    /// A message posted earlier failed locally: its payload is unreadable, or its response has no place. It
    /// completes with `status` in its turn, even if acknowledged. Nothing behind it is sent: an unreliable
    /// peer would take what is flushed here. Polled or unknown tickets are ignored.
    pub fn fail(&mut self, ticket: Ticket, status: Status) {
        if let Some(message) = self.message_mut(ticket.0) {
            message.failure = Some(status);
            self.failed = self.failed.min(ticket.0);
        }
    }

    /// Stops sending; whatever is not done completes as flushed (the QP was moved to ERR).
    pub fn enter_error(&mut self) {
        self.timer = Timer::Stopped;
        if self.state == State::Active {
            self.state = State::Flushing;
        }
    }

    /// Sends again after an error of an unreliable QP (SQE to RTS); only when everything was flushed.
    pub fn resume(&mut self) {
        if self.messages.is_empty() {
            (self.state, self.failed) = (State::Active, u64::MAX);
            (self.next_send, self.sent_end) = (self.front, self.front);
            self.set_done(self.front);
            self.sent_end_psn = self.next_psn;
            (self.progress.acked, self.progress.sent, self.progress.is_cut) = (0, 0, false);
            (self.responses_posted, self.responses_outstanding, self.response_psns) = (0, 0, 0);
        }
    }

    /// Changes what a modify in RTS or SQD may change.
    pub fn set_retry(&mut self, retry_count: u8, rnr_retry: u8, timeout: u8, max_rd_atomic: u8) {
        self.config = RequesterConfig { retry_count, rnr_retry, timeout, max_rd_atomic, ..self.config };
        self.retries = Budget::transport(retry_count);
        self.rnr_retries = Budget::rnr(rnr_retry);
    }

    // Inputs.

    /// Takes a packet that answers a request (IBTA §9.7.6); ignores others. The caller has checked its peer's
    /// address, or in shared memory its QPN.
    pub fn handle_packet(&mut self, now: Now, packet: &Packet) -> ReplyVerdict {
        let reliable = self.config.service == ServiceType::Rc;
        let Some(offset) = self.outstanding_offset(packet.psn).filter(|_| reliable) else {
            return ReplyVerdict::Ignored;
        };
        let before = self.acknowledged();
        let verdict = match packet.content {
            Content::Acknowledge(Aeth { syndrome: Syndrome::Ack, .. }) => self.take_ack(offset),
            Content::Acknowledge(Aeth { syndrome: Syndrome::RnrNak { timer }, .. }) => {
                self.take_rnr_nak(now, offset, timer)
            }
            Content::Acknowledge(Aeth { syndrome: Syndrome::Nak(code), .. }) => self.take_nak(offset, code),
            Content::AtomicAcknowledge { old, .. } => self.take_atomic(packet.psn, offset, old),
            Content::ReadResponse { position, .. } => {
                self.take_read_response(packet.psn, offset, position, packet.payload.length)
            }
            _ => ReplyVerdict::Ignored,
        };
        self.restart_ack_timer(now, before);
        verdict
    }

    /// Runs the timer: resends after a lost acknowledgement or an RNR wait. IBTA §9.7.6: each ack timeout
    /// takes one of `retry_count` retries; the one after the last is the error.
    pub fn handle_timeout(&mut self, now: Now) {
        if self.state != State::Active {
            return;
        }
        match self.timer {
            Timer::Rnr { until } if until <= now => self.timer = Timer::Stopped,
            Timer::Ack { deadline } if deadline <= now => {
                if self.retries.take() {
                    self.go_back();
                    self.shrink_window();
                    self.recovering = false;
                } else {
                    self.fail_oldest(Status::RetryExceeded);
                }
            }
            _ => {}
        }
    }

    /// All that was sent still lies in a lossless ring, so the peer is slow; or a piece of a response has
    /// come. The ack timer starts over.
    pub fn hold_timer(&mut self, now: Now) {
        if let (Timer::Ack { .. }, Some(ns)) = (self.timer, ack_timeout_ns(self.config.timeout)) {
            self.timer = Timer::Ack { deadline: now.after(ns) };
        }
    }

    // Outputs.

    /// The next message that ended, with its work request, in posting order. After a failure all are flushed.
    pub fn poll_completed(&mut self) -> Option<(Completion, W)> {
        let ended = match self.state {
            _ if self.front < self.done => None,
            State::Active => Some(self.messages.front()?.failure?),
            State::Failed(status) => Some(status),
            State::Flushing => Some(Status::Flushed),
        };
        let message = self.messages.pop_front()?;
        let status = ended.or(message.failure).unwrap_or(Status::Success);
        let ticket = Ticket(self.front);
        self.front += 1;
        if status != Status::Success {
            self.state = State::Flushing;
            self.timer = Timer::Stopped;
            self.set_done(self.front);
            self.next_send = self.next_send.max(self.done);
        }
        let found = message.opcode.is_atomic() && status == Status::Success;
        let atomic_old = found.then_some(message.atomic_old);
        Some((Completion { ticket, opcode: message.opcode, status, atomic_old }, message.work_request))
    }

    /// When to call `handle_timeout`, if nothing else happens first.
    pub fn poll_timeout(&self) -> Option<Now> {
        self.timer.due()
    }

    // The timer.

    /// After progress, the next acknowledgement gets the whole time again.
    fn restart_ack_timer(&mut self, now: Now, before: (u64, u32)) {
        let waiting_for_receiver = matches!(self.timer, Timer::Rnr { .. });
        if self.acknowledged() == before || self.state != State::Active || waiting_for_receiver {
            return;
        }
        if self.nothing_sent() {
            self.timer = Timer::Stopped;
        } else {
            self.start_ack_timer(now);
        }
    }
}
