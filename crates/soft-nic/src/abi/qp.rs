//! Queue pairs: QP.CREATE, QP.DESTROY, MODIFY_QP (plain and extended), QUERY_QP.
//!
//! Follows Linux `uverbs_std_types_qp.c`, `modify_qp` in `uverbs_cmd.c`, and `create_user_qp` in
//! `drivers/infiniband/hw/mlx5/qp.c`. Which attributes a state change needs is the transport's table.

use mlx5_device::command::{AddressVector, CreateQp, ModifyQp, QpCap, refusal, refuse_if};
use mlx5_device::{Answer, Commands};
use roce::ServiceType;

use super::attributes::{ANY_OUT, Kind, UHW_IN, UHW_OUT, bytes, may, must, out, specs};
use super::backing::check_queue;
use super::cq::check_event_fd;
use super::layout::{
    Reader, Writer, create_qp, create_qp_resp, destroy_qp_resp, ex_modify_qp_resp, mlx5_modify_qp_resp,
    modify_qp, put, qp_cap, qp_dest, query_qp, query_qp_resp, read_address, take, words,
};
use super::server::Call;
use super::write::CORE_OUT;

specs! {
    CREATE {
        must HANDLE = 0, Kind::NewHandle;
        may XRCD = 1, Kind::Handle;
        may PD = 2, Kind::Handle;
        may SRQ = 3, Kind::Handle;
        may SEND_CQ = 4, Kind::Handle;
        may RECV_CQ = 5, Kind::Handle;
        may IND_TABLE = 6, Kind::Handle;
        must USER_HANDLE = 7, bytes(8);
        must CAP = 8, bytes(qp_cap::SIZE as u16);
        must TYPE = 9, Kind::In { min: 0, max: 8 };
        may FLAGS = 10, bytes(4);
        may SOURCE_QPN = 11, bytes(4);
        may EVENT_FD = 12, Kind::Fd;
        must RESP_CAP = 13, out(qp_cap::SIZE);
        must RESP_QP_NUM = 14, out(4);
    }
    must(UHW_IN, Kind::In { min: create_qp::sq_buf_addr as u16, max: create_qp::SIZE as u16 }), may(UHW_OUT, ANY_OUT)
}

/// `IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK`: there is no multicast, so nothing comes back.
const FLAG_BLOCK_MULTICAST_LOOPBACK: u32 = 1 << 1;
/// `IB_UVERBS_QP_CREATE_SQ_SIG_ALL`.
const FLAG_SIGNAL_ALL: u32 = 1 << 12;
/// `MLX5_QP_FLAG_UAR_PAGE_INDEX`: `bfreg_index` is the number of a UAR page.
const MLX5_FLAG_UAR_PAGE: u32 = 1 << 10;
/// `MLX5_QP_FLAG_SIGNATURE`, `_SCATTER_CQE`, `_BFREG_INDEX`, `_ALLOW_SCATTER_CQE`, `_UAR_PAGE_INDEX`: what
/// the device knows, if only to refuse it.
const MLX5_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 8 | MLX5_FLAG_UAR_PAGE;
/// `IB_QP_*` bits of the plain MODIFY_QP end at `IB_QP_DEST_QPN`.
const LAST_PLAIN_ATTRIBUTE: u32 = 1 << 20;

