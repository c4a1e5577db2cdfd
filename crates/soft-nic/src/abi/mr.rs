//! Protection domains, memory regions and windows.

use mlx5_device::command::{AllocMw, RegMr, refuse_if};
use mlx5_device::mr::check_access;
use mlx5_device::rereg_change as change;
use mlx5_device::{Answer, Commands};

use super::attributes::{Kind, UHW_IN, UHW_OUT, bytes, must, out, specs};
use super::backing;
use super::layout::{
    alloc_mw, alloc_mw_resp, alloc_pd_resp, mlx5_alloc_mw, mlx5_alloc_pd_resp, reg_mr, reg_mr_resp, rereg_mr,
    rereg_mr_resp, take, words,
};
use super::server::Call;
use super::write::CORE_OUT;

/// `IBV_ACCESS_LOCAL_WRITE`.
const ACCESS_LOCAL_WRITE: u32 = 1;
/// Access that a dma-buf region may have: local and remote writes, remote reads, atomics, relaxed ordering.
const ACCESS_DMA_BUF: u32 = 0xf | 1 << 20;
const PAGE: u64 = 4096;

specs! {
    /// Attributes of REG_DMABUF_MR (`uverbs_attrs_reg_dmabuf_mr_cmd_attr_ids`).
    REGISTER_DMA_BUF {
        must HANDLE = 0, Kind::NewHandle;
        must PD = 1, Kind::Handle;
        must OFFSET = 2, bytes(8);
        must LENGTH = 3, bytes(8);
        must IOVA = 4, bytes(8);
        must FD = 5, bytes(4);
        must ACCESS_FLAGS = 6, bytes(4);
        must RESP_LKEY = 7, out(4);
        must RESP_RKEY = 8, out(4);
    }
}

pub fn alloc_pd<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let (context, command) = (call.context()?, call.command);
    let made = call.nic()?.alloc_pd(context)?;
    let write = || {
        command.write(CORE_OUT, &words!(alloc_pd_resp, pd_handle = made.handle))?;
        command.write(UHW_OUT, &words!(mlx5_alloc_pd_resp, pdn = made.number))
    };
    call.server.or_undo(write, |nic| nic.dealloc_pd(context, made.handle))
}

pub fn reg<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let (context, server, input) = (call.context()?, call.server, call.core_in);
    let request = take!(RegMr, reg_mr, input; u64: start, length, iova; u32: pd, access => {});
    let backing = backing::of_addresses(&server.events.1, request.start, request.length)?;
    // Faulting in gigabytes takes long, and with the lock held every queue would wait. The device asks again
    // and finds the pages there; it reports what is wrong, in its own order.
    let _ =
        server.memory.probe(request.start, request.length.max(1), request.access & ACCESS_LOCAL_WRITE != 0);
    let keys = server.nic()?.reg_mr(context, &request)?;
    let answer = words!(reg_mr_resp, mr_handle = keys.handle, lkey = keys.lkey, rkey = keys.rkey);
    let write = || call.command.write(CORE_OUT, &answer);
    server.or_undo(write, |nic| nic.dereg_mr(context, keys.handle))?;
    call.file.backing.extend(backing.map(|backing| (keys.handle, backing)));
    Ok(())
}

pub fn rereg<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let (server, input) = (call.server, call.core_in);
    let request = take!(RegMr, rereg_mr, input; u64: start, length, iova; u32: pd, access => {});
    let (mr, flags) = (input.u32(rereg_mr::mr), input.u32(rereg_mr::flags));
    let moves = flags & change::TRANSLATION != 0;
    let backing =
        if moves { backing::of_addresses(&server.events.1, request.start, request.length)? } else { None };
    let keys = server.nic()?.rereg_mr(call.context()?, mr, flags, &request)?;
    if moves {
        // Other memory from now on; what it was in until now has no user any more.
        call.file.backing.remove(&mr);
        call.file.backing.extend(backing.map(|backing| (mr, backing)));
    }
    call.command.write(CORE_OUT, &words!(rereg_mr_resp, lkey = keys.lkey, rkey = keys.rkey))
}

/// MR.REG_DMABUF_MR. Checks in the order of `UVERBS_HANDLER(UVERBS_METHOD_REG_DMABUF_MR)` in
/// `uverbs_std_types_mr.c`, then of `ib_umem_dmabuf_get`.
pub fn reg_dma_buf<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let (context, server, command) = (call.context()?, call.server, call.command);
    let pd = command.expect_handle(PD)?;
    let number = |id| command.number(id).unwrap_or(0);
    let (offset, length, iova) = (number(OFFSET), number(LENGTH), number(IOVA));
    let apart = offset % PAGE != iova % PAGE;
    refuse_if!(apart, EINVAL, "offset {offset:#x} and iova {iova:#x} differ in their page offset");
    let access = command.number32(ACCESS_FLAGS).unwrap_or(0);
    let others = access & !ACCESS_DMA_BUF;
    refuse_if!(others != 0, EINVAL, "access flags {others:#x} are not for dma-bufs");
    check_access(access)?;
    let fd = command.number32(FD).map_or(-1, |number| number as i32);
    let write = access & ACCESS_LOCAL_WRITE != 0;
    let piece = (offset, length, iova);
    let (start, buffer) = backing::of_dma_buf(&server.events.1, server.is_dma_buf, fd, piece, write)?;
    let request = RegMr { start, length, iova, pd, access };
    let keys = server.nic()?.reg_mr(context, &request)?;
    let give = || {
        command.give(HANDLE, keys.handle.into())?;
        command.write(RESP_LKEY, &keys.lkey.to_ne_bytes())?;
        command.write(RESP_RKEY, &keys.rkey.to_ne_bytes())
    };
    server.or_undo(give, |nic| nic.dereg_mr(context, keys.handle))?;
    call.file.backing.insert(keys.handle, buffer);
    Ok(())
}

/// MR.DESTROY. What lies beneath is let go when the device uses it no more: a dma-buf is unmapped.
pub fn dereg<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let handle = call.command.expect_handle(0)?;
    call.nic()?.dereg_mr(call.context()?, handle)?;
    call.file.backing.remove(&handle);
    Ok(())
}

/// ALLOC_MW. Its mlx5 part, not sent by libmlx5, may ask for several pieces of memory: one is supported.
pub fn alloc_window<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    if let Some(driver) = call.command.input(UHW_IN) {
        use mlx5_alloc_mw as at;
        let words = (driver.u32(at::comp_mask), driver.u8(at::reserved1), driver.u16(at::reserved2));
        let zero = words == (0, 0, 0);
        refuse_if!(!zero, EOPNOTSUPP, "ALLOC_MW: comp_mask and reserved words {words:x?} are not 0");
        let pieces = driver.u8(at::num_klms);
        refuse_if!(pieces > 1, EOPNOTSUPP, "ALLOC_MW: window of {pieces} pieces, 1 at most");
    }
    let (context, input) = (call.context()?, call.core_in);
    let request = AllocMw { pd: input.u32(alloc_mw::pd_handle), kind: input.u8(alloc_mw::mw_type) };
    let made = call.nic()?.alloc_mw(context, &request)?;
    let answer = words!(alloc_mw_resp, mw_handle = made.handle, rkey = made.number);
    let write = || call.command.write(CORE_OUT, &answer);
    call.server.or_undo(write, |nic| nic.dealloc_mw(context, made.handle))
}
