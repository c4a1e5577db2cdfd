//! Queue pairs: QP.CREATE, QP.DESTROY, MODIFY_QP (plain and extended), QUERY_QP.
//!
//! Follows Linux `uverbs_std_types_qp.c`, `modify_qp` in `uverbs_cmd.c`, and `create_user_qp` in
//! `drivers/infiniband/hw/mlx5/qp.c`. Which attributes a state change needs is the transport's table.

use mlx5_device::command::{AddressVector, CreateQp, ModifyQp, QpCap, refusal, refuse_if};
use mlx5_device::{Answer, Commands};
use roce::ServiceType;

use super::attributes::{CORE_OUT, Command, UHW_IN, UHW_OUT, Write};
use super::backing::check_queue;
use super::cq::check_event_fd;
use super::layout::{
    Reader, Writer, create_qp, create_qp_resp, destroy_qp_resp, ex_modify_qp_resp, mlx5_modify_qp_resp,
    modify_qp, qp_cap, qp_dest, query_qp, query_qp_resp,
};
use super::server::{OpenFile, Server};

/// Attribute numbers of QP.CREATE.
pub const HANDLE: u16 = 0;
pub const XRCD: u16 = 1;
pub const PD: u16 = 2;
pub const SRQ: u16 = 3;
pub const SEND_CQ: u16 = 4;
pub const RECV_CQ: u16 = 5;
pub const IND_TABLE: u16 = 6;
pub const USER_HANDLE: u16 = 7;
pub const CAP: u16 = 8;
pub const TYPE: u16 = 9;
pub const FLAGS: u16 = 10;
pub const SOURCE_QPN: u16 = 11;
pub const EVENT_FD: u16 = 12;
pub const RESP_CAP: u16 = 13;
pub const RESP_QP_NUM: u16 = 14;

/// `IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK`: there is no multicast, so nothing comes back.
const FLAG_BLOCK_MULTICAST_LOOPBACK: u32 = 1 << 1;
/// `IB_UVERBS_QP_CREATE_SQ_SIG_ALL`.
const FLAG_SIGNAL_ALL: u32 = 1 << 12;
/// `MLX5_QP_FLAG_UAR_PAGE_INDEX`: `bfreg_index` is the number of a UAR page.
const MLX5_FLAG_UAR_PAGE: u32 = 1 << 10;
/// `MLX5_QP_FLAG_SIGNATURE`, `_SCATTER_CQE`, `_BFREG_INDEX`, `_ALLOW_SCATTER_CQE`, `_UAR_PAGE_INDEX`: what the device knows,
/// if only to refuse it.
const MLX5_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 8 | MLX5_FLAG_UAR_PAGE;
/// `IB_QP_*` bits of the plain MODIFY_QP end at `IB_QP_DEST_QPN`.
const LAST_PLAIN_ATTRIBUTE: u32 = 1 << 20;

