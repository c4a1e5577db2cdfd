//! The end of the program: normal exit runs this library's destructors, `_exit` is hooked. `_exit` is allowed
//! in signal handlers, so there the NIC's thread does all that takes a lock or memory.
//!
//! A program that ends by a signal reports nothing.

use std::ffi::c_int;

use super::nic;
use super::raw::{hooks, syscall};

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    nic::end();
}

// `exit` itself does not come here: it calls the C library's own.
hooks!(_exit, _Exit => (status: c_int) -> ! {
    nic::leave();
    loop {
        // SAFETY: ends the process.
        unsafe { syscall!(SYS_exit_group, status) };
    }
});
