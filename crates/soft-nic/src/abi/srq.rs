//! Shared receive queues: SRQ.CREATE, SRQ.DESTROY, and the older CREATE_SRQ, MODIFY_SRQ, QUERY_SRQ, DESTROY_SRQ.
//!
//! Follows Linux `uverbs_std_types_srq.c`, `uverbs_cmd.c`, and `mlx5_ib_create_srq` in `drivers/infiniband/hw/mlx5/srq.c`.
//! Left out: queues of the types XRC and tag matching.

use mlx5_device::command::{CreateSrq, CreatedSrq, ModifySrq, refusal, refuse_if};
use mlx5_device::{Answer, Commands};

use super::attributes::{ANY_OUT, Command, Kind, UHW_IN, UHW_OUT, bytes, may, must, out, specs};
use super::backing::check_queue;
use super::cq::check_event_fd;
use super::layout::{
    create_srq, create_srq_resp, destroy_srq, destroy_srq_resp, mlx5_create_srq, mlx5_create_srq_resp,
    modify_srq, query_srq, query_srq_resp, words,
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
    must(UHW_IN, Kind::In { min: mlx5_create_srq::RESERVED0 as u16, max: mlx5_create_srq::SIZE as u16 }),
    may(UHW_OUT, ANY_OUT)
}

pub fn create<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let command = call.command;
    // IB_UVERBS_SRQT_BASIC; 1 is XRC, 2 tag matching.
    match command.number(TYPE).unwrap_or(0) {
        0 => {}
        kind => return Err(refusal!(EOPNOTSUPP, "SRQ type {kind}")),
    }
    check_event_fd(call, EVENT_FD)?;
    let request = CreateSrq {
        pd: command.expect_handle(PD)?,
        max_wr: command.number32(MAX_WR).unwrap_or(0),
        max_sge: command.number32(MAX_SGE).unwrap_or(0),
        user_handle: command.number(USER_HANDLE).unwrap_or(0),
        ..driver_part(command)?
    };
    make(call, &request, |made| {
        command.write(RESP_MAX_WR, &made.max_wr.to_ne_bytes())?;
        command.write(RESP_MAX_SGE, &made.max_sge.to_ne_bytes())?;
        command.write(RESP_SRQ_NUM, &made.srqn.to_ne_bytes())?;
        command.write(UHW_OUT, &words!(mlx5_create_srq_resp, SRQN = made.srqn))?;
        command.give(HANDLE, u64::from(made.handle))
    })
}

pub fn create_plain<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    use create_srq as at;
    let (input, command) = (call.core_in, call.command);
    let request = CreateSrq {
        pd: input.u32(at::PD_HANDLE),
        max_wr: input.u32(at::MAX_WR),
        max_sge: input.u32(at::MAX_SGE),
        user_handle: input.u64(at::USER_HANDLE),
        ..driver_part(command)?
    };
    make(call, &request, |CreatedSrq { handle, max_wr, max_sge, srqn }| {
        let answer =
            words!(create_srq_resp, SRQ_HANDLE = *handle, MAX_WR = *max_wr, MAX_SGE = *max_sge, SRQN = *srqn);
        command.write(CORE_OUT, &answer)?;
        command.write(UHW_OUT, &words!(mlx5_create_srq_resp, SRQN = *srqn))
    })
}

/// What both forms have in their mlx5 part.
fn driver_part(command: &Command<'_>) -> Answer<CreateSrq> {
    use mlx5_create_srq as at;
    let driver = command.input(UHW_IN).filter(|input| input.0.len() >= at::RESERVED0);
    let driver = driver.ok_or_else(|| refusal!(EINVAL, "no mlx5 part in the creation of an SRQ"))?;
    let reserved = driver.u32(at::RESERVED0) != 0 || driver.u32(at::RESERVED1) != 0;
    refuse_if!(reserved, EINVAL, "reserved words in the creation of an SRQ are not zero");
    let (buffer, record) = (driver.u64(at::BUF_ADDR), driver.u64(at::DB_ADDR));
    Ok(CreateSrq { pd: 0, max_wr: 0, max_sge: 0, user_handle: 0, buffer, record })
}

/// Makes the queue, and takes it back when the answer cannot be written.
fn make<D: Commands>(
    call: &Call<'_, D>,
    request: &CreateSrq,
    answer: impl FnOnce(&CreatedSrq) -> Answer<()>,
) -> Answer<()> {
    let context = call.context()?;
    check_queue("SRQ", &[request.buffer, request.record])?;
    let made = call.nic()?.create_srq(context, request)?;
    call.server.or_undo(|| answer(&made), |nic| nic.destroy_srq(context, made.handle))
}

pub fn modify<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let input = call.core_in;
    let request =
        ModifySrq { mask: input.u32(modify_srq::ATTR_MASK), limit: input.u32(modify_srq::SRQ_LIMIT) };
    call.nic()?.modify_srq(call.context()?, input.u32(modify_srq::SRQ_HANDLE), &request)
}

pub fn query<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let found = call.nic()?.query_srq(call.context()?, call.core_in.u32(query_srq::SRQ_HANDLE))?;
    let answer =
        words!(query_srq_resp, MAX_WR = found.max_wr, MAX_SGE = found.max_sge, SRQ_LIMIT = found.limit);
    call.command.write(CORE_OUT, &answer)
}

pub fn destroy<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let events = call.nic()?.destroy_srq(call.context()?, call.named()?)?;
    call.command.write(1, &words!(destroy_srq_resp, EVENTS_REPORTED = events))
}

pub fn destroy_plain<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let events = call.nic()?.destroy_srq(call.context()?, call.core_in.u32(destroy_srq::SRQ_HANDLE))?;
    call.command.write(CORE_OUT, &words!(destroy_srq_resp, EVENTS_REPORTED = events))
}
