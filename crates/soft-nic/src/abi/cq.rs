//! Completion queues: CQ.CREATE, CQ.DESTROY and RESIZE_CQ.
//!
//! Follows Linux `uverbs_std_types_cq.c` and `create_cq_user` in `drivers/infiniband/hw/mlx5/cq.c`.

use mlx5_device::command::{CreateCq, ResizeCq, refusal, refuse_if};
use mlx5_device::{Answer, Commands};

use super::attributes::{CORE_OUT, Command, UHW_IN, UHW_OUT, Write};
use super::backing::check_queue;
use super::layout::{
    Writer, create_cq, create_cq_resp, destroy_cq_resp, mlx5_resize_cq, resize_cq, resize_cq_resp,
};
use super::server::{OpenFile, Server};

/// Attribute numbers of CQ.CREATE.
pub const HANDLE: u16 = 0;
pub const CQE: u16 = 1;
pub const USER_HANDLE: u16 = 2;
pub const COMP_CHANNEL: u16 = 3;
pub const COMP_VECTOR: u16 = 4;
pub const FLAGS: u16 = 5;
pub const RESP_CQE: u16 = 6;
pub const EVENT_FD: u16 = 7;

/// `IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION`: every CQE has a timestamp anyway.
const CQ_FLAG_TIMESTAMP: u32 = 1;
/// `IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`.
const CQ_FLAG_IGNORE_OVERRUN: u32 = 1 << 1;
/// `MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX`: the page is not needed, arming goes by the record.
const MLX5_FLAG_UAR_PAGE: u16 = 1 << 1;

pub fn create<D: Commands>(server: &Server<D>, file: &mut OpenFile, command: &Command<'_>) -> Answer<()> {
    let context = file.context()?;
    let driver = command.input(UHW_IN).ok_or_else(|| refusal!(EINVAL, "no mlx5 part in CQ.CREATE"))?;
    let flags = command.number32(FLAGS).unwrap_or(0);
    let mlx5_flags = driver.u16(create_cq::FLAGS);
    let unknown = flags & !(CQ_FLAG_TIMESTAMP | CQ_FLAG_IGNORE_OVERRUN);
    refuse_if!(unknown != 0, EOPNOTSUPP, "CQ.CREATE: flags {flags:#x}");
    // Not offered by the capabilities: compressed CQEs, padded 128-byte CQEs, real-time timestamps.
    if mlx5_flags & !MLX5_FLAG_UAR_PAGE != 0 || driver.u8(create_cq::CQE_COMP_EN) != 0 {
        let compressed = driver.u8(create_cq::CQE_COMP_EN);
        return Err(refusal!(EOPNOTSUPP, "CQ.CREATE: mlx5 flags {mlx5_flags:#x}, compression {compressed}"));
    }
    let (vector, vectors) = (command.number32(COMP_VECTOR).unwrap_or(0), server.machine.processors);
    refuse_if!(vector as usize >= vectors, EINVAL, "completion vector {vector} of {vectors}");
    let channel = command.fd(COMP_CHANNEL).map(|fd| {
        let found = server.events.channel(context, fd);
        found.ok_or_else(|| refusal!(EBADF, "descriptor {fd} is no completion channel"))
    });
    let channel = channel.transpose()?;
    check_event_fd(server, file, command, EVENT_FD)?;
    let request = CreateCq {
        cqe: command.number32(CQE).unwrap_or(0),
        cqe_size: driver.u32(create_cq::CQE_SIZE),
        buffer: driver.u64(create_cq::BUF_ADDR),
        record: driver.u64(create_cq::DB_ADDR),
        user_handle: command.number(USER_HANDLE).unwrap_or(0),
        channel,
        ignore_overrun: flags & CQ_FLAG_IGNORE_OVERRUN != 0,
    };
    check_queue("CQ", &[request.buffer, request.record])?;
    let made = server.nic()?.create_cq(context, &request)?;
    let answer = Writer::<{ create_cq_resp::SIZE }>::new().u32(create_cq_resp::CQN, made.cqn).finish();
    let written = command
        .write(RESP_CQE, &request.cqe.to_ne_bytes())
        .and_then(|()| command.write(UHW_OUT, &answer))
        .and_then(|()| command.give(HANDLE, u64::from(made.handle)));
    server.or_undo(written, |nic| nic.destroy_cq(context, made.handle))?;
    if let Some(channel) = channel {
        file.cq_channels.insert(made.handle, channel);
        server.events.count_user(channel, true);
    }
    Ok(())
}

/// An optional asynchronous event file must be one of this context.
pub fn check_event_fd<D: Commands>(
    server: &Server<D>,
    file: &OpenFile,
    command: &Command<'_>,
    attribute: u16,
) -> Answer<()> {
    match command.fd(attribute) {
        Some(fd) if !server.events.is_asynchronous(file.context()?, fd) => {
            Err(refusal!(EBADF, "descriptor {fd} is no asynchronous event file of this context"))
        }
        _ => Ok(()),
    }
}

pub fn resize<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    use mlx5_resize_cq as at;
    let driver = write.command.input(UHW_IN).filter(|input| input.0.len() >= at::SIZE);
    let driver = driver.ok_or_else(|| refusal!(EINVAL, "no mlx5 part in RESIZE_CQ"))?;
    let reserved = driver.u16(at::RESERVED0) != 0 || driver.u32(at::RESERVED1) != 0;
    refuse_if!(reserved, EINVAL, "reserved words of RESIZE_CQ are not zero");
    let request = ResizeCq {
        cqe: write.core_in.u32(resize_cq::CQE),
        cqe_size: driver.u16(at::CQE_SIZE).into(),
        buffer: driver.u64(at::BUF_ADDR),
    };
    check_queue("CQ", &[request.buffer])?;
    let handle = write.core_in.u32(resize_cq::CQ_HANDLE);
    let cqe = server.nic()?.resize_cq(file.context()?, handle, &request)?;
    let answer = Writer::<{ resize_cq_resp::SIZE }>::new().u32(resize_cq_resp::CQE, cqe).finish();
    write.command.write(CORE_OUT, &answer)
}

/// CQ.DESTROY: says how many events the program has read, which libibverbs waits to see acknowledged.
pub fn destroy<D: Commands>(server: &Server<D>, file: &mut OpenFile, command: &Command<'_>) -> Answer<()> {
    let handle = command.expect_handle(0)?;
    let reported = server.nic()?.destroy_cq(file.context()?, handle)?;
    if let Some(channel) = file.cq_channels.remove(&handle) {
        server.events.count_user(channel, false);
    }
    let answer = Writer::<{ destroy_cq_resp::SIZE }>::new()
        .u32(destroy_cq_resp::COMP_EVENTS_REPORTED, reported.completion_events)
        .u32(destroy_cq_resp::ASYNC_EVENTS_REPORTED, reported.async_events)
        .finish();
    command.write(1, &answer)
}
