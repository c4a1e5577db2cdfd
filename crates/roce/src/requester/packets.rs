//! The requester packet by packet: segmentation, send window, resending from an exact PSN, READ responses as they come.
//!
//! Follows IBTA vol. 1 on generating requests and §9.7.6 (receiving responses). States, retries, and what a reply does to the
//! queue are those of whole messages, in the file above; here stand the packets of the two messages that may be split by a
//! moment, the one at `done` and the one at `next_send`.

pub use super::progress::SendWindow;
use super::{Acknowledged, Requester};
use crate::message::psn_count;
use crate::packet::{Position, position_of};
use crate::{Fragment, Now, Opcode, Psn, ReplyVerdict, RequesterConfig, ServiceType, Status, Ticket};

/// Packets that may be under way whatever was lost: with fewer, a long line would carry next to nothing.
const FEWEST_UNDER_WAY: u32 = 16;

/// «Send this packet now.»
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketTransmit {
    /// Its message.
    pub ticket: Ticket,
    /// The message's operation.
    pub opcode: Opcode,
    pub psn: Psn,
    /// Where in the message; READs and atomics are always whole.
    pub position: Position,
    /// Bytes of the message that it carries; of a READ, those that it asks for: the RETH's address moves by the offset.
    pub fragment: Fragment,
    /// Length of the whole message.
    pub length: u32,
    pub ack_requested: bool,
    pub retransmission: bool,
}

/// A packet of a READ response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPacket {
    pub psn: Psn,
    /// Where in the response.
    pub position: Position,
    pub payload_bytes: u32,
}

/// Where a READ response's bytes belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The READ.
    pub ticket: Ticket,
    /// Which of its bytes.
    pub fragment: Fragment,
}

/// What a packet of a READ response did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadArrival {
    /// It is the next one: place its bytes before polling completions.
    Place(Placement),
    /// Anything else.
    Reply(ReplyVerdict),
}

impl Requester {
    /// A requester whose messages go out as packets: use `poll_packet` instead of `poll_transmit`, and `handle_read_packet`
    /// for READ responses.
    pub fn by_packet(config: RequesterConfig, window: SendWindow) -> Requester {
        let mut requester = Requester::new(config);
        (requester.progress.window, requester.progress.lost_at) = (Some(window), config.first_psn);
        requester
    }

    /// The next packet to send: of the oldest message that is not sent wholly, from the first PSN on that is neither
    /// acknowledged nor sent in this pass.
    pub fn poll_packet(&mut self, now: Now) -> Option<PacketTransmit> {
        let window = self.progress.window?;
        let message = *self.next_to_send()?;
        let reliable = self.config.service == ServiceType::Rc;
        let index = self.progress.sent;
        let psn = message.psn.plus(index);
        let oldest = self.oldest_psn()?;
        let ahead = psn.distance_from(oldest);
        // A READ or an atomic is one request packet, however many PSNs its response takes.
        let alone = message.opcode.wants_response();
        let to_come = self.responses_to_come();
        let under_way = ahead + self.responses_outstanding - to_come;
        let full = self.allowed(window, oldest);
        if reliable && (under_way >= full || alone && to_come >= full) {
            return None;
        }
        let packets = if alone { message.psn_count - index } else { 1 };
        let ends = index + packets == message.psn_count;
        let offset = index * self.config.path_mtu_bytes;
        let rest = message.length - offset;
        let carried = if alone { rest } else { rest.min(self.config.path_mtu_bytes) };
        let ticket = self.next_send;
        let retransmission = ahead < self.sent_end_psn.distance_from(oldest);
        if !retransmission {
            self.sent_end = ticket + 1;
            self.sent_end_psn = psn.plus(packets);
        }
        if ends {
            self.next_send += 1;
            self.progress.sent = 0;
            self.count_sent(&message);
        } else {
            self.progress.sent += 1;
        }
        self.counters.transmitted += 1;
        self.counters.retransmitted += u64::from(retransmission);
        if reliable && self.timer == crate::retry::Timer::Stopped {
            self.start_ack_timer(now);
        }
        Some(PacketTransmit {
            ticket: Ticket(ticket),
            opcode: message.opcode,
            psn,
            position: if alone { Position::Only } else { position_of(index == 0, ends) },
            fragment: Fragment { offset, length: carried },
            length: message.length,
            ack_requested: reliable && self.asks_for_ack(window, ends, under_way + 1 >= full),
            retransmission,
        })
    }

