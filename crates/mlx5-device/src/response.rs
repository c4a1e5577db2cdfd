//! Answers that arrive for a QP: acknowledgements, NAKs, and the bytes of READs.

use roce::packet::{Aeth, Syndrome};
use roce::{Content, Packet, ReplyVerdict, ServiceType, Ticket};

use super::core::Core;
use super::qp::Qp;
use crate::carrier::Inbound;
use crate::memory::Memory;

impl<M: Memory> Core<M> {
    /// A packet that answers a request arrived for this queue, from its peer.
    pub(super) fn take_answer(&mut self, qp: &mut Qp, packet: &Packet, inbound: &mut impl Inbound) {
        let counters = &mut self.host.counters;
        let awaits =
            qp.state.finishes_sends() && qp.service == ServiceType::Rc && qp.is_from_peer(packet, inbound);
        let Some(requester) = qp.sq.requester.as_mut().filter(|_| awaits) else {
            counters.dropped_replies += 1;
            return;
        };
        let verdict = requester.handle_packet(self.host.now, packet);
        let ignored = verdict == ReplyVerdict::Ignored;
        counters.packets_taken += u64::from(!ignored);
        counters.dropped_replies += u64::from(ignored);
        let is_rnr =
            matches!(packet.content, Content::Acknowledge(Aeth { syndrome: Syndrome::RnrNak { .. }, .. }));
        counters.rnr_naks_received += u64::from(is_rnr && verdict == ReplyVerdict::Resend);
        qp.sq.progress.answer_holds = 0;
        if let ReplyVerdict::Place { ticket, fragment } = verdict
            && let Some(request) = qp.sq.requester.as_mut().and_then(|r| r.work_request_mut(ticket))
        {
            counters.bytes_read += u64::from(fragment.length);
            if let Err(fault) = self.payload_scatter.place(request, qp.sq.scatter, fragment, inbound) {
                qp.sq.fail_at(ticket, fault);
            }
        }
        // At once: CQEs and events keep the order of arrival; a message after its acknowledgement is seen
        // after the send it answers. `ib_send_lat -e` takes a shared channel's next event for its send's.
        self.drain_completions(qp);
        if is_rnr && verdict == ReplyVerdict::Resend {
            let oldest = qp.sq.requester.as_ref().map_or(Ticket(0), |r| r.oldest_ticket());
            let (peer, retry) = (qp.attributes.dest_qpn, qp.attributes.rnr_retry);
            let why = || format!("has no receive for a message, rnr_retry {retry}; post receives there");
            self.explain_wait(qp, (oldest, 0), peer, why);
        }
        self.schedule.heat(&mut qp.sched, self.host.now);
    }
}
