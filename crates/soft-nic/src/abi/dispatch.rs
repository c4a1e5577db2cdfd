//! The table of methods, and the dispatch of a verbs ioctl to its family of commands.
//!
//! A command runs on the program's thread: decode, device call under the NIC's lock, answer. Follows Linux
//! `drivers/infiniband/core/uverbs_std_types*.c` for what each method takes and answers. Left out (refused as a kernel without
//! them does, counted by name): XRC, flows, DEVX, device memory.

use mlx5_device::command::{CommandError, refusal};
use mlx5_device::{Answer, Commands};

use super::attributes::{Command, Kind, Method, UHW_IN, UHW_OUT, bytes, may, method, must, refuse};
use super::layout::{
    create_cq, create_qp, destroy_cq_resp, destroy_qp_resp, destroy_srq_resp, mlx5_create_srq, qp_cap,
    query_port_resp,
};
use super::refusals::is_probe;
use super::server::{OpenFile, Server};
use super::{ah, attributes, context, cq, mr, qp, srq, uar, write};
use crate::os::{log, log_enabled};

const UHW: Kind = Kind::In { min: 0, max: 4096 };
const ANY_OUT: Kind = Kind::Out { min: 0 };

/// Every method that the NIC answers: `rdma/ib_user_ioctl_cmds.h`, `rdma/mlx5_user_ioctl_cmds.h`.
static METHODS: &[Method] = &[
    method(0, 0, "DEVICE.INVOKE_WRITE").takes(&[
        may(attributes::CORE_IN, UHW),
        may(attributes::CORE_OUT, ANY_OUT),
        must(attributes::WRITE_CMD, bytes(8)),
        may(UHW_IN, UHW),
        may(UHW_OUT, ANY_OUT),
    ]),
    method(0, 2, "DEVICE.QUERY_PORT")
        .takes(&[must(0, bytes(1)), must(1, Kind::Out { min: query_port_resp::SIZE as u16 - 8 })]),
    method(0, 3, "DEVICE.GET_CONTEXT").takes(&[
        must(0, Kind::Out { min: 4 }),
        may(1, ANY_OUT),
        may(UHW_IN, UHW),
        may(UHW_OUT, ANY_OUT),
    ]),
    method(0, 5, "DEVICE.QUERY_GID_TABLE").takes(&[
        must(0, bytes(8)),
        may(1, bytes(4)),
        must(2, ANY_OUT),
        must(3, Kind::Out { min: 8 }),
    ]),
    method(0, 6, "DEVICE.QUERY_GID_ENTRY").takes(&[
        must(0, bytes(4)),
        must(1, bytes(4)),
        may(2, bytes(4)),
        must(3, Kind::Out { min: 32 }),
    ]),
    method(1, 0, "PD.DESTROY").takes(&[must(0, Kind::Handle)]),
    method(3, 0, "CQ.CREATE").takes(&[
        must(cq::HANDLE, Kind::NewHandle),
        must(cq::CQE, bytes(4)),
        must(cq::USER_HANDLE, bytes(8)),
        may(cq::COMP_CHANNEL, Kind::Fd),
        must(cq::COMP_VECTOR, bytes(4)),
        may(cq::FLAGS, bytes(4)),
        must(cq::RESP_CQE, Kind::Out { min: 4 }),
        may(cq::EVENT_FD, Kind::Fd),
        must(UHW_IN, Kind::In { min: create_cq::SIZE as u16 - 8, max: create_cq::SIZE as u16 }),
        may(UHW_OUT, ANY_OUT),
    ]),
    method(3, 1, "CQ.DESTROY")
        .takes(&[must(0, Kind::Handle), must(1, Kind::Out { min: destroy_cq_resp::SIZE as u16 })]),
    method(4, 0, "QP.CREATE").takes(&[
        must(qp::HANDLE, Kind::NewHandle),
        may(qp::XRCD, Kind::Handle),
        may(qp::PD, Kind::Handle),
        may(qp::SRQ, Kind::Handle),
        may(qp::SEND_CQ, Kind::Handle),
        may(qp::RECV_CQ, Kind::Handle),
        may(qp::IND_TABLE, Kind::Handle),
        must(qp::USER_HANDLE, bytes(8)),
        must(qp::CAP, bytes(qp_cap::SIZE as u16)),
        must(qp::TYPE, Kind::In { min: 0, max: 8 }),
        may(qp::FLAGS, bytes(4)),
        may(qp::SOURCE_QPN, bytes(4)),
        may(qp::EVENT_FD, Kind::Fd),
        must(qp::RESP_CAP, Kind::Out { min: qp_cap::SIZE as u16 }),
        must(qp::RESP_QP_NUM, Kind::Out { min: 4 }),
        must(UHW_IN, Kind::In { min: create_qp::SQ_BUF_ADDR as u16, max: create_qp::SIZE as u16 }),
        may(UHW_OUT, ANY_OUT),
    ]),
    method(4, 1, "QP.DESTROY")
        .takes(&[must(0, Kind::Handle), must(1, Kind::Out { min: destroy_qp_resp::SIZE as u16 })]),
    method(5, 0, "SRQ.CREATE").takes(&[
        must(srq::HANDLE, Kind::NewHandle),
        may(srq::PD, Kind::Handle),
        may(srq::XRCD, Kind::Handle),
        may(srq::CQ, Kind::Handle),
        must(srq::USER_HANDLE, bytes(8)),
        must(srq::MAX_WR, bytes(4)),
        must(srq::MAX_SGE, bytes(4)),
        must(srq::LIMIT, bytes(4)),
        may(srq::MAX_NUM_TAGS, bytes(4)),
        must(srq::TYPE, Kind::In { min: 0, max: 8 }),
        may(srq::EVENT_FD, Kind::Fd),
        must(srq::RESP_MAX_WR, Kind::Out { min: 4 }),
        must(srq::RESP_MAX_SGE, Kind::Out { min: 4 }),
        may(srq::RESP_SRQ_NUM, Kind::Out { min: 4 }),
        must(UHW_IN, Kind::In { min: mlx5_create_srq::RESERVED0 as u16, max: mlx5_create_srq::SIZE as u16 }),
        may(UHW_OUT, ANY_OUT),
    ]),
    method(5, 1, "SRQ.DESTROY")
        .takes(&[must(0, Kind::Handle), must(1, Kind::Out { min: destroy_srq_resp::SIZE as u16 })]),
    method(6, 0, "AH.DESTROY").takes(&[must(0, Kind::Handle)]),
    method(7, 1, "MR.DESTROY").takes(&[must(0, Kind::Handle)]),
    method(7, 4, "MR.REG_DMABUF_MR").takes(&[
        must(mr::dma_buf::HANDLE, Kind::NewHandle),
        must(mr::dma_buf::PD, Kind::Handle),
        must(mr::dma_buf::OFFSET, bytes(8)),
        must(mr::dma_buf::LENGTH, bytes(8)),
        must(mr::dma_buf::IOVA, bytes(8)),
        must(mr::dma_buf::FD, bytes(4)),
        must(mr::dma_buf::ACCESS_FLAGS, bytes(4)),
        must(mr::dma_buf::RESP_LKEY, Kind::Out { min: 4 }),
        must(mr::dma_buf::RESP_RKEY, Kind::Out { min: 4 }),
    ]),
    method(8, 0, "MW.DESTROY").takes(&[must(0, Kind::Handle)]),
    method(0x10, 0, "ASYNC_EVENT.ALLOC").takes(&[must(0, Kind::NewFd)]),
    method(0x1008, 0x1000, "UAR.ALLOC").takes(&[
        must(uar::HANDLE, Kind::NewHandle),
        must(uar::TYPE, Kind::In { min: 0, max: 8 }),
        must(uar::MMAP_OFFSET, Kind::Out { min: 8 }),
        must(uar::MMAP_LENGTH, Kind::Out { min: 4 }),
        must(uar::PAGE_ID, Kind::Out { min: 4 }),
    ]),
    method(0x1008, 0x1001, "UAR.DESTROY").takes(&[must(uar::HANDLE, Kind::Handle)]),
];

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
    let answer = command.as_ref().map_err(Clone::clone).and_then(|command| dispatch(server, file, command));
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

