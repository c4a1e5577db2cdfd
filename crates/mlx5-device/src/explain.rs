//! Why a work request, own or of the peer, failed: the request, the failed check, and the remedy.

use mlx5_layout::{CqeSyndrome, SendOpcode};
use roce::{Failure, Now, Opcode, Refusal, ServiceType, Status, Ticket};

use super::core::Core;
use super::counters::{name_of, syndrome};
use super::doorbell::PATIENCE_NS;
use super::fetch::message_opcode;
use super::qp::Qp;
use super::sq::SendRequest;
use crate::memory::Memory;
use crate::reason::{About, REFUSED, Reason, STALLED};

/// What a message asks for.
fn asked(opcode: Opcode, length: u32, (remote_va, rkey): (u64, u32)) -> String {
    if opcode.is_send() {
        return format!("{opcode} of {length} bytes");
    }
    format!("{opcode} of {length} bytes at {remote_va:#x} with rkey {rkey:#x}")
}

/// Why a send WQE failed, where no check has said it.
fn why_failed(qp: &Qp, request: &SendRequest, status: Status) -> String {
    let (dest, attributes) = (request.packet.dst_qpn, &qp.attributes);
    let refused = |how: &str| {
        format!("QP {dest:#x} refused it, {how}; `softnic ctl explain` of its process says which value")
    };
    match status {
        Status::LocalLength => {
            format!("a packet of this path has {} bytes at most; send less, or by RC", qp.mtu_bytes())
        }
        Status::LocalQpOperation => {
            format!("max_rd_atomic is {}; set it in ibv_modify_qp to RTS", attributes.max_rd_atomic)
        }
        Status::BadResponse => format!("QP {dest:#x} answered what was not asked; compare PSNs and path MTU"),
        Status::RemoteInvalidRequest => {
            refused("as invalid: qp_access_flags, max_dest_rd_atomic or a receive that is too short")
        }
        Status::RemoteAccess => refused("for rkey, address, length or access of its region"),
        Status::RemoteOperation => refused("because its own memory or receive cannot be accessed"),
        Status::RetryExceeded => format!(
            "QP {dest:#x} does not answer, timeout {}, retry_cnt {}; is it in RTR, and connected to this QP?",
            attributes.timeout, attributes.retry_count
        ),
        Status::RnrRetryExceeded => format!(
            "QP {dest:#x} has no receive, after rnr_retry {}; post receives sooner, or take 7 (for ever)",
            attributes.rnr_retry
        ),
        // Binds and faults say why, and the others are no failures.
        Status::WindowBind | Status::LocalProtection | Status::Success | Status::Flushed => String::new(),
    }
}

impl<M: Memory> Core<M> {
    /// A send WQE failed with this status, and its CQE is to say so with this syndrome.
    #[cold]
    pub(super) fn explain_send(
        &mut self,
        qp: &Qp,
        request: &SendRequest,
        status: Status,
        syndrome: CqeSyndrome,
    ) {
        if status == Status::Flushed {
            return;
        }
        let opcode = SendOpcode::from_u8(request.wqe.opcode);
        let what = match opcode.and_then(message_opcode) {
            Some(_) if request.is_message() => {
                asked(request.opcode, request.length, request.packet.content.remote())
            }
            Some(opcode) => opcode.to_string(),
            None => format!("WQE with opcode {:#x}", request.wqe.opcode),
        };
        let why = match request.why.as_str() {
            "" => format!("{what}: {}", why_failed(qp, request, status)),
            why => format!("{what}: {why}"),
        };
        let (about, kind) = (About::Qp(qp.qpn, Some(request.wqe.index)), name_of(syndrome));
        // What the peer refused it has a reason for.
        let knows = matches!(
            status,
            Status::RemoteInvalidRequest
                | Status::RemoteAccess
                | Status::RemoteOperation
                | Status::RnrRetryExceeded
        );
        let peer = qp.path.way.peer().filter(|_| knows).map(|_| request.packet.dst_qpn);
        self.host.events.explain(Reason { at: self.host.now, about, kind, why, peer });
    }

    /// This queue refused a request of its peer, or could not carry it out.
    #[cold]
    pub(super) fn explain_failure(&mut self, qp: &Qp, failure: &Failure) {
        let Failure { receive, why, request, .. } = failure;
        // Memory of a receive that cannot be accessed: the key says why, if it is the cause.
        let scatters = || qp.rq.scatter(&self.mkeys, 0, request.length, &mut Vec::new());
        let of_receive = matches!(why, Refusal::Memory(_)) && request.opcode.is_send();
        let error = if of_receive { scatters().err() } else { None };
        let why = error.map_or_else(|| why.to_string(), |error| error.to_string());
        // A receive that is only flushed has nothing to do with it.
        let failed = receive.filter(|failed| failed.status != Status::Flushed);
        let about = About::Qp(qp.qpn, failed.map(|failed| failed.receive.id as u16));
        let syndrome = failed.and_then(|failed| syndrome(failed.status));
        let kind = syndrome.map_or(REFUSED, |(syndrome, _)| name_of(syndrome));
        let from = if qp.service == ServiceType::Ud { request.src_qpn } else { qp.attributes.dest_qpn };
        let what = asked(request.opcode, request.length, (request.remote_va, request.rkey));
        self.host.explain(about, kind, format!("{what} by QP {from:#x} was refused: {why}"));
    }

    /// The peer did not take a message from this byte on. Says once a queue `why`, after [`PATIENCE_NS`].
    #[cold]
    pub(super) fn explain_wait(
        &mut self,
        qp: &mut Qp,
        from: (Ticket, u32),
        peer: u32,
        why: impl FnOnce() -> String,
    ) {
        let (progress, now) = (&mut qp.sq.progress, self.host.now);
        // Refused, taken and refused again much later is no wait.
        let same = |(message, [_, last]): &((Ticket, u32), [Now; 2])| {
            *message == from && now.0.saturating_sub(last.0) < PATIENCE_NS
        };
        let since = progress.waits.filter(same).map_or(now, |(_, [since, _])| since);
        progress.waits = Some((from, [since, now]));
        if now.0.saturating_sub(since.0) < PATIENCE_NS || std::mem::replace(&mut progress.explained, true) {
            return;
        }
        let why = format!("for a second or more QP {peer:#x} {}", why());
        let peer = qp.path.way.peer().map(|_| peer);
        self.host.events.explain(Reason {
            at: now,
            about: About::Qp(qp.qpn, None),
            kind: STALLED,
            why,
            peer,
        });
    }

    /// A message of the peer met no receive: said once a queue.
    #[cold]
    pub(super) fn explain_not_ready(&mut self, qp: &mut Qp) {
        if std::mem::replace(&mut qp.rq.explained, true) {
            return;
        }
        let why = match qp.rq.ring.read_record(&self.host.memory) {
            _ if qp.rq.srq.is_some() => "its SRQ is empty".to_owned(),
            Some(record) => {
                format!("its record says {record}, {} are used, of {}", qp.rq.taken, qp.rq.ring.entries)
            }
            None => "its record cannot be read".to_owned(),
        };
        let why = format!("the peer's message waits for a receive: {why}; post receives before it sends");
        self.host.explain(About::Qp(qp.qpn, None), STALLED, why);
    }
}
