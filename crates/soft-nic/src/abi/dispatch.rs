//! The table of methods, and the dispatch of a verbs ioctl to its family of commands.
//!
//! A command runs on the program's thread: decode, device call under the NIC's lock, answer. Follows Linux
//! `drivers/infiniband/core/uverbs_std_types*.c` for what each method takes and answers. Left out (refused as
//! a kernel without them does, counted by name): XRC, flows, DEVX, device memory.

use mlx5_device::command::{CommandError, refusal};
use mlx5_device::{Answer, Commands};

use super::attributes::{
    ANY_OUT, Command, Kind, Method, Spec, UHW, UHW_IN, UHW_OUT, bytes, may, must, out, refuse,
};
use super::layout::{Reader, destroy_cq_resp, destroy_qp_resp, destroy_srq_resp, query_port_resp};
use super::reasons::is_probe;
use super::server::{Call, Handler, OpenFile, Server};
use super::{context, cq, mr, qp, srq, uar, write};
use crate::os::log_command;

/// A method that takes the handle of its object alone.
const HANDLE: &[Spec] = &[must(0, Kind::Handle)];

/// A method and what answers it: `rdma/ib_user_ioctl_cmds.h`, `rdma/mlx5_user_ioctl_cmds.h`.
#[rustfmt::skip]
fn find<D: Commands>(object: u16, method: u16) -> Answer<(Method, Handler<D>)> {
    let (name, attributes, handler): (&str, &[Spec], Handler<D>) = match (object, method) {
        (0, 0) => (write::INVOKE_NAME, write::INVOKE, write::invoke),
        (0, 2) => ("DEVICE.QUERY_PORT", const { &[must(0, bytes(1)), must(1, out(query_port_resp::SIZE - 8))] }, context::query_port),
        (0, 3) => ("DEVICE.GET_CONTEXT", const { &[must(0, out(4)), may(1, ANY_OUT), may(UHW_IN, UHW), may(UHW_OUT, ANY_OUT)] },
            context::get_context),
        (0, 5) => ("DEVICE.QUERY_GID_TABLE", const { &[must(0, bytes(8)), may(1, bytes(4)), must(2, ANY_OUT), must(3, out(8))] },
            context::query_gid_table),
        (0, 6) => ("DEVICE.QUERY_GID_ENTRY", const { &[must(0, bytes(4)), must(1, bytes(4)), may(2, bytes(4)), must(3, out(32))] },
            context::query_gid_entry),
        (1, 0) => ("PD.DESTROY", HANDLE, |call| call.nic()?.dealloc_pd(call.context()?, call.command.expect_handle(0)?)),
        (3, 0) => ("CQ.CREATE", cq::CREATE, cq::create),
        (3, 1) => ("CQ.DESTROY", const { &[must(0, Kind::Handle), must(1, out(destroy_cq_resp::SIZE))] }, cq::destroy),
        (4, 0) => ("QP.CREATE", qp::CREATE, qp::create),
        (4, 1) => ("QP.DESTROY", const { &[must(0, Kind::Handle), must(1, out(destroy_qp_resp::SIZE))] }, qp::destroy),
        (5, 0) => ("SRQ.CREATE", srq::CREATE, srq::create),
        (5, 1) => ("SRQ.DESTROY", const { &[must(0, Kind::Handle), must(1, out(destroy_srq_resp::SIZE))] },
            srq::destroy),
        (6, 0) => ("AH.DESTROY", HANDLE, |call| call.nic()?.destroy_ah(call.context()?, call.command.expect_handle(0)?)),
        (7, 1) => ("MR.DESTROY", HANDLE, mr::dereg),
        (7, 4) => ("MR.REG_DMABUF_MR", mr::REGISTER_DMA_BUF, mr::reg_dma_buf),
        (8, 0) => ("MW.DESTROY", HANDLE, |call| call.nic()?.dealloc_mw(call.context()?, call.command.expect_handle(0)?)),
        (0x10, 0) => ("ASYNC_EVENT.ALLOC", const { &[must(0, Kind::NewFd)] }, context::alloc_async_event),
        (0x1008, 0x1000) => ("UAR.ALLOC", uar::ALLOC, uar::alloc),
        (0x1008, 0x1001) => ("UAR.DESTROY", const { &[must(uar::HANDLE, Kind::Handle)] }, uar::destroy),
        _ => return Err(absent(object, method)),
    };
    Ok((Method { name, attributes }, handler))
}

