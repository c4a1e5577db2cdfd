//! Protection domains, memory regions and windows.

use mlx5_device::command::{AllocMw, RegMr, ReregMr, refuse_if};
use mlx5_device::mr::check_access;
use mlx5_device::rereg_change as change;
use mlx5_device::{Answer, Commands};

use super::attributes::{CORE_OUT, Command, UHW_IN, UHW_OUT, Write};
use super::backing;
use super::layout::{
    Writer, alloc_mw, alloc_mw_resp, alloc_pd_resp, mlx5_alloc_mw, mlx5_alloc_pd_resp, reg_mr, reg_mr_resp,
    rereg_mr, rereg_mr_resp,
};
use super::server::{OpenFile, Server};

/// `IBV_ACCESS_LOCAL_WRITE`.
const ACCESS_LOCAL_WRITE: u32 = 1;
/// What a region in a dma-buf may be allowed: local and remote writes, remote reads, atomics, relaxed ordering.
const ACCESS_DMA_BUF: u32 = 0xf | 1 << 20;
const PAGE: u64 = 4096;

/// Attributes of REG_DMABUF_MR (`uverbs_attrs_reg_dmabuf_mr_cmd_attr_ids`).
pub mod dma_buf {
    /// Place for the region's handle.
    pub const HANDLE: u16 = 0;
    pub const PD: u16 = 1;
    /// First byte in the buffer, u64.
    pub const OFFSET: u16 = 2;
    /// Bytes, u64.
    pub const LENGTH: u16 = 3;
    /// Address by which work requests name the first byte, u64.
    pub const IOVA: u16 = 4;
    /// Descriptor of the buffer, as a number of 32 bits.
    pub const FD: u16 = 5;
    /// `IBV_ACCESS_*` bits, u32.
    pub const ACCESS_FLAGS: u16 = 6;
    /// Local key, u32.
    pub const RESP_LKEY: u16 = 7;
    /// Remote key, u32.
    pub const RESP_RKEY: u16 = 8;
}

pub fn alloc_pd<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    let context = file.context()?;
    let made = server.nic()?.alloc_pd(context)?;
    let core = Writer::<{ alloc_pd_resp::SIZE }>::new().u32(alloc_pd_resp::PD_HANDLE, made.handle).finish();
    let driver =
        Writer::<{ mlx5_alloc_pd_resp::SIZE }>::new().u32(mlx5_alloc_pd_resp::PDN, made.pdn).finish();
    let written = write.command.write(CORE_OUT, &core).and_then(|()| write.command.write(UHW_OUT, &driver));
    server.or_undo(written, |nic| nic.dealloc_pd(context, made.handle))
}

pub fn reg<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    let context = file.context()?;
    let request = RegMr {
        start: write.core_in.u64(reg_mr::START),
        length: write.core_in.u64(reg_mr::LENGTH),
        iova: write.core_in.u64(reg_mr::HCA_VA),
        pd: write.core_in.u32(reg_mr::PD_HANDLE),
        access: write.core_in.u32(reg_mr::ACCESS_FLAGS),
    };
    let backing = backing::of_addresses(&server.refusals, request.start, request.length)?;
    // Bringing gigabytes of pages in takes long: not with the lock held, where every queue would wait. The device asks again
    // and finds them there; whatever is wrong is its to say, in its order.
    let _ =
        server.memory.probe(request.start, request.length.max(1), request.access & ACCESS_LOCAL_WRITE != 0);
    let keys = server.nic()?.reg_mr(context, &request)?;
    let answer = Writer::<{ reg_mr_resp::SIZE }>::new()
        .u32(reg_mr_resp::MR_HANDLE, keys.handle)
        .u32(reg_mr_resp::LKEY, keys.lkey)
        .u32(reg_mr_resp::RKEY, keys.rkey)
        .finish();
    let written = write.command.write(CORE_OUT, &answer);
    server.or_undo(written, |nic| nic.dereg_mr(context, keys.handle))?;
    if let Some(backing) = backing {
        file.backing.insert(keys.handle, backing);
    }
    Ok(())
}

pub fn rereg<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    use rereg_mr as at;
    let input = write.core_in;
    let request = ReregMr {
        mr: input.u32(at::MR_HANDLE),
        flags: input.u32(at::FLAGS),
        start: input.u64(at::START),
        length: input.u64(at::LENGTH),
        iova: input.u64(at::HCA_VA),
        pd: input.u32(at::PD_HANDLE),
        access: input.u32(at::ACCESS_FLAGS),
    };
    let moves = request.flags & change::TRANSLATION != 0;
    let backing =
        if moves { backing::of_addresses(&server.refusals, request.start, request.length)? } else { None };
    let keys = server.nic()?.rereg_mr(file.context()?, &request)?;
    if moves {
        // Other memory from now on; what it was in until now has no user any more.
        match backing {
            Some(backing) => _ = file.backing.insert(request.mr, backing),
            None => _ = file.backing.remove(&request.mr),
        }
    }
    let answer = Writer::<{ rereg_mr_resp::SIZE }>::new()
        .u32(rereg_mr_resp::LKEY, keys.lkey)
        .u32(rereg_mr_resp::RKEY, keys.rkey)
        .finish();
    write.command.write(CORE_OUT, &answer)
}

