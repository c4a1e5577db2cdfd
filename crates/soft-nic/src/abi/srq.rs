//! Shared receive queues: SRQ.CREATE, SRQ.DESTROY, MODIFY_SRQ and QUERY_SRQ.
//!
//! Follows Linux `uverbs_std_types_srq.c`, `uverbs_cmd.c`, and `mlx5_ib_create_srq` in
//! `drivers/infiniband/hw/mlx5/srq.c`. Left out: queues of the types XRC and tag matching.

use mlx5_device::command::{CreateSrq, ModifySrq, refuse_if};
use mlx5_device::{Answer, Commands};

use super::attributes::{ANY_OUT, Kind, UHW_IN, UHW_OUT, bytes, may, must, out, specs};
use super::backing::check_queue;
use super::cq::check_event_fd;
use super::layout::{
    destroy_srq_resp, mlx5_create_srq, mlx5_create_srq_resp, modify_srq, query_srq, query_srq_resp, words,
};
use super::server::Call;
use super::write::CORE_OUT;

specs! {
    CREATE {
        must HANDLE = 0, Kind::NewHandle;
        may PD = 1, Kind::Handle;
        may XRCD = 2, Kind::Handle;
        may CQ = 3, Kind::Handle;
        must USER_HANDLE = 4, bytes(8);
        must MAX_WR = 5, bytes(4);
        must MAX_SGE = 6, bytes(4);
        must LIMIT = 7, bytes(4);
        may MAX_NUM_TAGS = 8, bytes(4);
        must TYPE = 9, Kind::In { min: 0, max: 8 };
        may EVENT_FD = 10, Kind::Fd;
        must RESP_MAX_WR = 11, out(4);
        must RESP_MAX_SGE = 12, out(4);
        may RESP_SRQ_NUM = 13, out(4);
    }
    must(UHW_IN, Kind::In { min: mlx5_create_srq::reserved0 as u16, max: mlx5_create_srq::SIZE as u16 }),
    may(UHW_OUT, ANY_OUT)
}

pub fn create<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let (context, command) = (call.context()?, call.command);
    // IB_UVERBS_SRQT_BASIC; 1 is XRC, 2 tag matching.
    let kind = command.number(TYPE).unwrap_or(0);
    refuse_if!(kind != 0, EOPNOTSUPP, "SRQ type {kind}");
    check_event_fd(call, EVENT_FD)?;
    use mlx5_create_srq as at;
    let driver = command.input(UHW_IN).ok_or_else(|| command.missing(UHW_IN))?;
    let reserved = (driver.u32(at::reserved0), driver.u32(at::reserved1));
    refuse_if!(reserved != (0, 0), EINVAL, "reserved words {reserved:x?} of SRQ.CREATE are not 0");
    let request = CreateSrq {
        pd: command.expect_handle(PD)?,
        max_wr: command.number32(MAX_WR).unwrap_or(0),
        max_sge: command.number32(MAX_SGE).unwrap_or(0),
        user_handle: command.number(USER_HANDLE).unwrap_or(0),
        buffer: driver.u64(at::buf_addr),
        record: driver.u64(at::db_addr),
    };
    check_queue("SRQ", &[request.buffer, request.record])?;
    let made = call.nic()?.create_srq(context, &request)?;
    let write = || {
        command.write(RESP_MAX_WR, &made.max_wr.to_ne_bytes())?;
        command.write(RESP_MAX_SGE, &made.max_sge.to_ne_bytes())?;
        command.write(RESP_SRQ_NUM, &made.srqn.to_ne_bytes())?;
        command.write(UHW_OUT, &words!(mlx5_create_srq_resp, srqn = made.srqn))?;
        command.give(HANDLE, u64::from(made.handle))
    };
    call.server.or_undo(write, |nic| nic.destroy_srq(context, made.handle))
}

pub fn modify<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let input = call.core_in;
    let request =
        ModifySrq { mask: input.u32(modify_srq::attr_mask), limit: input.u32(modify_srq::srq_limit) };
    call.nic()?.modify_srq(call.context()?, input.u32(modify_srq::srq_handle), &request)
}

pub fn query<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let found = call.nic()?.query_srq(call.context()?, call.core_in.u32(query_srq::srq_handle))?;
    let answer =
        words!(query_srq_resp, max_wr = found.max_wr, max_sge = found.max_sge, srq_limit = found.limit);
    call.command.write(CORE_OUT, &answer)
}

pub fn destroy<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let events = call.nic()?.destroy_srq(call.context()?, call.command.expect_handle(0)?)?;
    call.command.write(1, &words!(destroy_srq_resp, events_reported = events))
}
