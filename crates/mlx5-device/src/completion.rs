//! What CQEs say: of send WQEs, of receives, of errors and flushes.
//!
//! Fields by opcode as `mlx5_parse_cqe` reads them. A requester CQE's WQE counter is the WQE's first block
//! and retires all before it; a responder CQE's is the receive's running index.

use mlx5_layout::cqe::CqeError;
use mlx5_layout::{CqeFields, CqeOpcode, CqeSyndrome};
use roce::{Opcode, ReceiveCompletion, Status};

use super::core::Core;
use super::counters::syndrome;
use super::framing;
use super::qp::Qp;
use super::sq::{Kind, SendRequest, WqeHead};
use crate::carrier::PathAddress;
use crate::memory::Memory;

fn error_fields(qp: &Qp, opcode: CqeOpcode, counter: u16, status: Status) -> CqeFields {
    let (syndrome, vendor) = syndrome(status).unwrap_or((CqeSyndrome::WrFlush, 0));
    CqeFields {
        opcode,
        user_index: qp.user_index,
        qpn: qp.qpn,
        wqe_counter: counter,
        error: CqeError { syndrome: syndrome.to_u8(), vendor, ..CqeError::default() },
        ..CqeFields::default()
    }
}

impl<M: Memory> Core<M> {
    /// A send WQE ended well: a CQE if it asked for one.
    #[inline(always)]
    pub(super) fn complete_send(&mut self, qp: &Qp, request: &SendRequest) {
        self.host.counters.complete(request.wqe.opcode);
        if !request.wqe.signalled {
            return;
        }
        let fields = CqeFields {
            opcode: CqeOpcode::Requester,
            user_index: qp.user_index,
            qpn: qp.qpn,
            wqe_counter: request.wqe.index,
            send_opcode: request.wqe.opcode,
            byte_count: request.length,
            ..CqeFields::default()
        };
        let carried = request.opcode.wants_response() && !request.payload.inline.is_empty();
        self.cqs.complete(&mut self.host, qp.sq.cq, fields, carried.then_some(&request.payload.inline));
    }

    /// A send WQE failed, or was flushed: always a CQE.
    pub(super) fn fail_send_wqe(
        &mut self,
        qp: &Qp,
        wqe: WqeHead,
        status: Status,
        request: Option<&SendRequest>,
    ) {
        let mut fields = error_fields(qp, CqeOpcode::RequesterError, wqe.index, status);
        if let Some(request) = request {
            // Flushed before it was posted: nothing wrong was reported of it.
            if let (Kind::Injected(chosen), Status::LocalQpOperation) = (request.kind, status) {
                fields.error.syndrome = chosen.to_u8();
            }
            let syndrome = CqeSyndrome::from_u8(fields.error.syndrome);
            self.explain_send(qp, request, status, syndrome.unwrap_or(CqeSyndrome::RemoteAborted));
        }
        self.cqs.complete(&mut self.host, qp.sq.cq, CqeFields { send_opcode: wqe.opcode, ..fields }, None);
    }

    /// A message arrived in the receive with this counter.
    pub(super) fn complete_receive(
        &mut self,
        qp: &Qp,
        counter: u16,
        completion: &ReceiveCompletion,
        path: Option<&PathAddress>,
        payload: Option<&[u8]>,
    ) {
        let opcode = match completion.opcode {
            Opcode::WriteImm => CqeOpcode::ResponderWriteImm,
            Opcode::SendImm => CqeOpcode::ResponderSendImm,
            Opcode::SendInvalidate => CqeOpcode::ResponderSendInvalidate,
            _ => CqeOpcode::ResponderSend,
        };
        let fields = CqeFields {
            opcode,
            solicited: completion.solicited,
            user_index: qp.user_index,
            qpn: qp.qpn,
            wqe_counter: counter,
            byte_count: completion.byte_len,
            immediate: completion.imm,
            source_qpn: completion.src_qpn,
            source_lid: path.map_or(0, |p| p.slid),
            service_level: path.map_or(0, |p| framing::service_level(&self.ports.configs[qp.path.port], p)),
            grh: path.is_some_and(|p| p.grh),
            ..CqeFields::default()
        };
        self.host.counters.receives_consumed += 1;
        self.host.counters.receives_shared += u64::from(qp.rq.srq.is_some());
        self.cqs.complete(&mut self.host, qp.rq.cq, fields, payload);
    }

    /// A receive failed or was flushed.
    pub(super) fn fail_receive(&mut self, qp: &Qp, counter: u16, status: Status) {
        let fields = error_fields(qp, CqeOpcode::ResponderError, counter, status);
        self.cqs.complete(&mut self.host, qp.rq.cq, fields, None);
    }
}
