//! ThreadSanitizer, where the program is built with it: what it knows of this library.

use std::ffi::{CStr, c_char};

/// Without it each mutex and queue of the NIC's threads is a data race: their atomics are not instrumented.
const SUPPRESSIONS: &CStr = c"called_from_lib:libsoftnic_preload.so\n";

/// Called by the shared run-time library at its start, before it reads `TSAN_OPTIONS`
/// (`sanitizer/tsan_interface.h` of compiler-rt). A program's own function of the name takes precedence.
#[unsafe(no_mangle)]
pub extern "C" fn __tsan_default_suppressions() -> *const c_char {
    SUPPRESSIONS.as_ptr()
}
