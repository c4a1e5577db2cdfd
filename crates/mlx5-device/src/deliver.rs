//! The responder's side of a QP: arrived requests into memory and receives.
//!
//! `roce::Responder` decides, this moves the bytes, `answer` sends what is due. A request for a QP whose
//! state does not receive is dropped and counted, as `poll` does with one for no QP of this process.

use roce::qp_state::QpState;
use roce::{
    Access, AsyncEvent, Atomic, Content, GRH_BYTES, Opcode, Outcome, Packet, Receive, ReceiveCompletion,
    Region, RegionError, Resources, ResponderCounters, ResponderEvent, ServiceType, Verdict, Work, count,
};

use super::command::event_type;
use super::core::Core;
use super::framing;
use super::qp::Qp;
use super::rq::ReceiveQueue;
use crate::carrier::{Inbound, PathAddress};
use crate::memory::{Fault, Memory, Order, Segment};

/// What a QP's responder may use.
struct QpResources<'a, M> {
    core: &'a mut Core<M>,
    pd: u32,
    qpn: u32,
    rq: &'a mut ReceiveQueue,
}

/// Address 0: a key of the receive in use refused it; [`Core::explain_failure`] says why.
fn local_fault(Fault { addr }: Fault) -> Outcome {
    Outcome::LocalFault { addr }
}

impl<M: Memory> Resources for QpResources<'_, M> {
    #[inline(always)]
    fn region(&self, rkey: u32, va: u64, len: u64, need: Access) -> Result<Region, RegionError> {
        self.core.mkeys.grant(rkey, self.pd, self.qpn, va, len, need)
    }

    fn take_receive(&mut self) -> Option<Receive> {
        let Core { host, srqs, .. } = &mut *self.core;
        match self.rq.srq.and_then(|place| srqs.table.get_mut(place)) {
            None => self.rq.take(&host.memory),
            Some(srq) => srq.take(&host.memory, &mut self.rq.pointers),
        }
    }

    fn may_invalidate(&self, rkey: u32) -> bool {
        self.core.mkeys.may_invalidate(rkey, self.qpn)
    }
}

impl<M: Memory> Core<M> {
    /// A request arrived for a queue, from its peer. Not inlined: in one function with the round's, its queue
    /// would be reloaded from the stack again and again.
    #[inline(never)]
    pub(super) fn respond(&mut self, qp: &mut Qp, packet: &Packet, inbound: &mut impl Inbound) {
        if !qp.state.answers_requests() {
            self.host.counters.dropped_qp_state += 1;
            return;
        }
        count(&mut self.ports.counters[qp.path.port].requests_received, 1);
        if !qp.is_from_peer(packet, inbound) {
            self.host.counters.dropped_peer += 1;
            return;
        }
        // Only on the wire does an acknowledgement wait, and need the time since when.
        let owed = qp.path.way.route().is_none() || qp.responses.owes_only_an_acknowledgement();
        let Some(responder) = &mut qp.responses.responder else { return };
        let ResponderCounters { duplicates, messages } = *responder.counters();
        let mut resources = QpResources { core: self, pd: qp.pd, qpn: qp.qpn, rq: &mut qp.rq };
        // By reference: a move would load other sizes than were stored, and wait for the stores.
        match &responder.handle_packet(packet, &mut resources) {
            Verdict::Execute(work) => {
                count(&mut self.host.counters.packets_taken, 1);
                let (ends, length) = (packet.content.position().ends(), packet.payload.length);
                let outcome = self.execute(qp, work, ends, length, inbound);
                if let Some(responder) = &mut qp.responses.responder {
                    responder.executed(outcome);
                }
            }
            verdict => {
                let counters = responder.counters();
                let (again, is_new) = (counters.duplicates - duplicates, counters.messages > messages);
                self.host.counters.answered(verdict, again);
                // The engine answers a READ by itself, and counts the first time that it does.
                if let (Verdict::Answered, Content::ReadRequest(reth)) = (verdict, packet.content)
                    && (is_new || again > 0)
                {
                    qp.responses.not_before = qp.responses.not_before.max(inbound.answer_from(qp.qpn));
                    if is_new {
                        self.host.counters.execute(true, reth.dma_bytes);
                    }
                }
            }
        }
        if let Some(srq) = qp.rq.srq {
            self.srqs.give_events(&mut self.host, srq);
        }
        let Some(responder) = &qp.responses.responder else { return };
        if responder.has_reply() {
            self.schedule.list_replying(&mut qp.sched);
        }
        if responder.has_event() {
            self.take_events(qp);
        }
        self.schedule.heat(&mut qp.sched, self.host.now);
        if !owed && qp.responses.owes_only_an_acknowledgement() {
            qp.responses.ack_due = self.host.now;
        }
    }

    // Work.

