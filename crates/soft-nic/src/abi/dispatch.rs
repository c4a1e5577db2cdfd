//! The table of methods, and the dispatch of a verbs ioctl to its family of commands.
//!
//! A command runs on the program's thread: decode, device call under the NIC's lock, answer. Follows Linux
//! `drivers/infiniband/core/uverbs_std_types*.c` for what each method takes and answers. Left out (refused as a kernel without
//! them does, counted by name): XRC, flows, DEVX, device memory.

use mlx5_device::command::{CommandError, refusal};
use mlx5_device::{Answer, Commands};

use super::attributes::{
    ANY_OUT, Command, Kind, Method, Spec, UHW, UHW_IN, UHW_OUT, bytes, may, must, out, refuse,
};
use super::layout::{Reader, destroy_cq_resp, destroy_qp_resp, destroy_srq_resp, query_port_resp};
use super::refusals::is_probe;
use super::server::{Call, OpenFile, Server};
use super::{context, cq, mr, qp, srq, uar, write};
use crate::os::{log, log_enabled};

/// A method that takes the handle of its object alone.
const HANDLE: &[Spec] = &[must(0, Kind::Handle)];

/// Declares the methods: object and method, name, attributes, and what answers.
macro_rules! methods {
    ($(($object:literal, $method:literal) $name:literal, $attributes:expr, $call:ident => $answer:expr;)*) => {
        /// Every method that the NIC answers: `rdma/ib_user_ioctl_cmds.h`, `rdma/mlx5_user_ioctl_cmds.h`.
        static METHODS: &[Method] =
            &[$(Method { object: $object, method: $method, name: $name, attributes: $attributes }),*];

        fn dispatch<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
            match (call.command.method.object, call.command.method.method) {
                $(($object, $method) => {
                    let $call = call;
                    $answer
                })*
                (object, method) => Err(unknown_method(object, method)),
            }
        }
    };
}

methods! {
    (0, 0) "DEVICE.INVOKE_WRITE", write::INVOKE, call => write::invoke(call);
    (0, 2) "DEVICE.QUERY_PORT", &[must(0, bytes(1)), must(1, out(query_port_resp::SIZE - 8))],
        call => context::query_port(call);
    (0, 3) "DEVICE.GET_CONTEXT", &[must(0, out(4)), may(1, ANY_OUT), may(UHW_IN, UHW), may(UHW_OUT, ANY_OUT)],
        call => context::get_context(call);
    (0, 5) "DEVICE.QUERY_GID_TABLE", &[must(0, bytes(8)), may(1, bytes(4)), must(2, ANY_OUT), must(3, out(8))],
        call => context::query_gid_table(call);
    (0, 6) "DEVICE.QUERY_GID_ENTRY", &[must(0, bytes(4)), must(1, bytes(4)), may(2, bytes(4)), must(3, out(32))],
        call => context::query_gid_entry(call);
    (1, 0) "PD.DESTROY", HANDLE, call => call.nic()?.dealloc_pd(call.context()?, call.named()?);
    (3, 0) "CQ.CREATE", cq::CREATE, call => cq::create(call);
    (3, 1) "CQ.DESTROY", &[must(0, Kind::Handle), must(1, out(destroy_cq_resp::SIZE))], call => cq::destroy(call);
    (4, 0) "QP.CREATE", qp::CREATE, call => qp::create(call);
    (4, 1) "QP.DESTROY", &[must(0, Kind::Handle), must(1, out(destroy_qp_resp::SIZE))], call => qp::destroy(call);
    (5, 0) "SRQ.CREATE", srq::CREATE, call => srq::create(call);
    (5, 1) "SRQ.DESTROY", &[must(0, Kind::Handle), must(1, out(destroy_srq_resp::SIZE))], call => srq::destroy(call);
    (6, 0) "AH.DESTROY", HANDLE, call => call.nic()?.destroy_ah(call.context()?, call.named()?);
    (7, 1) "MR.DESTROY", HANDLE, call => mr::dereg(call);
    (7, 4) "MR.REG_DMABUF_MR", mr::dma_buf::REGISTER, call => mr::reg_dma_buf(call);
    (8, 0) "MW.DESTROY", HANDLE, call => call.nic()?.dealloc_mw(call.context()?, call.named()?);
    (0x10, 0) "ASYNC_EVENT.ALLOC", &[must(0, Kind::NewFd)], call => context::alloc_async_event(call);
    (0x1008, 0x1000) "UAR.ALLOC", uar::ALLOC, call => uar::alloc(call);
    (0x1008, 0x1001) "UAR.DESTROY", &[must(uar::HANDLE, Kind::Handle)], call => uar::destroy(call);
}

/// Objects that a kernel knows and this device has not, and what they are for: their methods are `EOPNOTSUPP`, not "unknown".
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
    let command = Command::decode(&*server.memory, address, find);
    let answer = command
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|command| dispatch(&mut Call { server, file, command, core_in: Reader(&[]) }));
    if let Err(CommandError { errno: libc::EOPNOTSUPP | libc::EPROTONOSUPPORT, reason }) = &answer {
        server.refusals.note(reason, &format!("not supported: {reason}"));
    }
    if let Err(error) = &answer
        && !is_probe(&error.reason)
    {
        server.events.1.note_refused(command.as_ref().map_or("a call", write::name_of), error);
    }
    if log_enabled() {
        let called = command.as_ref().map_or_else(|_| "undecoded".to_owned(), ToString::to_string);
        let outcome = answer.as_ref().map_or_else(ToString::to_string, |()| "ok".to_owned());
        log(&format!("{called} -> {outcome}"));
    }
    answer
}

fn find(object: u16, method: u16) -> Result<&'static Method, CommandError> {
    if let Some(found) = METHODS.iter().find(|known| (known.object, known.method) == (object, method)) {
        return Ok(found);
    }
    if let Some((.., name)) = ABSENT_METHODS.iter().find(|(o, m, _)| (*o, *m) == (object, method)) {
        return Err(refuse(libc::EPROTONOSUPPORT, *name));
    }
    Err(match ABSENT_OBJECTS.iter().find(|(absent, ..)| *absent == object) {
        Some((_, name, use_)) => refusal!(EOPNOTSUPP, "{name} method {method:#x} ({use_})"),
        None => unknown_method(object, method),
    })
}

fn unknown_method(object: u16, method: u16) -> CommandError {
    refusal!(EPROTONOSUPPORT, "method {method:#x} of object {object:#x}")
}
