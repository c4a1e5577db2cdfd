//! What a responder does with a granted request and its outcome: work, replies, and the errors that end it.
//!
//! Follows IBTA vol. 1 §9.7.5 (generating responses) and §9.9.3 (responder's errors).

use super::{Assembly, Established, Pending, Responder, Response, State};
use crate::message::psn_count;
use crate::packet::Syndrome;
use crate::{
    AsyncEvent, Atomic, Content, DropReason, FailedReceive, Failure, Fragment, NakCode, Opcode, Outcome,
    Packet, Psn, ReceiveCompletion, Refusal, Region, Request, Resources, ServiceType, Status, Verdict, Work,
    count,
};

impl Responder {
    /// Reports the work of the last [`Verdict::Execute`]. Without such work it does nothing.
    #[inline(always)]
    pub fn executed(&mut self, outcome: Outcome) {
        let pending = std::mem::replace(&mut self.pending, Pending::Nothing);
        if (pending, outcome) == (Pending::Message, Outcome::Done) && !self.at_work.opcode.is_atomic() {
            return self.message_done(0);
        }
        match (pending, outcome) {
            (Pending::Nothing, _) => {}
            (Pending::Part | Pending::Message, Outcome::LocalFault { addr }) => self.local_fault(addr),
            (Pending::Part | Pending::Message, Outcome::Revoked) => self.revoked(),
            (Pending::Part, _) => self.part_done(),
            (Pending::Message, Outcome::Atomic { old }) => self.message_done(old),
            // Our own device broke its promise: an atomic without a result cannot be answered.
            (Pending::Message, Outcome::Done) => self.local_fault(0),
        }
    }

    #[inline(always)]
    pub(super) fn execute(
        &mut self,
        packet: &Packet,
        region: Region,
        resources: &mut impl Resources,
    ) -> Verdict {
        // Length from the packet: loading the fragment as one word would stall until both halves are stored.
        let length = packet.payload.length;
        let Request { fragment: Fragment { offset, .. }, opcode, imm, .. } = self.at_work;
        let last = packet.content.position().ends();
        let key = u32::from_be_bytes(imm);
        if last && opcode == Opcode::SendInvalidate && !resources.may_invalidate(key) {
            let why = Refusal::Invalidate(key);
            return self.refuse(NakCode::RemoteAccess, Some(AsyncEvent::AccessError), Status::Flushed, why);
        }
        if self.established == Established::No {
            self.established = Established::ToReport;
        }
        self.pending = if last { Pending::Message } else { Pending::Part };
        if offset == 0 && !last {
            // What later packets must continue.
            self.assembly = Some(Assembly { first: self.at_work, region, next_offset: 0 });
        }
        if !matches!(opcode, Opcode::Write | Opcode::WriteImm) {
            // A copy, so that `region` itself may stay in registers.
            return self.execute_other(packet, &Region { ..region });
        }
        let receive = self.held.filter(|_| last && opcode == Opcode::WriteImm);
        let completion = receive.map(|receive| (receive, self.receive_completion()));
        Verdict::Execute(Work::Write { region, offset, length, completion })
    }

    /// Work of a request that is not a WRITE. Apart: if one place made all kinds of work, they would be
    /// stored in half words, and a load of the whole word would stall.
    #[inline(never)]
    fn execute_other(&mut self, packet: &Packet, region: &Region) -> Verdict {
        let Request { fragment: Fragment { offset, .. }, opcode, .. } = self.at_work;
        match (opcode, self.held) {
            (Opcode::Read, _) => {
                self.outbound.begin_read(&self.at_work, *region, self.config.path_mtu_bytes);
                self.executed(Outcome::Done);
                Verdict::Answered
            }
            (Opcode::CompareSwap | Opcode::FetchAdd, _) => {
                Verdict::Execute(Work::Atomic { region: *region, operation: atomic(&packet.content) })
            }
            (_, receive) => {
                let receive = receive.expect("a SEND is admitted with its receive");
                let scatter_offset = offset + self.grh_bytes();
                let length = packet.payload.length;
                let completion = (self.pending == Pending::Message).then(|| self.receive_completion());
                Verdict::Execute(Work::Receive { receive, scatter_offset, length, completion })
            }
        }
    }

