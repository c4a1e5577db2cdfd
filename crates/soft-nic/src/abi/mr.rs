//! Protection domains, memory regions and windows.

use super::attributes::{Command, refuse};
use super::commands::{Answer, Commands};
use super::layout::{
    Writer, alloc_mw, alloc_mw_resp, alloc_pd_resp, mlx5_alloc_mw, mlx5_alloc_pd_resp, reg_mr, reg_mr_resp,
    rereg_mr, rereg_mr_resp,
};
use super::server::{OpenFile, Server, UHW_IN, UHW_OUT};
use super::write::{CORE_OUT, Write};
use crate::device::command::{AllocMw, RegMr, ReregMr};

/// `IBV_ACCESS_LOCAL_WRITE`.
const ACCESS_LOCAL_WRITE: u32 = 1;

/// ALLOC_PD.
pub fn alloc_pd<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    let context = file.context()?;
    let made = server.nic()?.alloc_pd(context)?;
    let core = Writer::<{ alloc_pd_resp::SIZE }>::new().u32(alloc_pd_resp::PD_HANDLE, made.handle).finish();
    let driver =
        Writer::<{ mlx5_alloc_pd_resp::SIZE }>::new().u32(mlx5_alloc_pd_resp::PDN, made.pdn).finish();
    let written = write.command.write(CORE_OUT, &core).and_then(|()| write.command.write(UHW_OUT, &driver));
    if written.is_err() {
        server.nic()?.dealloc_pd(context, made.handle)?;
    }
    written
}

/// REG_MR.
pub fn reg<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    let context = file.context()?;
    let request = RegMr {
        start: write.core_in.u64(reg_mr::START),
        length: write.core_in.u64(reg_mr::LENGTH),
        iova: write.core_in.u64(reg_mr::HCA_VA),
        pd: write.core_in.u32(reg_mr::PD_HANDLE),
        access: write.core_in.u32(reg_mr::ACCESS_FLAGS),
    };
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
    if written.is_err() {
        server.nic()?.dereg_mr(context, keys.handle)?;
    }
    written
}

/// REREG_MR.
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
    let keys = server.nic()?.rereg_mr(file.context()?, &request)?;
    let answer = Writer::<{ rereg_mr_resp::SIZE }>::new()
        .u32(rereg_mr_resp::LKEY, keys.lkey)
        .u32(rereg_mr_resp::RKEY, keys.rkey)
        .finish();
    write.command.write(CORE_OUT, &answer)
}

/// MR.DESTROY.
pub fn destroy<D: Commands>(server: &Server<D>, file: &mut OpenFile, command: &Command<'_>) -> Answer<()> {
    server.nic()?.dereg_mr(file.context()?, command.expect_handle(0)?)
}

/// ALLOC_MW. Its mlx5 part, which libmlx5 does not send, may ask for a number of pieces of memory: one is what there is.
pub fn alloc_window<D: Commands>(server: &Server<D>, file: &mut OpenFile, write: &Write<'_>) -> Answer<()> {
    if let Some(driver) = write.command.input(UHW_IN) {
        let reserved = driver.u8(mlx5_alloc_mw::RESERVED1) != 0 || driver.u16(mlx5_alloc_mw::RESERVED2) != 0;
        if driver.u32(mlx5_alloc_mw::COMP_MASK) != 0 || reserved || driver.u8(mlx5_alloc_mw::NUM_KLMS) > 1 {
            return Err(refuse(libc::EOPNOTSUPP, "ALLOC_MW: only windows of one piece"));
        }
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
    if written.is_err() {
        server.nic()?.dealloc_mw(context, made.handle)?;
    }
    written
}

/// MW.DESTROY.
pub fn destroy_window<D: Commands>(
    server: &Server<D>,
    file: &mut OpenFile,
    command: &Command<'_>,
) -> Answer<()> {
    server.nic()?.dealloc_mw(file.context()?, command.expect_handle(0)?)
}
