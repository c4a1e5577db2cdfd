//! The `static inline` functions of `verbs.h`: calls through pointers that the provider put in the context.
//!
//! They exist in no library, so each is rewritten here from the inline function of the same name.
//! `struct verbs_context` grows at its front and keeps every distance to the `ibv_context` at its end
//! (39 to 64 agree; `verbs-ctest` compares with the headers), hence distances instead of a struct.

use std::ffi::c_int;
use std::mem::size_of;

use super::ibverbs::{
    IBV_MW_TYPE_1, ibv_context, ibv_cq, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_parent_domain_init_attr,
    ibv_pd, ibv_qp, ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, ibv_td, ibv_td_init_attr, ibv_wc,
};

/// Bytes from an operation's pointer in `struct verbs_context` to the context.
pub mod distance {
    /// `sz`.
    pub const SIZE: usize = 8;
    pub const CREATE_QP_EX: usize = 56;
    pub const ALLOC_TD: usize = 192;
    pub const DEALLOC_TD: usize = 200;
    pub const ALLOC_PARENT_DOMAIN: usize = 208;
}

/// `IBV_ACCESS_OPTIONAL_RANGE`: rights that a kernel may ignore (bits 20 to 29).
pub const ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;

/// `IBV_QPF_GRH_REQUIRED`, a constant of a nameless enum: bit of `ibv_port_attr.flags`.
pub const QPF_GRH_REQUIRED: u8 = 1;

/// `IBV_LINK_LAYER_ETHERNET`, likewise: value of `ibv_port_attr.link_layer`.
pub const LINK_LAYER_ETHERNET: u8 = 2;

/// Functions that call the operation of their own name in their first argument's context, and what they
/// return where the provider has none.
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $name:ident = $operation:ident($object:ident: $object_type:ty $(, $argument:ident: $type:ty)*) -> $result:ty, else $otherwise:expr;
    )*) => { $(
        $(#[$doc])*
        pub unsafe fn $name($object: $object_type $(, $argument: $type)*) -> $result {
            // SAFETY: the caller's promise.
            let context = unsafe { (*$object).context };
            // SAFETY: a live object keeps its context, whose operations the provider has filled in.
            match unsafe { (*context).ops.$operation } {
                // SAFETY: the caller's promise.
                Some(operation) => unsafe { operation($object $(, $argument)*) },
                None => $otherwise,
            }
        }
    )* };
}

operations! {
    /// `ibv_post_send`. Returns a positive errno, or 0.
    ///
    /// # Safety
    /// `qp` is a live queue pair, `wr` a list of valid requests, `bad_wr` writable.
    ibv_post_send = post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int, else libc::EOPNOTSUPP;

    /// `ibv_post_recv`. Returns a positive errno, or 0.
    ///
    /// # Safety
    /// `qp` is a live queue pair, `wr` a list of valid requests, `bad_wr` writable.
    ibv_post_recv = post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int, else libc::EOPNOTSUPP;

    /// `ibv_poll_cq`. Returns the number of completions written, or a negative number.
    ///
    /// # Safety
    /// `cq` is a live completion queue, `wc` has room for `entries`.
    ibv_poll_cq = poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int, else -libc::EOPNOTSUPP;

    /// `ibv_req_notify_cq`. Returns a positive errno, or 0.
    ///
    /// # Safety
    /// `cq` is a live completion queue.
    ibv_req_notify_cq = req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int, else libc::EOPNOTSUPP;

    /// `ibv_alloc_mw`. Null with errno.
    ///
    /// # Safety
    /// `pd` is live.
    ibv_alloc_mw = alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw, else unsupported();

    /// `ibv_dealloc_mw`. Returns a positive errno, or 0.
    ///
    /// # Safety
    /// `mw` is live and not used afterwards.
    ibv_dealloc_mw = dealloc_mw(mw: *mut ibv_mw) -> c_int, else libc::EOPNOTSUPP;
}