    /// Takes one packet of a READ response (IBTA §9.7.6): the next in order is placed, an earlier one is a copy, a later one
    /// says that some between are lost, and the READ goes out again from the first of these.
    pub fn handle_read_packet(&mut self, now: Now, packet: &ReadPacket) -> ReadArrival {
        let reliable = self.config.service == ServiceType::Rc;
        let Some(offset) = self.outstanding_offset(packet.psn).filter(|_| reliable) else {
            self.counters.ignored_replies += 1;
            return ReadArrival::Reply(ReplyVerdict::Ignored);
        };
        let before = self.acknowledged();
        let arrival = self.take_read_packet(offset, packet);
        self.count_reply(before, arrival == ReadArrival::Reply(ReplyVerdict::Ignored));
        self.restart_ack_timer(now, before);
        arrival
    }

    fn take_read_packet(&mut self, offset: u32, packet: &ReadPacket) -> ReadArrival {
        let acknowledged = self.acknowledge_before(offset);
        let ticket = self.done;
        let Some(message) = self.message(ticket).copied() else {
            return ReadArrival::Reply(ReplyVerdict::Ignored);
        };
        if acknowledged == Acknowledged::UpToResponse {
            return ReadArrival::Reply(self.implied_nak());
        }
        let ReadPacket { psn, position, payload_bytes: bytes } = *packet;
        let (index, mtu) = (psn.distance_from(message.psn), self.config.path_mtu_bytes);
        let end = index + psn_count(Opcode::Read, bytes, mtu);
        if end <= self.progress.acked {
            return ReadArrival::Reply(ReplyVerdict::Ignored);
        }
        // A READ that went out again from the middle is answered by a first packet there, and the rest of the earlier answer
        // may still arrive: which packet starts a response says nothing, which one ends it does.
        let start = index * mtu;
        let rest = message.length.saturating_sub(start);
        let full = bytes == mtu || self.progress.window.is_none() && bytes > 0 && bytes.is_multiple_of(mtu);
        let due = if position.ends() { bytes == rest } else { full && bytes < rest };
        // On a wire a packet is one, whatever its position.
        let due = due && (self.progress.window.is_none() || bytes <= mtu);
        if message.opcode != Opcode::Read || !due {
            return ReadArrival::Reply(self.fail_oldest(Status::BadResponse));
        }
        if position.ends() {
            self.step_done(true);
        } else {
            self.advance_to(end);
        }
        let fragment = Fragment { offset: start, length: bytes };
        ReadArrival::Place(Placement { ticket: Ticket(ticket), fragment })
    }

    /// An acknowledgement covers so many packets of the message at `done`, not all of it. It is not used with whole messages.
    pub(super) fn acknowledge_part(&mut self, packets: u32) {
        if self.progress.window.is_some() && packets > self.progress.acked {
            self.advance_to(packets);
        }
    }

    fn advance_to(&mut self, packets: u32) {
        self.progress.acked = packets;
        if self.next_send == self.done {
            self.progress.sent = self.progress.sent.max(packets);
        }
        self.progressed();
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

    /// Packets that may be under way: those of the window. After a loss fewer, and one more for each acknowledged since.
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

    /// A packet was lost, and all behind it goes again. The next pass begins with as many packets as came through since the
    /// loss before, because what lies behind the next loss is sent for nothing.
    pub(super) fn shrink_window(&mut self) {
        let (Some(oldest), Some(window)) = (self.oldest_psn(), self.progress.window) else { return };
        let through = self.progress.through(oldest, window.packets);
        (self.progress.after_loss, self.progress.lost_at) = (Some(through.max(FEWEST_UNDER_WAY)), oldest);
    }

    /// The first PSN that is not acknowledged.
    fn oldest_psn(&self) -> Option<Psn> {
        Some(self.message(self.done)?.psn.plus(self.progress.acked))
    }

    /// The responder owes nothing to packets that do not ask: so the last of a message does, one every few before it, and the
    /// one that fills the window.
    fn asks_for_ack(&mut self, window: SendWindow, ends: bool, fills_window: bool) -> bool {
        self.progress.unasked += 1;
        let asks = ends || fills_window || self.progress.unasked >= window.ack_every.max(1);
        if asks {
            self.progress.unasked = 0;
        }
        asks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PostedMessage;

    #[test]
    fn a_loss_after_all_psns_came_round_leaves_the_whole_window() {
        let config = RequesterConfig {
            service: ServiceType::Rc,
            peer_qpn: None,
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
