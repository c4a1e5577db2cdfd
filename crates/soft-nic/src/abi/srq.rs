//! Shared receive queues: SRQ.CREATE, SRQ.DESTROY, and the older CREATE_SRQ, MODIFY_SRQ, QUERY_SRQ, DESTROY_SRQ.
//!
//! Follows Linux `uverbs_std_types_srq.c`, `uverbs_cmd.c`, and `mlx5_ib_create_srq` in `drivers/infiniband/hw/mlx5/srq.c`.
//! Left out: queues of the types XRC and tag matching.

use mlx5_device::command::{CreateSrq, CreatedSrq, ModifySrq, refusal, refuse_if};
use mlx5_device::{Answer, Commands};

use super::attributes::{CORE_OUT, Command, UHW_IN, UHW_OUT, Write};
use super::backing::check_queue;
use super::cq::check_event_fd;
use super::layout::{
    Reader, Writer, create_srq, create_srq_resp, destroy_srq, destroy_srq_resp, mlx5_create_srq,
    mlx5_create_srq_resp, modify_srq, query_srq, query_srq_resp,
};
use super::server::{OpenFile, Server};

/// Attribute numbers of SRQ.CREATE.
pub const HANDLE: u16 = 0;
pub const PD: u16 = 1;
pub const XRCD: u16 = 2;
pub const CQ: u16 = 3;
pub const USER_HANDLE: u16 = 4;
pub const MAX_WR: u16 = 5;
pub const MAX_SGE: u16 = 6;
pub const LIMIT: u16 = 7;
pub const MAX_NUM_TAGS: u16 = 8;
pub const TYPE: u16 = 9;
pub const EVENT_FD: u16 = 10;
pub const RESP_MAX_WR: u16 = 11;
pub const RESP_MAX_SGE: u16 = 12;
pub const RESP_SRQ_NUM: u16 = 13;

pub fn create<D: Commands>(server: &Server<D>, file: &mut OpenFile, command: &Command<'_>) -> Answer<()> {
    // IB_UVERBS_SRQT_BASIC; 1 is XRC, 2 tag matching.
    match command.number(TYPE).unwrap_or(0) {
        0 => {}
        kind => return Err(refusal!(EOPNOTSUPP, "SRQ type {kind}")),
    }
    check_event_fd(server, file, command, EVENT_FD)?;
    let request = CreateSrq {
        pd: command.expect_handle(PD)?,
        max_wr: command.number32(MAX_WR).unwrap_or(0),
        max_sge: command.number32(MAX_SGE).unwrap_or(0),
        user_handle: command.number(USER_HANDLE).unwrap_or(0),
        ..driver_part(command)?
    };
    make(server, file, &request, |made| {
        command.write(RESP_MAX_WR, &made.max_wr.to_ne_bytes())?;
        command.write(RESP_MAX_SGE, &made.max_sge.to_ne_bytes())?;
        command.write(RESP_SRQ_NUM, &made.srqn.to_ne_bytes())?;
        command.write(UHW_OUT, &driver_answer(made))?;
        command.give(HANDLE, u64::from(made.handle))
    })
}

pub fn create_plain<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    use create_srq as at;
    let input = write.core_in;
    let request = CreateSrq {
        pd: input.u32(at::PD_HANDLE),
        max_wr: input.u32(at::MAX_WR),
        max_sge: input.u32(at::MAX_SGE),
        user_handle: input.u64(at::USER_HANDLE),
        ..driver_part(write.command)?
    };
    make(server, file, &request, |made| {
        let answer = Writer::<{ create_srq_resp::SIZE }>::new()
            .u32(create_srq_resp::SRQ_HANDLE, made.handle)
            .u32(create_srq_resp::MAX_WR, made.max_wr)
            .u32(create_srq_resp::MAX_SGE, made.max_sge)
            .u32(create_srq_resp::SRQN, made.srqn)
            .finish();
        write.command.write(CORE_OUT, &answer)?;
        write.command.write(UHW_OUT, &driver_answer(made))
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

fn driver_answer(made: &CreatedSrq) -> [u8; mlx5_create_srq_resp::SIZE] {
    Writer::new().u32(mlx5_create_srq_resp::SRQN, made.srqn).finish()
}

/// Makes the queue, and takes it back when the answer cannot be written.
fn make<D: Commands>(
    server: &Server<D>,
    file: &OpenFile,
    request: &CreateSrq,
    answer: impl FnOnce(&CreatedSrq) -> Answer<()>,
) -> Answer<()> {
    let context = file.context()?;
    check_queue("SRQ", &[request.buffer, request.record])?;
    let made = server.nic()?.create_srq(context, request)?;
    let written = answer(&made);
    server.or_undo(written, |nic| nic.destroy_srq(context, made.handle))
}

pub fn modify<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    let input = write.core_in;
    let request =
        ModifySrq { mask: input.u32(modify_srq::ATTR_MASK), limit: input.u32(modify_srq::SRQ_LIMIT) };
    server.nic()?.modify_srq(file.context()?, input.u32(modify_srq::SRQ_HANDLE), &request)
}

pub fn query<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    let found = server.nic()?.query_srq(file.context()?, write.core_in.u32(query_srq::SRQ_HANDLE))?;
    let answer = Writer::<{ query_srq_resp::SIZE }>::new()
        .u32(query_srq_resp::MAX_WR, found.max_wr)
        .u32(query_srq_resp::MAX_SGE, found.max_sge)
        .u32(query_srq_resp::SRQ_LIMIT, found.limit)
        .finish();
    write.command.write(CORE_OUT, &answer)
}

pub fn destroy<D: Commands>(server: &Server<D>, file: &mut OpenFile, command: &Command<'_>) -> Answer<()> {
    let events = server.nic()?.destroy_srq(file.context()?, command.expect_handle(0)?)?;
    command.write(1, &reported(events))
}

pub fn destroy_plain<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    let handle = Reader(write.core_in.0).u32(destroy_srq::SRQ_HANDLE);
    let events = server.nic()?.destroy_srq(file.context()?, handle)?;
    write.command.write(CORE_OUT, &reported(events))
}

fn reported(events: u32) -> [u8; destroy_srq_resp::SIZE] {
    Writer::new().u32(destroy_srq_resp::EVENTS_REPORTED, events).finish()
}