    fn receive_completion(&self) -> ReceiveCompletion {
        let request = &self.at_work;
        let plain = matches!(request.opcode, Opcode::Send | Opcode::Write);
        ReceiveCompletion {
            opcode: request.opcode,
            byte_len: request.length + self.grh_bytes(),
            imm: if plain { [0; 4] } else { request.imm },
            solicited: request.solicited,
            src_qpn: request.src_qpn,
        }
    }

    /// A packet that does not end its message was executed.
    fn part_done(&mut self) {
        let Fragment { offset, length } = self.at_work.fragment;
        if let Some(assembly) = &mut self.assembly {
            assembly.next_offset = offset + length;
        }
        let count = psn_count(Opcode::Send, length, self.config.path_mtu_bytes);
        self.expected_psn = self.expected_psn.plus(count);
        if self.config.service == ServiceType::Rc && self.outbound.ack_every.is_some() {
            self.ack_due |= self.outbound.acknowledges(&self.at_work);
        }
    }

    #[inline(always)]
    fn message_done(&mut self, old: u64) {
        let Request { opcode, psn, length, .. } = self.at_work;
        self.assembly = None;
        if opcode.takes_receive() {
            self.held = None;
        }
        count(&mut self.counters.messages, 1);
        self.msn = (self.msn + 1) & 0xff_ffff;
        self.expected_psn = psn.plus(psn_count(opcode, length, self.config.path_mtu_bytes));
        if self.config.service != ServiceType::Rc {
            return;
        }
        if !opcode.wants_response() {
            self.ack_due |= self.outbound.acknowledges(&self.at_work);
            return;
        }
        let old = opcode.is_atomic().then_some(old);
        self.executed.remember(&self.at_work, old);
        // The response acknowledges all before it.
        self.ack_due = false;
        self.respond(self.expected_psn.minus(1), old, false);
    }

    pub(super) fn respond(&mut self, psn: Psn, old: Option<u64>, replayed: bool) {
        self.responses.push_back(Response { psn, msn: self.msn, old, replayed });
    }

    // Errors.

    /// Our own memory failed (IBTA §9.9.3, remote operational error). The receive's completion reports a
    /// fault in its buffers, an event one in registered memory.
    #[cold]
    fn local_fault(&mut self, addr: u64) {
        let (event, status) = match self.at_work.opcode.is_send() {
            true => (None, Status::LocalProtection),
            false => (Some(AsyncEvent::QpFatal), Status::Flushed),
        };
        self.refuse(NakCode::RemoteOperation, event, status, Refusal::Memory(addr));
    }

    /// The region went away between two packets. A card checks the key with every packet (IBTA §9.7.4).
    #[cold]
    fn revoked(&mut self) {
        self.assembly = None;
        if self.config.service == ServiceType::Rc {
            let event = Some(AsyncEvent::AccessError);
            self.refuse(NakCode::RemoteAccess, event, Status::Flushed, Refusal::Revoked);
        }
    }

    /// A fatal NAK, where the service has NAKs, and the end of this responder.
    #[cold]
    pub(super) fn refuse(
        &mut self,
        code: NakCode,
        event: Option<AsyncEvent>,
        receive_status: Status,
        why: Refusal,
    ) -> Verdict {
        if self.config.service == ServiceType::Rc {
            self.nak(Syndrome::Nak(code));
        }
        self.fail(event, receive_status, why);
        Verdict::Answered
    }

    /// `why` is said of the request at work.
    pub(super) fn fail(&mut self, event: Option<AsyncEvent>, receive_status: Status, why: Refusal) {
        self.state = State::Failed;
        self.assembly = None;
        let receive = self.held.take().map(|receive| FailedReceive { receive, status: receive_status });
        self.failure = Some(Failure { receive, event, why, request: self.at_work });
    }

    /// Queues a NAK of the expected PSN, which acknowledges all before it.
    pub(super) fn nak(&mut self, syndrome: Syndrome) {
        self.nak = Some(syndrome);
        self.ack_due = false;
    }

    /// Not inlined: inlining costs other requests registers and a 15th of their time (example `device`).
    #[cold]
    #[inline(never)]
    pub(super) fn drop(&self, reason: DropReason) -> Verdict {
        Verdict::Dropped(reason)
    }
}

fn atomic(content: &Content) -> Atomic {
    match *content {
        Content::CompareSwap(eth) => Atomic::CompareSwap { compare: eth.compare, swap: eth.swap_add },
        Content::FetchAdd(eth) => Atomic::FetchAdd { add: eth.swap_add },
        _ => Atomic::FetchAdd { add: 0 },
    }
}