/// Objects that a kernel knows and this device lacks, with their use. Their methods are `EOPNOTSUPP`.
const ABSENT_OBJECTS: &[(u16, &str, &str)] = &[
    (9, "FLOW", "steering"),
    (10, "XRCD", "XRC domains"),
    (11, "RWQ_IND_TBL", "receive-side scaling"),
    (12, "WQ", "receive-side scaling"),
    (13, "FLOW_ACTION", "steering"),
    (14, "DM", "memory of the device"),
    (15, "COUNTERS", "counters of flows"),
    (0x1000, "DEVX", "firmware commands"),
    (0x1001, "DEVX_OBJ", "objects made by firmware commands"),
    (0x1002, "DEVX_UMEM", "memory of DEVX objects"),
    (0x1003, "FLOW_MATCHER", "steering"),
    (0x1004, "DEVX_ASYNC_CMD_FD", "answers to DEVX queries"),
    (0x1005, "DEVX_ASYNC_EVENT_FD", "events of DEVX objects"),
    (0x1006, "VAR", "doorbells of virtio queues"),
    (0x1007, "PP", "packet pacing"),
    (0x1009, "STEERING_ANCHOR", "steering"),
];

/// Methods that a kernel knows of objects that this device has.
const ABSENT_METHODS: &[(u16, u16, &str)] = &[
    (0, 4, "DEVICE.QUERY_CONTEXT (ibv_import_device)"),
    (0, 0x1000, "DEVICE.QUERY_PORT of mlx5 (mlx5dv_query_port)"),
    (7, 0, "MR.DM_MR_REG (memory of the device)"),
    (7, 2, "MR.ADVISE_MR (ibv_advise_mr)"),
    (7, 3, "MR.QUERY_MR (ibv_import_mr)"),
];

/// Answers the verbs ioctl whose header is at `address`; the error is what the program's `errno` gets.
pub fn ioctl<D: Commands>(server: &Server<D>, file: &mut OpenFile, address: u64) -> Result<(), CommandError> {
    let decoded = Command::decode(&*server.memory, address, find::<D>);
    let command = decoded.as_ref().map(|(command, _)| command);
    let answer = match &decoded {
        Ok((command, handler)) => handler(&mut Call { server, file, command, core_in: Reader(&[]) }),
        Err(error) => Err(error.clone()),
    };
    if let Err(CommandError { errno: libc::EOPNOTSUPP | libc::EPROTONOSUPPORT, reason }) = &answer {
        server.events.1.count_refusal(reason, &format!("not supported: {reason}"));
    }
    if let Err(error) = &answer
        && !is_probe(&error.reason)
    {
        server.events.1.note_refused(command.map_or("a call", write::name_of::<D>), error);
    }
    log_command(|| {
        let called = command.map_or_else(|_| "undecoded".to_owned(), ToString::to_string);
        let outcome = answer.as_ref().map_or_else(ToString::to_string, |()| "ok".to_owned());
        format!("{called} -> {outcome}")
    });
    answer
}

/// Why there is no such method, as a kernel says it.
fn absent(object: u16, method: u16) -> CommandError {
    if let Some((.., name)) = ABSENT_METHODS.iter().find(|(o, m, _)| (*o, *m) == (object, method)) {
        return refuse(libc::EPROTONOSUPPORT, *name);
    }
    match ABSENT_OBJECTS.iter().find(|(absent, ..)| *absent == object) {
        Some((_, name, use_)) => refusal!(EOPNOTSUPP, "{name} method {method:#x} ({use_})"),
        None => refusal!(EPROTONOSUPPORT, "method {method:#x} of object {object:#x}"),
    }
}