/// `ibv_bind_mw`, for windows of type 1. Returns a positive errno, or 0.
///
/// # Safety
/// `qp` and `mw` are live; `bind` is valid and names a live region, or none.
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { (*mw).type_ } != IBV_MW_TYPE_1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    let context = unsafe { (*mw).context };
    // SAFETY: a live object keeps its context, whose operations the provider has filled in.
    match unsafe { (*context).ops.bind_mw } {
        // SAFETY: the caller's promise.
        Some(bind_mw) => unsafe { bind_mw(qp, mw, bind) },
        None => libc::EOPNOTSUPP,
    }
}

/// Pointer of the operation at this distance, as `verbs_get_ctx_op` finds it.
///
/// # Safety
/// `context` is a live context.
unsafe fn extended_operation(context: *mut ibv_context, distance: usize) -> Option<*const ()> {
    // `__VERBS_ABI_IS_EXTENDED` is `((uint8_t *) NULL) - 1`.
    // SAFETY: the caller's promise.
    if unsafe { (*context).abi_compat }.addr() != usize::MAX {
        return None;
    }
    let at = |distance: usize| context.cast::<u8>().wrapping_sub(distance).cast::<usize>();
    // SAFETY: an extended context is the end of a `verbs_context`, whose `sz` stands right before it.
    let size = unsafe { at(distance::SIZE).read() };
    if size < distance + size_of::<ibv_context>() {
        return None;
    }
    // SAFETY: `sz` says that the structure reaches that far.
    let operation = unsafe { at(distance).cast::<*const ()>().read() };
    (!operation.is_null()).then_some(operation)
}

/// Functions that make an object of a context by the operation at a distance from it. Null with errno.
macro_rules! extended_operations {
    ($($name:ident($attributes:ty) -> $object:ty, at $distance:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`. Null with errno.")]
        ///
        /// # Safety
        /// `context` is live; `attributes` is valid and names live objects.
        pub unsafe fn $name(context: *mut ibv_context, attributes: *mut $attributes) -> *mut $object {
            type Operation = unsafe extern "C" fn(*mut ibv_context, *mut $attributes) -> *mut $object;
            // SAFETY: the caller's promise.
            let Some(operation) = (unsafe { extended_operation(context, distance::$distance) }) else {
                return unsupported();
            };
            // SAFETY: the pointer at this place has this type in `struct verbs_context`.
            let operation: Operation = unsafe { std::mem::transmute(operation) };
            // SAFETY: the caller's promise.
            unsafe { operation(context, attributes) }
        }
    )* };
}

extended_operations! {
    ibv_create_qp_ex(ibv_qp_init_attr_ex) -> ibv_qp, at CREATE_QP_EX;
    ibv_alloc_td(ibv_td_init_attr) -> ibv_td, at ALLOC_TD;
    ibv_alloc_parent_domain(ibv_parent_domain_init_attr) -> ibv_pd, at ALLOC_PARENT_DOMAIN;
}

/// `ibv_dealloc_td`. Returns a positive errno, or 0.
///
/// # Safety
/// `domain` is live and not used afterwards.
pub unsafe fn ibv_dealloc_td(domain: *mut ibv_td) -> c_int {
    type Operation = unsafe extern "C" fn(*mut ibv_td) -> c_int;
    // SAFETY: the caller's promise.
    let context = unsafe { (*domain).context };
    // SAFETY: a live thread domain keeps its context.
    let Some(operation) = (unsafe { extended_operation(context, distance::DEALLOC_TD) }) else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: the pointer at this place has this type in `struct verbs_context`.
    let operation: Operation = unsafe { std::mem::transmute(operation) };
    // SAFETY: the caller's promise.
    unsafe { operation(domain) }
}

/// Null, with errno `EOPNOTSUPP` as the inline functions leave it.
fn unsupported<T>() -> *mut T {
    // SAFETY: no requirements.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: errno's address is valid for the life of the thread.
    unsafe { errno.write(libc::EOPNOTSUPP) };
    std::ptr::null_mut()
}