/// MR.REG_DMABUF_MR. Checks in the order of `UVERBS_HANDLER(UVERBS_METHOD_REG_DMABUF_MR)` in `uverbs_std_types_mr.c`, then of
/// `ib_umem_dmabuf_get`.
pub fn reg_dma_buf<D: Commands>(
    server: &Server<D>,
    file: &mut OpenFile,
    command: &Command<'_>,
) -> Answer<()> {
    let context = file.context()?;
    let pd = command.expect_handle(dma_buf::PD)?;
    let number = |id| command.number(id).unwrap_or(0);
    let (offset, length, iova) = (number(dma_buf::OFFSET), number(dma_buf::LENGTH), number(dma_buf::IOVA));
    let apart = offset % PAGE != iova % PAGE;
    refuse_if!(apart, EINVAL, "offset {offset:#x} and iova {iova:#x} differ in their page offset");
    let access = command.number32(dma_buf::ACCESS_FLAGS).unwrap_or(0);
    let others = access & !ACCESS_DMA_BUF;
    refuse_if!(others != 0, EINVAL, "access flags {others:#x} are not for dma-bufs");
    check_access(access)?;
    let fd = command.number32(dma_buf::FD).map_or(-1, |number| number as i32);
    let write = access & ACCESS_LOCAL_WRITE != 0;
    let piece = (offset, length, iova);
    let (start, buffer) = backing::of_dma_buf(&server.refusals, server.is_dma_buf, fd, piece, write)?;
    let request = RegMr { start, length, iova, pd, access };
    let keys = server.nic()?.reg_mr(context, &request)?;
    let written = command
        .give(dma_buf::HANDLE, keys.handle.into())
        .and_then(|()| command.write(dma_buf::RESP_LKEY, &keys.lkey.to_ne_bytes()))
        .and_then(|()| command.write(dma_buf::RESP_RKEY, &keys.rkey.to_ne_bytes()));
    match written {
        Ok(()) => _ = file.backing.insert(keys.handle, buffer),
        Err(_) => server.nic()?.dereg_mr(context, keys.handle)?,
    }
    written
}

/// MR.DESTROY and DEREG_MR. What lies beneath is let go when the device uses it no more: a dma-buf is unmapped.
pub fn dereg<D: Commands>(server: &Server<D>, file: &mut OpenFile, handle: u32) -> Answer<()> {
    server.nic()?.dereg_mr(file.context()?, handle)?;
    file.backing.remove(&handle);
    Ok(())
}

/// ALLOC_MW. Its mlx5 part, which libmlx5 does not send, may ask for a number of pieces of memory: one is what there is.
pub fn alloc_window<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    if let Some(driver) = write.command.input(UHW_IN) {
        let reserved = driver.u8(mlx5_alloc_mw::RESERVED1) != 0 || driver.u16(mlx5_alloc_mw::RESERVED2) != 0;
        refuse_if!(
            driver.u32(mlx5_alloc_mw::COMP_MASK) != 0 || reserved || driver.u8(mlx5_alloc_mw::NUM_KLMS) > 1,
            EOPNOTSUPP,
            "ALLOC_MW: only windows of one piece"
        );
    }
    let context = file.context()?;
    let request =
        AllocMw { pd: write.core_in.u32(alloc_mw::PD_HANDLE), kind: write.core_in.u8(alloc_mw::MW_TYPE) };
    let made = server.nic()?.alloc_mw(context, &request)?;
    let answer = Writer::<{ alloc_mw_resp::SIZE }>::new()
        .u32(alloc_mw_resp::MW_HANDLE, made.handle)
        .u32(alloc_mw_resp::RKEY, made.rkey)
        .finish();
    let written = write.command.write(CORE_OUT, &answer);
    server.or_undo(written, |nic| nic.dealloc_mw(context, made.handle))
}

/// MW.DESTROY.
pub fn destroy_window<D: Commands>(
    server: &Server<D>,
    file: &mut OpenFile,
    command: &Command<'_>,
) -> Answer<()> {
    server.nic()?.dealloc_mw(file.context()?, command.expect_handle(0)?)
}
