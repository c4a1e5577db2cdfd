//! Messages on their way out: the packet that goes next, how far it has gone, and the send window.
//!
//! Follows IBTA vol. 1 on generating requests. Two messages may be partly done: the one at `done` and the one
//! at `next_send`.

use super::{Message, Requester, SendWindow};
use crate::packet::{Content, Packet, Position, Reth, Trailer, position_of};
use crate::retry::{Timer, ack_timeout_ns};
use crate::{Fragment, Now, Opcode, Psn, ServiceType, Ticket};

/// Packets that may be in flight whatever was lost: with fewer, a long line would carry next to nothing.
const FEWEST_IN_FLIGHT: u32 = 16;

/// «Send this packet now.»
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketTransmit {
    /// Its message.
    pub ticket: Ticket,
    /// The message's operation.
    pub opcode: Opcode,
    pub psn: Psn,
    /// PSNs that it takes.
    pub packets: u32,
    /// Where in the message; READs and atomics are always whole.
    pub position: Position,
    /// Bytes of the message that it carries, or that a READ asks for: the offset moves the RETH's address.
    pub fragment: Fragment,
    pub ack_requested: bool,
    pub retransmission: bool,
    /// It is the first of its message since that was posted, or since going back.
    pub begins: bool,
}

impl PacketTransmit {
    /// The packet to send of this whole message.
    pub fn cut(&self, whole: &Packet) -> Packet {
        let PacketTransmit { psn, position, fragment, ack_requested, .. } = *self;
        let end = |trailer| if position.ends() { trailer } else { Trailer::None };
        let content = match whole.content {
            Content::Send { trailer, .. } => Content::Send { position, trailer: end(trailer) },
            Content::Write { reth, trailer, .. } => {
                let reth = if position.starts() { reth } else { Reth::default() };
                Content::Write { position, reth, trailer: end(trailer) }
            }
            // What is missing of it: the first PSN not received says where that starts (IBTA §9.7.6).
            Content::ReadRequest(reth) => {
                let va = reth.va.wrapping_add(fragment.offset.into());
                Content::ReadRequest(Reth { va, dma_bytes: fragment.length, ..reth })
            }
            other => other,
        };
        let payload = if whole.payload.length > 0 { fragment } else { Fragment::default() };
        let solicited = whole.solicited && position.ends();
        Packet { psn, ack_requested, solicited, content, payload, ..*whole }
    }
}

impl<W> Requester<W> {
    /// The next packet to send: of the oldest message not wholly sent, from the first PSN that is neither
    /// acknowledged nor sent in this pass. [`Requester::sent_packet`] marks it sent. Holds as many packets of
    /// the message as fit in `most` bytes.
    #[inline(always)]
    pub fn next_packet(&mut self, most: u32) -> Option<PacketTransmit> {
        let &Message { opcode, psn, length, psn_count, .. } = self.next_to_send()?;
        let reliable = self.config.service == ServiceType::Rc;
        let index = self.progress.sent;
        let psn = psn.plus(index);
        // A READ or an atomic is one request packet, however many PSNs its response takes.
        let alone = opcode.wants_response();
        let mut fills_window = false;
        if let Some(window) = self.progress.window {
            let oldest = self.first_unacknowledged()?;
            let to_come = self.responses_to_come();
            let in_flight = psn.distance_from(oldest) + self.responses_outstanding - to_come;
            let full = self.allowed(window, oldest);
            if reliable && (in_flight >= full || alone && to_come >= full) {
                return None;
            }
            fills_window = in_flight + 1 >= full || self.progress.unasked + 1 >= window.ack_every.max(1);
        }
        // What was sent before and what never was are two.
        let again = self.sent_end_psn.distance_from(psn);
        let most = if again == 0 { most } else { most.min(again.saturating_mul(self.config.path_mtu_bytes)) };
        let offset = index * self.config.path_mtu_bytes;
        let rest = length - offset;
        let is_rest = alone || rest <= most;
        let length = if is_rest { rest } else { most - most % self.config.path_mtu_bytes };
        Some(PacketTransmit {
            ticket: Ticket(self.next_send),
            opcode,
            psn,
            packets: if is_rest { psn_count - index } else { length / self.config.path_mtu_bytes },
            position: if alone { Position::Only } else { position_of(index == 0, is_rest) },
            fragment: Fragment { offset, length },
            // The responder owes nothing to packets that do not ask. A message's last packet asks, one every
            // few before it, and the one that fills the window.
            ack_requested: reliable && (is_rest || fills_window),
            retransmission: again != 0,
            begins: !self.progress.is_cut,
        })
    }

