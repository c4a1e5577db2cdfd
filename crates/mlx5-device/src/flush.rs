//! What follows an error: states, events, and flush CQEs for everything posted, signalled or not.
//!
//! As in IBTA's error states (vol. 1 §10.3); a budget in each poll keeps one queue from starving the others.

use mlx5_layout::send_wqe::{BLOCK_BYTES, blocks};
use roce::qp_state::QpState;
use roce::{ServiceType, Status};

use super::command::event_type;
use super::core::Core;
use super::qp::Qp;
use super::reason::{About, FLUSHED};
use super::sq::WqeHead;
use crate::memory::Memory;

/// Flush CQEs of one queue in one poll.
const FLUSH_BUDGET: usize = 256;

impl<M: Memory> Core<M> {
    /// A send failed: a reliable queue goes to ERR, an unreliable one to SQE (IBTA vol. 1 §10.3).
    pub(super) fn fail_sends(&mut self, qp: &mut Qp, wqe: u16) {
        if qp.service == ServiceType::Rc || qp.state != QpState::Rts {
            return self.fail_qp(qp, &format!("WQE {wqe} failed"));
        }
        let why = format!("its sends are flushed (SQE): WQE {wqe} failed; ibv_modify_qp to RTS goes on");
        self.host.explain(About::Qp(qp.qpn, None), FLUSHED, why);
        qp.state = QpState::Sqe;
        if let Some(requester) = &mut qp.sq.requester {
            requester.enter_error();
        }
        self.schedule.heat(&mut qp.sched, self.host.now);
    }

    /// Moves the queue to ERR. The flush CQEs follow in the polls.
    pub(super) fn fail_qp(&mut self, qp: &mut Qp, cause: &str) {
        if qp.state == QpState::Err || qp.state == QpState::Reset {
            return;
        }
        let why = format!("in error, all work is flushed: {cause}; ibv_modify_qp to RESET begins anew");
        self.host.explain(About::Qp(qp.qpn, None), FLUSHED, why);
        qp.state = QpState::Err;
        // No message follows that an acknowledgement could wait for.
        qp.responses.converses = false;
        if let Some(requester) = &mut qp.sq.requester {
            requester.enter_error();
        }
        if let Some(receive) = qp.responses.responder.as_mut().and_then(|r| r.enter_error()) {
            self.fail_receive(qp, receive.id as u16, Status::Flushed);
        }
        // It takes nothing more from the shared queue; others' receives stay there (IBTA vol. 1 §11.6.3.1).
        if qp.rq.srq.is_some() && qp.service != ServiceType::Ud {
            qp.event_target.raise(&mut self.host, event_type::QP_LAST_WQE_REACHED);
        }
        self.schedule.heat(&mut qp.sched, self.host.now);
    }

    /// Flushes posted sends: those already read come from the transport, the rest from the ring.
    pub(super) fn flush_sends(&mut self, qp: &mut Qp) -> usize {
        let mut work = 0;
        qp.sq.progress.stalled = None;
        while let Some(request) = qp.sq.nops.pop_front().map(|(_, nop)| nop).or_else(|| qp.sq.held.take()) {
            self.fail_send_wqe(qp, request.wqe, Status::Flushed, None);
            self.wqe_fetch.pool.give(request);
            work += 1;
        }
        let posted = qp.sq.posted(&self.host.memory, self.host.now);
        self.uars.watch(&mut self.host, qp, posted);
        let mut left = posted.available;
        while left > 0 && work < FLUSH_BUDGET {
            let mut first = [0; BLOCK_BYTES];
            let readable = self.host.memory.read(qp.sq.ring.entry(qp.sq.fetched), &mut first).is_ok();
            // A length that makes no sense must not lead past what was posted.
            let taken = if readable { blocks(first[7] & 0x3f).clamp(1, left) } else { left };
            self.host.counters.post(first[3]);
            let wqe = WqeHead { index: qp.sq.fetched, opcode: first[3], ..WqeHead::default() };
            self.fail_send_wqe(qp, wqe, Status::Flushed, None);
            qp.sq.fetched = qp.sq.fetched.wrapping_add(taken);
            left -= taken;
            work += 1;
        }
        work
    }

    pub(super) fn flush_receives(&mut self, qp: &mut Qp) -> usize {
        let available = usize::from(qp.rq.available(&self.host.memory)).min(FLUSH_BUDGET);
        for _ in 0..available {
            self.fail_receive(qp, qp.rq.taken, Status::Flushed);
            qp.rq.taken = qp.rq.taken.wrapping_add(1);
        }
        qp.rq.posted = qp.rq.taken;
        available
    }
}
