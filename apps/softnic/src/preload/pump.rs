//! The pump: also runs the NIC inside the program's own `ibv_poll_cq`. Off unless configured.
//!
//! Two programs that poll on two cores leave none for two NIC threads; then a message waits for a scheduler
//! tick. With the pump, an empty poll runs the NIC on the program's own time and polls again. The unmodified
//! libmlx5 keeps the rings: only the pointer in `ibv_context.ops`, which `ibv_poll_cq` calls through, is
//! replaced. The time spent counts as the NIC's (`pump_ns` in the stats).

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::nic;
use super::raw::{NextFunction, Uncancelled, fail, hooks};
use super::virtual_tree::virtual_tree;

/// Offset of `ops.poll_cq` in `struct ibv_context` (`infiniband/verbs.h`, rdma-core 39 to 64): after the
/// device pointer, the twelfth of the operations.
const POLL_CQ: usize = 8 + 11 * 8;

type PollCq = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
type OpenDevice = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// libmlx5's own function: one for all its contexts.
static POLL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The real function. RTLD_NEXT misses a libibverbs loaded by `dlopen(RTLD_LOCAL)`, as under Python.
fn open_device() -> Option<OpenDevice> {
    static NEXT: NextFunction = NextFunction::new("ibv_open_device\0");
    let mut found = NEXT.get();
    if found.is_null() {
        // SAFETY: asks for a library that is loaded already, without loading it.
        let library =
            unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        // SAFETY: a handle and two C strings.
        found = unsafe { libc::dlvsym(library, c"ibv_open_device".as_ptr(), c"IBVERBS_1.1".as_ptr()) };
    }
    // SAFETY: libibverbs' function of this name has this signature.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, OpenDevice>(found) })
}

hooks!(ibv_open_device => (device: *mut c_void) -> *mut c_void {
    let Some(next) = open_device() else { return fail(libc::ENOSYS) };
    // SAFETY: the program's own argument.
    let context = unsafe { next(device) };
    if !context.is_null() && virtual_tree().config.pump {
        // SAFETY: `ops.poll_cq` of a context that was just opened and is not polled yet.
        let place = unsafe { context.byte_add(POLL_CQ) }.cast::<*mut c_void>();
        // SAFETY: as above.
        let poll = unsafe { place.read() };
        if poll != poll_cq as PollCq as *mut c_void {
            POLL.store(poll, Ordering::Release);
            // SAFETY: as above.
            unsafe { place.write(poll_cq as PollCq as *mut c_void) };
        }
    }
    context
});

/// What a pumped context calls for `ibv_poll_cq`.
unsafe extern "C" fn poll_cq(cq: *mut c_void, entries: c_int, completions: *mut c_void) -> c_int {
    // SAFETY: set before any context pointed here.
    let poll = unsafe { std::mem::transmute::<*mut c_void, PollCq>(POLL.load(Ordering::Acquire)) };
    // SAFETY: the program's own arguments.
    let found = unsafe { poll(cq, entries, completions) };
    if found != 0 {
        return found;
    }
    if let Some(nic) = nic::pumped() {
        let _whole = Uncancelled::new();
        nic::add_polled_ns(nic.process.pump());
    }
    // SAFETY: the program's own arguments.
    unsafe { poll(cq, entries, completions) }
}