    /// `ends`: it is the last, or all, of its message; `length`: bytes that came with it.
    #[inline(always)]
    pub(super) fn execute(
        &mut self,
        qp: &mut Qp,
        work: &Work,
        ends: bool,
        length: u32,
        inbound: &mut impl Inbound,
    ) -> Outcome {
        let done = match work {
            Work::Receive { receive, scatter_offset, length, completion } => {
                let counter = receive.id as u16;
                self.scatter(qp, *scatter_offset, *length, completion.as_ref(), counter, inbound)
            }
            Work::Write { region, offset, length, completion } => {
                let to =
                    Segment { addr: region.address.wrapping_add(u64::from(*offset)), len: (*length).into() };
                let now = if *offset == 0 { Some(region.rights) } else { self.rights_still(qp, region) };
                let order = now.map(|rights| self.payload_scatter.order_of_write(rights));
                order
                    .ok_or(Outcome::Revoked)
                    .and_then(|order| inbound.copy_into(&[to], order).map_err(local_fault))
                    .map(|()| {
                        if let Some((receive, completion)) = completion {
                            self.complete_receive(qp, receive.id as u16, completion, None, None);
                        }
                    })
            }
            Work::Atomic { region, operation } => {
                let old = match *operation {
                    Atomic::CompareSwap { compare, swap } => {
                        self.host.memory.compare_swap64(region.address, compare, swap)
                    }
                    Atomic::FetchAdd { add } => self.host.memory.fetch_add64(region.address, add),
                };
                self.host.counters.messages_received += 1;
                return old.map_or_else(local_fault, |old| Outcome::Atomic { old });
            }
        };
        match done {
            Ok(()) => {
                self.host.counters.execute(ends, length);
                self.host.copied(length);
                if ends {
                    qp.sq.asked = Some(self.host.now);
                }
                Outcome::Done
            }
            Err(outcome) => outcome,
        }
    }

    /// The key's rights for a later packet of a message; `None`: the first packet's grant is gone. A card
    /// looks at the key with every packet.
    fn rights_still(&self, qp: &Qp, region: &Region) -> Option<Access> {
        let Region { key, va, len, address, .. } = *region;
        let now = self.mkeys.grant(key, qp.pd, qp.qpn, va, len, Access::REMOTE_WRITE).ok()?;
        (now.address == address).then_some(now.rights)
    }

    /// Payload of a SEND into the receive in use, or into its CQE.
    fn scatter(
        &mut self,
        qp: &mut Qp,
        offset: u32,
        length: u32,
        completion: Option<&ReceiveCompletion>,
        counter: u16,
        inbound: &mut impl Inbound,
    ) -> Result<(), Outcome> {
        let mut payload = [0; 64];
        let small = length > 0 && length as usize <= qp.rq.scatter && offset == 0 && completion.is_some();
        let to = self
            .payload_scatter
            .scatter(&self.mkeys, &qp.rq, offset, length)
            .map_err(|_| local_fault(Fault { addr: 0 }))?;
        let moved = match small {
            true => inbound.copy_to_buffer(&mut payload[..length as usize]),
            false => inbound.copy_into(to, Order::Relaxed),
        };
        moved.map_err(local_fault)?;
        let path = inbound.addressing().path;
        if qp.service == ServiceType::Ud {
            self.place_grh(qp, path.as_ref(), length)?;
        }
        if let Some(completion) = completion {
            if completion.opcode == Opcode::SendInvalidate {
                self.invalidate(qp, u32::from_be_bytes(completion.imm));
            }
            let inline = small.then(|| &payload[..length as usize]);
            self.complete_receive(qp, counter, completion, path.as_ref(), inline);
        }
        Ok(())
    }

    /// Invalidates a window's key for a SEND that its responder allowed. In shared memory, earlier READs are
    /// still answered, until the region itself goes.
    fn invalidate(&mut self, qp: &mut Qp, key: u32) {
        let Some(bound) = self.mkeys.unbind(key) else { return };
        self.host.counters.windows_invalidated += 1;
        if let Some(responder) = &mut qp.responses.responder {
            responder.rekey_reads(key, qp.path.way.route().is_none().then_some(bound.region));
        }
    }

    /// The 40 bytes in front of a datagram.
    fn place_grh(&mut self, qp: &Qp, path: Option<&PathAddress>, length: u32) -> Result<(), Outcome> {
        let Some(header) =
            path.and_then(|path| framing::grh(&self.ports.configs[qp.path.port], path, length))
        else {
            return Ok(());
        };
        let to = self
            .payload_scatter
            .scatter(&self.mkeys, &qp.rq, 0, GRH_BYTES)
            .map_err(|_| local_fault(Fault { addr: 0 }))?;
        let mut rest = &header[..];
        to.iter().try_for_each(|piece| {
            let (bytes, left) = rest.split_at((piece.len as usize).min(rest.len()));
            rest = left;
            self.host.memory.write(piece.addr, bytes, true).map_err(local_fault)
        })
    }

    // Events.

    pub(super) fn take_events(&mut self, qp: &mut Qp) {
        while let Some(event) = qp.responses.responder.as_mut().and_then(|r| r.poll_event()) {
            match event {
                ResponderEvent::CommunicationEstablished if qp.state == QpState::Rtr => {
                    qp.event_target.raise(&mut self.host, event_type::COMM_EST);
                }
                ResponderEvent::CommunicationEstablished => {}
                ResponderEvent::Dropped(failure) if !std::mem::replace(&mut qp.rq.explained, true) => {
                    self.explain_failure(qp, &failure);
                }
                ResponderEvent::Dropped(_) => {}
                ResponderEvent::Failed(failure) => {
                    self.explain_failure(qp, &failure);
                    if let Some(failed) = failure.receive {
                        self.fail_receive(qp, failed.receive.id as u16, failed.status);
                    }
                    if let Some(event) = failure.event {
                        qp.event_target.raise(
                            &mut self.host,
                            match event {
                                AsyncEvent::QpFatal => event_type::QP_FATAL,
                                AsyncEvent::RequestError => event_type::QP_REQ_ERR,
                                AsyncEvent::AccessError => event_type::QP_ACCESS_ERR,
                            },
                        );
                    }
                    self.fail_qp(qp, "it refused a message");
                }
            }
        }
    }
}
