//! Replies that arrive for a QP, in messages or in packets: acknowledgements, NAKs, and the bytes of READs.

use roce::connection::{Arrival, take_reply_packet};
use roce::{
    Fragment, Opcode, Packet, Placement, Reply, ReplyKind, ReplyVerdict, Request, Requester, ServiceType,
    Status,
};

use super::core::Core;
use super::qp::Qp;
use super::sq::{Kind, SendRequest};
use crate::carrier::Inbound;
use crate::memory::Memory;

impl<M: Memory> Core<M> {
    /// A reply arrived for this queue.
    pub(super) fn take_reply(
        &mut self,
        qp: &mut Qp,
        reply: &Reply,
        offset: u32,
        last: bool,
        inbound: &mut impl Inbound,
    ) {
        if awaiting(qp).is_none() || reply.src_qpn != qp.attributes.dest_qpn {
            self.host.counters.dropped_replies += 1;
            return;
        }
        if reply.kind == ReplyKind::ReadResponse && !self.place_answer(qp, reply, offset, inbound) {
            return;
        }
        qp.sq.progress.answer_holds = 0;
        let Some(requester) = qp.sq.requester.as_mut() else { return };
        if !last {
            if reply.kind == ReplyKind::ReadResponse && inbound.payload_len() > 0 {
                // IBTA §9.7.6.1.3: the timer starts over with each response.
                requester.hold_timer(self.host.now);
            } else {
                // Not the last of anything, and a part of nothing: no NIC of ours sends that.
                self.host.counters.dropped_replies += 1;
            }
            return;
        }
        let naks = reply.kind;
        match requester.handle_reply(self.host.now, reply) {
            ReplyVerdict::Ignored => self.host.counters.dropped_replies += 1,
            ReplyVerdict::Resend if matches!(naks, ReplyKind::RnrNak { .. }) => {
                self.host.counters.rnr_naks_received += 1
            }
            ReplyVerdict::Response(ticket) => {
                if let Some(place) = qp.sq.find(ticket)
                    && qp.sq.outstanding[place].request.opcode == Opcode::Read
                {
                    self.host.counters.bytes_read += u64::from(qp.sq.outstanding[place].request.length);
                }
            }
            ReplyVerdict::Progress | ReplyVerdict::Resend | ReplyVerdict::Failed => {}
        }
        // At once: CQEs and events come in the order of arrival, so a message that follows its acknowledgement is seen after
        // the send it answers (`ib_send_lat -e` takes the next event of a shared channel for its send's).
        self.drain_completions(qp);
        self.schedule.heat(&mut qp.sched, self.host.now);
    }

    /// Puts bytes that came with a READ response where the READ wants them. False: they belong to no READ, or could not be
    /// put there.
    fn place_answer(&mut self, qp: &mut Qp, reply: &Reply, offset: u32, inbound: &mut impl Inbound) -> bool {
        let len = inbound.payload_len();
        if len == 0 {
            return true;
        }
        let (mtu, end) = (qp.mtu_bytes(), u64::from(offset) + u64::from(len));
        let answers = |sent: &SendRequest| {
            let Request { opcode, length, psn, .. } = sent.request;
            let last_psn = || psn.plus(roce::message::psn_count(opcode, length, mtu)).minus(1);
            sent.kind == Kind::Message && opcode == Opcode::Read && last_psn() == reply.psn
        };
        let place = qp.sq.outstanding.iter().position(|sent| answers(sent));
        let fits = |place: &usize| end <= u64::from(qp.sq.outstanding[*place].request.length);
        let Some(place) = place.filter(fits) else {
            self.host.counters.dropped_replies += 1;
            return false;
        };
        self.place_read(qp, place, offset, inbound)
    }

    /// Puts bytes of a READ where it wants them. False: they cannot be, and the READ fails.
    fn place_read(&mut self, qp: &mut Qp, place: usize, offset: u32, inbound: &mut impl Inbound) -> bool {
        let request = &mut *qp.sq.outstanding[place];
        let placed = self.payload_scatter.place(request, qp.sq.scatter, offset, inbound).is_ok();
        if !placed {
            let ticket = request.ticket;
            qp.sq.fail(ticket, Status::LocalProtection);
            self.schedule.heat(&mut qp.sched, self.host.now);
        }
        placed
    }

    /// A packet that answers a request arrived for this queue.
    pub(super) fn take_reply_packet(&mut self, qp: &mut Qp, packet: &Packet, inbound: &mut impl Inbound) {
        let (qpn, counters) = (qp.qpn, &mut self.host.counters);
        let Some(requester) = awaiting(qp) else {
            counters.dropped_replies += 1;
            return;
        };
        let arrival = take_reply_packet(requester, qpn, self.host.now, packet);
        let ignored = arrival == Arrival::Reply(ReplyVerdict::Ignored);
        counters.packets_taken += u64::from(!ignored);
        counters.dropped_replies += u64::from(ignored);
        if let Arrival::Place(Placement { ticket, fragment: Fragment { offset, length } }) = arrival
            && let Some(place) = qp.sq.find(ticket)
        {
            counters.bytes_read += u64::from(length);
            self.place_read(qp, place, offset, inbound);
        }
        self.drain_completions(qp);
        self.schedule.heat(&mut qp.sched, self.host.now);
    }
}

/// The requester of a queue that takes replies in its state.
fn awaiting(qp: &mut Qp) -> Option<&mut Requester> {
    let awaits = qp.state.finishes_sends() && qp.service == ServiceType::Rc;
    qp.sq.requester.as_mut().filter(|_| awaits)
}
