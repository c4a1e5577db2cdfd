//! Devices, contexts, protection domains, memory regions, channels, completion queues, address handles.

use std::ffi::{CStr, c_int, c_void};
use std::mem::{MaybeUninit, size_of};
use std::ptr::NonNull;

use super::{Result, check, function, last_error, not_null};
use crate::sys;

/// `ibv_get_device_list`: the list and its length. Free it with [`free_device_list`].
pub fn get_device_list() -> Result<(NonNull<*mut sys::ibv_device>, usize)> {
    let function = function!(ibv_get_device_list);
    let mut count: c_int = 0;
    // SAFETY: the count is writable.
    let list = unsafe { function(&raw mut count) };
    Ok((not_null("ibv_get_device_list", list)?, usize::try_from(count).unwrap_or(0)))
}

/// `ibv_free_device_list`.
///
/// # Safety
/// `list` is from [`get_device_list`] and not used afterwards, except devices that were opened.
pub unsafe fn free_device_list(list: NonNull<*mut sys::ibv_device>) -> Result<()> {
    let function = function!(ibv_free_device_list);
    // SAFETY: the caller's promise.
    unsafe { function(list.as_ptr()) };
    Ok(())
}

/// `ibv_get_device_name`.
///
/// # Safety
/// `device` is in a list that was not freed, or open.
pub unsafe fn device_name(device: NonNull<sys::ibv_device>) -> Result<String> {
    let function = function!(ibv_get_device_name);
    // SAFETY: the caller's promise.
    let name = not_null("ibv_get_device_name", unsafe { function(device.as_ptr()) }.cast_mut())?;
    // SAFETY: libibverbs gives a NUL-terminated string that lives as long as the device.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// `ibv_get_device_guid`, in the order of its digits.
///
/// # Safety
/// `device` is in a list that was not freed, or open.
pub unsafe fn device_guid(device: NonNull<sys::ibv_device>) -> Result<u64> {
    let function = function!(ibv_get_device_guid);
    // SAFETY: the caller's promise.
    Ok(u64::from_be(unsafe { function(device.as_ptr()) }))
}

/// Whether libmlx5 can be loaded.
pub fn load_mlx5() -> Result<()> {
    sys::mlx5()?;
    Ok(())
}

/// `mlx5dv_is_supported`. Error: libmlx5 is not there.
///
/// # Safety
/// `device` is in a list that was not freed, or open.
pub unsafe fn is_mlx5(device: NonNull<sys::ibv_device>) -> Result<bool> {
    let function = function!(mlx5, "libmlx5.so.1", mlx5dv_is_supported);
    // SAFETY: the caller's promise.
    Ok(unsafe { function(device.as_ptr()) })
}

/// `ibv_open_device`.
///
/// # Safety
/// `device` is in a list that was not freed.
pub unsafe fn open_device(device: NonNull<sys::ibv_device>) -> Result<NonNull<sys::ibv_context>> {
    let function = function!(ibv_open_device);
    // SAFETY: the caller's promise.
    not_null("ibv_open_device", unsafe { function(device.as_ptr()) })
}

/// `ibv_close_device`.
///
/// # Safety
/// No object of `context` is left; it is not used afterwards.
pub unsafe fn close_device(context: NonNull<sys::ibv_context>) -> Result<()> {
    let function = function!(ibv_close_device);
    // SAFETY: the caller's promise.
    check("ibv_close_device", unsafe { function(context.as_ptr()) })
}

/// `ibv_query_device`.
///
/// # Safety
/// `context` is live.
pub unsafe fn query_device(context: NonNull<sys::ibv_context>) -> Result<sys::ibv_device_attr> {
    let function = function!(ibv_query_device);
    let mut attributes = sys::ibv_device_attr::default();
    // SAFETY: the caller's promise; the attributes are writable.
    check("ibv_query_device", unsafe { function(context.as_ptr(), &raw mut attributes) })?;
    Ok(attributes)
}

/// `mlx5dv_get_clock_info`.
///
/// # Safety
/// `context` is live.
pub unsafe fn clock_info(context: NonNull<sys::ibv_context>) -> Result<sys::mlx5dv_clock_info> {
    let function = function!(mlx5, "libmlx5.so.1", mlx5dv_get_clock_info);
    let mut info = sys::mlx5dv_clock_info::default();
    // SAFETY: the caller's promise; the result is writable. A device that is not mlx5 says EOPNOTSUPP.
    check("mlx5dv_get_clock_info", unsafe { function(context.as_ptr(), &raw mut info) })?;
    Ok(info)
}

/// `ibv_query_port`, the exported one: fills what came before `port_cap_flags2`, the same in 39 and 64.
///
/// # Safety
/// `context` is live.
pub unsafe fn query_port(context: NonNull<sys::ibv_context>, port: u8) -> Result<sys::ibv_port_attr> {
    let function = function!(ibv_query_port);
    let mut attributes = sys::ibv_port_attr::default();
    // SAFETY: the caller's promise; `_compat_ibv_port_attr` is the beginning of `ibv_port_attr`.
    check("ibv_query_port", unsafe { function(context.as_ptr(), port, (&raw mut attributes).cast()) })?;
    Ok(attributes)
}

/// `ibv_query_gid_ex`. An empty entry is an error with `ENODATA`.
///
/// # Safety
/// `context` is live.
pub unsafe fn query_gid(
    context: NonNull<sys::ibv_context>,
    port: u8,
    index: u32,
) -> Result<sys::ibv_gid_entry> {
    let function = function!(_ibv_query_gid_ex);
    let mut entry = sys::ibv_gid_entry::default();
    let size = size_of::<sys::ibv_gid_entry>();
    // SAFETY: the caller's promise; the entry is writable and its size told.
    let code = unsafe { function(context.as_ptr(), port.into(), index, &raw mut entry, 0, size) };
    check("ibv_query_gid_ex", code)?;
    Ok(entry)
}

/// `ibv_get_async_event`. Blocks, unless the context's fd was made non-blocking.
///
/// # Safety
/// `context` is live.
pub unsafe fn get_async_event(context: NonNull<sys::ibv_context>) -> Result<sys::ibv_async_event> {
    let function = function!(ibv_get_async_event);
    let mut event = MaybeUninit::zeroed();
    // SAFETY: the caller's promise; the event is writable.
    check("ibv_get_async_event", unsafe { function(context.as_ptr(), event.as_mut_ptr()) })?;
    // SAFETY: zeroes are a valid event (numbers and a pointer), and the call has filled it in.
    Ok(unsafe { event.assume_init() })
}

/// `ibv_ack_async_event`.
///
/// # Safety
/// `event` is from [`get_async_event`], acknowledged once.
pub unsafe fn ack_async_event(event: &mut sys::ibv_async_event) -> Result<()> {
    let function = function!(ibv_ack_async_event);
    // SAFETY: the caller's promise.
    unsafe { function(event) };
    Ok(())
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// `context` is live.
pub unsafe fn alloc_pd(context: NonNull<sys::ibv_context>) -> Result<NonNull<sys::ibv_pd>> {
    let function = function!(ibv_alloc_pd);
    // SAFETY: the caller's promise.
    not_null("ibv_alloc_pd", unsafe { function(context.as_ptr()) })
}

/// `ibv_dealloc_pd`, also of a parent domain.
///
/// # Safety
/// No object of `pd` is left; it is not used afterwards.
pub unsafe fn dealloc_pd(pd: NonNull<sys::ibv_pd>) -> Result<()> {
    let function = function!(ibv_dealloc_pd);
    // SAFETY: the caller's promise.
    check("ibv_dealloc_pd", unsafe { function(pd.as_ptr()) })
}

/// `ibv_alloc_td`.
///
/// # Safety
/// `context` is live.
pub unsafe fn alloc_td(context: NonNull<sys::ibv_context>) -> Result<NonNull<sys::ibv_td>> {
    let mut attributes = sys::ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: the caller's promise; the attributes are valid.
    not_null("ibv_alloc_td", unsafe { sys::inline::ibv_alloc_td(context.as_ptr(), &raw mut attributes) })
}

/// `ibv_dealloc_td`.
///
/// # Safety
/// No parent domain names `td`; it is not used afterwards.
pub unsafe fn dealloc_td(td: NonNull<sys::ibv_td>) -> Result<()> {
    // SAFETY: the caller's promise.
    check("ibv_dealloc_td", unsafe { sys::inline::ibv_dealloc_td(td.as_ptr()) })
}

/// `ibv_alloc_parent_domain` of a PD and a thread domain.
///
/// # Safety
/// All three are live and belong together.
pub unsafe fn alloc_parent_domain(
    context: NonNull<sys::ibv_context>,
    pd: NonNull<sys::ibv_pd>,
    td: NonNull<sys::ibv_td>,
) -> Result<NonNull<sys::ibv_pd>> {
    let mut attributes =
        sys::ibv_parent_domain_init_attr { pd: pd.as_ptr(), td: td.as_ptr(), ..Default::default() };
    // SAFETY: the caller's promise; the attributes are valid.
    let domain = unsafe { sys::inline::ibv_alloc_parent_domain(context.as_ptr(), &raw mut attributes) };
    not_null("ibv_alloc_parent_domain", domain)
}

/// `ibv_reg_mr`, or `ibv_reg_mr_iova2` when an optional right is asked for, as the macro of `verbs.h` does.
///
/// # Safety
/// `pd` is live; the memory stays mapped until [`dereg_mr`], and no Rust reference expects stable content.
pub unsafe fn reg_mr(
    pd: NonNull<sys::ibv_pd>,
    address: *mut c_void,
    length: usize,
    access: u32,
) -> Result<NonNull<sys::ibv_mr>> {
    let pd = pd.as_ptr();
    if access & sys::inline::ACCESS_OPTIONAL_RANGE == 0 {
        let function = function!(ibv_reg_mr);
        // SAFETY: the caller's promise.
        return not_null("ibv_reg_mr", unsafe { function(pd, address, length, access.cast_signed()) });
    }
    let function = function!(ibv_reg_mr_iova2);
    // SAFETY: the caller's promise.
    let mr = unsafe { function(pd, address, length, address.addr() as u64, access) };
    not_null("ibv_reg_mr_iova2", mr)
}

/// `ibv_reg_dmabuf_mr`.
///
/// # Safety
/// `pd` is live; peers write `fd`'s memory at any time, and no Rust reference expects its content to stay.
pub unsafe fn reg_dmabuf_mr(
    pd: NonNull<sys::ibv_pd>,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: u32,
) -> Result<NonNull<sys::ibv_mr>> {
    let function = function!(ibv_reg_dmabuf_mr);
    // SAFETY: the caller's promise.
    let mr = unsafe { function(pd.as_ptr(), offset, length, iova, fd, access.cast_signed()) };
    not_null("ibv_reg_dmabuf_mr", mr)
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// `mr` is live and not used afterwards.
pub unsafe fn dereg_mr(mr: NonNull<sys::ibv_mr>) -> Result<()> {
    let function = function!(ibv_dereg_mr);
    // SAFETY: the caller's promise.
    check("ibv_dereg_mr", unsafe { function(mr.as_ptr()) })
}

/// `ibv_alloc_mw`.
///
/// # Safety
/// `pd` is live.
pub unsafe fn alloc_mw(pd: NonNull<sys::ibv_pd>, kind: sys::ibv_mw_type) -> Result<NonNull<sys::ibv_mw>> {
    // SAFETY: the caller's promise.
    not_null("ibv_alloc_mw", unsafe { sys::inline::ibv_alloc_mw(pd.as_ptr(), kind) })
}

/// `ibv_dealloc_mw`.
///
/// # Safety
/// `mw` is live and not used afterwards.
pub unsafe fn dealloc_mw(mw: NonNull<sys::ibv_mw>) -> Result<()> {
    // SAFETY: the caller's promise.
    check("ibv_dealloc_mw", unsafe { sys::inline::ibv_dealloc_mw(mw.as_ptr()) })
}

/// `ibv_create_comp_channel`.
///
/// # Safety
/// `context` is live.
pub unsafe fn create_comp_channel(
    context: NonNull<sys::ibv_context>,
) -> Result<NonNull<sys::ibv_comp_channel>> {
    let function = function!(ibv_create_comp_channel);
    // SAFETY: the caller's promise.
    not_null("ibv_create_comp_channel", unsafe { function(context.as_ptr()) })
}

/// `ibv_destroy_comp_channel`.
///
/// # Safety
/// No CQ names `channel`; it is not used afterwards.
pub unsafe fn destroy_comp_channel(channel: NonNull<sys::ibv_comp_channel>) -> Result<()> {
    let function = function!(ibv_destroy_comp_channel);
    // SAFETY: the caller's promise.
    check("ibv_destroy_comp_channel", unsafe { function(channel.as_ptr()) })
}

/// `ibv_get_cq_event`: the CQ and the number given at its creation.
///
/// # Safety
/// `channel` is live.
pub unsafe fn get_cq_event(channel: NonNull<sys::ibv_comp_channel>) -> Result<(NonNull<sys::ibv_cq>, usize)> {
    let function = function!(ibv_get_cq_event);
    let mut cq = std::ptr::null_mut();
    let mut number = std::ptr::null_mut::<c_void>();
    // SAFETY: the caller's promise; both results are writable.
    let code = unsafe { function(channel.as_ptr(), &raw mut cq, &raw mut number) };
    check("ibv_get_cq_event", code)?;
    Ok((not_null("ibv_get_cq_event", cq)?, number.addr()))
}

/// `ibv_ack_cq_events` for one event.
///
/// # Safety
/// One event of `cq` was got and not acknowledged yet.
pub unsafe fn ack_cq_event(cq: NonNull<sys::ibv_cq>) -> Result<()> {
    let function = function!(ibv_ack_cq_events);
    // SAFETY: the caller's promise.
    unsafe { function(cq.as_ptr(), 1) };
    Ok(())
}

/// `ibv_create_cq` for at least `entries`; `number` comes back with events.
///
/// # Safety
/// `context` is live, and `channel` too, if there is one.
pub unsafe fn create_cq(
    context: NonNull<sys::ibv_context>,
    entries: u32,
    number: usize,
    channel: Option<NonNull<sys::ibv_comp_channel>>,
    vector: u32,
) -> Result<NonNull<sys::ibv_cq>> {
    let function = function!(ibv_create_cq);
    let number = std::ptr::without_provenance_mut(number);
    let channel = channel.map_or(std::ptr::null_mut(), NonNull::as_ptr);
    // A number above i32::MAX becomes negative, which libmlx5 refuses as it should.
    let (entries, vector) = (entries.cast_signed(), vector.cast_signed());
    // SAFETY: the caller's promise.
    not_null("ibv_create_cq", unsafe { function(context.as_ptr(), entries, number, channel, vector) })
}

/// `ibv_destroy_cq`. Waits until all events that were got are acknowledged.
///
/// # Safety
/// No QP names `cq`; it is not used afterwards.
pub unsafe fn destroy_cq(cq: NonNull<sys::ibv_cq>) -> Result<()> {
    let function = function!(ibv_destroy_cq);
    // SAFETY: the caller's promise.
    check("ibv_destroy_cq", unsafe { function(cq.as_ptr()) })
}

/// `ibv_req_notify_cq`.
///
/// # Safety
/// `cq` is live.
pub unsafe fn req_notify_cq(cq: NonNull<sys::ibv_cq>, solicited_only: bool) -> Result<()> {
    // SAFETY: the caller's promise.
    let code = unsafe { sys::inline::ibv_req_notify_cq(cq.as_ptr(), solicited_only.into()) };
    check("ibv_req_notify_cq", code)
}

/// `ibv_poll_cq`: how many completions were written.
///
/// # Safety
/// `cq` is live, `out` has room for `entries`.
pub unsafe fn poll_cq(cq: NonNull<sys::ibv_cq>, entries: c_int, out: *mut sys::ibv_wc) -> Result<usize> {
    // SAFETY: the caller's promise.
    let count = unsafe { sys::inline::ibv_poll_cq(cq.as_ptr(), entries, out) };
    usize::try_from(count).map_err(|_| last_error("ibv_poll_cq"))
}

/// `ibv_create_ah`.
///
/// # Safety
/// `pd` is live.
pub unsafe fn create_ah(
    pd: NonNull<sys::ibv_pd>,
    attributes: &mut sys::ibv_ah_attr,
) -> Result<NonNull<sys::ibv_ah>> {
    let function = function!(ibv_create_ah);
    // SAFETY: the caller's promise.
    not_null("ibv_create_ah", unsafe { function(pd.as_ptr(), attributes) })
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// `ah` is live and not used afterwards.
pub unsafe fn destroy_ah(ah: NonNull<sys::ibv_ah>) -> Result<()> {
    let function = function!(ibv_destroy_ah);
    // SAFETY: the caller's promise.
    check("ibv_destroy_ah", unsafe { function(ah.as_ptr()) })
}
