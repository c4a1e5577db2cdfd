//! Fetching of send WQEs: each is read once, and checked as a card does.
//!
//! Checks and their syndromes follow IBTA vol. 1 §10.7 and the names in libmlx5's `mlx5_handle_error_cqe`. A
//! WQE malformed or not for this queue is 0x02, a length above a limit 0x01, a failed key, bound or right
//! 0x04. A failed WQE completes behind earlier ones. A UMR is parsed in `window.rs`, and performed by `Mkeys`
//! in posting order. Left out: masked atomics, WAIT, DUMP: each is 0x02, as on a card without the capability.

use std::fmt;

use mlx5_layout::send_wqe::{Addressing, Body, Control, DataSegment, MAX_WQE_BYTES, RemoteAddress};
use mlx5_layout::{SendOpcode, SendWqe};
use roce::packet::{Deth, Reth};
use roce::{Access, Content, Fragment, Opcode, Packet, Psn, ServiceType, Status};

use super::command::AddressVector;
use super::host::HostInterface;
use super::mkey::Mkeys;
use super::model::Capabilities;
use super::ports::Ports;
use super::qp::Qp;
use super::reason::{CheckFailure, Checked};
use super::sq::{Kind, Pool, SendRequest};
use super::window::UmrRequest;
use crate::config::LinkLayer;
use crate::memory::{Memory, Segment};

/// What the checks of a WQE look at besides the WQE.
pub(super) struct Checks<'a> {
    pub mkeys: &'a Mkeys,
    pub ports: &'a Ports,
    pub limits: &'a Capabilities,
}

/// WQE fetch of all queues, one WQE at a time.
pub(super) struct WqeFetch {
    /// The WQE as it was read.
    wqe: Box<[u8; MAX_WQE_BYTES]>,
    pub pool: Pool,
}

impl Default for WqeFetch {
    fn default() -> WqeFetch {
        WqeFetch { wqe: Box::new([0; MAX_WQE_BYTES]), pool: Pool::default() }
    }
}

impl WqeFetch {
    /// Reads the next WQE. `available`: blocks that may be read, at least one.
    pub(super) fn fetch<M: Memory>(
        &mut self,
        host: &mut HostInterface<M>,
        checks: &Checks<'_>,
        qp: &mut Qp,
        available: u16,
    ) -> Box<SendRequest> {
        let mut out = self.pool.take();
        out.wqe.index = qp.sq.fetched;
        let bytes = &mut *self.wqe;
        // What is not read must not be the last WQE's.
        bytes[..Control::BYTES].fill(0);
        let read = qp.sq.copy_out(&host.memory, available, bytes);
        // A WQE whose length is unknown ends the queue; it takes one block.
        let taken = read.as_ref().map_or(1, |blocks| (*blocks).max(1));
        out.wqe.opcode = bytes[3];
        if let Err(wrong) = read.and_then(|_| checks.parse(qp, bytes, &mut out)) {
            (out.kind, out.why) = (Kind::Failed(wrong.status), wrong.why);
            qp.sq.stopped = true;
        }
        // The payload is read when the transport sends the message, up to a whole budget of WQEs later.
        if let Some(first) = out.payload.segments.first() {
            host.memory.prefetch(first.addr);
        }
        host.counters.post(out.wqe.opcode);
        if let Some(asked) = qp.sq.asked.take() {
            host.counters.turnarounds += 1;
            host.counters.turnaround_ns += host.now.0.saturating_sub(asked.0);
        }
        qp.sq.fetched = qp.sq.fetched.wrapping_add(taken);
        out
    }
}