    /// What [`Requester::next_packet`] gave was sent, or `bytes` of it, whole packets: the rest comes next.
    /// An unreliable service's message is complete once sent: read its payload before polling completions.
    #[inline(always)]
    pub fn sent_packet(&mut self, now: Now, transmit: &PacketTransmit, bytes: u32) {
        let PacketTransmit { ticket, opcode, psn, fragment, ack_requested, .. } = *transmit;
        let is_all = bytes >= fragment.length;
        let packets = if is_all { transmit.packets } else { bytes / self.config.path_mtu_bytes };
        if packets == 0 || ticket.0 != self.next_send {
            return;
        }
        if self.sent_end_psn.distance_from(psn) < packets {
            (self.sent_end, self.sent_end_psn) = (ticket.0 + 1, psn.plus(packets));
        }
        let ends = is_all && transmit.position.ends();
        self.progress.is_cut = !ends;
        if ends {
            self.next_send += 1;
            self.progress.sent = 0;
            if opcode.wants_response() {
                self.responses_outstanding += 1;
                self.response_psns += self.message(ticket.0).map_or(0, |message| message.psn_count);
            }
        } else {
            self.progress.sent += packets;
        }
        self.progress.unasked = if ack_requested { 0 } else { self.progress.unasked + 1 };
        if self.config.service != ServiceType::Rc {
            self.set_done(self.next_send);
        } else if self.timer == crate::retry::Timer::Stopped {
            self.start_ack_timer(now);
        }
    }

    /// Through shared memory: a message has left in part, and its rest waits for room alone.
    pub fn waits_for_room(&self) -> bool {
        self.progress.window.is_none() && self.progress.is_cut && self.next_to_send().is_some()
    }

    /// PSNs of responses to what was sent and is not answered: no packets of ours.
    fn responses_to_come(&self) -> u32 {
        let answered = match self.message(self.done) {
            Some(oldest) if oldest.opcode.wants_response() && self.done < self.next_send => {
                self.progress.acked
            }
            _ => 0,
        };
        self.response_psns - answered
    }

    /// Packets that may be in flight: the window. After a loss fewer, plus one for each acknowledged since.
    fn allowed(&mut self, window: SendWindow, oldest: Psn) -> u32 {
        let full = window.packets.max(1);
        let through = self.progress.through(oldest, full);
        let Some(after) = self.progress.after_loss else { return full };
        let grown = after.saturating_add(through);
        if grown >= full {
            self.progress.after_loss = None;
        }
        grown.min(full)
    }

    /// A packet was lost, and all behind it is resent. The next pass begins with as many packets as came
    /// through since the previous loss, because what lies behind the next loss is wasted.
    pub(super) fn shrink_window(&mut self) {
        let (Some(oldest), Some(window)) = (self.first_unacknowledged(), self.progress.window) else {
            return;
        };
        let through = self.progress.through(oldest, window.packets);
        (self.progress.after_loss, self.progress.lost_at) = (Some(through.max(FEWEST_IN_FLIGHT)), oldest);
    }

    /// Starts the ack timer anew; stops it where the timeout is none.
    pub(super) fn start_ack_timer(&mut self, now: Now) {
        self.timer = match ack_timeout_ns(self.config.timeout) {
            Some(ns) => Timer::Ack { deadline: now.after(ns) },
            None => Timer::Stopped,
        };
    }

    /// The first PSN that is not acknowledged.
    fn first_unacknowledged(&self) -> Option<Psn> {
        self.message(self.done).map(|_| self.oldest_psn.plus(self.progress.acked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PostedMessage, RequesterConfig};

    #[test]
    fn a_loss_after_all_psns_came_round_leaves_the_whole_window() {
        let config = RequesterConfig {
            service: ServiceType::Rc,
            first_psn: Psn::new(7),
            path_mtu_bytes: 256,
            retry_count: 7,
            rnr_retry: 7,
            timeout: 14,
            max_rd_atomic: 1,
            window_messages: 1,
        };
        let window = SendWindow { packets: 64, ack_every: 16 };
        let mut requester = Requester::by_packet(config, window);
        requester.post(PostedMessage { opcode: Opcode::Write, length: 64 << 10, fence: false });
        // 2^24 packets, and five more.
        for acknowledged in (0..1 << 24).step_by(64) {
            assert_eq!(requester.allowed(window, Psn::new(7).plus(acknowledged)), 64);
        }
        requester.progress.acked = 5;
        requester.shrink_window();
        assert_eq!(requester.progress.after_loss, Some(64));
    }
}
