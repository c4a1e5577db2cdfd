//! Replies that arrive for a QP: acknowledgements, NAKs, and the bytes of READs.

use roce::{Opcode, Reply, ReplyKind, ReplyVerdict, ServiceType, Status};

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
        let expected = qp.sq.requester.is_some()
            && qp.state.finishes_sends()
            && qp.service == ServiceType::Rc
            && reply.src_qpn == qp.attributes.dest_qpn;
        if !expected {
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
        let mtu = qp.mtu_bytes();
        let answers = |request: &SendRequest| {
            let asked = &request.request;
            let count = roce::message::psn_count(asked.opcode, asked.length, mtu);
            request.kind == Kind::Message
                && asked.opcode == Opcode::Read
                && asked.psn.plus(count).minus(1) == reply.psn
        };
        let fits = |request: &&mut Box<SendRequest>| {
            u64::from(offset) + u64::from(len) <= u64::from(request.request.length)
        };
        let Some(request) = qp.sq.outstanding.iter_mut().find(|r| answers(r)).filter(fits) else {
            self.host.counters.dropped_replies += 1;
            return false;
        };
        let placed = self.payload_scatter.place(request, qp.sq.scatter, offset, inbound).is_ok();
        if !placed {
            let ticket = request.ticket;
            qp.sq.fail(ticket, Status::LocalProtection);
            self.schedule.heat(&mut qp.sched, self.host.now);
        }
        placed
    }
}
