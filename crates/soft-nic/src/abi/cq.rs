//! Completion queues: CQ.CREATE, CQ.DESTROY and RESIZE_CQ.
//!
//! Follows Linux `uverbs_std_types_cq.c` and `create_cq_user` in `drivers/infiniband/hw/mlx5/cq.c`.

use mlx5_device::command::{CreateCq, ResizeCq, refusal, refuse_if};
use mlx5_device::{Answer, Commands};

use super::attributes::{ANY_OUT, Kind, UHW_IN, UHW_OUT, bytes, may, must, out, specs};
use super::backing::check_queue;
use super::layout::{
    create_cq, create_cq_resp, destroy_cq_resp, mlx5_resize_cq, resize_cq, resize_cq_resp, words,
};
use super::server::Call;
use super::write::CORE_OUT;

specs! {
    CREATE {
        must HANDLE = 0, Kind::NewHandle;
        must CQE = 1, bytes(4);
        must USER_HANDLE = 2, bytes(8);
        may COMP_CHANNEL = 3, Kind::Fd;
        must COMP_VECTOR = 4, bytes(4);
        may FLAGS = 5, bytes(4);
        must RESP_CQE = 6, out(4);
        may EVENT_FD = 7, Kind::Fd;
    }
    must(UHW_IN, Kind::In { min: create_cq::SIZE as u16 - 8, max: create_cq::SIZE as u16 }), may(UHW_OUT, ANY_OUT)
}

/// `IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION`: every CQE has a timestamp anyway.
const CQ_FLAG_TIMESTAMP: u32 = 1;
/// `IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`.
const CQ_FLAG_IGNORE_OVERRUN: u32 = 1 << 1;
/// `MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX`: the page is not needed, arming goes by the record.
const MLX5_FLAG_UAR_PAGE: u16 = 1 << 1;

pub fn create<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let (context, server, command) = (call.context()?, call.server, call.command);
    let driver = command.input(UHW_IN).ok_or_else(|| command.missing(UHW_IN))?;
    let flags = command.number32(FLAGS).unwrap_or(0);
    let mlx5_flags = driver.u16(create_cq::flags);
    let unknown = flags & !(CQ_FLAG_TIMESTAMP | CQ_FLAG_IGNORE_OVERRUN);
    refuse_if!(unknown != 0, EOPNOTSUPP, "CQ.CREATE: flags {flags:#x}");
    // Not offered by the capabilities: compressed CQEs, padded 128-byte CQEs, real-time timestamps.
    let (extended, compressed) = (mlx5_flags & !MLX5_FLAG_UAR_PAGE != 0, driver.u8(create_cq::cqe_comp_en));
    refuse_if!(
        extended || compressed != 0,
        EOPNOTSUPP,
        "CQ.CREATE: mlx5 flags {mlx5_flags:#x}, compression {compressed}"
    );
    let (vector, vectors) = (command.number32(COMP_VECTOR).unwrap_or(0), server.machine.processors);
    refuse_if!(vector as usize >= vectors, EINVAL, "completion vector {vector} is not in 0..{vectors}");
    let channel = command.fd(COMP_CHANNEL).map(|fd| {
        let found = server.events.channel(context, fd);
        found.ok_or_else(|| refusal!(EBADF, "descriptor {fd} is no completion channel"))
    });
    let channel = channel.transpose()?;
    check_event_fd(call, EVENT_FD)?;
    let request = CreateCq {
        cqe: command.number32(CQE).unwrap_or(0),
        cqe_size: driver.u32(create_cq::cqe_size),
        buffer: driver.u64(create_cq::buf_addr),
        record: driver.u64(create_cq::db_addr),
        user_handle: command.number(USER_HANDLE).unwrap_or(0),
        channel: channel.as_ref().map(|(id, _)| *id),
        ignore_overrun: flags & CQ_FLAG_IGNORE_OVERRUN != 0,
    };
    check_queue("CQ", &[request.buffer, request.record])?;
    let made = server.nic()?.create_cq(context, &request)?;
    let write = || {
        command.write(RESP_CQE, &request.cqe.to_ne_bytes())?;
        command.write(UHW_OUT, &words!(create_cq_resp, cqn = made.number))?;
        command.give(HANDLE, u64::from(made.handle))
    };
    server.or_undo(write, |nic| nic.destroy_cq(context, made.handle))?;
    call.file.cq_channels.extend(channel.map(|(_, user)| (made.handle, user)));
    Ok(())
}

/// An optional asynchronous event file must be one of this context.
pub fn check_event_fd<D: Commands>(call: &Call<'_, D>, attribute: u16) -> Answer<()> {
    if let Some(fd) = call.command.fd(attribute) {
        let known = call.server.events.is_asynchronous(call.context()?, fd);
        refuse_if!(!known, EBADF, "descriptor {fd} is no asynchronous event file of this context");
    }
    Ok(())
}

pub fn resize<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    use mlx5_resize_cq as at;
    let driver = call.command.input(UHW_IN).ok_or_else(|| call.command.missing(UHW_IN))?;
    let (len, least) = (driver.0.len(), at::SIZE);
    refuse_if!(len < least, EINVAL, "RESIZE_CQ: mlx5 part of {len} bytes, {least} needed");
    let reserved = (driver.u16(at::reserved0), driver.u32(at::reserved1));
    refuse_if!(reserved != (0, 0), EINVAL, "reserved words {reserved:x?} of RESIZE_CQ are not 0");
    let request = ResizeCq {
        cqe: call.core_in.u32(resize_cq::cqe),
        cqe_size: driver.u16(at::cqe_size).into(),
        buffer: driver.u64(at::buf_addr),
    };
    check_queue("CQ", &[request.buffer])?;
    let handle = call.core_in.u32(resize_cq::cq_handle);
    let cqe = call.nic()?.resize_cq(call.context()?, handle, &request)?;
    call.command.write(CORE_OUT, &words!(resize_cq_resp, cqe = cqe))
}

/// CQ.DESTROY: says how many events the program has read, which libibverbs waits to see acknowledged.
pub fn destroy<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let handle = call.command.expect_handle(0)?;
    let reported = call.nic()?.destroy_cq(call.context()?, handle)?;
    call.file.cq_channels.remove(&handle);
    let (completion, asynchronous) = (reported.completion_events, reported.async_events);
    let answer =
        words!(destroy_cq_resp, comp_events_reported = completion, async_events_reported = asynchronous);
    call.command.write(1, &answer)
}
