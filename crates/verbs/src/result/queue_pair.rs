//! Queue pairs: create, modify, query, post; and what `mlx5dv_init_obj` tells about their memory.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use super::{Result, check, function, not_null};
use crate::sys;

/// `ibv_create_qp`.
///
/// # Safety
/// `pd` is live; the attributes name live objects.
pub unsafe fn create_qp(
    pd: NonNull<sys::ibv_pd>,
    attributes: &mut sys::ibv_qp_init_attr,
) -> Result<NonNull<sys::ibv_qp>> {
    let function = function!(ibv_create_qp);
    // SAFETY: the caller's promise.
    not_null("ibv_create_qp", unsafe { function(pd.as_ptr(), attributes) })
}

/// `mlx5dv_create_qp`.
///
/// # Safety
/// `context` is live and of an mlx5 device; the attributes name live objects.
pub unsafe fn create_mlx5_qp(
    context: NonNull<sys::ibv_context>,
    attributes: &mut sys::ibv_qp_init_attr_ex,
    mlx5: &mut sys::mlx5dv_qp_init_attr,
) -> Result<NonNull<sys::ibv_qp>> {
    let function = function!(mlx5, "libmlx5.so.1", mlx5dv_create_qp);
    // SAFETY: the caller's promise.
    not_null("mlx5dv_create_qp", unsafe { function(context.as_ptr(), attributes, mlx5) })
}

/// `ibv_create_qp_ex`.
///
/// # Safety
/// `context` is live; the attributes name live objects.
pub unsafe fn create_qp_ex(
    context: NonNull<sys::ibv_context>,
    attributes: &mut sys::ibv_qp_init_attr_ex,
) -> Result<NonNull<sys::ibv_qp>> {
    // SAFETY: the caller's promise.
    not_null("ibv_create_qp_ex", unsafe { sys::inline::ibv_create_qp_ex(context.as_ptr(), attributes) })
}

/// `ibv_destroy_qp`. Waits until all asynchronous events that were got are acknowledged.
///
/// # Safety
/// `qp` is live and not used afterwards.
pub unsafe fn destroy_qp(qp: NonNull<sys::ibv_qp>) -> Result<()> {
    let function = function!(ibv_destroy_qp);
    // SAFETY: the caller's promise.
    check("ibv_destroy_qp", unsafe { function(qp.as_ptr()) })
}

/// `ibv_modify_qp`.
///
/// # Safety
/// `qp` is live.
pub unsafe fn modify_qp(
    qp: NonNull<sys::ibv_qp>,
    attributes: &mut sys::ibv_qp_attr,
    mask: u32,
) -> Result<()> {
    let function = function!(ibv_modify_qp);
    // SAFETY: the caller's promise.
    check("ibv_modify_qp", unsafe { function(qp.as_ptr(), attributes, mask.cast_signed()) })
}

/// `ibv_query_qp`.
///
/// # Safety
/// `qp` is live.
pub unsafe fn query_qp(
    qp: NonNull<sys::ibv_qp>,
    mask: u32,
) -> Result<(sys::ibv_qp_attr, sys::ibv_qp_init_attr)> {
    let function = function!(ibv_query_qp);
    let mut attributes = sys::ibv_qp_attr::default();
    let mut initial = sys::ibv_qp_init_attr::default();
    let mask = mask.cast_signed();
    // SAFETY: the caller's promise; both results are writable.
    let code = unsafe { function(qp.as_ptr(), &raw mut attributes, mask, &raw mut initial) };
    check("ibv_query_qp", code)?;
    Ok((attributes, initial))
}

/// `ibv_post_send`: the request that was refused, and why.
///
/// # Safety
/// `qp` is live; `first` starts a valid list, whose inline data is readable.
pub unsafe fn post_send(
    qp: NonNull<sys::ibv_qp>,
    first: *mut sys::ibv_send_wr,
) -> std::result::Result<(), (*mut sys::ibv_send_wr, io::Error)> {
    let mut bad = std::ptr::null_mut();
    // SAFETY: the caller's promise; `bad` is writable.
    match unsafe { sys::inline::ibv_post_send(qp.as_ptr(), first, &raw mut bad) } {
        0 => Ok(()),
        code => Err((bad, errno_of(code))),
    }
}

/// `ibv_post_recv`: the request that was refused, and why.
///
/// # Safety
/// `qp` is live; `first` starts a valid list.
pub unsafe fn post_recv(
    qp: NonNull<sys::ibv_qp>,
    first: *mut sys::ibv_recv_wr,
) -> std::result::Result<(), (*mut sys::ibv_recv_wr, io::Error)> {
    let mut bad = std::ptr::null_mut();
    // SAFETY: the caller's promise; `bad` is writable.
    match unsafe { sys::inline::ibv_post_recv(qp.as_ptr(), first, &raw mut bad) } {
        0 => Ok(()),
        code => Err((bad, errno_of(code))),
    }
}

/// `ibv_bind_mw`.
///
/// # Safety
/// `qp` and `mw` are live; `bind` names a live region, or none.
pub unsafe fn bind_mw(
    qp: NonNull<sys::ibv_qp>,
    mw: NonNull<sys::ibv_mw>,
    bind: &mut sys::ibv_mw_bind,
) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { sys::inline::ibv_bind_mw(qp.as_ptr(), mw.as_ptr(), bind) } {
        0 => Ok(()),
        code => Err(errno_of(code)),
    }
}

fn errno_of(code: c_int) -> io::Error {
    if code == -1 { io::Error::last_os_error() } else { io::Error::from_raw_os_error(code.abs()) }
}

/// `mlx5dv_init_obj` of a queue pair.
///
/// # Safety
/// `qp` is live and of an mlx5 device.
pub unsafe fn init_qp(qp: NonNull<sys::ibv_qp>) -> Result<sys::mlx5dv_qp> {
    let mut out = sys::mlx5dv_qp::default();
    let mut object = sys::mlx5dv_obj::default();
    object.qp.in_ = qp.as_ptr();
    object.qp.out = &raw mut out;
    // SAFETY: the caller's promise; `out` is writable.
    unsafe { init_obj(&mut object, sys::MLX5DV_OBJ_QP) }?;
    Ok(out)
}

/// `mlx5dv_init_obj` of a completion queue. From now on libmlx5 leaves its consumer index alone.
///
/// # Safety
/// `cq` is live and of an mlx5 device.
pub unsafe fn init_cq(cq: NonNull<sys::ibv_cq>) -> Result<sys::mlx5dv_cq> {
    let mut out = sys::mlx5dv_cq::default();
    let mut object = sys::mlx5dv_obj::default();
    object.cq.in_ = cq.as_ptr();
    object.cq.out = &raw mut out;
    // SAFETY: the caller's promise; `out` is writable.
    unsafe { init_obj(&mut object, sys::MLX5DV_OBJ_CQ) }?;
    Ok(out)
}

/// # Safety
/// The members that `kind` names hold live objects and writable results.
unsafe fn init_obj(object: &mut sys::mlx5dv_obj, kind: u32) -> Result<()> {
    let function = function!(mlx5, "libmlx5.so.1", mlx5dv_init_obj);
    // SAFETY: the caller's promise.
    check("mlx5dv_init_obj", unsafe { function(object, kind.into()) })
}