pub fn create<D: Commands>(server: &Server<D>, file: &mut OpenFile, command: &Command<'_>) -> Answer<()> {
    let context = file.context()?;
    let driver = command.input(UHW_IN).ok_or_else(|| refusal!(EINVAL, "no mlx5 part in QP.CREATE"))?;
    let service = match command.number(TYPE).unwrap_or(0) {
        2 => ServiceType::Rc,
        3 => ServiceType::Uc,
        4 => ServiceType::Ud,
        other => {
            let what = match other {
                8 => "raw packet",
                9 | 10 => "XRC",
                0xff => "DC",
                _ => "unknown",
            };
            return Err(refusal!(EOPNOTSUPP, "{what} QP (type {other})"));
        }
    };
    for (attribute, what) in [(XRCD, "XRC domain"), (IND_TABLE, "indirection table")] {
        refuse_if!(command.has(attribute), EOPNOTSUPP, "QP with {what}");
    }
    let flags = command.number32(FLAGS).unwrap_or(0);
    let mlx5_flags = driver.u32(create_qp::FLAGS);
    refuse_if!(
        flags & !(FLAG_SIGNAL_ALL | FLAG_BLOCK_MULTICAST_LOOPBACK) != 0
            || mlx5_flags & !MLX5_FLAGS != 0
            || command.has(SOURCE_QPN),
        EOPNOTSUPP,
        "QP.CREATE: flags {flags:#x}, mlx5 flags {mlx5_flags:#x}"
    );
    check_event_fd(server, file, command, EVENT_FD)?;
    let cap = command.input(CAP).unwrap_or(Reader(&[]));
    let request = CreateQp {
        service,
        pd: command.expect_handle(PD)?,
        send_cq: command.expect_handle(SEND_CQ)?,
        recv_cq: command.expect_handle(RECV_CQ)?,
        srq: command.handle(SRQ),
        cap: QpCap {
            max_send_wr: cap.u32(qp_cap::MAX_SEND_WR),
            max_recv_wr: cap.u32(qp_cap::MAX_RECV_WR),
            max_send_sge: cap.u32(qp_cap::MAX_SEND_SGE),
            max_recv_sge: cap.u32(qp_cap::MAX_RECV_SGE),
            max_inline_data: cap.u32(qp_cap::MAX_INLINE_DATA),
        },
        user_handle: command.number(USER_HANDLE).unwrap_or(0),
        signal_all: flags & FLAG_SIGNAL_ALL != 0,
        buffer: driver.u64(create_qp::BUF_ADDR),
        record: driver.u64(create_qp::DB_ADDR),
        sq_wqe_count: driver.u32(create_qp::SQ_WQE_COUNT),
        rq_wqe_count: driver.u32(create_qp::RQ_WQE_COUNT),
        rq_wqe_shift: driver.u32(create_qp::RQ_WQE_SHIFT),
        mlx5_flags,
        user_index: driver.u32(create_qp::UIDX),
        uar_page: (mlx5_flags & MLX5_FLAG_UAR_PAGE != 0).then(|| driver.u32(create_qp::BFREG_INDEX)),
    };
    check_queue("QP", &[request.buffer, request.record])?;
    let made = server.nic()?.create_qp(context, &request)?;
    let cap = Writer::<{ qp_cap::SIZE }>::new()
        .u32(qp_cap::MAX_SEND_WR, made.cap.max_send_wr)
        .u32(qp_cap::MAX_RECV_WR, made.cap.max_recv_wr)
        .u32(qp_cap::MAX_SEND_SGE, made.cap.max_send_sge)
        .u32(qp_cap::MAX_RECV_SGE, made.cap.max_recv_sge)
        .u32(qp_cap::MAX_INLINE_DATA, made.cap.max_inline_data)
        .finish();
    let written = command
        .write(RESP_CAP, &cap)
        .and_then(|()| command.write(RESP_QP_NUM, &made.qpn.to_ne_bytes()))
        .and_then(|()| command.write(UHW_OUT, &[0; create_qp_resp::SIZE]))
        .and_then(|()| command.give(HANDLE, u64::from(made.handle)));
    server.or_undo(written, |nic| nic.destroy_qp(context, made.handle))
}

pub fn destroy<D: Commands>(server: &Server<D>, file: &mut OpenFile, command: &Command<'_>) -> Answer<()> {
    let events = server.nic()?.destroy_qp(file.context()?, command.expect_handle(0)?)?;
    let answer =
        Writer::<{ destroy_qp_resp::SIZE }>::new().u32(destroy_qp_resp::EVENTS_REPORTED, events).finish();
    command.write(1, &answer)
}

/// MODIFY_QP; `extended` is the form with an answer.
pub fn modify<D: Commands>(
    server: &Server<D>,
    file: &mut OpenFile,
    write: &Write<'_>,
    extended: bool,
) -> Answer<()> {
    use modify_qp as at;
    let input = write.core_in;
    let mask = input.u32(at::ATTR_MASK);
    refuse_if!(mask >= LAST_PLAIN_ATTRIBUTE << 1, EOPNOTSUPP, "MODIFY_QP: attributes {mask:#x}");
    let request = ModifyQp {
        mask,
        state: input.u8(at::QP_STATE),
        current_state: input.u8(at::CUR_QP_STATE),
        path_mtu: input.u8(at::PATH_MTU),
        qkey: input.u32(at::QKEY),
        rq_psn: input.u32(at::RQ_PSN),
        sq_psn: input.u32(at::SQ_PSN),
        dest_qpn: input.u32(at::DEST_QP_NUM),
        access: input.u32(at::QP_ACCESS_FLAGS),
        address: read_destination(Reader(&input.array::<{ qp_dest::SIZE }>(at::DEST))),
        pkey_index: input.u16(at::PKEY_INDEX),
        port: input.u8(at::PORT_NUM),
        timeout: input.u8(at::TIMEOUT),
        retry_count: input.u8(at::RETRY_CNT),
        rnr_retry: input.u8(at::RNR_RETRY),
        min_rnr_timer: input.u8(at::MIN_RNR_TIMER),
        max_rd_atomic: input.u8(at::MAX_RD_ATOMIC),
        max_dest_rd_atomic: input.u8(at::MAX_DEST_RD_ATOMIC),
        sq_draining: false,
    };
    server.nic()?.modify_qp(file.context()?, input.u32(at::QP_HANDLE), &request)?;
    if !extended {
        return Ok(());
    }
    let core = Writer::<{ ex_modify_qp_resp::SIZE }>::new()
        .u32(ex_modify_qp_resp::RESPONSE_LENGTH, ex_modify_qp_resp::SIZE as u32)
        .finish();
    let driver = Writer::<{ mlx5_modify_qp_resp::SIZE }>::new()
        .u32(mlx5_modify_qp_resp::RESPONSE_LENGTH, mlx5_modify_qp_resp::SIZE as u32)
        .finish();
    write.command.write(CORE_OUT, &core)?;
    write.command.write(UHW_OUT, &driver)
}