impl Checks<'_> {
    /// Fills `out` from a WQE, or says what is wrong with it. Of `bytes` those count that its length covers.
    // A function of its own: inlined, it would take the caller's registers.
    #[inline(never)]
    fn parse(&self, qp: &Qp, bytes: &[u8; MAX_WQE_BYTES], out: &mut SendRequest) -> Checked<()> {
        let wqe = SendWqe::new(bytes).map_err(CheckFailure::malformed)?;
        let control = wqe.control();
        out.wqe.signalled = control.is_signalled();
        out.wqe.fence = control.fm_ce_se & 0xe0 != 0;
        if control.wqe_index != qp.sq.fetched || control.qpn != qp.qpn || control.opmod != 0 {
            return Err(misplaced(&wqe, qp));
        }
        if control.send_opcode() == Some(SendOpcode::Umr) {
            out.kind = Kind::Umr(UmrRequest::of(&wqe, qp.service, qp.qpn)?);
            return Ok(());
        }
        let addressing = match qp.service {
            ServiceType::Ud => Addressing::Datagram,
            ServiceType::Rc | ServiceType::Uc => Addressing::Connected,
        };
        let body = wqe.body(addressing).map_err(CheckFailure::malformed)?;
        if body.opcode == SendOpcode::Nop {
            out.kind = Kind::Nop;
            return Ok(());
        }
        let opcode = message_opcode(body.opcode).filter(|o| o.allowed_on(qp.service));
        let opcode = opcode.ok_or_else(|| unsupported(qp.service, body.opcode))?;
        out.kind = Kind::Message;
        let (dst_qpn, qkey) = self.address(qp, &body, out);
        let length = self.gather(qp, opcode, &body, out)?;
        let RemoteAddress { va, rkey } = body.remote;
        let reth = Reth { va, rkey, dma_bytes: length };
        let operands = [body.atomic.swap_add, body.atomic.compare];
        (out.opcode, out.length) = (opcode, length);
        out.packet = Packet {
            service: qp.service,
            dst_qpn,
            psn: Psn::new(0),
            ack_requested: false,
            solicited: control.is_solicited(),
            deth: Deth { qkey, src_qpn: qp.qpn },
            content: Content::request(opcode, control.immediate, reth, operands),
            payload: Fragment { offset: 0, length: if opcode.carries_payload() { length } else { 0 } },
        };
        Ok(())
    }

    /// Where the message goes. Returns the number of the queue there, and the Q_Key for it.
    fn address(&self, qp: &Qp, body: &Body<'_>, out: &mut SendRequest) -> (u32, u32) {
        let vector = if qp.service == ServiceType::Ud { body.datagram() } else { None };
        let Some(vector) = vector else { return (qp.attributes.dest_qpn, 0) };
        let (port, roce) = (qp.path.port, self.ports.configs[qp.path.port].link_layer == LinkLayer::Roce);
        let named = AddressVector {
            dlid: vector.lid_or_udp_port,
            dgid: (roce || vector.grh).then_some(vector.gid),
            sgid_index: vector.source_gid_index,
            // Ethernet keeps the priority in bits 3:1.
            sl: if roce { vector.rate_service_level >> 1 & 7 } else { vector.rate_service_level & 0xf },
            flow_label: vector.flow_label,
            hop_limit: vector.hop_limit,
            traffic_class: vector.traffic_class,
            port: 0,
        };
        (out.way, out.path) = self.ports.way_to(port, &named, vector.destination_qpn);
        out.path.slid |= u16::from(vector.path_bits & 0x7f);
        // A Q_Key with its top bit set means: use the QP's own (IBTA).
        let own = vector.qkey & 1 << 31 != 0;
        (vector.destination_qpn, if own { qp.attributes.qkey } else { vector.qkey })
    }

    /// Checks the local side and notes it; returns the payload's length.
    fn gather(&self, qp: &Qp, opcode: Opcode, body: &Body<'_>, out: &mut SendRequest) -> Checked<u32> {
        let need = if opcode.wants_response() { Access::LOCAL_WRITE } else { Access(0) };
        let mut length = 0u64;
        let mut pointers = 0;
        for segment in body.data {
            match segment.map_err(CheckFailure::malformed)? {
                DataSegment::Inline(bytes) => {
                    // Inline data goes out only, and a queue was made for so much of it.
                    if opcode.wants_response() {
                        return Err(CheckFailure::malformed(
                            "its answer cannot go inline; give it a data pointer",
                        ));
                    }
                    length += bytes.len() as u64;
                    let kept = out.payload.keep(bytes);
                    out.payload.segments.extend(Some(kept).filter(|kept| kept.len > 0));
                }
                DataSegment::Pointer(pointer) => {
                    pointers += 1;
                    // A length of 0 stands for 2^31 (see `DataPointer`), which is above every limit.
                    let len = if pointer.byte_count == 0 { 1 << 31 } else { u64::from(pointer.byte_count) };
                    length += len;
                    if length > u64::from(self.limits.max_message_bytes) {
                        let most = self.limits.max_message_bytes;
                        return Err(too_long(length, format_args!("{most} at most; split it")));
                    }
                    let addr = self.mkeys.translate(pointer.lkey, qp.pd, pointer.va, len, need);
                    let addr = addr.map_err(|error| CheckFailure::new(Status::LocalProtection, error))?;
                    out.payload.segments.push(Segment { addr, len });
                    out.payload.keys.push(pointer.lkey);
                }
            }
        }
        if pointers > self.limits.max_sge {
            return Err(too_many(pointers, self.limits.max_sge));
        }
        if opcode.is_atomic() && length != 8 {
            return Err(too_long(length, "an atomic has 8"));
        }
        u32::try_from(length).map_err(|_| too_long(length, "split it"))
    }
}

// These take values, or read anew: what `format!` borrows lies in memory on the good path too.

#[cold]
fn misplaced(wqe: &SendWqe<impl AsRef<[u8]>>, qp: &Qp) -> Box<CheckFailure> {
    let Control { wqe_index, qpn, opmod, .. } = wqe.control();
    CheckFailure::malformed(format_args!(
        "its control segment is for WQE {wqe_index} of QP {qpn:#x}, opcode modifier {opmod}; it is WQE {} of QP {:#x}, modifier 0",
        qp.sq.fetched, qp.qpn
    ))
}

#[cold]
fn unsupported(service: ServiceType, opcode: SendOpcode) -> Box<CheckFailure> {
    CheckFailure::malformed(format_args!("a {service:?} queue does no {opcode:?}; use an RC queue"))
}

#[cold]
fn too_many(pointers: u32, most: u32) -> Box<CheckFailure> {
    CheckFailure::malformed(format_args!("{pointers} data pointers, max_sge is {most}; split it"))
}

#[cold]
fn too_long(length: u64, help: impl fmt::Display) -> Box<CheckFailure> {
    CheckFailure::new(Status::LocalLength, format_args!("{length} bytes; {help}"))
}

/// The transport's operation of a WQE; none for what this NIC does not do.
pub(super) fn message_opcode(opcode: SendOpcode) -> Option<Opcode> {
    Some(match opcode {
        SendOpcode::Send => Opcode::Send,
        SendOpcode::SendImm => Opcode::SendImm,
        SendOpcode::SendInvalidate => Opcode::SendInvalidate,
        SendOpcode::RdmaWrite => Opcode::Write,
        SendOpcode::RdmaWriteImm => Opcode::WriteImm,
        SendOpcode::RdmaRead => Opcode::Read,
        SendOpcode::AtomicCompareSwap => Opcode::CompareSwap,
        SendOpcode::AtomicFetchAdd => Opcode::FetchAdd,
        _ => return None,
    })
}