pub fn create<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let (context, command) = (call.context()?, call.command);
    let driver = command.input(UHW_IN).ok_or_else(|| command.missing(UHW_IN))?;
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
    let mlx5_flags = driver.u32(create_qp::flags);
    refuse_if!(
        flags & !(FLAG_SIGNAL_ALL | FLAG_BLOCK_MULTICAST_LOOPBACK) != 0
            || mlx5_flags & !MLX5_FLAGS != 0
            || command.has(SOURCE_QPN),
        EOPNOTSUPP,
        "QP.CREATE: flags {flags:#x}, mlx5 flags {mlx5_flags:#x}"
    );
    check_event_fd(call, EVENT_FD)?;
    let cap = command.input(CAP).unwrap_or(Reader(&[]));
    let request = CreateQp {
        service,
        pd: command.expect_handle(PD)?,
        send_cq: command.expect_handle(SEND_CQ)?,
        recv_cq: command.expect_handle(RECV_CQ)?,
        srq: command.handle(SRQ),
        cap: take!(QpCap, qp_cap, cap; u32: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data => {}),
        user_handle: command.number(USER_HANDLE).unwrap_or(0),
        signal_all: flags & FLAG_SIGNAL_ALL != 0,
        buffer: driver.u64(create_qp::buf_addr),
        record: driver.u64(create_qp::db_addr),
        sq_wqe_count: driver.u32(create_qp::sq_wqe_count),
        rq_wqe_count: driver.u32(create_qp::rq_wqe_count),
        rq_wqe_shift: driver.u32(create_qp::rq_wqe_shift),
        mlx5_flags,
        user_index: driver.u32(create_qp::uidx),
        uar_page: (mlx5_flags & MLX5_FLAG_UAR_PAGE != 0).then(|| driver.u32(create_qp::bfreg_index)),
    };
    check_queue("QP", &[request.buffer, request.record])?;
    let made = call.nic()?.create_qp(context, &request)?;
    let cap = put!(
        Writer::<{ qp_cap::SIZE }>::new(), qp_cap, made.cap;
        u32: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
    );
    let cap = cap.finish();
    let write = || {
        command.write(RESP_CAP, &cap)?;
        command.write(RESP_QP_NUM, &made.qpn.to_ne_bytes())?;
        command.write(UHW_OUT, &[0; create_qp_resp::SIZE])?;
        command.give(HANDLE, u64::from(made.handle))
    };
    call.server.or_undo(write, |nic| nic.destroy_qp(context, made.handle))
}

pub fn destroy<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let events = call.nic()?.destroy_qp(call.context()?, call.command.expect_handle(0)?)?;
    call.command.write(1, &words!(destroy_qp_resp, events_reported = events))
}

/// MODIFY_QP, without an answer.
pub fn modify<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    use modify_qp as at;
    let input = call.core_in;
    let request = take!(
        ModifyQp, at, input;
        u32: mask, qkey, rq_psn, sq_psn, dest_qpn, access;
        u16: pkey_index;
        u8: state, current_state, path_mtu, port, timeout, retry_count, rnr_retry, min_rnr_timer, max_rd_atomic,
            max_dest_rd_atomic => {
            address: read_address!(qp_dest, Reader(&input.array::<{ qp_dest::SIZE }>(at::dest))),
            sq_draining: false,
        }
    );
    let mask = request.mask;
    refuse_if!(mask >= LAST_PLAIN_ATTRIBUTE << 1, EOPNOTSUPP, "MODIFY_QP: attributes {mask:#x}");
    call.nic()?.modify_qp(call.context()?, input.u32(at::qp_handle), &request)
}

pub fn ex_modify<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    modify(call)?;
    let (core, driver) = (ex_modify_qp_resp::SIZE as u32, mlx5_modify_qp_resp::SIZE as u32);
    call.command.write(CORE_OUT, &words!(ex_modify_qp_resp, response_length = core))?;
    call.command.write(UHW_OUT, &words!(mlx5_modify_qp_resp, response_length = driver))
}

fn write_destination(address: &AddressVector) -> [u8; qp_dest::SIZE] {
    let destination = Writer::<{ qp_dest::SIZE }>::new()
        .bytes(qp_dest::dgid, &address.dgid.unwrap_or_default())
        .u8(qp_dest::is_global, u8::from(address.dgid.is_some()))
        .u8(qp_dest::port_num, address.port);
    put!(
        destination, qp_dest, address;
        u32: flow_label;
        u16: dlid;
        u8: sgid_index, hop_limit, traffic_class, sl
    )
    .finish()
}

/// QUERY_QP. The kernel gives every attribute, whatever the mask asks for.
pub fn query<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let found = call.nic()?.query_qp(call.context()?, call.core_in.u32(query_qp::qp_handle))?;
    let (attributes, cap) = (&found.attributes, &found.cap);
    use query_qp_resp as at;
    let answer = Writer::<{ at::SIZE }>::new()
        .bytes(at::dest, &write_destination(&attributes.address))
        .u8(at::current_state, attributes.state)
        .u8(at::sq_draining, u8::from(attributes.sq_draining))
        .u8(at::sq_sig_all, u8::from(found.signal_all));
    let answer = put!(
        answer, at, cap;
        u32: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
    );
    let answer = put!(
        answer, at, attributes;
        u32: qkey, rq_psn, sq_psn, dest_qpn, access;
        u16: pkey_index;
        u8: state, path_mtu, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port, timeout, retry_count, rnr_retry
    );
    call.command.write(CORE_OUT, &answer.finish())
}
