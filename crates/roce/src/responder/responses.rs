//! What a responder sends: READ and atomic responses, NAKs, acknowledgements.
//!
//! Follows IBTA vol. 1 §9.7.5 (generating responses).

use super::streams::ReadStream;
use super::{Responder, Response};
use crate::packet::{Aeth, Content, Outgoing, Packet, PayloadSource, Position, Syndrome};
use crate::{AsyncEvent, Fragment, NakCode, Opcode, Outcome, Psn, Refusal, Region, Request, Status};

impl Responder {
    /// The next packet to send: of READ and atomic responses in order, then a NAK, then an acknowledgement.
    /// [`Responder::sent_packet`] sends it. Of a READ response as many packets in one as `most` bytes hold.
    pub fn next_packet(&self, most: u32) -> Option<Outgoing> {
        let aeth = |syndrome, msn| Aeth { syndrome, msn };
        if let Some((response, stream)) = self.next_read() {
            let aeth = aeth(Syndrome::Ack, response.msn);
            let (psn, position, payload) = stream.next_piece(self.config.path_mtu_bytes, most);
            let aeth = (position != Position::Middle).then_some(aeth);
            let content = Content::ReadResponse { position, aeth };
            return Some(self.outgoing(psn, content, payload, PayloadSource::Region(stream.region)));
        }
        let (psn, content) = if let Some(Response { psn, msn, old, .. }) = self.responses.front() {
            (*psn, Content::AtomicAcknowledge { aeth: aeth(Syndrome::Ack, *msn), old: (*old)? })
        } else if let Some(nak) = self.nak {
            (self.expected_psn, Content::Acknowledge(aeth(nak, self.msn)))
        } else if self.ack_due {
            (self.expected_psn.minus(1), Content::Acknowledge(aeth(Syndrome::Ack, self.msn)))
        } else {
            return None;
        };
        Some(self.outgoing(psn, content, Fragment::default(), PayloadSource::Nothing))
    }

    /// What [`Responder::next_packet`] gave was sent, or `bytes` of it, whole packets: the rest comes next.
    pub fn sent_packet(&mut self, bytes: u32) {
        let Some((response, stream)) = self.next_read() else { return self.pop_reply() };
        let last_read = (stream.psn.plus(stream.next), response.replayed, stream.region);
        self.outbound.last_read = Some(last_read);
        let path_mtu_bytes = self.config.path_mtu_bytes;
        if let Some(stream) = self.outbound.reads.front_mut()
            && stream.advance(bytes, path_mtu_bytes)
        {
            self.outbound.reads.pop_front();
            self.responses.pop_front();
        }
    }

    fn pop_reply(&mut self) {
        if self.responses.pop_front().is_none() && self.nak.take().is_none() {
            self.ack_due = false;
        }
    }

    /// Whether the answer to a READ is to be sent.
    pub fn owes_a_read(&self) -> bool {
        !self.outbound.reads.is_empty()
    }

    /// The READ response that goes out next.
    fn next_read(&self) -> Option<(&Response, &ReadStream)> {
        let response = self.responses.front().filter(|next| next.old.is_none())?;
        Some((response, self.outbound.reads.front()?))
    }

    /// What READs of this key still lack is read through `other`; without it, it must not be sent.
    pub fn rekey_reads(&mut self, key: u32, other: Option<u32>) {
        for stream in self.outbound.reads.iter_mut().filter(|stream| stream.region.key == key) {
            stream.region.key = other.unwrap_or(key);
            stream.revoked |= other.is_none();
        }
    }

    /// Whether the key of the READ response that goes out next is there still.
    pub fn may_read(&self) -> bool {
        self.next_read().is_none_or(|(_, stream)| !stream.revoked)
    }

    /// Nothing that is due is sent.
    pub fn drop_replies(&mut self) {
        self.responses.clear();
        self.outbound.reads.clear();
        (self.nak, self.ack_due) = (None, false);
    }

    /// The bytes of the READ response packet polled last are unreadable: the region ([`Outcome::Revoked`]) or
    /// its memory is gone. Do not send the packet; the NAK in its place acknowledges what was sent before it.
    ///
    /// The first answer to a READ ends in error (IBTA §9.9.3), a repeat in silence: its first run succeeded.
    pub fn read_failed(&mut self, outcome: Outcome) {
        let Some((psn, replayed, Region { key: rkey, va: remote_va, len, .. })) =
            self.outbound.last_read.take()
        else {
            return;
        };
        if replayed {
            self.abandon_read(psn);
            return;
        }
        self.responses.clear();
        self.outbound.reads.clear();
        self.expected_psn = psn;
        let (opcode, length) = (Opcode::Read, len as u32);
        self.at_work = Request { opcode, psn, remote_va, rkey, length, ..Request::default() };
        let (code, event, why) = match outcome {
            Outcome::LocalFault { addr } => {
                (NakCode::RemoteOperation, AsyncEvent::QpFatal, Refusal::Memory(addr))
            }
            _ => (NakCode::RemoteAccess, AsyncEvent::AccessError, Refusal::Revoked),
        };
        self.refuse(code, Some(event), Status::Flushed, why);
    }

    /// Takes back what is left of the response whose packet at `psn` cannot be sent.
    fn abandon_read(&mut self, psn: Psn) {
        let unfinished = self
            .outbound
            .reads
            .front()
            .is_some_and(|stream| stream.next > stream.first && psn == stream.psn.plus(stream.next - 1));
        if unfinished {
            self.outbound.reads.pop_front();
            self.responses.pop_front();
        }
    }

    fn outgoing(&self, psn: Psn, content: Content, payload: Fragment, source: PayloadSource) -> Outgoing {
        let (service, dst_qpn) = (self.config.service, self.config.peer_qpn.unwrap_or_default());
        let packet = Packet { service, dst_qpn, psn, content, payload, ..Packet::default() };
        Outgoing { packet, source, retransmission: false }
    }
}