fn dispatch<D: Commands>(server: &Server<D>, file: &mut OpenFile, command: &Command<'_>) -> Answer<()> {
    match (command.method.object, command.method.method) {
        (0, 0) => write::invoke(server, file, command),
        (0, 2) => context::query_port(server, file, command),
        (0, 3) => context::get_context(server, file, command),
        (0, 5) => context::query_gid_table(server, file, command),
        (0, 6) => context::query_gid_entry(server, file, command),
        (1, 0) => server.nic()?.dealloc_pd(file.context()?, command.expect_handle(0)?),
        (3, 0) => cq::create(server, file, command),
        (3, 1) => cq::destroy(server, file, command),
        (4, 0) => qp::create(server, file, command),
        (4, 1) => qp::destroy(server, file, command),
        (5, 0) => srq::create(server, file, command),
        (5, 1) => srq::destroy(server, file, command),
        (6, 0) => ah::destroy(server, file, command),
        (7, 1) => mr::dereg(server, file, command.expect_handle(0)?),
        (7, 4) => mr::reg_dma_buf(server, file, command),
        (8, 0) => mr::destroy_window(server, file, command),
        (0x10, 0) => context::alloc_async_event(server, file, command),
        (0x1008, 0x1000) => uar::alloc(server, file, command),
        (0x1008, 0x1001) => uar::destroy(server, file, command),
        (object, method) => Err(unknown_method(object, method)),
    }
}

fn unknown_method(object: u16, method: u16) -> CommandError {
    refusal!(EPROTONOSUPPORT, "method {method:#x} of object {object:#x}")
}