fn read_destination(from: Reader<'_>) -> AddressVector {
    AddressVector {
        dlid: from.u16(qp_dest::DLID),
        dgid: (from.u8(qp_dest::IS_GLOBAL) != 0).then(|| from.array(qp_dest::DGID)),
        sgid_index: from.u8(qp_dest::SGID_INDEX),
        sl: from.u8(qp_dest::SL),
        flow_label: from.u32(qp_dest::FLOW_LABEL),
        hop_limit: from.u8(qp_dest::HOP_LIMIT),
        traffic_class: from.u8(qp_dest::TRAFFIC_CLASS),
        port: from.u8(qp_dest::PORT_NUM),
    }
}

fn write_destination(address: &AddressVector) -> [u8; qp_dest::SIZE] {
    Writer::<{ qp_dest::SIZE }>::new()
        .bytes(qp_dest::DGID, &address.dgid.unwrap_or_default())
        .u32(qp_dest::FLOW_LABEL, address.flow_label)
        .u16(qp_dest::DLID, address.dlid)
        .u8(qp_dest::SGID_INDEX, address.sgid_index)
        .u8(qp_dest::HOP_LIMIT, address.hop_limit)
        .u8(qp_dest::TRAFFIC_CLASS, address.traffic_class)
        .u8(qp_dest::SL, address.sl)
        .u8(qp_dest::IS_GLOBAL, u8::from(address.dgid.is_some()))
        .u8(qp_dest::PORT_NUM, address.port)
        .finish()
}

/// QUERY_QP. The kernel gives every attribute, whatever the mask asks for.
pub fn query<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    let handle = write.core_in.u32(query_qp::QP_HANDLE);
    let found = server.nic()?.query_qp(file.context()?, handle)?;
    let (attributes, cap) = (&found.attributes, &found.cap);
    use query_qp_resp as at;
    let answer = Writer::<{ at::SIZE }>::new()
        .bytes(at::DEST, &write_destination(&attributes.address))
        .u32(at::MAX_SEND_WR, cap.max_send_wr)
        .u32(at::MAX_RECV_WR, cap.max_recv_wr)
        .u32(at::MAX_SEND_SGE, cap.max_send_sge)
        .u32(at::MAX_RECV_SGE, cap.max_recv_sge)
        .u32(at::MAX_INLINE_DATA, cap.max_inline_data)
        .u32(at::QKEY, attributes.qkey)
        .u32(at::RQ_PSN, attributes.rq_psn)
        .u32(at::SQ_PSN, attributes.sq_psn)
        .u32(at::DEST_QP_NUM, attributes.dest_qpn)
        .u32(at::QP_ACCESS_FLAGS, attributes.access)
        .u16(at::PKEY_INDEX, attributes.pkey_index)
        .u8(at::QP_STATE, attributes.state)
        .u8(at::CUR_QP_STATE, attributes.state)
        .u8(at::PATH_MTU, attributes.path_mtu)
        .u8(at::SQ_DRAINING, u8::from(attributes.sq_draining))
        .u8(at::MAX_RD_ATOMIC, attributes.max_rd_atomic)
        .u8(at::MAX_DEST_RD_ATOMIC, attributes.max_dest_rd_atomic)
        .u8(at::MIN_RNR_TIMER, attributes.min_rnr_timer)
        .u8(at::PORT_NUM, attributes.port)
        .u8(at::TIMEOUT, attributes.timeout)
        .u8(at::RETRY_CNT, attributes.retry_count)
        .u8(at::RNR_RETRY, attributes.rnr_retry)
        .u8(at::SQ_SIG_ALL, u8::from(found.signal_all))
        .finish();
    write.command.write(CORE_OUT, &answer)
}
